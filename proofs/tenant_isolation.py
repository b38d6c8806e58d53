"""One hostile tenant beside a normal one: how much slower the normal one's calls become.

First, calls of the hostile tenant share batches with those of the normal one while its barrier is held for a quarter of
a second at a time, as by acts under way on other gateways: the normal tenant must not notice. Then the hostile tenant
offers a storm, at fixed rates and without regard for refusals: administrative acts, calls that fail, sets of rules and
huge definitions. It counts only if some of it is accepted.

Rounds alone and beside alternate in one run and ratios are judged, so that a slow machine slows both.
"""

import asyncio
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import asyncpg

from proofs.kit.gateway import GatewayHandle, create_issuer, put_policies, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.recovery.judge import compute_percentile

NAME = "tenant_isolation"
PROMISE = "Neither the acts of one tenant nor a storm of acts, calls and rules hold up another tenant's calls."
FULL_ONLY = True

NORMAL, HOSTILE = "acme", "gamma"
CONNECTIONS = 4
ACTS_PER_SECOND, FAILURES_PER_SECOND, POLICIES_PER_SECOND, DEFINITIONS_PER_SECOND = 100.0, 40.0, 1.0, 1.0
RULES = 500
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


class HostileTenant:
    """Sends what costs most, each kind at its own rate, and counts the answers by status."""

    def __init__(self, gateway: GatewayHandle, token: str) -> None:
        self._gateway = gateway
        self._token = token
        self._numbers = itertools.count()
        self.statuses: Counter[tuple[str, int]] = Counter()

    async def call_until(self, ends_at: float) -> None:
        await self._repeat(FAILURES_PER_SECOND, self._fail, ends_at)

    async def attack(self, testbed: Testbed, seconds: float) -> None:
        ends_at = time.monotonic() + seconds
        kinds: list[tuple[float, Callable[[HttpConnection], Awaitable[int]]]] = [
            (ACTS_PER_SECOND / 2, self._revoke),
            (ACTS_PER_SECOND / 2, self._revoke),
            (FAILURES_PER_SECOND, self._fail),
            (POLICIES_PER_SECOND, self._put_rules),
            (DEFINITIONS_PER_SECOND, self._define),
        ]
        await asyncio.gather(*(self._repeat(rate, act, ends_at) for rate, act in kinds))

    async def _repeat(self, rate: float, act: Callable[[HttpConnection], Awaitable[int]], ends_at: float) -> None:
        connection = HttpConnection.for_url(self._gateway.url, token=self._token)
        due = time.monotonic()
        while due < ends_at:
            await asyncio.sleep(max(due - time.monotonic(), 0))
            due = max(due + 1 / rate, time.monotonic() - 1)
            self.statuses[act.__name__, await act(connection)] += 1
        connection.close()

    async def _revoke(self, connection: HttpConnection) -> int:
        value = {"kind": "token", "value": f"none-{next(self._numbers)}", "reason": "storm"}
        return (await connection.post("/v1/revocations", value)).status

    async def _fail(self, connection: HttpConnection) -> int:
        return (await connection.post("/v1/calls", {"tool": "no.such_tool", "arguments": {}})).status

    async def _put_rules(self, connection: HttpConnection) -> int:
        seed = next(self._numbers)
        rules = "\n".join(
            f'@id("r{seed}-{number}") forbid (principal == User::"u{seed}-{number}", action, resource);'
            for number in range(RULES)
        )
        body = json.dumps({"files": [{"path": "storm.cedar", "text": rules}]}).encode()
        return (await connection.send("PUT", "/v1/policies", body=body)).status

    async def _define(self, connection: HttpConnection) -> int:
        properties = {f"p{number}": {"type": "string", "description": "x" * 80} for number in range(4000)}
        manifest = {"name": "huge", "namespace": "gamma", "input_schema": {"type": "object", "properties": properties}}
        return (await connection.post("/v1/tools", manifest)).status


Attack = Callable[[HostileTenant, Testbed, float], Coroutine[Any, Any, None]]


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
    storm = HostileTenant(gateway, admin)
    storm_alone, in_storm = await _alternate(testbed, HostileTenant.attack, seconds, rounds, storm)
    sandbox.log(f"the storm was answered with {dict(storm.statuses)}")
    sandbox.log("control: a writer that waits at every barrier")
    await restart_as_variant(gateway, "tenant_isolation_waiting_writer")
    await _measure_round(testbed, 0.5)
    control_alone, control_beside = await _alternate(testbed, _hold_barrier, seconds, 1)
    p99_ratio, throughput_ratio = _compute_ratios(alone, beside)
    storm_p99, storm_throughput = _compute_ratios(storm_alone, in_storm)
    control_p99, control_throughput = _compute_ratios(control_alone, control_beside)
    figures: dict[str, Figure] = {
        "p99 beside held barriers": p99_ratio,
        "throughput beside held barriers": throughput_ratio,
        "p99 alone in ms": round(statistics.median(each.p99_ms for each in alone), 1),
        "calls per second alone": round(statistics.median(each.calls_per_second for each in alone), 1),
        "failed calls": sum(each.failures for each in (*alone, *beside, *storm_alone, *in_storm)),
        "acts in the storm": storm.statuses["_revoke", 201],
        "rule sets in the storm": storm.statuses["_put_rules", 200],
        "p99 in a storm": storm_p99,
        "throughput in a storm": storm_throughput,
        "old writer: p99 beside held barriers": control_p99,
        "old writer: throughput beside held barriers": control_throughput,
    }
    return _build_verdict(sandbox, figures, is_caught=control_throughput < 0.7 * throughput_ratio)


def _build_verdict(sandbox: Sandbox, figures: dict[str, Figure], *, is_caught: bool) -> Verdict:
    return Verdict(
        figures=figures,
        bars={
            "p99 beside held barriers": ("<=", 2.0 if sandbox.full else 4.0),
            "throughput beside held barriers": (">=", 0.7 if sandbox.full else 0.5),
            "failed calls": ("==", 0),
            "acts in the storm": (">=", sandbox.pick_size(quick=10, full=500)),
            "rule sets in the storm": (">=", sandbox.pick_size(quick=1, full=20)),
            "p99 in a storm": ("<=", 2.0 if sandbox.full else 4.0),
            "throughput in a storm": (">=", 0.7 if sandbox.full else 0.5),
        },
        controls={"a writer that waits at barriers": is_caught},
        load_sensitive=(
            "p99 beside held barriers",
            "throughput beside held barriers",
            "p99 in a storm",
            "throughput in a storm",
        ),
    )


async def _alternate(
    testbed: Testbed, attack: Attack, seconds: float, rounds: int, hostile: HostileTenant | None = None
) -> tuple[list[Round], list[Round]]:
    hostile = hostile or HostileTenant(testbed.gateway, testbed.admin)
    alone: list[Round] = []
    beside: list[Round] = []
    for _ in range(rounds):
        alone.append(await _measure_round(testbed, seconds))
        attacking = asyncio.create_task(attack(hostile, testbed, seconds + 0.5))
        await asyncio.sleep(0.2)
        beside.append(await _measure_round(testbed, seconds))
        await attacking
    return alone, beside


async def _hold_barrier(hostile: "HostileTenant", testbed: Testbed, seconds: float) -> None:
    """Hold the hostile tenant's barrier half of the time, while its calls come in."""
    connection = await asyncpg.connect(testbed.dsn)
    ends_at = time.monotonic() + seconds
    calling = asyncio.create_task(hostile.call_until(ends_at))
    while time.monotonic() < ends_at:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock(deputize.barrier_key($1))", HOSTILE)
            await asyncio.sleep(HOLD_SECONDS)
        await asyncio.sleep(HOLD_SECONDS)
    await calling
    await connection.close()


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


def _compute_ratios(alone: list[Round], beside: list[Round]) -> tuple[float, float]:
    """Compute the medians of p99 and of throughput, beside of alone, round by round."""
    pairs = list(zip(alone, beside, strict=True))
    return (
        round(statistics.median(other.p99_ms / one.p99_ms for one, other in pairs), 2),
        round(statistics.median(other.calls_per_second / one.calls_per_second for one, other in pairs), 2),
    )
