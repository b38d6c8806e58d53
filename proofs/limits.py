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

from proofs.kit.child import Child
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Figure, Verdict
from proofs.kit.variant import restart_as
from proofs.kit.world import World
from proofs.limiting.traffic import Call, Client, moments, offer, run_away

NAME = "limits"
PROMISE = (
    "Replicas admit together what a limit allows, a lost Redis is met as each rule says, and runaways are stopped."
)

RATE, WINDOW = 100, 1.0
OFFERED = 240.0
# Which replica each call goes to: unequal shares, so that no part of the limit could be everybody's own.
SHARES = (0, 1, 0, 2, 1, 0)
REPEATS = 20
BUDGET, SLOPE = 20.0, 5.0
REDIS_SECONDS = 1.0
# By then, whoever was on the way when Redis was lost, or came back, has been answered.
SETTLED = 2.0
FROZEN, KILLED, BACK, END = 3.0, 7.0, 11.0, 16.0
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


_STARVED = (
    "refused unnamed",
    "wrong while counted",
    "wrong while frozen",
    "wrong while killed",
    "refused in other words",
)


@dataclass(kw_only=True, slots=True)
class Site:
    """Three gateways, one Redis, one database."""

    world: World
    issuer: Issuer
    dsn: str
    gateways: list[GatewayHandle]
    redis: Child
    port: int

    def clients(self, agent: str) -> list[Client]:
        token = self.issuer.token("ana", agent=agent)
        return [Client(url=each.url, token=token) for each in self.gateways]


async def prove(world: World) -> Verdict:
    site = await _site(world)
    world.say(f"{OFFERED:g} calls/s on three replicas against {RATE} in {WINDOW:g} s")
    pace = await _paced(site, "pacer", seconds=world.size(quick=10, full=60))
    world.say("Redis is frozen, killed and started again")
    lost = await _lost(site)
    world.say("agents run away")
    looped = await _looped(site, "looper", calls=world.size(quick=150, full=1500))
    spent = await _rising(site, "spend", calls=world.size(quick=300, full=3000))
    burnt = await _rising(site, "burn", calls=world.size(quick=150, full=1500))
    leased = await _leased(site)
    world.say("control: each replica counts alone")
    alone = await _paced(await _alone(site), "pacer-alone", seconds=3)
    looped_alone = await _looped(site, "looper-alone", calls=150)
    return Verdict(
        starved=_STARVED,
        figures={
            **pace,
            **lost,
            "loop admitted": sum(call.admitted for call in looped),
            "budget spent": round(sum(call.cost for call in spent), 6),
            "budget leased": leased,
            "cost when the slope was stopped": round(sum(call.cost for call in burnt), 6),
            "refused in other words": _unnamed(looped, "runaway", "loops")
            + _unnamed(spent, "budget-spent", "purse")
            + _unnamed(burnt, "runaway", "slope"),
            "alone: admitted of allowed": alone["admitted of allowed"],
            "alone: loop admitted": sum(call.admitted for call in looped_alone),
        },
        bars={
            "seconds": (">=", 10.0),
            "offered per second": (">=", 200.0),
            "admitted of allowed": (">=", 0.98 if world.full else 0.9),
            "admitted above allowed": ("<=", 0.02),
            "refused unnamed": ("==", 0),
            "wrong while counted": ("==", 0),
            "wrong while frozen": ("==", 0),
            "wrong while killed": ("==", 0),
            "share that waited while lost": ("<=", 0.05 if world.full else 0.2),
            "loop admitted": ("==", REPEATS),
            "budget spent": ("<=", BUDGET),
            "budget leased": ("<=", BUDGET),
            "cost when the slope was stopped": ("<=", SLOPE),
            "refused in other words": ("==", 0),
        },
        controls={
            "each replica counts alone, seen by its rate": float(alone["admitted of allowed"]) > 1.02,
            "each replica counts alone, seen by its loops": sum(call.admitted for call in looped_alone) > REPEATS,
        },
    )


async def _alone(site: Site) -> Site:
    await asyncio.gather(*(restart_as(gateway, "limits_alone") for gateway in site.gateways))
    return site


async def _site(world: World) -> Site:
    postgres, issuer, port = await world.postgres(), new_issuer(), world.free_port()
    redis = await _start_redis(world, port)
    settings = _SETTINGS.format(
        redis=f"redis://127.0.0.1:{port}/0", seconds=REDIS_SECONDS, rate=RATE, window=WINDOW, repeats=REPEATS,
        budget=BUDGET, slope=SLOPE,
    )  # fmt: skip
    start = partial(start_gateway, world, postgres.dsn, issuer, tools="limits.py", settings=settings)
    first = await start(name="gateway-0")
    others = await asyncio.gather(*(start(name=f"gateway-{n}") for n in (1, 2)))
    return Site(world=world, issuer=issuer, dsn=postgres.dsn, gateways=[first, *others], redis=redis, port=port)


async def _start_redis(world: World, port: int) -> Child:
    program = shutil.which("redis-server")
    if program is None:
        raise RuntimeError("redis-server is not installed: `apt-get install -y redis-server`, then run again.")
    argv = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    return await world.start("redis", argv, ready_line="Ready to accept connections")


async def _paced(site: Site, agent: str, *, seconds: int) -> dict[str, Figure]:
    """Ends while a full window is waited for, where a call a little early or late changes nothing."""
    clients = site.clients(agent)
    # Connections are opened, keys loaded and counters connected before anything is counted here.
    warm = [partial(clients[n % 3].call, "strict", {"word": f"warm {n}"}) for n in range(120)]
    await offer(warm, moments(OFFERED, 60, seed=1)[:120])
    times = moments(OFFERED, seconds + 0.7 * WINDOW, seed=seconds)
    asks = [partial(clients[SHARES[n % 6]].call, "look", {"word": f"{agent} {n}"}) for n in range(len(times))]
    calls = await offer(asks, times)
    for client in clients:
        client.close()
    took = max(call.sent for call in calls) - min(call.sent for call in calls)
    admitted, allowed = sum(call.admitted for call in calls), _allowed([call.sent for call in calls])
    return {
        "seconds": round(took, 2),
        "offered per second": round(len(calls) / took, 1),
        "admitted": admitted,
        "allowed": allowed,
        "admitted of allowed": round(admitted / allowed, 4),
        "admitted above allowed": round(max(admitted / allowed - 1, 0.0), 4),
        "refused unnamed": _unnamed(calls, "rate-limited", "pace"),
    }


def _allowed(times: Sequence[float]) -> int:
    """How many of these calls an exact counter would have admitted."""
    inside: deque[float] = deque()
    admitted = 0
    for moment in sorted(times):
        while inside and inside[0] <= moment - WINDOW:
            inside.popleft()
        if len(inside) < RATE:
            inside.append(moment)
            admitted += 1
    return admitted


def _unnamed(calls: Sequence[Call], slug: str, rule: str) -> int:
    """Refusals that do not say which rule they are by, or not when to come again."""
    return sum(not (call.admitted or call.refused_by(slug, rule)) for call in calls)


async def _lost(site: Site) -> dict[str, Figure]:
    clients = site.clients("loser")
    began = time.monotonic()

    async def freeze() -> None:
        os.kill(site.redis.pid, signal.SIGSTOP)

    async def kill() -> None:
        site.redis.kill()
        await site.redis.gone()

    async def start_again() -> None:
        site.redis = await _start_redis(site.world, site.port)

    times = moments(120.0, END, seed=2)
    asks = [
        partial(clients[n % 3].call, ("strict", "lenient")[n // 3 % 2], {"word": f"lost {n}"})
        for n in range(len(times))
    ]
    calls = await offer(asks, times, {FROZEN: freeze, KILLED: kill, BACK: start_again})
    for client in clients:
        client.close()

    def between(start: float, end: float) -> list[Call]:
        return [call for call in calls if start <= call.sent - began < end]

    counted = between(0, FROZEN - SETTLED) + between(BACK + 2 * SETTLED, END)
    frozen, killed = between(FROZEN + SETTLED, KILLED), between(KILLED + SETTLED, BACK)
    while_lost = frozen + killed
    slow = [call for call in while_lost if call.seconds > REDIS_SECONDS * 0.8]
    return {
        "calls while counted": len(counted),
        "calls while frozen": len(frozen),
        "calls while killed": len(killed),
        "wrong while counted": sum(not (call.admitted and not call.warnings) for call in counted),
        "wrong while frozen": sum(not _as_told(call) for call in frozen),
        "wrong while killed": sum(not _as_told(call) for call in killed),
        "share that waited while lost": round(len(slow) / max(len(while_lost), 1), 4),
    }


def _as_told(call: Call) -> bool:
    """What each rule is to say while it cannot be counted, and that it says so by name."""
    if call.tool == "strict":
        return call.status == 503 and call.refused_by("limits-unavailable", "strict")
    return call.admitted and any(warning.startswith("limit lenient was not counted") for warning in call.warnings)


async def _looped(site: Site, agent: str, *, calls: int) -> list[Call]:
    """One call, again and again, and not one that says what is wrong with it."""
    clients = site.clients(agent)
    answered = await run_away(clients, calls, lambda client, _: client.call("again", {"word": "again"}))
    for client in clients:
        client.close()
    return answered


async def _rising(site: Site, tool: str, *, calls: int) -> list[Call]:
    """Each call dearer than the last, up to what its contract says it may cost."""
    clients = site.clients(f"{tool}er")
    answered = await run_away(
        clients, calls, lambda client, number: client.call(tool, {"cents": min(1 + number // 3, 50)})
    )
    for client in clients:
        client.close()
    return answered


async def _leased(site: Site) -> float:
    """What replicas hold of the budget, spent or not: never more than there is."""
    connection = await asyncpg.connect(site.dsn)
    try:
        granted = await connection.fetchval("select max(granted) from deputize.budgets where rule = 'purse'")
    finally:
        await connection.close()
    return float(granted) / 1_000_000
