"""Limits around whole calls: refused before the claim, given back to replays, let go of however a call ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize.core.errors import ToolConflict, ToolFailed
from deputize.core.events import State
from deputize.core.outcome import Outcome
from tests.integration.lifecycle.lab import Lab, body, slug, until
from tests.integration.lifecycle.limits_kit import costing, failures, limited_lab, prices, rule
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising
from tests.integration.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.requirement("GOV-8")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


async def _states(lab: Lab, tool: str, tags: list[str], **more: Any) -> list[str | None]:
    return [slug(await lab.call(tool, tag, **more)) for tag in tags]


def _named(outcome: Outcome) -> str:
    rule_name: str = body(outcome)["error"]["details"]["rule"]
    return rule_name


async def test_a_rate_lets_its_limit_through_and_names_itself(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("rate", 2, "per-day", tools="lab.look")) as lab:
        assert await _states(lab, "look", ["a", "b"]) == [None, None]
        refused = await lab.call("look", "c")
        assert (refused.http_status, slug(refused), refused.state) == (429, "rate-limited", State.FAILED)
        assert _named(refused) == "per-day"
        assert refused.retry_after_ms is not None
        assert 86_000_000 < refused.retry_after_ms <= 86_500_000
        assert await lab.kinds(refused.call_id) == ["refusal"]
        assert await _states(lab, "brief_look", ["d"]) == [None]
        assert lab.rooms.metrics._named.total() == 1


async def test_a_refused_write_consumes_no_key_and_has_no_effect(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("rate", 1)) as lab:
        assert slug(await lab.call("look", "first")) is None
        refused = await lab.call("note", "limited", key="k")
        assert slug(refused) == "rate-limited"
        assert not effects_of("limited")
        assert not await lab.db.fetchval("select count(*) from deputize.claims")


async def test_a_replay_is_never_charged(fresh_database: str, tmp_path: Path) -> None:
    rules = [rule("rate", 2), rule("budget", 2.5, "money"), rule("cost_rate", 2.5, "slope"), rule("repeats", 2, "loop")]
    async with limited_lab(fresh_database, tmp_path, *rules) as lab:
        assert slug(await lab.call("buy", "a", key="a")) is None
        replays = [await lab.call("buy", "a", key="a") for _ in range(5)]
        assert {each.replayed for each in replays} == {True}
        assert slug(await lab.call("buy", "b", key="b")) is None
        assert slug(await lab.call("buy", "c", key="c")) == "budget-spent"


async def test_a_joined_call_is_not_charged(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("rate", 2)) as lab:
        gate = Gate()
        on("together", gate)
        first = asyncio.create_task(lab.call("assign", "together", session="s"))
        await gate.began.wait()
        second = asyncio.create_task(lab.call("assign", "together", session="s"))
        await asyncio.sleep(0.2)
        gate.open.set()
        assert (await second).joined
        assert not (await first).joined
        assert await _states(lab, "look", ["x", "y"]) == [None, "rate-limited"]


async def test_calls_at_once_are_let_go_of_however_they_end(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("concurrency", 1, "one")) as lab:
        gate = Gate()
        on("held", gate)
        held = asyncio.create_task(lab.call("look", "held"))
        await gate.began.wait()
        refused = await lab.call("look", "meanwhile")
        assert (slug(refused), refused.http_status, refused.retry_after_ms) == ("too-many-at-once", 429, 1000)
        assert _named(refused) == "one"
        gate.open.set()
        assert slug(await held) is None
        on("broken", raising(ToolFailed("no")))
        assert slug(await lab.call("look", "broken")) == "tool-failed"
        stuck = Gate()
        on("stuck", stuck)
        canceled = asyncio.create_task(lab.call("look", "stuck"))
        await stuck.began.wait()
        canceled.cancel()
        await asyncio.wait({canceled})
        assert slug(await lab.call("brief_look", "stuck")) == "tool-timeout"
        assert slug(await lab.call("erase", "keyless")) == "key-required"
        assert slug(await lab.call("look", "after")) is None


async def test_the_same_call_again_and_again_is_a_loop(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("repeats", 3, "loops")) as lab:
        assert await _states(lab, "look", ["a"] * 5, session="s") == [None] * 3 + ["runaway"] * 2
        assert await _states(lab, "look", ["b"], session="s") == [None]
        assert await _states(lab, "look", ["a"], session="t") == [None]
        assert slug(await lab.call("look", "a", session="s", by=await lab.caller("bea"))) is None
        assert slug(await lab.call("brief_look", "a", session="s")) is None


async def test_cost_that_rises_is_stopped(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("cost_rate", 10, "slope")) as lab:
        with costing("up", 1, 2, 3, 4, 5):
            assert await _states(lab, "metered", ["up"] * 6) == [None] * 4 + ["runaway"] * 2
        # What a call came to is told beside its answer, and its place in the window is known at once.
        refused = await lab.call("pay", "more")
        assert body(refused)["error"]["details"]["used"] == 10


async def test_a_budget_is_spent_by_what_calls_really_cost(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("budget", 3, "money", per=["caller"])) as lab:
        prices["cheap"] = 0.25
        assert await _states(lab, "pay", ["cheap"] * 9) == [None] * 9
        # 2.25 are spent: a call that may cost 1 does not fit.
        refused = await lab.call("pay", "cheap")
        assert (slug(refused), refused.http_status, _named(refused)) == ("budget-spent", 429, "money")
        assert 0 < (refused.retry_after_ms or 0) <= 86_400_000
        assert slug(await lab.call("metered", "cheap")) is None
        assert slug(await lab.call("pay", "bea", by=await lab.caller("bea"))) is None
    assert await _granted(fresh_database) == [1_000_000, 2_500_000]


async def _granted(dsn: str) -> list[int]:
    db = await asyncpg.connect(dsn)
    rows = await db.fetch("select granted from deputize.budgets order by 1")
    await db.close()
    return [row[0] for row in rows]


async def test_what_proves_that_nothing_happened_costs_nothing(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("budget", 2, "money")) as lab:
        failures["busy"] = ToolConflict("somebody else was faster")
        assert await _states(lab, "pay", ["busy"] * 4) == ["tool-conflict"] * 4
        assert [slug(await lab.call("erase", "keyless")) for _ in range(4)] == ["key-required"] * 4
        failures["bad"] = ToolFailed("it broke")
        assert await _states(lab, "pay", ["bad"] * 3) == ["tool-failed"] * 2 + ["budget-spent"]


async def test_a_call_that_no_rule_concerns_is_not_looked_at(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("rate", 1, tools="other.*")) as lab:
        assert lab.rooms.limits.concerning("dev", "lab.look") is None
        assert await _states(lab, "look", ["a"] * 3) == [None] * 3
    async with limited_lab(fresh_database, tmp_path) as lab:
        assert lab.rooms.limits.concerning("dev", "lab.look") is None
        assert await _states(lab, "look", ["a"] * 3) == [None] * 3


async def test_a_session_remembers_what_it_has_cost(fresh_database: str, tmp_path: Path) -> None:
    async with limited_lab(fresh_database, tmp_path) as lab:
        ana, spent = await lab.caller(), lab.rooms.limits.spent
        assert spent(ana, "s") == 0
        prices["priced"] = 0.5
        await lab.call("pay", "priced", session="s")
        await lab.call("pay", "unpriced", session="s")
        assert (spent(ana, "s"), spent(ana, "t"), spent(await lab.caller("bea"), "s")) == (1_500_000, 0, 0)


async def test_two_gateways_count_together(fresh_database: str, tmp_path: Path, redis: RedisServer) -> None:
    rules = [rule("rate", 4, "shared"), rule("concurrency", 3, "once"), rule("budget", 100, "money")]
    async with (
        limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as one,
        limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as other,
    ):
        assert [slug(await lab.call("look", "a")) for lab in (one, other) * 3] == [None] * 4 + ["rate-limited"] * 2
        refused = await other.call("look", "b")
        assert _named(refused) == "shared"
        assert 0 < (refused.retry_after_ms or 0) <= 86_500_000


async def test_while_counters_are_away_each_rule_says_what_it_was_told_to(fresh_database: str, tmp_path: Path) -> None:
    rules = [
        rule("rate", 100, "strict", tools="lab.look"),
        rule("rate", 100, "lenient", tools="lab.*", when_lost="allow"),
        rule("concurrency", 5, "slots", tools="lab.put", when_lost="allow"),
    ]
    with redis_server() as redis:
        async with limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as lab:
            assert await _states(lab, "look", ["a"]) == [None]
            assert body(await lab.call("put", "a", key="counted"))["warnings"] == []
            redis.kill()
            refused = await lab.call("look", "a")
            assert (slug(refused), refused.http_status, refused.retry_after_ms) == ("limits-unavailable", 503, 1000)
            assert _named(refused) == "strict"
            went_on = await lab.call("put", "b", key="uncounted")
            assert went_on.state is State.SUCCEEDED
            warnings = body(went_on)["warnings"]
            assert [warning.partition(":")[0] for warning in warnings] == [
                "limit lenient was not counted",
                "limit slots was not counted",
            ]
            redis.start()

            async def counts_again() -> bool:
                return slug(await lab.call("look", "a")) is None

            await until(counts_again)
            assert body(await lab.call("put", "c", key="again"))["warnings"] == []


async def test_a_slot_taken_through_redis_is_free_after_the_answer(
    fresh_database: str, tmp_path: Path, redis: RedisServer
) -> None:
    async with limited_lab(fresh_database, tmp_path, rule("concurrency", 1, "slot"), redis_url=redis.url) as lab:
        assert await _states(lab, "look", ["a"] * 20) == [None] * 20
        gate = Gate()
        on("gated", gate)
        held = asyncio.create_task(lab.call("look", "gated"))
        await gate.began.wait()
        assert await _states(lab, "look", ["a"]) == ["too-many-at-once"]
        held.cancel()
        await asyncio.wait({held})

        async def free() -> bool:
            return slug(await lab.call("look", "a")) is None

        await until(free)
