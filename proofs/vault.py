"""OpenBao sealed, killed and slow under load: who needs a secret fails closed, who needs none does not notice.

A real OpenBao stands behind a TCP proxy that can be made slow. Traffic of both kinds runs without a pause, first with
a healthy vault, then under each fault, then healthy again; the ledger says what was really done. Afterwards the secrets
are looked for, in every spelling, in everything that was answered, logged, traced and stored.
"""

import asyncio
import base64
import hashlib
import secrets
import statistics
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from proofs.kit.bao import Bao
from proofs.kit.canary import Needles, copy_tables
from proofs.kit.companions import LedgerHandle, start_ledger, start_sink
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.tcpproxy import TcpProxy
from proofs.kit.variant import restart_as
from proofs.kit.wire import Answer, Line
from proofs.kit.world import World

NAME = "vault"
PROMISE = "While the vault is away, only calls that need a secret fail, and closed; secrets are found nowhere."

SECRET = "crm/api-key"
PLAIN = ("look", "act")
PLAIN_LINES = 4
PLAIN_PAUSE = 0.02
KEYED_PER_SECOND = 20.0
# Repeated after recovery with the same keys, so many of each fault's refused writes.
REPEATED = 20
SLOWER = 2.0
# Longer than anybody waits.
DELAY = 10.0
MARKER = f"session-{secrets.token_hex(12)}"
_SETTINGS = """
[vault]
kind = "openbao"
address = "{address}"
token_file = "{token_file}"
seconds = 0.5

[telemetry]
trace_sample = 1.0
log_level = "debug"
otlp_endpoint = "{sink}/v1/traces"
"""


@dataclass(kw_only=True, slots=True)
class Phase:
    """What came of the traffic of one stretch of time."""

    name: str
    plain_ms: dict[str, list[float]] = field(default_factory=lambda: {tool: [] for tool in PLAIN})
    plain_failed: Counter[str] = field(default_factory=Counter)
    keyed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    succeeded: int = 0
    wrong_credential: int = 0
    refused_writes: list[str] = field(default_factory=list)
    acts: int = 0

    @property
    def plain(self) -> int:
        return sum(len(times) for times in self.plain_ms.values())

    def p50_ms(self, tool: str) -> float:
        return statistics.median(self.plain_ms[tool])

    def slower_than(self, before: "Phase") -> float:
        """The worse of reads and writes: mixed, their median would lie between the two."""
        return max(self.p50_ms(tool) / before.p50_ms(tool) for tool in PLAIN)

    @property
    def not_served(self) -> int:
        """With a healthy vault: calls that failed, acted other than once, or acted with another credential."""
        failed = self.keyed - self.succeeded + sum(self.plain_failed.values())
        return failed + self.wrong_credential + abs(self.acts - self.succeeded)

    @property
    def open(self) -> int:
        """Calls that needed a secret and did not fail closed: they succeeded, acted, or failed in another way."""
        others = sum(number for face, number in self.refused.items() if not face.startswith("E36"))
        return self.succeeded + others + self.acts

    def __str__(self) -> str:
        faces = ", ".join(f"{number} {face}" for face, number in sorted(self.refused.items())) or "none refused"
        p50 = " and ".join(f"{self.p50_ms(tool):.1f}" for tool in PLAIN)
        return (
            f"{self.name}: {self.plain} calls without a secret, p50 {p50} ms, "
            f"{sum(self.plain_failed.values())} failed; {self.keyed} with one: {self.succeeded} succeeded, {faces}, "
            f"{self.acts} acts"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """A healthy stretch, a fault right after it, and how it was got over."""

    healthy: Phase
    fault: Phase
    recovery: float
    not_once: int

    @property
    def slower(self) -> float:
        return self.fault.slower_than(self.healthy)


class Site:
    """One gateway with its vault, and every answer that came from it, kept for the search."""

    def __init__(self, world: World, gateway: GatewayHandle, ledger: LedgerHandle, token: str, canary: str) -> None:
        self.world, self.gateway, self.ledger = world, gateway, ledger
        self._token = token
        self._fingerprint = hashlib.sha256(canary.encode()).hexdigest()
        self._numbers = count(1)
        self.answers = world.folder / "answers"

    async def call(self, tool: str, label: str, line: Line | None = None) -> Answer:
        """The label is the idempotency key too; the session is a marker that the search must find again."""
        own = line or Line.to(self.gateway.url, token=self._token)
        asked = {"tool": f"vault.{tool}", "arguments": {"label": label}, "session": MARKER}
        try:
            answer = await own.post("/v1/calls", asked, Idempotency_Key=label)
        finally:
            if line is None:
                own.close()
        with self.answers.open("ab") as kept:
            kept.write(answer.body + b"\n")
        return answer

    async def phase(
        self, name: str, seconds: float, *, plain: int = 0, keyed_per_second: float = KEYED_PER_SECOND
    ) -> Phase:
        """Traffic of both kinds for so long, and longer if need be until so many plain calls are made: a busy machine
        makes it slower, not smaller."""
        found = Phase(name=name)
        ends = time.monotonic() + seconds

        def goes_on() -> bool:
            return time.monotonic() < ends or found.plain < plain

        async with asyncio.TaskGroup() as group:
            for _ in range(PLAIN_LINES):
                group.create_task(self._plain(found, goes_on))
            while goes_on():
                # A call that waits for a slow vault must not make those behind it wait to be sent.
                group.create_task(self._keyed(found))
                await asyncio.sleep(1 / keyed_per_second)
        mine = Counter(effect.call for effect in await self.ledger.effects() if effect.tool.startswith("keyed"))
        found.acts = sum(number for label, number in mine.items() if label.startswith(f"{name}-"))
        self.world.say(str(found))
        return found

    async def _plain(self, found: Phase, goes_on: Callable[[], bool]) -> None:
        line = Line.to(self.gateway.url, token=self._token)
        for number in count():
            if not goes_on() and number >= len(PLAIN):
                break
            began = time.perf_counter()
            tool = PLAIN[number % 2]
            answer = await self.call(tool, f"{found.name}-{next(self._numbers)}", line)
            found.plain_ms[tool].append((time.perf_counter() - began) * 1000)
            if answer.status != 200:
                found.plain_failed[answer.json()["error"]["number"]] += 1
            await asyncio.sleep(PLAIN_PAUSE)
        line.close()

    async def _keyed(self, found: Phase) -> None:
        number = next(self._numbers)
        label, tool = f"{found.name}-{number}", ("keyed_look", "keyed_act")[number % 2]
        found.keyed += 1
        answer = await self.call(tool, label)
        said = answer.json()
        if answer.status == 200:
            found.succeeded += 1
            found.wrong_credential += said["result"]["fingerprint"] != self._fingerprint
            return
        found.refused[said["error"]["number"]] += 1
        if tool == "keyed_act":
            found.refused_writes.append(label)

    async def recover(self, fault: Phase) -> tuple[float, int]:
        """How long until a secret is had again; and how many refused writes, sent again by their own keys, then acted
        other than exactly once."""
        began = time.monotonic()
        async with asyncio.timeout(20):
            while True:
                if (await self.call("keyed_look", f"recovering-{next(self._numbers)}")).status == 200:
                    break
                await asyncio.sleep(0.05)
        seconds = time.monotonic() - began
        again = fault.refused_writes[:REPEATED]
        answers = [await self.call("keyed_act", label) for label in again]
        done = Counter(effect.call for effect in await self.ledger.effects())
        pairs = zip(again, answers, strict=True)
        return seconds, sum(answer.status != 200 or done[label] != 1 for label, answer in pairs)


async def prove(world: World) -> Verdict:
    canary, local_canary = (f"canary-{secrets.token_urlsafe(24)}" for _ in range(2))
    spans = world.folder / "spans"
    async with Bao(world.folder / "bao") as bao, TcpProxy(bao.url) as proxy:
        await bao.put("acme", SECRET, {"value": canary})
        postgres = await world.postgres()
        ledger, issuer = await start_ledger(world), new_issuer()
        settings = _SETTINGS.format(
            address=proxy.url, token_file=bao.token_file, sink=await start_sink(world, keep=spans)
        )
        env = {"PROOF_LEDGER": ledger.url}
        gateway = await start_gateway(world, postgres.dsn, issuer, tools="vault.py", settings=settings, env=env)
        site = Site(world, gateway, ledger, issuer.token("ana"), canary)
        figures = await _faults(world, site, bao, proxy)
        figures["quotes_released"] = await _blurts(site, canary)
        local = await start_gateway(world, postgres.dsn, issuer, name="local", tools="vault.py", env=env)
        kept_here = Site(world, local, ledger, issuer.token("ana"), local_canary)
        figures["local_store_wrong"] = await _local(kept_here, issuer, local_canary)
        needles = Needles()
        for name, value in (("secret", canary), ("local", local_canary), ("vault token", bao.token_file.read_text())):
            needles.add_secret(name, value)
        # Stopped, a gateway has sent its last spans.
        for each in (gateway, local):
            await each.child.stop()
        places = {"answers": [site.answers], "spans": [spans], "logs": sorted(world.folder.glob("*.log"))}
        places |= {name: [file] for name, file in (await copy_tables(postgres.dsn, world.folder / "tables")).items()}
        found = [each for place, paths in places.items() for each in await needles.look(place, *paths)]
        figures |= {"found": len(found), "places_searched": len(places)}
        world.say(f"searched {len(places)} places: {'; '.join(map(str, found)) or 'no secret'}")
        controls = {"the search finds what is there": await _search_finds(world, places, canary)}
        controls |= await _controls(site, bao, proxy, canary)
    notes, starved = [str(each) for each in found], ("plain_failed", "not_served_when_healthy", "local_store_wrong")
    return Verdict(figures=figures, bars=_bars(world), controls=controls, notes=notes, starved=starved)


def _bars(world: World) -> dict[str, Bar]:
    return {
        "open": ("==", 0),
        "refused_closed": (">=", world.size(quick=60, full=900)),
        "plain_failed": ("==", 0),
        "plain_calls": (">=", world.size(quick=150, full=4000)),
        # The quick form measures for a moment beside other work: it only notices what goes badly wrong.
        "slower_at_p50": ("<=", SLOWER if world.full else 2 * SLOWER),
        "not_served_when_healthy": ("==", 0),
        "repeats_not_once": ("==", 0),
        "quotes_released": ("==", 0),
        "local_store_wrong": ("==", 0),
        "found": ("==", 0),
    }


async def _faults(world: World, site: Site, bao: Bao, proxy: TcpProxy) -> dict[str, Figure]:
    """Each fault several times, and each time against the healthy stretch right before it: the machine has other work,
    and a ratio of neighbours in time does not drift with it."""

    async def slow() -> None:
        proxy.delay = DELAY

    async def quick() -> None:
        proxy.delay = 0.0

    await site.phase("warming", 0.5)
    rounds: dict[str, list[Round]] = {"sealed": [], "killed": [], "slow": []}
    for number in range(world.size(quick=1, full=7)):
        for name, strike, mend in (
            ("sealed", bao.seal, bao.unseal),
            ("killed", bao.kill, bao.restart),
            ("slow", slow, quick),
        ):
            rounds[name].append(await _round(world, site, f"{name}{number}", strike, mend))
    last = await site.phase("after", 1.0)
    everything = [each for of_fault in rounds.values() for each in of_fault]
    faults = [each.fault for each in everything]
    ratios = {name: statistics.median(each.slower for each in of_fault) for name, of_fault in rounds.items()}
    return {
        "open": sum(fault.open for fault in faults),
        "refused_closed": sum(fault.refused.total() for fault in faults),
        "plain_failed": sum(fault.plain_failed.total() for fault in faults),
        "plain_calls": sum(fault.plain for fault in faults),
        "slower_at_p50": round(max(ratios.values()), 2),
        "not_served_when_healthy": sum(each.healthy.not_served for each in everything) + last.not_served,
        "repeats_not_once": sum(each.not_once for each in everything),
        **{f"{name}_p50_ratio": round(ratio, 2) for name, ratio in ratios.items()},
        "worst_single_round": round(max(each.slower for each in everything), 2),
        "slowest_recovery_s": round(max(each.recovery for each in everything), 2),
    }


async def _round(
    world: World, site: Site, name: str, strike: Callable[[], Awaitable[None]], mend: Callable[[], Awaitable[None]]
) -> Round:
    seconds, plain = (3.0, 200) if world.full else (1.5, 50)
    healthy = await site.phase(f"before-{name}", seconds, plain=plain)
    await strike()
    fault = await site.phase(name, seconds, plain=plain)
    await mend()
    recovery, not_once = await site.recover(fault)
    return Round(healthy=healthy, fault=fault, recovery=recovery, not_once=not_once)


async def _blurts(site: Site, canary: str) -> int:
    """How many tools that give their secret away got an answer out."""
    answers = [await site.call("blurt", how) for how in ("result", "basic", "summary", "error")]
    return sum(answer.status == 200 or canary.encode() in answer.body for answer in answers)


async def _local(site: Site, issuer: Issuer, canary: str) -> int:
    """The same without a vault: put through the API, used, given away in vain."""
    admin = Line.to(site.gateway.url, token=issuer.token("root", scopes=("deputize:admin",)))
    missing = await site.call("keyed_act", "local-0")
    put = await admin.post("/v1/secrets", {"name": SECRET, "value": canary})
    admin.close()
    if put.status != 201:
        raise RuntimeError(f"the secret was not put: {put.body!r}")
    used = await site.phase("local", 1.0)
    refused = missing.status == 424 and missing.json()["error"]["number"] == "E3602"
    wrong = used.not_served + await _blurts(site, canary) + (not refused)
    return wrong


async def _search_finds(world: World, places: Mapping[str, list[Path]], canary: str) -> bool:
    """A marker that every call carried is in the tables, a tool's name in the spans, an address in the logs, and a
    secret where one was planted: a search that finds nothing has looked."""
    planted = world.folder / "planted"
    planted.write_bytes(b"\0\1" + base64.b64encode(f"user:{canary}".encode()) + b"\0")
    for text, where in ((MARKER, "deputize.calls"), ("vault.blurt", "spans"), ("127.0.0.1", "logs")):
        needles = Needles()
        needles.add_secret(text, text)
        if not await needles.look(where, *places[where]):
            world.say(f"the search does not find {text} in {where}")
            return False
    needles = Needles()
    needles.add_secret("planted", canary)
    return len(await needles.look("planted", planted)) == 1


async def _controls(site: Site, bao: Bao, proxy: TcpProxy, canary: str) -> dict[str, bool]:
    await restart_as(site.gateway, "vault_empty")
    await bao.seal()
    empty = await site.phase("empty", 0.5)
    await bao.unseal()
    await restart_as(site.gateway, "vault_blocking")
    before = await site.phase("unblocked", 0.5, keyed_per_second=2.0)
    proxy.delay = DELAY
    blocking = await site.phase("blocking", 1.0, keyed_per_second=4.0)
    proxy.delay = 0.0
    await restart_as(site.gateway, "vault_talkative")
    return {
        "an empty credential while the vault is away": empty.acts > 0,
        "asking the vault on the loop": blocking.slower_than(before) > 2 * SLOWER,
        "answers not looked at": await _blurts(site, canary) > 0,
    }
