"""Limits around whole calls: refused before the claim, given back to replays, let go of however a call ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize.core.errors import ToolConflict, ToolFailed
from deputize.core.outcome import Outcome
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body, wait_until, watch_joins
from tests.support.limited_lab import failures, make_rule, open_limited_lab, prices, set_costs
from tests.support.redis_server import RedisServer, run_redis_server
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("GOV-8")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with run_redis_server() as server:
        yield server


async def _call_slugs(lab: GatewayLab, tool: str, tags: list[str], **more: Any) -> list[str | None]:
    return [error_slug(await lab.call(tool, tag, **more)) for tag in tags]


def _refusing_rule(outcome: Outcome) -> str:
    rule_name: str = parse_body(outcome)["error"]["details"]["rule"]
    return rule_name


async def test_a_rate_lets_its_limit_through_and_names_itself(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 2, "per-day", tools="lab.look")) as lab:
        assert await _call_slugs(lab, "look", ["a", "b"]) == [None, None]
        refused = await lab.call("look", "c")
        assert (refused.http_status, error_slug(refused), refused.state) == (429, "rate-limited", State.FAILED)
        assert _refusing_rule(refused) == "per-day"
        assert refused.retry_after_ms is not None
        assert 86_000_000 < refused.retry_after_ms <= 86_500_000
        assert await lab.fetch_entry_kinds(refused.call_id) == ["refusal"]
        assert await _call_slugs(lab, "brief_look", ["d"]) == [None]
        assert lab.runtime.metrics._counts_by_label.total() == 1


async def test_a_refused_write_consumes_no_key_and_has_no_effect(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 1)) as lab:
        assert error_slug(await lab.call("look", "first")) is None
        refused = await lab.call("note", "limited", key="k")
        assert error_slug(refused) == "rate-limited"
        assert not list_effects("limited")
        assert not await lab.db.fetchval("select count(*) from deputize.claims")


async def test_a_replay_is_never_charged(fresh_database: str, tmp_path: Path) -> None:
    rules = [
        make_rule("rate", 2),
        make_rule("budget", 2.5, "money"),
        make_rule("cost_rate", 2.5, "slope"),
        make_rule("repeats", 2, "loop"),
    ]
    async with open_limited_lab(fresh_database, tmp_path, *rules) as lab:
        assert error_slug(await lab.call("buy", "a", key="a")) is None
        replays = [await lab.call("buy", "a", key="a") for _ in range(5)]
        assert {each.is_replay for each in replays} == {True}
        assert error_slug(await lab.call("buy", "b", key="b")) is None
        assert error_slug(await lab.call("buy", "c", key="c")) == "budget-spent"


async def test_a_joined_call_is_not_charged(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 2)) as lab:
        gate = Gate()
        set_behaviour("together", gate)
        first = asyncio.create_task(lab.call("assign", "together", session="s"))
        await gate.began.wait()
        with watch_joins() as joins:
            second = asyncio.create_task(lab.call("assign", "together", session="s"))
            await asyncio.wait_for(joins.wait(), 60)
        gate.open.set()
        assert (await second).is_joined
        assert not (await first).is_joined
        assert await _call_slugs(lab, "look", ["x", "y"]) == [None, "rate-limited"]


async def test_calls_at_once_are_let_go_of_however_they_end(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("concurrency", 1, "one")) as lab:
        gate = Gate()
        set_behaviour("held", gate)
        held = asyncio.create_task(lab.call("look", "held"))
        await gate.began.wait()
        refused = await lab.call("look", "meanwhile")
        assert (error_slug(refused), refused.http_status, refused.retry_after_ms) == ("too-many-at-once", 429, 1000)
        assert _refusing_rule(refused) == "one"
        gate.open.set()
        assert error_slug(await held) is None
        set_behaviour("broken", raise_error(ToolFailed("no")))
        assert error_slug(await lab.call("look", "broken")) == "tool-failed"
        stuck = Gate()
        set_behaviour("stuck", stuck)
        canceled = asyncio.create_task(lab.call("look", "stuck"))
        await stuck.began.wait()
        canceled.cancel()
        await asyncio.wait({canceled})
        assert error_slug(await lab.call("brief_look", "stuck")) == "tool-timeout"
        assert error_slug(await lab.call("erase", "keyless")) == "key-required"
        assert error_slug(await lab.call("look", "after")) is None


async def test_the_same_call_again_and_again_is_a_loop(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("repeats", 3, "loops")) as lab:
        assert await _call_slugs(lab, "look", ["a"] * 5, session="s") == [None] * 3 + ["runaway"] * 2
        assert await _call_slugs(lab, "look", ["b"], session="s") == [None]
        assert await _call_slugs(lab, "look", ["a"], session="t") == [None]
        assert error_slug(await lab.call("look", "a", session="s", by=await lab.make_caller("bea"))) is None
        assert error_slug(await lab.call("brief_look", "a", session="s")) is None


async def test_a_request_cannot_leave_its_tokens_session(fresh_database: str, tmp_path: Path) -> None:
    rules = [make_rule("rate", 2, "per-session", per=["session"])]
    async with open_limited_lab(fresh_database, tmp_path, *rules) as lab:
        bound = await lab.make_caller("ana", session="from-the-token")
        slugs = [error_slug(await lab.call("look", "a", session=f"s{number}", by=bound)) for number in range(3)]
        assert slugs == [None, None, "rate-limited"]
        entry = (await lab.fetch_entries((await lab.call("look", "a", session="s9", by=bound)).call_id))[0]
        assert entry["session"] == "from-the-token"
        # A token without a session leaves the choice to its requests.
        assert await _call_slugs(lab, "look", ["a", "a"], session="s1") == [None, None]
        assert await _call_slugs(lab, "look", ["a"], session="s2") == [None]


async def test_a_limit_per_user_counts_all_agents_and_sessions(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 3, "person", per=["user"])) as lab:
        callers = [await lab.make_caller("ana"), await lab.make_caller("ana", agent="bot")]
        callers += [await lab.make_caller("ana", agent="other", session="s")]
        slugs = [error_slug(await lab.call("look", "a", by=by)) for by in callers]
        assert slugs == [None] * 3
        assert error_slug(await lab.call("look", "a", by=callers[1])) == "rate-limited"
        assert error_slug(await lab.call("look", "a", by=await lab.make_caller("bea"))) is None


async def test_cost_that_rises_is_stopped(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("cost_rate", 10, "slope")) as lab:
        with set_costs("up", 1, 2, 3, 4, 5):
            assert await _call_slugs(lab, "metered_look", ["up"] * 6) == [None] * 4 + ["runaway"] * 2
        # What a call came to is told beside its answer, and its place in the window is known at once.
        refused = await lab.call("pay", "more")
        assert parse_body(refused)["error"]["details"]["used"] == 10


async def test_a_budget_is_spent_by_what_calls_really_cost(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("budget", 3, "money", per=["caller"])) as lab:
        prices["cheap"] = 0.25
        assert await _call_slugs(lab, "pay", ["cheap"] * 9) == [None] * 9
        # 2.25 are spent: a call that may cost 1 does not fit.
        refused = await lab.call("pay", "cheap")
        assert (error_slug(refused), refused.http_status, _refusing_rule(refused)) == ("budget-spent", 429, "money")
        assert 0 < (refused.retry_after_ms or 0) <= 86_400_000
        assert error_slug(await lab.call("metered_look", "cheap")) is None
        assert error_slug(await lab.call("pay", "bea", by=await lab.make_caller("bea"))) is None
    assert await _fetch_granted(fresh_database) == [1_000_000, 2_500_000]


async def _fetch_granted(dsn: str) -> list[int]:
    db = await asyncpg.connect(dsn)
    rows = await db.fetch("select granted from deputize.budgets order by 1")
    await db.close()
    return [row[0] for row in rows]


async def test_what_proves_that_nothing_happened_costs_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("budget", 2, "money")) as lab:
        failures["busy"] = ToolConflict("somebody else was faster")
        assert await _call_slugs(lab, "pay", ["busy"] * 4) == ["tool-conflict"] * 4
        assert [error_slug(await lab.call("erase", "keyless")) for _ in range(4)] == ["key-required"] * 4
        failures["bad"] = ToolFailed("it broke")
        assert await _call_slugs(lab, "pay", ["bad"] * 3) == ["tool-failed"] * 2 + ["budget-spent"]


async def test_a_call_without_a_matching_rule_is_not_limited(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 1, tools="other.*")) as lab:
        assert lab.runtime.limits.find_applicable("dev", "lab.look") is None
        assert await _call_slugs(lab, "look", ["a"] * 3) == [None] * 3
    async with open_limited_lab(fresh_database, tmp_path) as lab:
        assert lab.runtime.limits.find_applicable("dev", "lab.look") is None
        assert await _call_slugs(lab, "look", ["a"] * 3) == [None] * 3


async def test_a_session_remembers_what_it_has_cost(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path) as lab:
        ana, spent = await lab.make_caller(), lab.runtime.limits.get_session_cost
        assert spent(ana, "s") == 0
        prices["priced"] = 0.5
        await lab.call("pay", "priced", session="s")
        await lab.call("pay", "unpriced", session="s")
        assert (spent(ana, "s"), spent(ana, "t"), spent(await lab.make_caller("bea"), "s")) == (1_500_000, 0, 0)


async def test_two_gateways_count_together(fresh_database: str, tmp_path: Path, redis: RedisServer) -> None:
    rules = [make_rule("rate", 4, "shared"), make_rule("concurrency", 3, "once"), make_rule("budget", 100, "money")]
    async with (
        open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as one,
        open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as other,
    ):
        assert [error_slug(await lab.call("look", "a")) for lab in (one, other) * 3] == [None] * 4 + [
            "rate-limited"
        ] * 2
        refused = await other.call("look", "b")
        assert _refusing_rule(refused) == "shared"
        assert 0 < (refused.retry_after_ms or 0) <= 86_500_000


async def test_each_rule_follows_its_fallback_while_counters_are_unavailable(
    fresh_database: str, tmp_path: Path
) -> None:
    rules = [
        make_rule("rate", 100, "strict", tools="lab.look"),
        make_rule("rate", 100, "lenient", tools="lab.*", when_lost="allow"),
        make_rule("concurrency", 5, "slots", tools="lab.put", when_lost="allow"),
    ]
    with run_redis_server() as redis:
        async with open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as lab:
            assert await _call_slugs(lab, "look", ["a"]) == [None]
            assert parse_body(await lab.call("put", "a", key="counted"))["warnings"] == []
            redis.kill()
            refused = await lab.call("look", "a")
            assert (error_slug(refused), refused.http_status, refused.retry_after_ms) == (
                "limits-unavailable",
                503,
                1000,
            )
            assert _refusing_rule(refused) == "strict"
            went_on = await lab.call("put", "b", key="uncounted")
            assert went_on.state is State.SUCCEEDED
            warnings = parse_body(went_on)["warnings"]
            assert [warning.partition(":")[0] for warning in warnings] == [
                "limit lenient was not counted",
                "limit slots was not counted",
            ]
            redis.start()

            async def counts_again() -> bool:
                return error_slug(await lab.call("look", "a")) is None

            await wait_until(counts_again)
            assert parse_body(await lab.call("put", "c", key="again"))["warnings"] == []


async def test_a_slot_taken_through_redis_is_free_after_the_answer(
    fresh_database: str, tmp_path: Path, redis: RedisServer
) -> None:
    async with open_limited_lab(
        fresh_database, tmp_path, make_rule("concurrency", 1, "slot"), redis_url=redis.url
    ) as lab:
        assert await _call_slugs(lab, "look", ["a"] * 20) == [None] * 20
        gate = Gate()
        set_behaviour("gated", gate)
        held = asyncio.create_task(lab.call("look", "gated"))
        await gate.began.wait()
        assert await _call_slugs(lab, "look", ["a"]) == ["too-many-at-once"]
        held.cancel()
        await asyncio.wait({held})

        async def is_free() -> bool:
            return error_slug(await lab.call("look", "a")) is None

        await wait_until(is_free)
