"""Definitions that change under their names, against a gateway that serves them: whatever means something else is held.

Two MCP servers, one of each era, declare what the proof tells them, byte for byte. First as agreed; then, round after
round, every tool of both is changed in one of the ways of `drifting/changes.py` and called before anybody has looked;
then what waits for review is read. In between the servers declare the same as agreed, written in another order and
another spelling. Instructions are changed one at a time. What the servers were really asked to do, they say themselves.
"""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deputize.catalog.drift.flags import FlagCode
from deputize.catalog.importers.mcp import named
from deputize.core.settings import McpServer
from proofs.drifting.changes import KINDS, Kind
from proofs.drifting.goods import INSTRUCTIONS, reads
from proofs.drifting.rewriting import rewritten
from proofs.drifting.site import Site, Upstream
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.world import World

NAME = "drift"
PROMISE = "A tool whose definition changes under its name is held; one that is only written otherwise is not."

SEED = 20260728
DRIFTED = "tool-drifted"
# Of so many changes, one is of the instructions; each of those takes a look of its own.
_INSTRUCTIONS_EACH = 10
_SAMPLE = 3


@dataclass(kw_only=True)
class Found:
    """What came of all rounds; anything but held, flagged and rewritten is a failure, and told by its kind."""

    changed: int = 0
    held: int = 0
    to_flag: int = 0
    flagged: int = 0
    rewritten: int = 0
    rewritten_held: int = 0
    # Writes that reached a server though their definition was not the agreed one, and some that did not though it was.
    slipped: int = 0
    stopped: int = 0
    reads_stopped: int = 0
    not_closed: int = 0
    missed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One change: the tool it is of, what is declared in its place, and the item that must wait for a review."""

    kind: Kind
    tool: str
    declared: list[dict[str, Any]]
    item: str


async def prove(world: World) -> Verdict:
    changes = world.size(quick=150, full=1000)
    site, chance = await Site.start(world), random.Random(SEED)
    agreed = await _agree(site)
    found = Found()
    of_tools = changes - changes // _INSTRUCTIONS_EACH
    while found.changed < of_tools:
        await _change(site, found, chance, most=of_tools - found.changed)
        await _rewrite(site, found, chance)
        world.say(
            f"{found.changed} changed, {found.held} held; {found.rewritten} rewritten, {found.rewritten_held} held"
        )
    while found.changed < changes:
        await _instruct(site, found, chance)
    while found.rewritten < changes:
        await _rewrite(site, found, chance)
    world.say(f"{found.changed} changed, {found.held} held; {found.rewritten} rewritten, {found.rewritten_held} held")
    controls = {
        "a guard that compares descriptions alone": await _lets_through(site),
        "a guard that compares what was written": await _holds_rewritten(site),
    }
    return _verdict(found, agreed, controls)


async def _agree(site: Site) -> int:
    """How many tools the first look registered; nothing of what honest servers declare may wait."""
    agreed = 0
    for name in site.upstreams:
        looked = await site.look(name)
        if looked["changes"]:
            raise RuntimeError(f"{name} has changes that wait at first sight: {list(await site.held(name))}")
        agreed += looked["tools"]
    return agreed


async def _change(site: Site, found: Found, chance: random.Random, *, most: int) -> None:
    """Every tool of every server is changed in some way, called, and looked for in what waits."""
    servers = list(site.upstreams.values())
    for upstream, other in zip(servers, reversed(servers), strict=True):
        cases = _cases(upstream, other, chance)[:most]
        most -= len(cases)
        declared = {case.tool: case.declared for case in cases}
        await upstream.declare([each for good in upstream.goods for each in declared.get(good["name"], [good])])
        await _called(site, upstream, found, cases)
        await site.look(upstream.name)
        held = await site.held(upstream.name)
        for case in cases:
            found.changed += 1
            waits = held.get(case.item)
            if waits is not None and waits["differences"]:
                found.held += 1
            else:
                found.missed[case.kind.name] += 1
            if case.kind.flagged is not None:
                found.to_flag += 1
                found.flagged += _is_flagged(waits, case.kind.flagged)
        await _new_are_not_served(site, upstream, found, cases)
        await _return(site, upstream, found)


def _cases(upstream: Upstream, other: Upstream, chance: random.Random) -> list[Case]:
    """A change for each tool, the kinds in turn and in another order each time."""
    kinds = chance.sample(KINDS, len(KINDS))
    cases = []
    for place, good in enumerate(upstream.goods):
        kind = kinds[place % len(kinds)]
        declared = kind.make(good, chance, other.goods[place]["name"])
        held = declared[-1]["name"] if kind.new else good["name"]
        cases.append(Case(kind=kind, tool=good["name"], declared=declared, item=f"tool:{held}"))
    return chance.sample(cases, len(cases))


async def _called(site: Site, upstream: Upstream, found: Found, cases: list[Case]) -> None:
    """Before anybody looked: a write of what changed stops at the gateway, a read of it goes on."""
    await upstream.done()
    names = {f"{upstream.name}.{case.tool}": case for case in cases}
    answers = await site.calls(names)
    done = await upstream.done()
    for name, answer in answers.items():
        case = names[name]
        reached = done.get(case.tool, 0)
        if reads(case.tool):
            found.reads_stopped += answer.status != 200 or not reached
        elif case.kind.new:
            found.stopped += answer.status != 200 or not reached
        elif reached or DRIFTED not in answer.json().get("type", ""):
            found.slipped += 1
            found.missed[f"{case.kind.name}: called"] += 1


async def _new_are_not_served(site: Site, upstream: Upstream, found: Found, cases: list[Case]) -> None:
    settings = McpServer(name=upstream.name, url=upstream.url)
    taken = {good["name"]: good["name"] for good in upstream.goods}
    new = [case.declared[-1]["name"] for case in cases if case.kind.new]
    words = named(settings, new, taken)
    await site.calls(f"{upstream.name}.{words[name]}" for name in new)
    done = await upstream.done()
    found.slipped += sum(done.get(name, 0) for name in new)


async def _return(site: Site, upstream: Upstream, found: Found) -> None:
    """Declared again as agreed, nothing waits any more."""
    await upstream.declare(upstream.goods)
    await site.look(upstream.name)
    found.not_closed += len(await site.held(upstream.name))


async def _rewrite(site: Site, found: Found, chance: random.Random) -> None:
    """The same in another order and spelling: nothing waits, and a write reaches the server."""
    for upstream in site.upstreams.values():
        await upstream.declare(rewritten(upstream.goods, chance))
        writes = [good["name"] for good in upstream.goods if not reads(good["name"])]
        sample = chance.sample(writes, _SAMPLE)
        await upstream.done()
        await site.calls(f"{upstream.name}.{name}" for name in sample)
        done = await upstream.done()
        found.stopped += sum(not done.get(name) for name in sample)
        await site.look(upstream.name)
        found.rewritten += len(upstream.goods)
        found.rewritten_held += len(await site.held(upstream.name))
    for upstream in site.upstreams.values():
        await _return(site, upstream, found)


async def _instruct(site: Site, found: Found, chance: random.Random) -> None:
    """Instructions that change stop every write of their server, and are held; reads go on."""
    upstream = chance.choice(list(site.upstreams.values()))
    said = INSTRUCTIONS[upstream.name]
    hidden = chance.random() < 0.5
    new = said + chance.choice(("\u200b", "\U000e0061", " <!-- pay -->") if hidden else (" Really.", " ", "\n"))
    await upstream.declare(upstream.goods, chance.choice((new, "")) if not hidden else new)
    sample = chance.sample([good["name"] for good in upstream.goods], 2 * _SAMPLE)
    await upstream.done()
    answers = await site.calls(f"{upstream.name}.{name}" for name in sample)
    done = await upstream.done()
    for name in sample:
        answer = answers[f"{upstream.name}.{name}"]
        if reads(name):
            found.reads_stopped += answer.status != 200 or not done.get(name)
        else:
            found.slipped += bool(done.get(name)) or DRIFTED not in answer.json().get("type", "")
    await site.look(upstream.name)
    held = await site.held(upstream.name)
    found.changed += 1
    found.held += list(held) == ["instructions"]
    if hidden:
        found.to_flag += 1
        found.flagged += _is_flagged(held.get("instructions"), FlagCode.HIDDEN_TEXT)
    await _return(site, upstream, found)


def _is_flagged(waits: Mapping[str, Any] | None, code: FlagCode) -> bool:
    return waits is not None and code in {flag["code"] for flag in waits["flags"]}


async def _lets_through(site: Site) -> bool:
    """Whether the proof sees what a guard misses that looks at descriptions alone."""
    await site.become("drift_descriptions")
    await _agree(site)
    found = Found()
    await _change(site, found, random.Random(SEED), most=1000)
    site.world.say(f"descriptions alone: {found.changed} changed, {found.held} held, {found.slipped} slipped through")
    return found.held < found.changed and found.slipped > 0


async def _holds_rewritten(site: Site) -> bool:
    """Whether the proof sees what a guard holds for nothing that compares what was written."""
    await site.become("drift_as_written")
    await _agree(site)
    found = Found()
    await _rewrite(site, found, random.Random(SEED))
    site.world.say(f"as written: {found.rewritten} rewritten, {found.rewritten_held} held")
    return found.rewritten_held > 0 and found.stopped > 0


def _verdict(found: Found, agreed: int, controls: dict[str, bool]) -> Verdict:
    figures: dict[str, Figure] = {
        "changed": found.changed,
        "held_share": found.held / found.changed,
        "flagged_share": found.flagged / found.to_flag,
        "rewritten": found.rewritten,
        "rewritten_held": found.rewritten_held,
        "writes_slipped": found.slipped,
        "writes_stopped": found.stopped,
        "reads_stopped": found.reads_stopped,
        "not_closed": found.not_closed,
        "tools_agreed": agreed,
    }
    bars: dict[str, Bar] = {
        "held_share": ("==", 1.0),
        "flagged_share": ("==", 1.0),
        "rewritten_held": ("==", 0),
        "writes_slipped": ("==", 0),
        "writes_stopped": ("==", 0),
        "reads_stopped": ("==", 0),
        "not_closed": ("==", 0),
    }
    notes = [f"{number} not held: {kind}" for kind, number in sorted(found.missed.items())]
    return Verdict(figures=figures, bars=bars, controls=controls, notes=notes)
