"""The official conformance suite, both ways: our door as its server, our upstream client as its client.

Behind the door stands a server of the official SDK with the tools the suite looks for. What does not pass is listed in
`conforming/reasons.py`, each with its reason; the proof fails when that list is wrong in either direction.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from proofs.conforming.judge import Judged, judge
from proofs.conforming.reasons import REASONS
from proofs.conforming.relay import Agreeable
from proofs.conforming.site import Site
from proofs.conforming.suite import LEGS, REVISIONS, Leg, Seen, Suite
from proofs.kit.report import Verdict
from proofs.kit.serving import READY
from proofs.kit.world import World

NAME = "conformance"
PROMISE = "Both sides of MCP pass the official conformance suite, but for a list that says why."

_ROOT = Path(__file__).resolve().parents[1]
_ASK = _ROOT / "proofs" / "conforming" / "ask.py"
# Both forms run everything: the suite takes longest to start, so leaving some out would save little.
_SCENARIOS = 140
_TRIES = 2


async def prove(world: World) -> Verdict:
    suite = await Suite.get(world)
    site, command = await asyncio.gather(Site.start(world), _start_client(world))
    world.say("the door and the client stand")
    found: dict[tuple[Leg, str], Judged] = {}
    async with site.relay().open() as url:
        for revision in REVISIONS:
            words: dict[Leg, tuple[str, str]] = {"server": ("--url", url), "client": ("--command", command)}
            ran = await asyncio.gather(*(suite.run(leg, revision, *words[leg]) for leg in LEGS))
            for leg, seen in zip(LEGS, ran, strict=True):
                found[leg, revision] = await _judged(suite, leg, revision, seen, words[leg])
            world.say(f"{revision}: {_told(found, revision)}")
    controls = await _controls(suite, site)
    return _verdict(suite, found, controls)


async def _start_client(world: World) -> str:
    path = world.folder / "client.sock"
    argv = [sys.executable, "-m", "proofs.conforming.client", "--socket", str(path)]
    await world.start("client", argv, cwd=_ROOT, ready_line=READY, timeout=60)
    return f"{sys.executable} -I -S {_ASK} {path}"


async def _judged(suite: Suite, leg: Leg, revision: str, seen: dict[str, Seen], words: tuple[str, str]) -> Judged:
    """What went other than expected is run again, by itself: the suite waits half a second for some answers, which a
    machine with other work cannot always keep.
    """
    expected, wanted = REASONS[leg, revision], suite.required(leg, revision).all
    for _ in range(_TRIES):
        odd = judge(f"{leg} {revision}", wanted, seen, expected).odd
        for name in odd:
            suite.world.say(f"again, by itself: {leg} {revision} {name}")
            seen[name] = await suite.run_one(leg, revision, name, *words)
    return judge(f"{leg} {revision}", wanted, seen, expected)


def _told(found: Mapping[tuple[Leg, str], Judged], revision: str) -> str:
    return "; ".join(
        f"{leg}: {each.passed} of {each.scenarios} scenarios pass, {each.with_reason} fail for a reason"
        for (leg, of), each in found.items()
        if of == revision
    )


async def _controls(suite: Suite, site: Site) -> dict[str, bool]:
    """The suite has to notice a door that does not compare headers with bodies, and a client that does nothing."""
    revision = REVISIONS[-1]
    async with site.relay(Agreeable).open() as url:
        headers = await suite.run_one("server", revision, "http-header-validation", "--url", url)
    idle = await suite.run_one("client", revision, "tools_call", "--command", "true")
    return {"headers are not compared": bool(headers.failed), "a client that does nothing": bool(idle.failed)}


def _required(suite: Suite, found: Mapping[tuple[Leg, str], Judged]) -> dict[str, str]:
    """Of what each revision requires, and of the tasks extension, which it does not, how much passes."""
    told = {}
    for (leg, revision), judged in found.items():
        scored = suite.required(leg, revision).scored
        told[f"required_{leg}_{revision}"] = f"{len(judged.names.intersection(scored))} of {len(scored)}"
        tasks = [name for name in suite.required(leg, revision).beside if name.startswith("tasks-")]
        if tasks:
            told["tasks"] = f"{len(judged.names.intersection(tasks))} of {len(tasks)}"
    return told


def _verdict(suite: Suite, found: Mapping[tuple[Leg, str], Judged], controls: dict[str, bool]) -> Verdict:
    everything = Judged()
    for each in found.values():
        everything.add(each)
    listed = {reason.reason for of_leg in REASONS.values() for reason in of_leg.values()}
    stale = [
        f"reasons.py names {name} of {leg} {revision}, which the suite does not have"
        for (leg, revision), names in REASONS.items()
        for name in names
        if name not in suite.required(leg, revision).all
    ]
    wrong = everything.wrong + stale
    figures: dict[str, int | float | str] = {
        "unexpected": len(wrong),
        "scenarios": everything.scenarios,
        "passed": everything.passed,
        "checks_passed": everything.checks,
        "failing_with_reason": everything.with_reason,
        "reasons": len(listed),
        **_required(suite, found),
    }
    return Verdict(
        figures=figures,
        bars={"unexpected": ("==", 0), "scenarios": (">=", _SCENARIOS)},
        controls=controls,
        notes=[*wrong, *sorted(listed)],
    )
