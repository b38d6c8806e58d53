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
from dataclasses import dataclass
from functools import partial

import asyncpg

from proofs.kit.child_process import ChildProcess
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.limits.judge import (
    END_AT,
    FREEZE_AT,
    KILL_AT,
    RATE,
    REDIS_SECONDS,
    RESTART_AT,
    WINDOW,
    count_admitted,
    judge_rate,
    judge_redis_loss,
    judge_runaways,
)
from proofs.limits.traffic import LimitCall, TrafficClient, generate_arrivals, offer_calls, run_runaway

NAME = "limits"
PROMISE = (
    "Replicas admit together what a limit allows, a lost Redis is met as each rule says, and runaways are stopped."
)

OFFERED_RATE = 240.0
# Which replica each call goes to: unequal shares, so that no part of the limit could be everybody's own.
SHARES = (0, 1, 0, 2, 1, 0)
REPEATS = 20
BUDGET, MAX_COST_SLOPE = 20.0, 5.0
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
        figures={
            **pace_figures,
            **loss_figures,
            **judge_runaways(loop_calls, budget_calls, slope_calls, granted_budget),
            "alone: admitted of allowed": local_pace["admitted of allowed"],
            "alone: loop admitted": count_admitted(local_loop_calls),
        },
        controls={
            "each replica counts alone, seen by its rate": float(local_pace["admitted of allowed"]) > 1.02,
            "each replica counts alone, seen by its loops": count_admitted(local_loop_calls) > REPEATS,
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
    return judge_rate(calls)


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

    return judge_redis_loss(calls, began)


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
