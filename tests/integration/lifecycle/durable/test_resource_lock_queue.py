"""Places in line, as the database judges them: everything that overlaps is found, and nothing else keeps waiting."""

import random
from collections.abc import AsyncIterator
from itertools import product

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.scopes import scopes_overlap
from deputize.store.pool import Store

pytestmark = pytest.mark.requirement("INV-9")

_SEGMENT = st.sampled_from(["a", "ab", "b", "1", "10", "%2A", "é"])
_PATH = st.lists(_SEGMENT, min_size=1, max_size=4).map("/".join)
_ADD = """
insert into deputize.resource_locks (tenant, call_id, namespace, resource, scope, capacity, priority)
select 'acme', gen_random_uuid(), 'acme', 'r', s, 1, 5 from unnest($1::text[]) as s
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def db(module_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(module_database)
    yield connection
    await connection.close()


@st.composite
def _overlapping_scopes(draw: st.DrawFn) -> tuple[str, str]:
    """Two scopes, each of which covers one and the same thing: itself, something above it, or a pattern it fits."""
    path = draw(_PATH)

    def draw_covering_scope() -> str:
        parts = path.split("/")
        kept = parts[: draw(st.integers(1, len(parts)))]
        at = draw(st.integers(0, len(kept)))
        if at == len(kept):
            return "/".join(kept)
        cut = draw(st.integers(0, len(kept[at])))
        return "/".join([*kept[:at], kept[at][:cut] + "*", *draw(st.sampled_from([[], kept[at + 1 :]]))])

    return draw_covering_scope(), draw_covering_scope()


@given(_overlapping_scopes())
async def test_two_scopes_that_cover_one_thing_overlap(db: asyncpg.Connection, pair: tuple[str, str]) -> None:
    assert await db.fetchval("select deputize.scopes_overlap($1, $2) and deputize.scopes_overlap($2, $1)", *pair), pair


@pytest.mark.parametrize(
    ("one", "other"),
    [("1", "10"), ("a", "b"), ("a/b", "a/c"), ("a/b", "ab"), ("a*", "b*"), ("a/*", "b"), ("a/1", "a/10")],
)
async def test_scopes_that_have_nothing_in_common_do_not(db: asyncpg.Connection, one: str, other: str) -> None:
    assert not await db.fetchval("select deputize.scopes_overlap($1, $2)", one, other)


async def test_every_overlap_is_found_through_the_index(db: asyncpg.Connection) -> None:
    choose = random.Random(0)
    words = ["", "a", "ab", "b", "1", "10", "*", "a*", "é"]
    scopes = sorted({"/".join(choose.choices(words, k=choose.randrange(1, 4))) or "*" for _ in range(400)})
    async with db.transaction():
        await db.execute(_ADD, scopes)
        for mine in choose.sample(scopes, 60):
            found = await db.fetch("select scope from deputize.find_overlapping_locks('acme', 'r', $1)", mine)
            judged = await db.fetch(
                "select s from unnest($1::text[]) as s where deputize.scopes_overlap(s, $2)", scopes, mine
            )
            assert {row[0] for row in found} == {row[0] for row in judged}, mine
            # In Python they are judged alike.
            assert {each for each in scopes if scopes_overlap(each, mine)} == {row[0] for row in judged}, mine
        await db.execute("delete from deputize.resource_locks")


async def test_what_is_asked_of_lines_stays_quick_when_thousands_wait(db: asyncpg.Connection) -> None:
    """Not a measure of time but of work: rows looked at for one that waits behind thousands."""
    async with db.transaction():
        await db.execute(_ADD, [f"job-{number}" for number in range(4000)] + ["same"] * 4000)
        await db.execute("analyze deputize.resource_locks")
        rows = await db.fetch(
            "explain (analyze, format text)"
            " select from deputize.find_overlapping_locks('acme', 'r', 'job-1') o where o.is_held"
        )
        plan = "\n".join(row[0] for row in rows)
        assert "Seq Scan" not in plan, plan
        await db.execute("delete from deputize.resource_locks")


async def test_a_scope_the_input_leaves_open_overlaps_all_of_its_resource(db: asyncpg.Connection) -> None:
    for other, way in product(["1", "a/b", "*"], [0, 1]):
        pair = ("*", other) if way else (other, "*")
        assert await db.fetchval("select deputize.scopes_overlap($1, $2)", *pair)


async def test_lines_of_other_tenants_are_not_seen(db: asyncpg.Connection, module_database: str) -> None:
    await db.execute(_ADD, ["x"])
    store = await Store.open(module_database)
    try:
        async with store.read_transaction("dev") as connection:
            assert await connection.fetchval("select count(*) from deputize.resource_locks") == 0
        async with store.read_transaction("acme") as connection:
            assert await connection.fetchval("select count(*) from deputize.resource_locks") == 1
    finally:
        await store.close()
        await db.execute("delete from deputize.resource_locks")
