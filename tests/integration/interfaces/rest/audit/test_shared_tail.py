"""Those who follow the audit share one feed: what it costs, that it mixes up no one, and that no one holds it up."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.evidence.entry_filters import EntryFilter
from deputize.operations.audit.entry_reader import AuditQuery
from deputize.operations.audit.tail import AuditTail, TailEvent
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.integration.interfaces.rest.audit.test_audit import open_tail, wait_for_closed_tails
from tests.support.query_count import count_queries

pytestmark = pytest.mark.requirement("GOV-5")
ADMINISTRATOR = Caller(tenant="dev", user="root", scopes=frozenset({ADMIN_SCOPE}), token_id="tail")
QUERIES_OF_LOOK = ("list_newest_ids", "load_entries", "name_pseudonyms")


def _get_tail(gateway: HttpGateway) -> AuditTail:
    assert gateway.in_process is not None
    return gateway.in_process.audit_tail


async def _call(gateway: HttpGateway, user: str = "ana", **more: Any) -> str:
    call_id: str = (await gateway.call("shop.list_users", token=gateway.token(user, **more))).json()["call_id"]
    return call_id


async def _read_until(events: AsyncIterator[TailEvent], call_id: str) -> bool:
    """Read until a call comes; tell whether anything was left out."""
    is_gap = False
    async for event in events:
        is_gap |= event.is_gap
        if call_id in [each.description["entry"].get("call") for each in event.entries]:
            return is_gap
    raise AssertionError(f"the tail ended before {call_id}")


async def test_two_hundred_who_look_cost_as_many_queries_as_one(gateway: HttpGateway) -> None:
    assert gateway.in_process is not None
    tail, store = _get_tail(gateway), gateway.in_process._lifecycle.runtime.store
    queries = [
        AuditQuery(), AuditQuery(filter=EntryFilter(of_calls=True)), AuditQuery(caller="ana"),
        AuditQuery(filter=EntryFilter(tool="shop.list_users")),
    ]  # fmt: skip
    async with asyncio.timeout(120):
        followers = [tail.follow(ADMINISTRATOR, queries[number % 4], after=None) for number in range(200)]
        for each in followers:
            await anext(each)
        feed = tail._feeds["dev"]
        async with count_queries(store) as names:
            first_look = feed.number
            for _ in range(3):
                call_id = await _call(gateway)
                await asyncio.gather(*(_read_until(each, call_id) for each in followers))
            looks = feed.number - first_look
        # One look may have begun before the count, and one may go on after it.
        counts = Counter(names)
        assert all(counts[each] <= looks + 1 for each in QUERIES_OF_LOOK)
        # The calls look up who makes them; those who look by name do not.
        assert counts["load_subject_salts"] <= 3
        for each in followers:
            await each.aclose()  # type: ignore[attr-defined]  # they are generators
    assert tail._feeds == {}


async def test_each_follower_of_one_feed_gets_only_what_is_theirs(gateway: HttpGateway) -> None:
    lent = await gateway.exchange_token(gateway.token("nora"), agent="bot-of-nora")
    readers: dict[str, tuple[str, dict[str, str]]] = {
        "administrator": (gateway.token("root", scopes=(*SCOPES, ADMIN)), {}),
        "by name": (gateway.token("root", scopes=(*SCOPES, ADMIN)), {"caller": "newcomer"}),
        "nora": (gateway.token("nora"), {}),
        "nora asks for otto": (gateway.token("nora"), {"caller": "otto"}),
        "nora's agent": (lent, {}),
        "otto": (gateway.token("otto"), {"tool": "shop.list_users"}),
        "other tenant": (gateway.other_token(scopes=(ADMIN,)), {}),
    }
    seen: dict[str, set[str]] = {name: set() for name in readers}
    async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
        tails = {
            name: await stack.enter_async_context(open_tail(gateway, token=token, **params))
            for name, (token, params) in readers.items()
        }
        made = {name: await _call(gateway, name) for name in ("nora", "otto", "newcomer")}
        made["agent"] = (await gateway.call("shop.list_users", token=lent)).json()["call_id"]
        made["other"] = (await gateway.call("shop.list_users", token=gateway.other_token())).json()["call_id"]
        # What a feed read before their own last call, all of its followers have got.
        last = {
            "administrator": "agent", "by name": "newcomer", "nora": "agent", "nora's agent": "agent",
            "otto": "otto", "other tenant": "other",
        }  # fmt: skip
        for name, call in last.items():
            while made[call] not in seen[name]:
                seen[name].add((await anext(tails[name]))[1]["entry"].get("call"))
    calls = {name: {call for call, call_id in made.items() if call_id in found} for name, found in seen.items()}
    assert calls == {
        "administrator": {"nora", "otto", "newcomer", "agent"}, "by name": {"newcomer"}, "nora": {"nora", "agent"},
        "nora asks for otto": set(), "nora's agent": {"agent"}, "otto": {"otto"}, "other tenant": {"other"},
    }  # fmt: skip


async def test_a_slow_follower_is_told_that_entries_were_left_out_and_holds_up_no_one(gateway: HttpGateway) -> None:
    await wait_for_closed_tails(gateway)
    tail = _get_tail(gateway)
    async with asyncio.timeout(60):
        slow, quick = (tail.follow(ADMINISTRATOR, AuditQuery(), after=None) for _ in range(2))
        await anext(slow)
        await anext(quick)
        for _ in range(6):
            call_id = await _call(gateway)
            assert not await _read_until(quick, call_id)
        event = await anext(slow)
        assert event.is_gap
        assert call_id in [each.description["entry"].get("call") for each in event.entries]
        # From there on it misses nothing.
        call_id = await _call(gateway)
        assert not await _read_until(slow, call_id)


async def test_of_more_entries_than_a_follower_takes_the_newest_come(gateway: HttpGateway) -> None:
    tail = _get_tail(gateway)
    async with asyncio.timeout(60):
        call_ids = [await _call(gateway) for _ in range(5)]
        entries = (await gateway.get("/v1/audit", token=gateway.token("ana"), limit=5)).json()["entries"]
        assert {each["entry"].get("call") for each in entries} <= {*call_ids, None}
        before_them = UUID(int=UUID(entries[-1]["id"]).int - 1)
        few = tail.follow(ADMINISTRATOR, AuditQuery(filter=EntryFilter(of_calls=True)), after=before_them, most=2)
        await anext(few)
        event = await anext(few)
        assert event.is_gap
        assert [each.description["entry"]["call"] for each in event.entries] == call_ids[-2:]
