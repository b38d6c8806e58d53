"""Readers of the audit miss nothing, do not keep each other out, and read for a limited time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2
import pytest

from deputize.core.caller import operator_caller
from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.evidence.entry_filters import EntryFilter
from deputize.operations.audit.entry_reader import END_ID, FIRST_ID, EntryReader, PermittedSearch
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway, serve_gateway
from tests.integration.interfaces.rest.audit.test_audit import wait_for_closed_tails

pytestmark = pytest.mark.requirement("GOV-5")
INSERT = "insert into deputize.audit_entries (tenant, id, entry) values ($1, $2, $3)"
HOUR_MS = 3_600_000


@pytest.fixture
async def owner(module_database: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(module_database)
    yield connection
    await connection.close()


def _admin(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


def _make_row(tenant: str, number: int, clock: Clock | None = None, **facts: Any) -> tuple[str, UUID, bytes]:
    entry_id = (clock or Clock()).new_id()
    entry = {
        "caller": ["0" * 64], "id": entry_id, "kind": "read", "tenant": tenant, "time": "2026-11-17T00:00:00.000Z",
        "trace": f"{number:032x}", "v": 2, **facts,
    }  # fmt: skip
    return tenant, UUID(entry_id), canonicalize(entry)


async def test_a_page_passes_over_nothing_while_entries_are_written(
    gateway: HttpGateway, owner: asyncpg.Connection
) -> None:
    assert gateway.in_process is not None
    reader = EntryReader(gateway.in_process._lifecycle.runtime)
    start_ms = Clock().epoch_ms() - 100_000
    numbers = iter(range(100_000))

    def make_next_row() -> tuple[str, UUID, bytes]:
        number = next(numbers)
        return _make_row("busy", number, Clock(epoch_ms=lambda: start_ms + number))

    await owner.executemany(INSERT, [make_next_row() for _ in range(2500)])
    is_over = asyncio.Event()

    async def write_entries() -> None:
        while not is_over.is_set():
            await owner.execute(INSERT, *make_next_row())

    everything = PermittedSearch(
        caller=operator_caller("busy"), filter=EntryFilter(), first=FIRST_ID, before=END_ID, description=""
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(write_entries())
        try:
            pages = [(await reader.read_page("busy", everything, None, 2000)).rows for _ in range(60)]
        finally:
            is_over.set()
    # One connection wrote them in the order of their ids, so what is before the newest of a page was there.
    ids = [row["id"] for row in await owner.fetch("select id from deputize.audit_entries where tenant = 'busy'")]
    for page in pages:
        page_ids = {each[0] for each in page}
        oldest_id, newest_id = min(page_ids), max(page_ids)
        assert {each for each in ids if oldest_id <= each <= newest_id} - page_ids == set()


async def test_a_search_that_matches_nothing_ends_when_its_time_is_over(
    gateway: HttpGateway, owner: asyncpg.Connection
) -> None:
    """The index lets every entry pass, and none of them matches."""
    await owner.executemany(INSERT, [_make_row("dev", n, kind="refusal", rules=["none"]) for n in range(8000)])
    params = {"decision": "allow", "kind": "refusal", "limit": 1}
    page = (await gateway.get("/v1/audit", token=_admin(gateway), **params)).json()
    assert (page["entries"], page["is_complete"]) == ([], False)
    second_page = (await gateway.get("/v1/audit", token=_admin(gateway), before=page["next_before"], **params)).json()
    assert second_page["next_before"] < page["next_before"]


async def test_a_tail_goes_on_after_an_entry_of_a_gateway_whose_clock_was_ahead(
    gateway: HttpGateway, owner: asyncpg.Connection
) -> None:
    early_row = _make_row("dev", 1, Clock(epoch_ms=lambda: Clock().epoch_ms() + HOUR_MS))
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        lines = await _open_tail(stack, gateway, _admin(gateway))
        await owner.execute(INSERT, *early_row)
        await _read_until(lines, str(early_row[1]))
        call_id = (await gateway.call("shop.list_users")).json()["call_id"]
        await _read_until(lines, call_id)
        lines = await _open_tail(stack, gateway, _admin(gateway), after=str(early_row[1]))
        second_id = (await gateway.call("shop.list_users")).json()["call_id"]
        await _read_until(lines, second_id)


async def test_tails_of_one_person_keep_no_one_else_out(gateway: HttpGateway) -> None:
    async with asyncio.timeout(90), contextlib.AsyncExitStack() as stack:
        await wait_for_closed_tails(gateway)
        # A tail whose lines no one keeps is closed.
        tails = [await _open_tail(stack, gateway, gateway.token("greedy")) for _ in range(16)]
        assert await _get_refusal(gateway, gateway.token("greedy")) == {"kind": "concurrency", "limit": 16, "used": 16}
        tails.append(await _open_tail(stack, gateway, gateway.token("second")))
        tails.append(await _open_tail(stack, gateway, gateway.other_token()))


async def _get_refusal(gateway: HttpGateway, token: str) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {token}"}
    async with gateway.http.stream("GET", "/v1/audit/tail", headers=headers, timeout=60) as response:
        assert response.status_code == 429
        await response.aread()
        details: dict[str, Any] = response.json()["error"]["details"]
        return details


async def test_an_export_breaks_off_when_the_gateway_stops(fresh_database: str, tmp_path: Path) -> None:
    async with asyncio.timeout(90), contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(serve_gateway(fresh_database, tmp_path))
        owner = await asyncpg.connect(fresh_database)
        stack.push_async_callback(owner.close)
        await owner.executemany(INSERT, [_make_row("dev", n, session="s" * 1000) for n in range(10_000)])
        headers = {"authorization": f"Bearer {_admin(gateway)}"}
        response = await stack.enter_async_context(
            gateway.http.stream("GET", "/v1/audit/export", headers=headers, timeout=60)
        )
        chunks = response.aiter_raw()
        await anext(chunks)
        gateway.stop.set()
        await gateway.wait_until_closed()
        with pytest.raises(httpx2.RemoteProtocolError):
            async for _ in chunks:
                pass


async def _open_tail(
    stack: contextlib.AsyncExitStack, gateway: HttpGateway, token: str, *, after: str | None = None
) -> AsyncIterator[str]:
    headers = {"authorization": f"Bearer {token}", **({"last-event-id": after} if after else {})}
    response = await stack.enter_async_context(
        gateway.http.stream("GET", "/v1/audit/tail", headers=headers, timeout=60)
    )
    assert response.status_code == 200
    lines = response.aiter_lines()
    await _read_until(lines, ": open")
    return lines


async def _read_until(lines: AsyncIterator[str], text: str) -> None:
    async for line in lines:
        if text in line:
            return
    raise AssertionError(f"the tail ended before {text}")


async def test_an_auditor_reads_what_is_recorded_of_the_tenant_and_changes_nothing(gateway: HttpGateway) -> None:
    auditor = gateway.token("eve-auditor", scopes=("deputize:audit",))
    made = (
        await gateway.call("shop.rename_user", {"id": 1, "name": "Ana"}, token=gateway.token("ana"), key="audited")
    ).json()
    other = (await gateway.call("shop.get_user", {"id": 1}, token=gateway.other_token("zoe"))).json()
    found = (await gateway.get("/v1/audit", token=auditor, limit=200)).json()["entries"]
    calls = {each["entry"].get("call") for each in found}
    assert made["call_id"] in calls
    assert other["call_id"] not in calls
    entry = next(each for each in found if each["entry"].get("call") == made["call_id"])
    assert entry["user"] == "ana"
    assert (await gateway.get(f"/v1/audit/{entry['id']}", token=auditor)).status_code == 200
    exported = await gateway.get("/v1/audit/export", token=auditor, format="jsonl")
    assert made["call_id"] in exported.text
    call = f"/v1/calls/{made['call_id']}"
    for path in (f"{call}/audit", f"{call}/decision", "/v1/policies", "/v1/servers", "/v1/switches", "/v1/grants"):
        assert (await gateway.get(path, token=auditor)).status_code == 200, path
    # Arguments, results and progress, and everything else that administers, stay closed.
    assert (await gateway.get(call, token=auditor)).status_code == 404
    assert (await gateway.get(f"{call}/export", token=auditor)).status_code == 404
    assert (await gateway.get(f"{call}/events", token=auditor)).status_code == 404
    for path in ("/v1/revocations", "/v1/secrets", "/v1/observations", "/v1/holds"):
        assert (await gateway.get(path, token=auditor)).status_code == 403, path
    off = {"kind": "tool", "value": "shop.get_user", "off": True}
    assert (await gateway.post("/v1/switches", off, token=auditor)).status_code == 403
    assert (await gateway.get(f"/v1/calls/{other['call_id']}/audit", token=auditor)).status_code == 404
    assert (await gateway.call("shop.rename_user", {"id": 1, "name": "B"}, token=auditor)).status_code == 403
    assert (await gateway.get("/v1/calls", token=auditor)).json()["calls"] == []
    # An agent does not get it unless it is named.
    delegated = await gateway.exchange_token(auditor, agent="curious")
    entries = (await gateway.get("/v1/audit", token=delegated, limit=200)).json()["entries"]
    assert made["call_id"] not in {each["entry"].get("call") for each in entries}
