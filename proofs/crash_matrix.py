"""Kills a gateway with SIGKILL at every boundary of a call, for four kinds of tool, and counts effects at the upstream.

Several gateways stand on one PostgreSQL and one ledger; each is struck, started again and asked once more with the
same key. `crash/cells.py` is the table of what must come of it, `crash/lane.py` one kill, `crash/judge.py` the verdict.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from proofs.crash.cells import MATRIX, QUICK, TAKEOVERS, WHAT, Boundary, Cell, Tool
from proofs.crash.judge import Judgement, judge, table
from proofs.crash.lane import SETTINGS, TENANT, Lane, Observation
from proofs.crash.nursery import Nursery, open_nursery
from proofs.crash.storm import CROWD, storm
from proofs.kit.clientproxy import ClientProxy
from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.gateway import Issuer, new_issuer, start_gateway
from proofs.kit.pgproxy import PgProxy
from proofs.kit.report import Verdict
from proofs.kit.world import World

NAME = "crash_matrix"
PROMISE = "A gateway killed anywhere in a call neither repeats an effect nor loses one that it acknowledged."

# Each variant is struck where it is broken; what must catch it is named beside it.
CONTROLS = (
    ("crash_effect_first", Cell(boundary=Boundary.CLAIM_UNSENT, tool=Tool.SEND), "duplicates"),
    ("crash_unknown_is_failed", Cell(boundary=Boundary.AFTER_EFFECT, tool=Tool.SEND), "duplicates"),
    ("crash_all_is_unknown", Cell(boundary=Boundary.AFTER_EFFECT, tool=Tool.BOOK), "unexpected"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """What the gateways share."""

    world: World
    dsn: str
    ledger: LedgerHandle
    nursery: Nursery
    database: "asyncpg.Pool[asyncpg.Record]"
    issuer: Issuer

    async def judged(self, observations: Sequence[Observation]) -> Judgement:
        return await judge(observations, await self.ledger.effects(), self.database)


async def prove(world: World) -> Verdict:
    postgres, ledger, nursery = await asyncio.gather(world.postgres(), start_ledger(world), open_nursery(world))
    database = await asyncpg.create_pool(postgres.dsn, min_size=1, max_size=4)
    world.at_end(database.close)
    site = Site(
        world=world, dsn=postgres.dsn, ledger=ledger, nursery=nursery, database=database, issuer=new_issuer()
    )  # fmt: skip
    cells = list(MATRIX if world.full else QUICK) * world.size(quick=1, full=50)
    random.Random(0).shuffle(cells)
    lanes, observations = await _strike_all(site, cells, count=world.size(quick=4, full=8))
    exact = await site.judged(observations)
    for line in table(exact):
        world.say(line)
    crowds = await site.judged(await _storms(world, lanes, world.size(quick=3, full=200)))
    for sentence in [*exact.sentences(), *crowds.sentences()][:40]:
        world.say(f"wrong: {sentence}")
    kills = sum(lane.kills for lane in lanes)
    return _verdict(exact, crowds, kills, await _controls(site, lanes), world)


async def _open_lane(site: Site, number: int) -> Lane:
    pg = PgProxy(site.dsn)
    await pg.__aenter__()
    site.world.at_end(pg.__aexit__)
    gateway = await start_gateway(
        site.world, pg.dsn, site.issuer, name=f"gateway-{number}", tools="effects.py", settings=SETTINGS,
        env={"PROOF_LEDGER": site.ledger.url}, migrate_dsn=site.dsn,
    )  # fmt: skip
    front = ClientProxy(gateway.url)
    await front.__aenter__()
    site.world.at_end(front.__aexit__)
    lane = Lane(
        gateway=gateway, living=gateway.child, nursery=site.nursery, pg=pg, front=front, ledger=site.ledger,
        database=site.database, token=site.issuer.token("ann", tenant=TENANT),
    )  # fmt: skip
    site.world.at_end(lane.http.aclose)
    return lane


async def _strike_all(site: Site, cells: Sequence[Cell], *, count: int) -> tuple[list[Lane], list[Observation]]:
    """Every lane takes the next cell as soon as it is done with one, the long ones first."""
    waiting = sorted(enumerate(cells), key=lambda each: (each[1].boundary in TAKEOVERS, each[1].delay_ms or 0))
    lanes: list[Lane] = []
    seen: list[Observation] = []

    async def work(lane: Lane) -> None:
        lanes.append(lane)
        while waiting:
            number, cell = waiting.pop()
            seen.append(await lane.strike(cell, f"{number}-{cell.tool}"))
            if len(seen) % 100 == 0:
                site.world.say(f"{len(seen)} of {len(cells)} calls struck and retried")

    async def open_and_work(number: int) -> None:
        await work(await _open_lane(site, number))

    # The first gateway migrates the database; the others find it ready.
    first = await _open_lane(site, 0)
    site.world.say(f"{len(cells)} calls over {count} gateways")
    await asyncio.gather(work(first), *(open_and_work(number) for number in range(1, count)))
    return lanes, seen


async def _storms(world: World, lanes: Sequence[Lane], count: int) -> list[Observation]:
    """Kills in a crowd, beyond the matrix: commits there carry many calls."""
    waiting = list(range(count))
    seen: list[Observation] = []

    async def work(lane: Lane) -> None:
        while waiting:
            number = waiting.pop()
            seen.extend(await storm(lane, number, random.Random(number)))

    await asyncio.gather(*(work(lane) for lane in lanes))
    stood = Counter(str(each.cell.expected.end) for each in seen)
    world.say(f"{count} kills in a crowd of {CROWD}: {', '.join(f'{n} {end}' for end, n in stood.items())}")
    return seen


async def _controls(site: Site, lanes: Sequence[Lane]) -> dict[str, bool]:
    """The same kill, retry and judgement, of gateways broken on purpose; true where they are caught."""

    async def caught(lane: Lane, variant: str, cell: Cell, by: str) -> bool:
        await lane.become(variant)
        seen = await lane.strike(cell, f"control-{variant}")
        found: list[str] = getattr(await site.judged([seen]), by)
        site.world.say(f"{variant}: {found[0] if found else 'nothing was found wrong'}")
        return bool(found)

    tried = zip(lanes, CONTROLS, strict=False)
    answers = await asyncio.gather(*(caught(lane, *control) for lane, control in tried))
    return {variant: answer for (variant, _, _), answer in zip(CONTROLS, answers, strict=True)}


def _verdict(exact: Judgement, crowds: Judgement, kills: int, controls: dict[str, bool], world: World) -> Verdict:
    calls, met = (sum(count.values()) for count in (exact.tried + crowds.tried, exact.met + crowds.met))
    return Verdict(
        starved=("expected_outcomes_met", "kills_that_missed_their_boundary"),
        figures={
            "kills": kills,
            "cells": len(exact.tried),
            "kills_per_cell": min(exact.tried.values()),
            "calls_killed_in_a_crowd": sum(crowds.tried.values()),
            "duplicate_effects": len(exact.duplicates + crowds.duplicates),
            "lost_acknowledged_effects": len(exact.lost + crowds.lost),
            "expected_outcomes_met": met / calls,
            "kills_that_missed_their_boundary": len(exact.astray),
            "effects_or_answers_without_entry": len(exact.unrecorded + crowds.unrecorded),
        },
        bars={
            "kills": (">=", world.size(quick=len(QUICK), full=50 * len(MATRIX))),
            "duplicate_effects": ("==", 0),
            "lost_acknowledged_effects": ("==", 0),
            "expected_outcomes_met": ("==", 1.0),
            "kills_that_missed_their_boundary": ("==", 0),
            "effects_or_answers_without_entry": ("==", 0),
        },
        controls=controls,
        notes=[
            *(f"{tool}: {what}" for tool, what in WHAT.items()),
            "In the matrix one call at a time is under way per gateway: each kill strikes the commit or effect meant.",
            "After each kill the call's row and the ledger were read: every kill was where it was meant to be, "
            "or is counted as missed.",
            "'While the upstream works': killed as soon as the ledger has the whole request; the effect comes 0.6 s "
            "later (a booking's 4.5 s later, when its retry is already there).",
            "Gateways start the first time as `deputize serve`, then as forks of a process that has imported the "
            "same modules, running the same command in the same folder: it spares the time for imports.",
            "A cell reads: how the one retry with the same key ended, and effects at the ledger after it.",
            f"In a crowd {CROWD} calls are under way at once and commits carry many; where each stood is read from its "
            "row after the kill, and only that its end fits, that nothing is repeated, lost or unrecorded, is judged.",
            "A read has no claim, and repeating it is no duplicate; the ledger only notes that it was asked.",
        ],
    )
