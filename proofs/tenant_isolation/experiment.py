"""One hostile tenant beside a normal one: how much slower the normal one's calls become.

First, calls of the hostile tenant share batches with those of the normal one while its barrier is held for a quarter of
a second at a time, as by acts under way on other gateways: the normal tenant must not notice. Then the hostile tenant
offers a storm, at fixed rates and without regard for refusals: administrative acts, calls that fail, sets of rules and
huge definitions (`storm.py`, from a process of its own). It counts only if some of it is accepted.

Rounds alone and beside alternate in one run and ratios are judged, so that a slow machine slows both.
"""

import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import asyncpg

from proofs.kit.gateway import GatewayHandle, create_issuer, put_policies, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.recovery.judge import compute_percentile
from proofs.tenant_isolation.storm import FAILURES_PER_SECOND, Storm

NAME = "tenant_isolation"
PROMISE = "Neither the acts of one tenant nor a storm of acts, calls and rules hold up another tenant's calls."
FULL_ONLY = True

NORMAL, HOSTILE = "acme", "gamma"
CONNECTIONS = 4
HOLD_SECONDS = 0.25
# The defaults, which the kit otherwise raises for proofs.
_DEFAULT_ACTS = {"DEPUTIZE_LIMITS__ADMIN_ACTS_PER_SECOND": "20", "DEPUTIZE_LIMITS__ADMIN_ACTS_AT_ONCE": "40"}
_ADMIN_SCOPES = ("deputize:admin", "proof:write")


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What the normal tenant measured in one round."""

    calls_per_second: float
    p50_ms: float
    p99_ms: float
    failures: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    """A gateway, the normal tenant's token, and the token of the hostile tenant's administrator."""

    gateway: GatewayHandle
    dsn: str
    token: str
    admin: str


# Attack beside the normal tenant for so many seconds.
Attack = Callable[[Testbed, float], Coroutine[Any, Any, None]]


async def prove(sandbox: Sandbox) -> Verdict:
    seconds, rounds = sandbox.pick_size(quick=2, full=10), sandbox.pick_size(quick=1, full=5)
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="limits.py", env=_DEFAULT_ACTS)
    admin = issuer.issue_token("mallory", tenant=HOSTILE, scopes=_ADMIN_SCOPES)
    await put_policies(gateway.url, admin)
    testbed = Testbed(gateway=gateway, dsn=postgres.dsn, token=issuer.issue_token("ana", tenant=NORMAL), admin=admin)
    await _measure_round(testbed, 0.5)
    sandbox.log("acts hold the hostile tenant's barrier")
    alone, beside = await _alternate(testbed, _hold_barrier, seconds, rounds)
    sandbox.log("a storm of acts, failing calls, rules and definitions")
    storm = await Storm.start(sandbox, gateway.url, admin)
    storm_alone, in_storm = await _alternate(testbed, storm.send_requests, seconds, rounds)
    sandbox.log(f"the storm was answered with {dict(storm.statuses)}")
    sandbox.log("control: a writer that waits at every barrier")
    await restart_as_variant(gateway, "tenant_isolation_waiting_writer")
    await _measure_round(testbed, 0.5)
    control_alone, control_beside = await _alternate(testbed, _hold_barrier, seconds, 1)
    p99_ratio, throughput_ratio = compute_ratios(alone, beside)
    storm_p99, storm_throughput = compute_ratios(storm_alone, in_storm)
    control_p99, control_throughput = compute_ratios(control_alone, control_beside)
    figures: dict[str, Figure] = {
        "p99 beside held barriers": p99_ratio,
        "throughput beside held barriers": throughput_ratio,
        "p99 alone in ms": round(statistics.median(each.p99_ms for each in alone), 1),
        "calls per second alone": round(statistics.median(each.calls_per_second for each in alone), 1),
        "failed calls": sum(each.failures for each in (*alone, *beside, *storm_alone, *in_storm)),
        "acts in the storm": storm.statuses["revoke 201"],
        "rule sets in the storm": storm.statuses["put_rules 200"],
        "p99 in a storm": storm_p99,
        "throughput in a storm": storm_throughput,
        "old writer: p99 beside held barriers": control_p99,
        "old writer: throughput beside held barriers": control_throughput,
    }
    is_caught = control_throughput < 0.7 * throughput_ratio
    return Verdict(figures=figures, controls={"a writer that waits at barriers": is_caught})


async def _alternate(testbed: Testbed, attack: Attack, seconds: float, rounds: int) -> tuple[list[Round], list[Round]]:
    alone: list[Round] = []
    beside: list[Round] = []
    for _ in range(rounds):
        alone.append(await _measure_round(testbed, seconds))
        attacking = asyncio.create_task(attack(testbed, seconds + 0.5))
        await asyncio.sleep(0.2)
        beside.append(await _measure_round(testbed, seconds))
        await attacking
    return alone, beside


async def _hold_barrier(testbed: Testbed, seconds: float) -> None:
    """Hold the hostile tenant's barrier half of the time, while its calls come in."""
    connection = await asyncpg.connect(testbed.dsn)
    ends_at = time.monotonic() + seconds
    calling = asyncio.create_task(_fail_until(testbed, ends_at))
    while time.monotonic() < ends_at:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(deputize.barrier_key($1))", HOSTILE)
            await asyncio.sleep(HOLD_SECONDS)
        await asyncio.sleep(HOLD_SECONDS)
    await calling
    await connection.close()


async def _fail_until(testbed: Testbed, ends_at: float) -> None:
    connection = HttpConnection.for_url(testbed.gateway.url, token=testbed.admin)
    while time.monotonic() < ends_at:
        await connection.post("/v1/calls", {"tool": "no.such_tool", "arguments": {}})
        await asyncio.sleep(1 / FAILURES_PER_SECOND)
    connection.close()


async def _measure_round(testbed: Testbed, seconds: float) -> Round:
    latencies: list[float] = []
    failures = 0
    ends_at = time.monotonic() + seconds

    async def call_until_end(number: int) -> None:
        nonlocal failures
        connection = HttpConnection.for_url(testbed.gateway.url, token=testbed.token)
        for step in itertools.count():
            started_at = time.monotonic()
            if started_at >= ends_at:
                break
            answer = await connection.post("/v1/calls", _build_call(number, step))
            latencies.append((time.monotonic() - started_at) * 1000)
            failures += answer.status != 200
        connection.close()

    await asyncio.gather(*(call_until_end(number) for number in range(CONNECTIONS)))
    return Round(
        calls_per_second=len(latencies) / seconds,
        p50_ms=compute_percentile(latencies, 0.5),
        p99_ms=compute_percentile(latencies, 0.99),
        failures=failures,
    )


def _build_call(number: int, step: int) -> dict[str, object]:
    return {"tool": "limits.look", "arguments": {"word": f"{number}-{step}"}}


def compute_ratios(alone: list[Round], beside: list[Round]) -> tuple[float, float]:
    """Compute the medians of p99 and of throughput, beside of alone, round by round."""
    pairs = list(zip(alone, beside, strict=True))
    return (
        round(statistics.median(other.p99_ms / one.p99_ms for one, other in pairs), 2),
        round(statistics.median(other.calls_per_second / one.calls_per_second for one, other in pairs), 2),
    )
