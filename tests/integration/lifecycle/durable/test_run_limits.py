"""Limits hold when a worker begins a call that was queued or approved, and what it used is settled at its end."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize import ToolContext
from deputize.app import open_worker
from deputize.core.caller import Caller
from deputize.core.errors import BudgetExhausted, ToolFailed
from deputize.core.settings.limits import LimitRule
from deputize.lifecycle.durable.active_runs import ActiveRuns
from deputize.lifecycle.durable.resume import ClaimedRun, RunNotReady, claim_run, load_pending_run
from deputize.store.counters.in_process import InProcessCounters
from tests.support.approval_lab import RULES, ApprovalLab
from tests.support.gateway_internals import get_lifecycle
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body, wait_until
from tests.support.limited_lab import failures, make_rule, open_limited_lab, prices
from tests.support.redis_server import RedisServer, run_redis_server
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("GOV-8")
ENDED = ("succeeded", "failed", "denied", "canceled", "unknown")


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with run_redis_server() as server:
        yield server


@asynccontextmanager
async def open_worker_lab(
    dsn: str, folder: Path, *rules: LimitRule, redis_url: str | None = None
) -> AsyncIterator[GatewayLab]:
    async with (
        open_limited_lab(dsn, folder, *rules, redis_url=redis_url, lease_seconds=60, sweep_seconds=0.1) as lab,
        open_worker(lab.gateway),
    ):
        yield lab


async def submit(lab: GatewayLab, tool: str, tag: str, **more: Any) -> str:
    outcome = await lab.call(tool, tag, mode="async", **more)
    # 200 is the answer to a repeat whose run has ended already.
    assert outcome.http_status in (200, 202), outcome.body
    return outcome.call_id


async def wait_for_ends(lab: GatewayLab, calls: list[str]) -> list[str]:
    async def have_ended() -> bool:
        return all([await lab.fetch_state(call) in ENDED for call in calls])

    await wait_until(have_ended)
    return [await lab.fetch_state(call) for call in calls]


async def fetch_errors(lab: GatewayLab, calls: list[str]) -> list[str | None]:
    return [(await lab.fetch_call(call))["error"] for call in calls]


async def wait_for_free_slot(lab: GatewayLab) -> None:
    """Returns once a call finds a slot: an outcome is committed first, then its slot is given back."""

    async def is_free() -> bool:
        return error_slug(await lab.call("look", "after")) is None

    await wait_until(is_free)


class ConcurrencyMeter:
    """A behaviour that measures how many calls run at once, and keeps them until so many have met as are expected."""

    def __init__(self, expected: int) -> None:
        self.now, self.most = 0, 0
        self._expected, self._have_met = expected, asyncio.Event()

    async def __call__(self, _: ToolContext) -> dict[str, Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now >= self._expected:
            self._have_met.set()
        await self._have_met.wait()
        await asyncio.sleep(0.2)  # for one more, whom the limit must keep out
        self.now -= 1
        return {"value": "done"}


async def test_asynchronous_calls_run_no_more_at_once_than_the_limit(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("concurrency", 2, "two")) as lab:
        meter = ConcurrencyMeter(2)
        set_behaviour("metered", meter)
        calls = [await submit(lab, "look", "metered") for _ in range(8)]
        assert await wait_for_ends(lab, calls) == ["succeeded"] * 8
        assert meter.most == 2
        rows = await lab.db.fetch("select takeovers from deputize.runs")
        assert {row["takeovers"] for row in rows} <= {0}
        # Being held leaves no trace in the audit: each run began once.
        assert [await lab.fetch_entry_kinds(call) for call in calls] == [["intent", "intent", "outcome"]] * 8


async def test_asynchronous_and_synchronous_calls_share_the_slots(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("concurrency", 1, "one")) as lab:
        gate = Gate()
        set_behaviour("runs", gate)
        call = await submit(lab, "look", "runs")
        await gate.began.wait()
        assert error_slug(await lab.call("look", "meanwhile")) == "too-many-at-once"
        gate.open.set()
        assert await wait_for_ends(lab, [call]) == ["succeeded"]
        await wait_for_free_slot(lab)


async def test_held_runs_do_not_stop_those_of_other_counters(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("concurrency", 1, per=["caller"])) as lab:
        gate = Gate()
        set_behaviour("blocks", gate)
        calls = [await submit(lab, "look", "blocks") for _ in range(3)]
        await gate.began.wait()
        other = await submit(lab, "look", "free", by=await lab.make_caller("bea"))
        assert await wait_for_ends(lab, [other]) == ["succeeded"]
        gate.open.set()
        assert await wait_for_ends(lab, calls) == ["succeeded"] * 3


async def test_a_budget_holds_for_asynchronous_calls(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("budget", 2, "money")) as lab:
        calls = [await submit(lab, "pay", f"declared {number}") for number in range(2)]
        assert await wait_for_ends(lab, calls) == ["succeeded"] * 2
        refused = await lab.call("pay", "more", mode="async")
        assert (error_slug(refused), refused.http_status) == ("budget-spent", 429)


async def test_a_budget_holds_for_queued_calls_that_declare_no_cost(fresh_database: str, tmp_path: Path) -> None:
    prices["undeclared"] = 1.0
    async with open_limited_lab(fresh_database, tmp_path, make_rule("budget", 2, "money")) as lab:
        calls = [await submit(lab, "metered_look", "undeclared") for _ in range(10)]
        async with open_worker(lab.gateway):
            states = await wait_for_ends(lab, calls)
        assert sorted(states) == ["failed"] * 8 + ["succeeded"] * 2
        errors = await fetch_errors(lab, calls)
        assert sorted(error or "" for error in errors) == [""] * 2 + ["budget-spent"] * 8
    granted = await _fetch_granted(fresh_database)
    assert granted == 2_000_000


async def _fetch_granted(dsn: str) -> int:
    db = await asyncpg.connect(dsn)
    granted = await db.fetchval("select sum(granted) from deputize.budgets")
    await db.close()
    return int(granted)


async def test_real_costs_are_settled_however_a_run_ends(fresh_database: str, tmp_path: Path) -> None:
    prices["cheap"], failures["bad"] = 0.25, ToolFailed("it broke")
    async with open_worker_lab(fresh_database, tmp_path, make_rule("budget", 20, "money")) as lab:
        calls = [await submit(lab, "pay", tag) for tag in ("cheap", "bad", "cheap")]
        assert await wait_for_ends(lab, calls) == ["succeeded", "failed", "succeeded"]
    # A failure may have cost what the contract declares.
    assert await _fetch_granted(fresh_database) == 1_500_000


@pytest.mark.nightly
async def test_a_rate_counts_submissions_and_holds_executions(fresh_database: str, tmp_path: Path) -> None:
    window = 6
    rules = [make_rule("rate", 3, "pace", seconds=window, tools="lab.look")]
    async with open_limited_lab(fresh_database, tmp_path, *rules) as lab:
        calls = [await submit(lab, "look", f"a{number}") for number in range(3)]
        refused = await lab.call("look", "a4", mode="async")
        assert (error_slug(refused), refused.http_status) == ("rate-limited", 429)
        await asyncio.sleep(window * 1.1)
        calls += [await submit(lab, "look", f"b{number}") for number in range(3)]
        started: list[float] = []
        loop = asyncio.get_running_loop()
        for tag in [f"{letter}{number}" for letter in "ab" for number in range(3)]:
            set_behaviour(tag, _note_time(started, loop.time))
        async with open_worker(lab.gateway):
            assert await wait_for_ends(lab, calls) == ["succeeded"] * 6
        assert len(started) == 6
        # Admission is before the tool starts: a moment, or seconds on a busy machine.
        assert started[3] - started[0] > window / 2


def _note_time(started: list[float], clock: Callable[[], float]) -> Callable[[ToolContext], Any]:
    def behave(_: ToolContext) -> dict[str, Any]:
        started.append(clock())
        return {"value": "done"}

    return behave


async def test_a_repeated_key_is_not_counted_again(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("rate", 2, "pace")) as lab:
        first = await submit(lab, "put", "once", key="k")
        assert {await submit(lab, "put", "once", key="k") for _ in range(5)} == {first}
        await submit(lab, "put", "twice", key="l")
        assert error_slug(await lab.call("put", "thrice", key="m", mode="async")) == "rate-limited"


async def test_an_approved_call_is_admitted_when_it_begins(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("concurrency", 1, "one")) as lab:
        approval_lab = ApprovalLab(lab=lab)
        await approval_lab.put_policies(RULES)
        meter = ConcurrencyMeter(1)
        set_behaviour("approved", meter)
        requests = [await approval_lab.request_approval("put", "approved", key=f"k{number}") for number in range(4)]
        approver = await approval_lab.make_approver("bea")
        for _, request_id in requests:
            await _approve(approval_lab, approver, request_id)
        assert await wait_for_ends(lab, [call for call, _ in requests]) == ["succeeded"] * 4
        assert (meter.most, len(list_effects("approved"))) == (1, 4)


async def _approve(approval_lab: ApprovalLab, approver: Caller, request_id: str) -> None:
    shown = await approval_lab.approvals.get_request(approver, request_id)
    await approval_lab.approvals.approve(approver, request_id, binding=shown["binding"])


async def claim(lab: GatewayLab, call_id: str) -> ClaimedRun:
    pending_run = await load_pending_run(lab.runtime, "dev", call_id)
    assert pending_run is not None
    claimed = await claim_run(lab.runtime, pending_run)
    assert claimed is not None
    return claimed


async def test_the_slot_of_a_dead_worker_goes_to_the_one_that_takes_over(
    fresh_database: str, tmp_path: Path, redis: RedisServer
) -> None:
    rules = [make_rule("concurrency", 1, "shared-slot")]
    async with open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as dead:
        call, other = await submit(dead, "put", "dead", key="k"), await submit(dead, "put", "waits", key="l")
        lost = await claim(dead, call)
        async with open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as lab:
            with pytest.raises(RunNotReady, match="at most 1 concurrent"):
                await claim(lab, other)
            await lab.expire_lease(dead, call)
            taken_over = await claim(lab, call)
            with pytest.raises(RunNotReady, match="at most 1 concurrent"):
                await claim(lab, other)
            # The late end of the first worker does not release the slot of the second.
            lost.charge.settle()
            with pytest.raises(RunNotReady, match="at most 1 concurrent"):
                await claim(lab, other)
            taken_over.charge.settle()
            taken_over.charge.settle()
            (await claim(lab, other)).charge.refund()


async def test_the_slot_of_a_dead_worker_is_free_once_its_call_is_unknown(
    fresh_database: str, tmp_path: Path, redis: RedisServer
) -> None:
    rules = [make_rule("concurrency", 1, "slot-of-the-unknown")]
    async with open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as dead:
        call, other = await submit(dead, "note", "lost", key="k"), await submit(dead, "note", "next", key="l")
        await claim(dead, call)
        async with open_limited_lab(fresh_database, tmp_path, *rules, redis_url=redis.url) as lab:
            await lab.expire_lease(dead, call)
            await get_lifecycle(lab.gateway).resume_run("dev", call, ActiveRuns(lab.runtime))
            assert await lab.fetch_state(call) == "unknown"
            (await claim(lab, other)).charge.refund()


async def test_a_run_handed_out_twice_keeps_its_slot(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("concurrency", 5, "five")) as lab:
        call = await submit(lab, "put", "twice", key="k")
        first = await load_pending_run(lab.runtime, "dev", call)
        second = await load_pending_run(lab.runtime, "dev", call)
        assert first is not None
        assert second is not None
        claimed = await claim_run(lab.runtime, first)
        assert claimed is not None
        with pytest.raises(RunNotReady):
            await claim_run(lab.runtime, second)
        counters = lab.runtime.limits._counters
        assert isinstance(counters, InProcessCounters)
        assert sum(len(holders) for holders in counters._slots.values()) == 1
        claimed.charge.settle()
        assert not counters._slots


async def test_a_run_that_fails_its_begin_is_not_charged(fresh_database: str, tmp_path: Path) -> None:
    rules = [make_rule("rate", 1, "pace"), make_rule("budget", 1, "money")]
    async with open_limited_lab(fresh_database, tmp_path, *rules) as lab:
        call = await submit(lab, "buy", "again", key="k")
        pending_run = await load_pending_run(lab.runtime, "dev", call)
        assert pending_run is not None
        await lab.db.execute("update deputize.calls set owner_epoch = 7 where id = $1", call)
        with pytest.raises(RunNotReady, match="another worker"):
            await claim_run(lab.runtime, pending_run)
        await lab.db.execute("update deputize.calls set owner_epoch = 0 where id = $1", call)
        (await claim(lab, call)).charge.settle()


async def test_a_canceled_run_that_is_held_ends_without_its_slot(fresh_database: str, tmp_path: Path) -> None:
    async with open_worker_lab(fresh_database, tmp_path, make_rule("concurrency", 1, "one")) as lab:
        gate = Gate()
        set_behaviour("holds", gate)
        call = await submit(lab, "look", "holds")
        await gate.began.wait()
        held = await submit(lab, "look", "held")
        await lab.gateway.cancellations.cancel_call(await lab.make_caller(), held)
        assert await wait_for_ends(lab, [held]) == ["canceled"]
        gate.open.set()
        set_behaviour("breaks", raise_error(ToolFailed("no")))
        broken = await submit(lab, "look", "breaks")
        assert await wait_for_ends(lab, [call, broken]) == ["succeeded", "failed"]
        await wait_for_free_slot(lab)


async def test_a_run_over_its_budget_says_so(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("budget", 1, "money")) as lab:
        calls = [await submit(lab, "buy", f"b{number}", key=f"k{number}") for number in range(2)]
        (await claim(lab, calls[0])).charge.settle()
        await get_lifecycle(lab.gateway).resume_run("dev", calls[1], ActiveRuns(lab.runtime))
        row = await lab.fetch_call(calls[1])
        assert (row["state"], row["error"]) == ("failed", BudgetExhausted.spec.slug)
        replay = await lab.call("buy", "b1", key="k1")
        assert parse_body(replay)["error"]["details"]["rule"] == "money"
