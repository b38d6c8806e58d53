"""Thousands of clients that come and go, and programs that end and are started again: nothing of them stays.

The clients speak both eras, some leave in the middle of a call or of a word. The program leaves a process behind that
wants to outlive it, and is killed from outside each time. What the gateway holds is read from /proc, before and after.
"""

import asyncio
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from proofs.conforming.site import served
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.serving import READY
from proofs.kit.variant import restart_as
from proofs.kit.wire import Line
from proofs.kit.world import World
from proofs.sessioning.kept import Kept, Name, kept_by, name_of, runs
from proofs.sessioning.visitors import Visitors

NAME = "sessions"
PROMISE = "Clients and programs that come and go leave no process, no open file and no memory behind."

GROWTH = 1.10
AT_ONCE = 16
USERS = 50
_ROOT = Path(__file__).resolve().parents[1]
_PROGRAM = _ROOT / "proofs" / "sessioning" / "program.py"
_SETTINGS = """
[[servers]]
name = "shop"
url = "{url}/mcp"
reads = ["*"]

[[servers]]
name = "program"
command = ["{python}", "-I", "-S", "{program}"]
reads = ["*"]
start_seconds = 60
"""
_SETTLE_SECONDS = 60.0


@dataclass(kw_only=True, slots=True)
class Site:
    world: World
    gateway: GatewayHandle
    issuer: Issuer
    visitors: Visitors
    known: set[Name] = field(default_factory=set)
    restarts: int = 0

    @classmethod
    async def start(cls, world: World) -> "Site":
        argv = [sys.executable, "-m", "proofs.proxying.upstream"]
        upstream = await world.start("upstream", argv, cwd=_ROOT, ready_line=READY, timeout=120)
        url = (await upstream.line(READY)).partition(READY)[2].strip()
        settings = _SETTINGS.format(url=url, python=sys.executable, program=_PROGRAM)
        postgres, issuer = await world.postgres(), new_issuer()
        gateway = await start_gateway(world, postgres.dsn, issuer, tools="none*.py", settings=settings)
        tokens = [issuer.token(f"user-{number}", agent="bot") for number in range(USERS)]
        site = cls(world=world, gateway=gateway, issuer=issuer, visitors=Visitors(gateway.url, tokens, "shop__quote"))
        await site.change_to("sessions_hurried")
        return site

    async def change_to(self, variant: str) -> None:
        await restart_as(self.gateway, variant)
        for server in ("shop", "program"):
            await served(self.gateway, self.issuer.token("ana"), f"{server}__", 1)

    @property
    def pid(self) -> int:
        return self.gateway.child.pid

    async def visit(self) -> dict[str, int]:
        """The program, asked through the door until it answers: right after its end a call may still find it gone."""
        line = Line.to(self.gateway.url, token=self.issuer.token("ana"))
        params: dict[str, Any] = {"name": "program__visit", "arguments": {}}
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        headers = {"accept": "application/json, text/event-stream"}
        async with asyncio.timeout(_SETTLE_SECONDS):
            while True:
                result = (await line.send("POST", "/mcp", headers=headers, body=body)).json().get("result", {})
                if result and not result.get("isError"):
                    line.close()
                    return dict(result["structuredContent"])
                await asyncio.sleep(0.02)

    async def restart_programs(self, number: int) -> None:
        for _ in range(number):
            seen = await self.visit()
            named = {name_of(pid) for pid in seen.values()}
            os.kill(seen["pid"], signal.SIGKILL)
            await _gone(named)
            self.known |= named
            self.restarts += 1
        self.known |= {name_of(pid) for pid in (await self.visit()).values()}

    async def settled(self, like: Kept | None = None) -> Kept:
        """What it holds once it holds no more than before, or no other than a moment ago, or the time is over."""
        ends = time.monotonic() + _SETTLE_SECONDS
        kept = kept_by(self.pid)
        while True:
            await asyncio.sleep(0.5)
            last, kept = kept, kept_by(self.pid)
            now, then = ((each.open_files, each.processes) for each in (kept, like or last))
            still = now == then if like is None else now[0] <= then[0] and now[1] <= then[1]
            if still or time.monotonic() > ends:
                return kept


async def _gone(named: set[Name]) -> int:
    """How many of them still run once they had time to go."""
    ends = time.monotonic() + _SETTLE_SECONDS
    while True:
        left = sum(runs(each) for each in named)
        if left == 0 or time.monotonic() > ends:
            return left
        await asyncio.sleep(0.01)


async def prove(world: World) -> Verdict:
    site = await Site.start(world)
    sessions, restarts = world.size(quick=500, full=10_000), world.size(quick=30, full=1_000)
    warm = world.size(quick=200, full=1_000)
    world.say("warming: pools, caches and the allocator fill once")
    await site.visitors.come(warm, at_once=AT_ONCE)
    await site.restart_programs(5)
    before = await site.settled()
    world.say(f"before: {before}")
    await site.visitors.come(sessions, at_once=AT_ONCE)
    between = await site.settled(before)
    world.say(f"after {sessions} sessions: {between}")
    await site.restart_programs(restarts)
    after = await site.settled(before)
    world.say(f"after {restarts} restarts: {after}")
    now = {name_of(pid) for pid in (await site.visit()).values()}
    figures: dict[str, Figure] = {
        "sessions": site.visitors.came - warm,
        "restarts": site.restarts - 5,
        "sessions_failed": site.visitors.failed.total(),
        "memory_grew_by": round(after.rss_mib / before.rss_mib, 3),
        "memory_mib": round(after.rss_mib, 1),
        "files_left": max(0, after.open_files - before.open_files),
        "processes_left": max(0, after.processes - before.processes),
        "programs_left": sum(runs(each) for each in site.known - now),
    }
    controls = {"a gateway that leaks": await _control(site)}
    # Not asked to stop but killed: even then nothing survives it.
    site.gateway.child.kill()
    await site.gateway.child.gone()
    figures["programs_left_at_the_end"] = await _gone(site.known | now)
    world.say("killed, with everything it had started")
    notes = [f"{number} x {why}" for why, number in site.visitors.failed.most_common(10)]
    return Verdict(figures=figures, bars=_bars(sessions, restarts), controls=controls, notes=notes)


def _bars(sessions: int, restarts: int) -> dict[str, Bar]:
    nothing = ("sessions_failed", "files_left", "processes_left", "programs_left", "programs_left_at_the_end")
    return {
        "sessions": (">=", sessions),
        "restarts": (">=", restarts),
        "memory_grew_by": ("<", GROWTH),
        **dict.fromkeys(nothing, ("==", 0)),
    }


async def _control(site: Site) -> bool:
    """Held against the same bars, over fewer sessions: each of its leaks has to be seen."""
    await site.change_to("sessions_leaking")
    await site.visitors.come(50, at_once=AT_ONCE)
    before = await site.settled()
    await site.visitors.come(150, at_once=AT_ONCE)
    after = kept_by(site.pid)
    site.world.say(f"a gateway that leaks: from {before} to {after}")
    grew = after.rss_mib / before.rss_mib >= GROWTH
    return grew and after.open_files > before.open_files and after.processes > before.processes
