"""What it costs to reach a tool of an MCP server through the gateway instead of directly.

One server of the official SDK, the same call, one at a time and 16 at once, rounds in turn, medians. Through the
gateway the call has a token, a policy decision, both validations and a durable audit entry, and the server counts that
every call reached it. The full form puts other proxies beside it, each with what it does and does not do.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import httpx2

from proofs.conforming.site import served
from proofs.kit.child import Child
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.serving import READY
from proofs.kit.variant import restart_as
from proofs.kit.world import World
from proofs.proxying.measured import Lane, Runs, rounds, slower
from proofs.proxying.peers import Started, start_peers
from proofs.proxying.targets import Way, target_of
from proofs.proxying.upstream import TOOL

NAME = "proxy"
PROMISE = "A tool of an MCP server, governed, takes at most 2.5 times as long as without anything between."

SERVER = "shop"
AT_ONCE = (1, 16)
SLOWER = 2.5
CPU_MS = 1.0
# Now and then the gateway looks whether the server is still the same.
MESSAGES = 1.2
_SETTINGS = """
[[servers]]
name = "{name}"
url = "{url}/mcp"
reads = ["*"]
"""
_ROOT = Path(__file__).resolve().parents[1]
_COUNT = "select count(*) from deputize.audit_entries"


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What the server counted."""

    calls: int
    messages: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    world: World
    url: str
    upstream: Child
    gateway: GatewayHandle
    token: str

    @classmethod
    async def start(cls, world: World, dsn: str, issuer: Issuer) -> "Site":
        argv = [sys.executable, "-m", "proofs.proxying.upstream"]
        upstream = await world.start("upstream", argv, cwd=_ROOT, ready_line=READY, timeout=60)
        url = (await upstream.line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(name=SERVER, url=url)
        gateway = await start_gateway(world, dsn, issuer, tools="none*.py", settings=settings)
        site = cls(world=world, url=url, upstream=upstream, gateway=gateway, token=issuer.token("ana", agent="bot"))
        await served(gateway, site.token, f"{SERVER}__", 1)
        return site

    async def direct(self) -> Lane:
        return Lane(target=await target_of(Way(name="direct", base=self.url, tool=TOOL)), process=self.upstream)

    async def through(self) -> Lane:
        way = Way(name="deputize", base=self.gateway.url, tool=f"{SERVER}__{TOOL}", token=self.token)
        return Lane(target=await target_of(way), process=self.gateway.child)

    async def seen(self) -> Seen:
        async with httpx2.AsyncClient(trust_env=False) as client:
            told = (await client.get(f"{self.url}/seen")).raise_for_status().json()
        return Seen(calls=told["calls"], messages=told["messages"])

    async def messages_per_call(self) -> float:
        """What the server was sent for each call through the gateway, as it is now."""
        lane, before = await self.through(), await self.seen()
        await rounds({"deputize": lane}, connections=1, count=1, seconds=1)
        after = await self.seen()
        return (after.messages - before.messages) / (after.calls - before.calls)


async def prove(world: World) -> Verdict:
    postgres, issuer = await world.postgres(), new_issuer()
    site = await Site.start(world, postgres.dsn, issuer)
    lanes = {"direct": await site.direct(), "deputize": await site.through()}
    peers = await start_peers(world, site.url) if world.full else []
    lanes |= {peer.name: peer.lane for peer in peers if peer.lane is not None}
    reached, audited = (await site.seen()).calls, int(postgres.sql(_COUNT))
    figures: dict[str, Figure] = {}
    calls = governed = 0
    found: dict[int, dict[str, Runs]] = {}
    for connections in AT_ONCE:
        world.say(f"{connections} at once: rounds")
        found[connections] = await rounds(
            lanes, connections=connections, count=world.size(quick=3, full=9), seconds=world.size(quick=1, full=3)
        )
        figures |= _told(found[connections], connections)
        calls += sum(runs.requests for runs in found[connections].values())
        governed += found[connections]["deputize"].requests
    # Calls that warm up are made and not counted, so there are more than were measured and never fewer.
    figures["calls_not_reached"] = max(0, calls - ((await site.seen()).calls - reached))
    figures["calls_not_audited"] = max(0, governed - (int(postgres.sql(_COUNT)) - audited))
    figures["calls_governed"] = governed
    figures["messages_per_call"] = round(await site.messages_per_call(), 2)
    await restart_as(site.gateway, "proxy_fresh_lines")
    await served(site.gateway, site.token, f"{SERVER}__", 1)
    controls = {"a line made anew for every call": await site.messages_per_call() > MESSAGES}
    notes = [str(peer) for peer in peers]
    if peers:
        notes.append("Ahead in p99: of theirs, or of calls at once by calls per second, which is what callers wait.")
    return Verdict(figures=figures, bars=_bars(world, found, peers), controls=controls, notes=notes)


def _told(found: dict[str, Runs], connections: int) -> dict[str, Figure]:
    figures: dict[str, Figure] = {f"p50_ratio_at_{connections}": round(slower(found["deputize"], found["direct"]), 2)}
    for name, runs in found.items():
        figures |= {
            f"{name}_p50_ms_at_{connections}": round(runs.p50_ms, 3),
            f"{name}_p99_ms_at_{connections}": round(runs.p99_ms, 3),
            f"{name}_per_second_at_{connections}": round(runs.per_second, 1),
            f"{name}_cpu_ms_at_{connections}": round(runs.cpu_ms_per_call, 3),
        }
    return figures


def _bars(world: World, found: dict[int, dict[str, Runs]], peers: list[Started]) -> dict[str, Bar]:
    bars: dict[str, Bar] = {
        "p50_ratio_at_1": ("<=", world.within(SLOWER)),
        **{f"deputize_cpu_ms_at_{connections}": ("<=", world.within(CPU_MS)) for connections in AT_ONCE},
        "calls_not_reached": ("==", 0),
        "calls_not_audited": ("==", 0),
        "messages_per_call": ("<=", MESSAGES),
        "calls_governed": (">=", world.size(quick=100, full=5000)),
    }
    for peer in peers:
        if peer.lane is None:
            continue
        for connections in AT_ONCE:
            theirs, where = found[connections][peer.name], f"at_{connections}"
            bars |= {
                f"deputize_per_second_{where}": (">=", _more(bars, f"deputize_per_second_{where}", theirs.per_second)),
                f"deputize_p99_ms_{where}": (
                    "<=",
                    _less(bars, f"deputize_p99_ms_{where}", _waited(theirs, connections)),
                ),
                f"deputize_cpu_ms_{where}": ("<=", _less(bars, f"deputize_cpu_ms_{where}", theirs.cpu_ms_per_call)),
            }
    return bars


def _waited(theirs: Runs, connections: int) -> float:
    """What callers of another waited: its p99, or, where it serves some and leaves others without an answer, whose
    waiting is in no percentile, how long they all waited on average.
    """
    return max(theirs.p99_ms, 1000 * connections / theirs.per_second)


def _more(bars: dict[str, Bar], name: str, value: float) -> float:
    """The best of the others is the bar."""
    return round(max(value, float(bars[name][1]) if name in bars else value), 3)


def _less(bars: dict[str, Bar], name: str, value: float) -> float:
    return round(min(value, float(bars[name][1]) if name in bars else value), 3)
