"""Limits on three replicas that share one Redis: what gets through, what a lost Redis does, where a runaway stops.

More than twice of what a rate allows is offered in an open loop, unevenly, to three gateways; what an exact counter
would have admitted of the same calls is worked out by brute force. Then Redis is frozen, killed and started again under
two rules, one that says no while it cannot be counted and one that says yes. Last, agents run away: one repeats one
call, one spends a budget, one makes each call dearer than the last, each through all replicas at once.
"""

import asyncio
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import asyncpg

from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.limits.traffic import LimitCall, TrafficClient, generate_arrivals, offer_calls, run_runaway

NAME = "limits"
PROMISE = (
    "Replicas admit together what a limit allows, a lost Redis is met as each rule says, and runaways are stopped."
)

RATE, WINDOW = 100, 1.0
OFFERED_RATE = 240.0
# Which replica each call goes to: unequal shares, so that no part of the limit could be everybody's own.
SHARES = (0, 1, 0, 2, 1, 0)
REPEATS = 20
BUDGET, MAX_COST_SLOPE = 20.0, 5.0
REDIS_SECONDS = 1.0
# By then, whoever was on the way when Redis was lost, or came back, has been answered.
SETTLE_SECONDS = 2.0
FREEZE_AT, KILL_AT, RESTART_AT, END_AT = 3.0, 7.0, 11.0, 16.0
_SETTINGS = """
[limits]
redis_url = "{redis}"
redis_seconds = {seconds}
rules = [
  {{ name = "pace", kind = "rate", limit = {rate}, seconds = {window}, tools = "limits.look" }},
  {{ name = "strict", kind = "rate", limit = 100000, tools = "limits.strict", when_lost = "deny" }},
  {{ name = "lenient", kind = "rate", limit = 100000, tools = "limits.lenient", when_lost = "allow" }},
  {{ name = "loops", kind = "repeats", limit = {repeats}, seconds = 600, tools = "limits.again" }},
  {{ name = "purse", kind = "budget", limit = {budget}, seconds = 86400, per = ["agent"], tools = "limits.spend" }},
  {{ name = "slope", kind = "cost_rate", limit = {slope}, seconds = 600, per = ["agent"], tools = "limits.burn" }},
]
"""


_LOAD_SENSITIVE = (
    "refused unnamed",
    "wrong while counted",
    "wrong while frozen",
    "wrong while killed",
    "refused in other words",
)


@dataclass(kw_only=True, slots=True)
class Testbed:
    """Three gateways, one Redis, one database."""

    sandbox: Sandbox
    issuer: Issuer
    dsn: str
    gateways: list[GatewayHandle]
    redis: ChildProcess
    port: int

    def create_clients(self, agent: str) -> list[TrafficClient]:
        token = self.issuer.issue_token("ana", agent=agent)
        return [TrafficClient(url=each.url, token=token) for each in self.gateways]


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await _start_testbed(sandbox)
    sandbox.log(f"{OFFERED_RATE:g} calls/s on three replicas against {RATE} in {WINDOW:g} s")
    pace_figures = await _measure_rate(testbed, "pacer", seconds=sandbox.pick_size(quick=10, full=60))
    sandbox.log("Redis is frozen, killed and started again")
    loss_figures = await _measure_redis_loss(testbed)
    sandbox.log("agents run away")
    loop_calls = await _run_loop(testbed, "looper", calls=sandbox.pick_size(quick=150, full=1500))
    budget_calls = await _run_rising_cost(testbed, "spend", calls=sandbox.pick_size(quick=300, full=3000))
    slope_calls = await _run_rising_cost(testbed, "burn", calls=sandbox.pick_size(quick=150, full=1500))
    granted_budget = await _fetch_granted_budget(testbed)
    sandbox.log("control: each replica counts alone")
    local_pace = await _measure_rate(await _restart_with_local_counters(testbed), "pacer-alone", seconds=3)
    local_loop_calls = await _run_loop(testbed, "looper-alone", calls=150)
    return Verdict(
        load_sensitive=_LOAD_SENSITIVE,
        figures={
            **pace_figures,
            **loss_figures,
            "loop admitted": sum(call.is_admitted for call in loop_calls),
            "budget spent": round(sum(call.cost for call in budget_calls), 6),
            "budget leased": granted_budget,
            "cost when the slope was stopped": round(sum(call.cost for call in slope_calls), 6),
            "refused in other words": _count_unnamed_refusals(loop_calls, "runaway", "loops")
            + _count_unnamed_refusals(budget_calls, "budget-spent", "purse")
            + _count_unnamed_refusals(slope_calls, "runaway", "slope"),
            "alone: admitted of allowed": local_pace["admitted of allowed"],
            "alone: loop admitted": sum(call.is_admitted for call in local_loop_calls),
        },
        bars={
            "seconds": (">=", 10.0),
            "offered per second": (">=", 200.0),
            "admitted of allowed": (">=", 0.98 if sandbox.full else 0.9),
            "admitted above allowed": ("<=", 0.02),
            "refused unnamed": ("==", 0),
            "wrong while counted": ("==", 0),
            "wrong while frozen": ("==", 0),
            "wrong while killed": ("==", 0),
            "share that waited while lost": ("<=", 0.05 if sandbox.full else 0.2),
            "loop admitted": ("==", REPEATS),
            "budget spent": ("<=", BUDGET),
            "budget leased": ("<=", BUDGET),
            "cost when the slope was stopped": ("<=", MAX_COST_SLOPE),
            "refused in other words": ("==", 0),
        },
        controls={
            "each replica counts alone, seen by its rate": float(local_pace["admitted of allowed"]) > 1.02,
            "each replica counts alone, seen by its loops": sum(call.is_admitted for call in local_loop_calls)
            > REPEATS,
        },
    )


async def _restart_with_local_counters(testbed: Testbed) -> Testbed:
    await asyncio.gather(*(restart_as_variant(gateway, "limits_local_counters") for gateway in testbed.gateways))
    return testbed


async def _start_testbed(sandbox: Sandbox) -> Testbed:
    postgres, issuer, port = await sandbox.start_postgres(), create_issuer(), sandbox.pick_free_port()
    redis = await _start_redis(sandbox, port)
    settings = _SETTINGS.format(
        redis=f"redis://127.0.0.1:{port}/0", seconds=REDIS_SECONDS, rate=RATE, window=WINDOW, repeats=REPEATS,
        budget=BUDGET, slope=MAX_COST_SLOPE,
    )  # fmt: skip
    start = partial(start_gateway, sandbox, postgres.dsn, issuer, tools="limits.py", settings=settings)
    first = await start(name="gateway-0")
    others = await asyncio.gather(*(start(name=f"gateway-{n}") for n in (1, 2)))
    return Testbed(sandbox=sandbox, issuer=issuer, dsn=postgres.dsn, gateways=[first, *others], redis=redis, port=port)


async def _start_redis(sandbox: Sandbox, port: int) -> ChildProcess:
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed: `apt-get install -y redis-server`, then run again.")
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return await sandbox.start_process("redis", argv, ready_line="Ready to accept connections")


async def _measure_rate(testbed: Testbed, agent: str, *, seconds: int) -> dict[str, Figure]:
    """Ends while a full window is waited for, where a call a little early or late changes nothing."""
    clients = testbed.create_clients(agent)
    # Connections are opened, keys loaded and counters connected before anything is counted here.
    warmup_senders = [partial(clients[n % 3].send_call, "strict", {"word": f"warm {n}"}) for n in range(120)]
    await offer_calls(warmup_senders, generate_arrivals(OFFERED_RATE, 60, seed=1)[:120])
    times = generate_arrivals(OFFERED_RATE, seconds + 0.7 * WINDOW, seed=seconds)
    senders = [partial(clients[SHARES[n % 6]].send_call, "look", {"word": f"{agent} {n}"}) for n in range(len(times))]
    calls = await offer_calls(senders, times)
    for client in clients:
        client.close()
    duration = max(call.sent_at for call in calls) - min(call.sent_at for call in calls)
    admitted_count, allowed_count = (
        sum(call.is_admitted for call in calls),
        _count_allowed([call.sent_at for call in calls]),
    )
    return {
        "seconds": round(duration, 2),
        "offered per second": round(len(calls) / duration, 1),
        "admitted": admitted_count,
        "allowed": allowed_count,
        "admitted of allowed": round(admitted_count / allowed_count, 4),
        "admitted above allowed": round(max(admitted_count / allowed_count - 1, 0.0), 4),
        "refused unnamed": _count_unnamed_refusals(calls, "rate-limited", "pace"),
    }


def _count_allowed(times: Sequence[float]) -> int:
    """How many of these calls an exact counter would have admitted."""
    window: deque[float] = deque()
    admitted_count = 0
    for moment in sorted(times):
        while window and window[0] <= moment - WINDOW:
            window.popleft()
        if len(window) < RATE:
            window.append(moment)
            admitted_count += 1
    return admitted_count


def _count_unnamed_refusals(calls: Sequence[LimitCall], slug: str, rule: str) -> int:
    """Refusals that do not say which rule they are by, or not when to come again."""
    return sum(not (call.is_admitted or call.is_refused_by(slug, rule)) for call in calls)


async def _measure_redis_loss(testbed: Testbed) -> dict[str, Figure]:
    clients = testbed.create_clients("loser")
    began = time.monotonic()

    async def freeze_redis() -> None:
        os.kill(testbed.redis.pid, signal.SIGSTOP)

    async def kill_redis() -> None:
        testbed.redis.kill()
        await testbed.redis.wait_for_exit()

    async def restart_redis() -> None:
        testbed.redis = await _start_redis(testbed.sandbox, testbed.port)

    times = generate_arrivals(120.0, END_AT, seed=2)
    senders = [
        partial(clients[n % 3].send_call, ("strict", "lenient")[n // 3 % 2], {"word": f"lost {n}"})
        for n in range(len(times))
    ]
    calls = await offer_calls(senders, times, {FREEZE_AT: freeze_redis, KILL_AT: kill_redis, RESTART_AT: restart_redis})
    for client in clients:
        client.close()

    def select_between(start: float, end: float) -> list[LimitCall]:
        return [call for call in calls if start <= call.sent_at - began < end]

    calls_while_counted = select_between(0, FREEZE_AT - SETTLE_SECONDS) + select_between(
        RESTART_AT + 2 * SETTLE_SECONDS, END_AT
    )
    calls_while_frozen, calls_while_killed = (
        select_between(FREEZE_AT + SETTLE_SECONDS, KILL_AT),
        select_between(KILL_AT + SETTLE_SECONDS, RESTART_AT),
    )
    calls_while_lost = calls_while_frozen + calls_while_killed
    slow_calls = [call for call in calls_while_lost if call.seconds > REDIS_SECONDS * 0.8]
    return {
        "calls while counted": len(calls_while_counted),
        "calls while frozen": len(calls_while_frozen),
        "calls while killed": len(calls_while_killed),
        "wrong while counted": sum(not (call.is_admitted and not call.warnings) for call in calls_while_counted),
        "wrong while frozen": sum(not _is_as_configured(call) for call in calls_while_frozen),
        "wrong while killed": sum(not _is_as_configured(call) for call in calls_while_killed),
        "share that waited while lost": round(len(slow_calls) / max(len(calls_while_lost), 1), 4),
    }


def _is_as_configured(call: LimitCall) -> bool:
    """What each rule is to say while it cannot be counted, and that it says so by name."""
    if call.tool == "strict":
        return call.status == 503 and call.is_refused_by("limits-unavailable", "strict")
    return call.is_admitted and any(warning.startswith("limit lenient was not counted") for warning in call.warnings)


async def _run_loop(testbed: Testbed, agent: str, *, calls: int) -> list[LimitCall]:
    """One call, again and again, and not one that says what is wrong with it."""
    clients = testbed.create_clients(agent)
    results = await run_runaway(clients, calls, lambda client, _: client.send_call("again", {"word": "again"}))
    for client in clients:
        client.close()
    return results


async def _run_rising_cost(testbed: Testbed, tool: str, *, calls: int) -> list[LimitCall]:
    """Each call dearer than the last, up to what its contract says it may cost."""
    clients = testbed.create_clients(f"{tool}er")
    results = await run_runaway(
        clients, calls, lambda client, number: client.send_call(tool, {"cents": min(1 + number // 3, 50)})
    )
    for client in clients:
        client.close()
    return results


async def _fetch_granted_budget(testbed: Testbed) -> float:
    """What replicas hold of the budget, spent or not: never more than there is."""
    connection = await asyncpg.connect(testbed.dsn)
    try:
        granted_micros = await connection.fetchval("select max(granted) from deputize.budgets where rule = 'purse'")
    finally:
        await connection.close()
    return float(granted_micros) / 1_000_000
