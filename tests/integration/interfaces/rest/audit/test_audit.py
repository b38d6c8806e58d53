"""The audit over HTTP: who sees what, pages, names until erasure, live tails and exports."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.gateway_lab import wait_until

pytestmark = pytest.mark.requirement("GOV-5")


def _admin(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _search(gateway: HttpGateway, *, token: str | None = None, **params: Any) -> list[dict[str, Any]]:
    answer = await gateway.get("/v1/audit", token=token or _admin(gateway), **params)
    assert answer.status_code == 200, answer.text
    entries: list[dict[str, Any]] = answer.json()["entries"]
    return entries


async def _call_as(gateway: HttpGateway, user: str, tool: str = "shop.list_users", **more: Any) -> str:
    call_id: str = (await gateway.call(tool, token=gateway.token(user, **more))).json()["call_id"]
    return call_id


async def test_an_administrator_finds_reads_and_refusals_by_name_and_by_every_filter(gateway: HttpGateway) -> None:
    read = await _call_as(gateway, "nina")
    refused = (await gateway.call("shop.no_such", token=gateway.token("nina"))).json()["call_id"]
    entries = await _search(gateway, caller="nina")
    assert [each["entry"]["call"] for each in entries] == [refused, read]
    assert {each["user"] for each in entries} == {"nina"}
    facts = entries[1]["entry"]
    for params in (
        {"tool": facts["tool"]}, {"rule": facts["rules"][0]}, {"trace": facts["trace"]}, {"kind": "read"},
        {"outcome": "succeeded"}, {"decision": "allow"}, {"from": "2026-01-01T00:00:00Z"},
        {"caller": facts["caller"][0]},
    ):  # fmt: skip
        found = await _search(gateway, **{"caller": "nina", **params})
        assert read in [each["entry"]["call"] for each in found], params
    assert await _search(gateway, caller="nina", tool="shop.nobodys") == []
    assert await _search(gateway, caller="nina", to="2020-01-01T00:00:00Z") == []
    assert [each["entry"]["call"] for each in await _search(gateway, caller="nina", kind="refusal")] == [refused]


async def test_people_see_their_own_entries_and_an_agent_only_those_of_its_chain(gateway: HttpGateway) -> None:
    own, theirs = await _call_as(gateway, "olga"), await _call_as(gateway, "paul")
    lent = await gateway.exchange_token(gateway.token("olga"), agent="bot-of-olga")
    by_agent = (await gateway.call("shop.list_users", token=lent)).json()["call_id"]
    seen_by_olga = {each["entry"].get("call") for each in await _search(gateway, token=gateway.token("olga"))}
    assert {own, by_agent} <= seen_by_olga
    assert theirs not in seen_by_olga
    seen_by_agent = {each["entry"].get("call") for each in await _search(gateway, token=lent)}
    assert by_agent in seen_by_agent
    assert seen_by_agent.isdisjoint({own, theirs})
    assert await _search(gateway, token=gateway.token("olga"), caller="paul") == []
    (entry,) = await _search(gateway, caller="paul", kind="read")
    shown = f"/v1/audit/{entry['id']}"
    assert (await gateway.get(shown, token=gateway.token("paul"))).json()["entry"]["call"] == theirs
    for token in (gateway.token("olga"), lent, gateway.other_token(scopes=(ADMIN,))):
        assert (await gateway.get(shown, token=token)).status_code == 404
    assert await _search(gateway, token=gateway.other_token(scopes=(ADMIN,)), caller="paul") == []


async def test_pages_follow_each_other_and_a_bad_cursor_or_filter_is_refused(gateway: HttpGateway) -> None:
    calls = [await _call_as(gateway, "quin") for _ in range(5)]
    found: list[str] = []
    before: str | None = None
    while True:
        params = {"before": before} if before else {}
        page = (await gateway.get("/v1/audit", token=_admin(gateway), caller="quin", limit=2, **params)).json()
        found += [each["entry"]["call"] for each in page["entries"]]
        before = page["next_before"]
        if before is None:
            break
    assert found == calls[::-1]
    bad: dict[str, Any]
    for bad in (
        {"before": "x"}, {"limit": 201}, {"limit": 0}, {"trace": "%"}, {"kind": "any"}, {"decision": "maybe"},
        {"tool": "x" * 1000}, {"from": "yesterday"}, {"nothing": "1"}, {"outcome": "a' or 1=1"},
    ):  # fmt: skip
        assert (await gateway.get("/v1/audit", token=_admin(gateway), **bad)).status_code == 400, bad
    # A cursor is only a place: with another's, one still sees nothing but one's own.
    (entry,) = await _search(gateway, caller="quin", limit=1)
    assert await _search(gateway, token=gateway.token("rosa"), before=entry["id"], caller="quin") == []


async def test_every_search_export_and_tail_is_an_entry_without_names(gateway: HttpGateway) -> None:
    await _call_as(gateway, "sven")
    await _search(gateway, caller="sven", tool="shop.list_users")
    await _search(gateway, caller="nobody-of-this-name")
    await gateway.get("/v1/audit/export", token=_admin(gateway), caller="sven")
    async with open_tail(gateway, caller="sven"):
        pass
    acts = await _search(gateway, caller="root", kind="command", limit=4)
    texts = [(each["entry"]["command"], each["entry"]["subject"]) for each in acts]
    (call,) = await _search(gateway, caller="sven", kind="read")
    pseudonym = call["entry"]["caller"][0]
    assert texts == [
        ("tail_audit", f"user={pseudonym}"),
        ("export_audit", f"user={pseudonym} format=jsonl"),
        ("search_audit", "user=(unknown)"),
        ("search_audit", f"user={pseudonym} tool=shop.list_users"),
    ]


async def test_after_an_erasure_the_name_finds_nothing_and_entries_show_the_pseudonym(gateway: HttpGateway) -> None:
    await _call_as(gateway, "tilda")
    (before,) = await _search(gateway, caller="tilda")
    erased = await gateway.post("/v1/erasures", {"user": "tilda"}, token=_admin(gateway))
    assert erased.status_code < 300, erased.text
    assert await _search(gateway, caller="tilda") == []
    (after,) = await _search(gateway, caller=before["entry"]["caller"][0], kind="read")
    assert (before["user"], after["user"]) == ("tilda", None)
    assert after["entry"] == before["entry"]
    exported = await gateway.get("/v1/audit/export", token=_admin(gateway), trace=after["entry"]["trace"])
    assert "tilda" not in exported.text


async def test_exports_hold_every_entry_once_and_no_formula(gateway: HttpGateway) -> None:
    calls = [await _call_as(gateway, "ugo") for _ in range(3)]
    # Some spreadsheets take a sign of full width for the plain one.
    for name in ("\uff1dHYPERLINK(1)", "=HYPERLINK(1)"):
        await gateway.call(name, token=gateway.token("ugo"))
    lines = (await gateway.get("/v1/audit/export", token=_admin(gateway), caller="ugo", kind="read")).text.splitlines()
    assert [orjson.loads(line)["entry"]["call"] for line in lines] == calls[::-1]
    text = (await gateway.get("/v1/audit/export", token=_admin(gateway), caller="ugo", format="csv")).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["user"] for row in rows] == ["ugo"] * 5
    assert [row["tool"] for row in rows[:2]] == ["'=HYPERLINK(1)", "'\uff1dHYPERLINK(1)"]
    everything = (await gateway.get("/v1/audit/export", token=gateway.token("ugo"))).text.splitlines()
    assert {orjson.loads(line)["user"] for line in everything} == {"ugo"}


@asynccontextmanager
async def open_tail(
    gateway: HttpGateway, *, token: str | None = None, after: str | None = None, **params: str
) -> AsyncIterator[AsyncIterator[tuple[str, dict[str, Any]]]]:
    headers = {"authorization": f"Bearer {token or _admin(gateway)}", **({"last-event-id": after} if after else {})}
    async with gateway.http.stream("GET", "/v1/audit/tail", params=params, headers=headers, timeout=60) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        while await anext(lines) != ": open":
            pass

        async def read_events() -> AsyncIterator[tuple[str, dict[str, Any]]]:
            name = ""
            async for line in lines:
                if line.startswith("event: "):
                    name = line[7:]
                if line.startswith("data: "):
                    yield name, orjson.loads(line[6:])

        yield read_events()


async def test_a_tail_shows_entries_as_they_are_written_and_resumes_after_the_last(gateway: HttpGateway) -> None:
    async with asyncio.timeout(60):
        async with open_tail(gateway, caller="vera") as events:
            first = await _call_as(gateway, "vera")
            await _call_as(gateway, "wim")
            name, found = await anext(events)
            assert (name, found["entry"]["call"], found["user"]) == ("entry", first, "vera")
        second = await _call_as(gateway, "vera")
        async with open_tail(gateway, caller="vera", after=found["id"]) as events:
            while (await anext(events))[1]["entry"]["call"] != second:
                pass
        async with open_tail(gateway, token=gateway.token("vera")) as events:
            await _call_as(gateway, "wim")
            third = await _call_as(gateway, "vera")
            # Opening the tail is an entry of hers too.
            while (found := (await anext(events))[1])["entry"].get("call") != third:
                assert found["entry"]["command"] == "tail_audit"


async def test_a_tail_ends_when_its_caller_is_revoked(gateway: HttpGateway) -> None:
    async with asyncio.timeout(60):
        async with open_tail(gateway, token=gateway.token("xaver")) as events:
            revoked = await gateway.post("/v1/revocations", {"kind": "user", "value": "xaver"}, token=_admin(gateway))
            assert revoked.status_code == 201
            async for name, problem in events:
                last = name, problem
        assert last[0] == "error"
        assert last[1]["error"]["number"].startswith("E3")
        await wait_for_closed_tails(gateway)


async def wait_for_closed_tails(gateway: HttpGateway) -> None:
    """Wait until the gateway has noticed that the tails of before have no reader."""
    assert gateway.in_process is not None
    slots = gateway.in_process.audit_tail._slots

    async def are_free() -> bool:
        return not slots._counts

    await wait_until(are_free)
