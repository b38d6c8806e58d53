"""The search of the audit, on PostgreSQL: it finds exactly what matches, of one tenant, in bounded time."""

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.core.canonical import canonicalize, compute_commitment
from deputize.core.clock import Clock
from deputize.evidence.entry_filters import EntryFilter
from deputize.store.pool import Store
from deputize.store.queries import load_statements

pytestmark = pytest.mark.requirement("GOV-5")

SQL = load_statements("audit_search")
FIRST, END = UUID(int=0), UUID(int=(1 << 128) - 1)
COUNT = 4000
USERS, AGENTS = [f"{n:064x}" for n in range(40)], [f"{n:064x}" for n in range(100, 105)]
SESSIONS = ["plain", 'a "quoted" one', "nul\x00inside", "back\\slash", "ünï ] , \n"]


def _make_entry(draw: random.Random, number: int, entry_id: UUID) -> dict[str, Any]:
    kind = draw.choices(["read", "intent", "outcome", "refusal", "command"], [60, 15, 15, 9, 1])[0]
    entry: dict[str, Any] = {
        "caller": [draw.choice(USERS), *draw.sample(AGENTS, draw.randrange(3))] if kind != "outcome" else [],
        "id": str(entry_id), "kind": kind, "tenant": "acme", "time": "2026-11-16T00:00:00.000Z",
        "trace": f"{number:032x}", "v": 2,
    }  # fmt: skip
    if kind == "command":
        return {**entry, "command": "register", "outcome": "succeeded", "subject": '"tool":"crm.t1"'}
    entry |= {"tool": f"crm.t{int(40 * draw.random() ** 3)}", "session": draw.choice(SESSIONS)}
    entry["outcome"] = draw.choices(["succeeded", "failed", "denied", "unknown"], [90, 5, 4, 1])[0]
    if draw.random() < 0.9:
        entry["rules"] = draw.sample(["token-scopes", "reads-are-free", "rare-rule", "ask-first"], draw.randrange(1, 4))
    if draw.random() < 0.5:
        entry["scopes"] = [f"read {draw.choice(['orders', 'users'])} x/{{id}}", "…"]
    if draw.random() < 0.05:
        entry["approval"] = str(entry_id)
    return entry


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def search_data(module_database: str) -> AsyncIterator[tuple[Store, list[dict[str, Any]]]]:
    """Entries of two days, newest first, and the same ones of another tenant."""
    draw = random.Random(7)
    now_ms = Clock().epoch_ms()
    db = await asyncpg.connect(module_database)
    entries = []
    for number in range(COUNT):
        millisecond = now_ms - int((COUNT - number) * 86_400_000 / COUNT)
        entry_id = UUID(int=millisecond << 80 | 7 << 76 | number << 40 | draw.getrandbits(40))
        entries.append(_make_entry(draw, number, entry_id))
    rows = [
        (tenant, UUID(each["id"]), canonicalize({**each, "tenant": tenant}))
        for each in entries
        for tenant in ("acme", "other")
    ]
    await db.executemany("insert into deputize.audit_entries (tenant, id, entry) values ($1, $2, $3)", rows)
    store = await Store.open(module_database)
    entries.reverse()
    yield store, entries
    await store.close()
    await db.close()


async def _search(
    store: Store, wanted: EntryFilter, *, tenant: str = "acme", limit: int = 50, milliseconds: int = 60_000
) -> tuple[list[str], int]:
    """All ids, page by page, and the number of pages."""
    found: list[str] = []
    before, pages = END, 0
    while True:
        async with store.read_transaction(tenant) as connection:
            rows: Sequence[asyncpg.Record] = await connection.fetch(
                SQL["search_entries"], wanted.list_labels(), orjson.dumps(wanted.list_needles()).decode(), FIRST,
                before, limit, milliseconds,
            )  # fmt: skip
        pages += 1
        page = [orjson.loads(row["entry"]) for row in rows if row["entry"] is not None]
        assert all(each["tenant"] == tenant for each in page)
        found += [each["id"] for each in page if wanted.is_match(each)]
        if not rows or (len(rows) < limit and rows[-1]["entry"] is not None):
            return found, pages
        before = rows[-1]["id"]


FILTERS = [
    EntryFilter(),
    EntryFilter(tool="crm.t0"),
    EntryFilter(tool="crm.t39"),
    EntryFilter(user=USERS[3]),
    EntryFilter(agent=AGENTS[1]),
    EntryFilter(user=USERS[3], agent=AGENTS[1], kind="read"),
    EntryFilter(kind="command"),
    EntryFilter(kind="read", rule="rare-rule", resource="orders"),
    EntryFilter(outcome="unknown"),
    EntryFilter(decision="deny"),
    EntryFilter(decision="ask"),
    EntryFilter(decision="allow", user=USERS[9]),
    EntryFilter(resource="users", tool="crm.t10"),
    *(EntryFilter(session=each, tool="crm.t5") for each in SESSIONS),
    EntryFilter(trace=f"{17:032x}"),
    EntryFilter(trace=f"{COUNT + 1:032x}"),
    EntryFilter(chain=(USERS[1], AGENTS[0])),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=[" ".join(each.list_labels()) or "all" for each in FILTERS])
async def test_a_search_finds_exactly_what_matches_newest_first(
    wanted: EntryFilter, search_data: tuple[Store, list[dict[str, Any]]]
) -> None:
    store, entries = search_data
    expected = [each["id"] for each in entries if wanted.is_match(each)]
    assert expected or wanted.trace == f"{COUNT + 1:032x}"
    assert (await _search(store, wanted))[0] == expected


async def test_a_search_whose_time_is_over_says_how_far_it_came_and_goes_on_from_there(
    search_data: tuple[Store, list[dict[str, Any]]],
) -> None:
    store, entries = search_data
    for wanted in (EntryFilter(kind="read", trace=f"{17:032x}"), EntryFilter(kind="yield"), EntryFilter(kind="intent")):
        found, pages = await _search(store, wanted, milliseconds=0, limit=2000)
        assert found == [each["id"] for each in entries if wanted.is_match(each)]
        assert pages > 1


async def test_a_reader_searches_only_the_tenant_it_names(search_data: tuple[Store, list[dict[str, Any]]]) -> None:
    store, entries = search_data
    assert len((await _search(store, EntryFilter(), tenant="other", limit=1000))[0]) == len(entries)
    assert (await _search(store, EntryFilter(tool="crm.t0"), tenant="nobody"))[0] == []
    async with store.readers.acquire() as connection:
        rows = await connection.fetch(SQL["search_entries"], [], "[]", FIRST, END, 50, 1000)
    assert rows == []


async def test_rare_entries_are_found_by_the_index_after_its_new_terms_were_merged(
    search_data: tuple[Store, list[dict[str, Any]]],
) -> None:
    store, entries = search_data
    async with store.write_transaction() as connection:
        await connection.execute(SQL["merge_terms"])
    wanted = EntryFilter(kind="command")
    assert (await _search(store, wanted))[0] == [each["id"] for each in entries if wanted.is_match(each)]


async def test_pseudonyms_are_named_for_their_tenant_while_their_salt_exists(
    search_data: tuple[Store, list[dict[str, Any]]],
) -> None:
    store, _ = search_data
    pseudonym = compute_commitment(b"salt", "ána".encode())

    async def list_names(tenant: str) -> list[tuple[str, str]]:
        async with store.read_transaction(tenant) as connection:
            return [tuple(row) for row in await connection.fetch(SQL["name_pseudonyms"], [pseudonym, "0" * 64])]

    async with store.write_transaction() as connection:
        await connection.execute("insert into deputize.tenants values ('acme') on conflict do nothing")
        await connection.execute("insert into deputize.subjects (tenant, subject, salt) values ('acme', 'ána', 'salt')")
    assert await list_names("acme") == [(pseudonym, "ána")]
    assert await list_names("other") == []
    async with store.write_transaction() as connection:
        await connection.execute("set local role deputize_owner")
        await connection.execute("delete from deputize.subjects where subject = 'ána'")
    assert await list_names("acme") == []
