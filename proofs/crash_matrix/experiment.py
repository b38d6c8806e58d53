"""Kills a gateway with SIGKILL at every boundary of a call, for four kinds of tool, and counts effects at the upstream.

Several gateways stand on one PostgreSQL and one ledger; each is struck, started again and asked once more with the
same key. `matrix.py` is the table of what must come of it, `lane.py` one kill, `judge.py` the verdict.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from deputize.store.migrate import upgrade_async
from proofs.crash_matrix.concurrent_kills import CALLS_AT_ONCE, kill_concurrently
from proofs.crash_matrix.judge import Judgement, judge_kills, render_table
from proofs.crash_matrix.lane import SETTINGS, TENANT, Lane, Observation
from proofs.crash_matrix.matrix import MATRIX, QUICK_MATRIX, TAKEOVERS, TOOL_KINDS, Boundary, Cell, EffectTool
from proofs.crash_matrix.undo_kills import UndoLane, catch_forgetful, kill_undos, open_undo_lane
from proofs.kit.client_proxy import ClientProxy
from proofs.kit.fork_server import ForkServer, start_fork_server
from proofs.kit.gateway import Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import create_gateway_login
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.postgres_proxy import PgProxy
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "crash_matrix"
PROMISE = "A gateway killed anywhere in a call neither repeats an effect nor loses one that it acknowledged."

# Each variant is struck where it is broken; what must catch it is named beside it.
CONTROLS = (
    ("crash_effect_first", Cell(boundary=Boundary.CLAIM_UNSENT, tool=EffectTool.SEND), "duplicates"),
    ("crash_unknown_is_failed", Cell(boundary=Boundary.AFTER_EFFECT, tool=EffectTool.SEND), "duplicates"),
    ("crash_no_takeover", Cell(boundary=Boundary.AFTER_EFFECT, tool=EffectTool.BOOK), "unexpected"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    """What the gateways share."""

    sandbox: Sandbox
    dsn: str
    ledger: LedgerHandle
    fork_server: ForkServer
    database: "asyncpg.Pool[asyncpg.Record]"
    issuer: Issuer

    async def judge_observations(self, observations: Sequence[Observation]) -> Judgement:
        return await judge_kills(observations, await self.ledger.list_effects(), self.database)


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, ledger, fork_server = await asyncio.gather(
        sandbox.start_postgres(), start_ledger(sandbox), start_fork_server(sandbox)
    )
    database = await asyncpg.create_pool(postgres.dsn, min_size=1, max_size=4)
    sandbox.add_cleanup(database.close)
    testbed = Testbed(
        sandbox=sandbox,
        dsn=postgres.dsn,
        ledger=ledger,
        fork_server=fork_server,
        database=database,
        issuer=create_issuer(),
    )
    cells = list(MATRIX if sandbox.full else QUICK_MATRIX) * sandbox.pick_size(quick=1, full=50)
    random.Random(0).shuffle(cells)
    (lanes, observations), undo_lane = await asyncio.gather(
        _kill_all(testbed, cells, count=sandbox.pick_size(quick=4, full=8)), _kill_undos(testbed)
    )
    exact_judgement = await testbed.judge_observations(observations)
    for line in render_table(exact_judgement):
        sandbox.log(line)
    concurrent_judgement = await testbed.judge_observations(
        await _run_concurrent_kills(sandbox, lanes, sandbox.pick_size(quick=3, full=200))
    )
    repeated = list(undo_lane.wrong)
    for sentence in [*exact_judgement.list_sentences(), *concurrent_judgement.list_sentences(), *repeated][:40]:
        sandbox.log(f"wrong: {sentence}")
    kills = sum(lane.kills for lane in lanes)
    controls = await _run_controls(testbed, lanes) | {"crash_undo_by_attempt": await catch_forgetful(undo_lane)}
    verdict = _build_verdict(exact_judgement, concurrent_judgement, kills, controls, sandbox)
    figures = {"kills_in_undos_and_retries": undo_lane.kills, "wrong_after_undos_and_retries": len(repeated)}
    return replace(verdict, figures={**verdict.figures, **figures})


async def _kill_undos(testbed: Testbed) -> UndoLane:
    """Kill a gateway in undos and retries, on a database where the time of every key ends again and again."""
    await testbed.database.execute("create database undos")
    dsn = urlunsplit(urlsplit(testbed.dsn)._replace(path="/undos"))
    # The first gateway of a proof migrates its own database alone.
    await upgrade_async(dsn)
    await create_gateway_login(dsn)
    lane = await open_undo_lane(testbed.sandbox, dsn, testbed.ledger, testbed.fork_server, testbed.issuer)
    await kill_undos(lane, testbed.sandbox.pick_size(quick=1, full=10))
    return lane


async def _open_lane(testbed: Testbed, number: int) -> Lane:
    postgres_proxy = PgProxy(testbed.dsn)
    await postgres_proxy.__aenter__()
    testbed.sandbox.add_cleanup(postgres_proxy.__aexit__)
    gateway = await start_gateway(
        testbed.sandbox,
        postgres_proxy.dsn,
        testbed.issuer,
        name=f"gateway-{number}",
        tools="effects.py",
        settings=SETTINGS,
        env={"PROOF_LEDGER": testbed.ledger.url},
        migrate_dsn=testbed.dsn,
    )
    client_proxy = ClientProxy(gateway.url)
    await client_proxy.__aenter__()
    testbed.sandbox.add_cleanup(client_proxy.__aexit__)
    lane = Lane(
        gateway=gateway,
        process=gateway.child,
        fork_server=testbed.fork_server,
        postgres_proxy=postgres_proxy,
        client_proxy=client_proxy,
        ledger=testbed.ledger,
        database=testbed.database,
        token=testbed.issuer.issue_token("ann", tenant=TENANT),
    )
    testbed.sandbox.add_cleanup(lane.http.aclose)
    return lane


async def _kill_all(testbed: Testbed, cells: Sequence[Cell], *, count: int) -> tuple[list[Lane], list[Observation]]:
    """Every lane takes the next cell as soon as it is done with one, the long ones first."""
    pending_cells = sorted(enumerate(cells), key=lambda each: (each[1].boundary in TAKEOVERS, each[1].delay_ms or 0))
    lanes: list[Lane] = []
    observations: list[Observation] = []

    async def run_lane(lane: Lane) -> None:
        lanes.append(lane)
        while pending_cells:
            number, cell = pending_cells.pop()
            observations.append(await lane.kill_and_retry(cell, f"{number}-{cell.tool}"))
            if len(observations) % 100 == 0:
                testbed.sandbox.log(f"{len(observations)} of {len(cells)} calls struck and retried")

    async def open_and_run_lane(number: int) -> None:
        await run_lane(await _open_lane(testbed, number))

    # The first gateway migrates the database; the others find it ready.
    first = await _open_lane(testbed, 0)
    testbed.sandbox.log(f"{len(cells)} calls over {count} gateways")
    await asyncio.gather(run_lane(first), *(open_and_run_lane(number) for number in range(1, count)))
    return lanes, observations


async def _run_concurrent_kills(sandbox: Sandbox, lanes: Sequence[Lane], count: int) -> list[Observation]:
    """Kills in a crowd, beyond the matrix: commits there carry many calls."""
    pending_numbers = list(range(count))
    observations: list[Observation] = []

    async def run_lane(lane: Lane) -> None:
        while pending_numbers:
            number = pending_numbers.pop()
            observations.extend(await kill_concurrently(lane, number, random.Random(number)))

    await asyncio.gather(*(run_lane(lane) for lane in lanes))
    counts_by_end = Counter(str(each.cell.expected_end.end) for each in observations)
    sandbox.log(
        f"{count} kills in a crowd of {CALLS_AT_ONCE}: {', '.join(f'{n} {end}' for end, n in counts_by_end.items())}"
    )
    return observations


async def _run_controls(testbed: Testbed, lanes: Sequence[Lane]) -> dict[str, bool]:
    """The same kill, retry and judgement, of gateways broken on purpose; true where they are caught."""

    async def is_caught(lane: Lane, variant: str, cell: Cell, judgement_field: str) -> bool:
        await lane.switch_to_variant(variant)
        observation = await lane.kill_and_retry(cell, f"control-{variant}")
        faults: list[str] = getattr(await testbed.judge_observations([observation]), judgement_field)
        testbed.sandbox.log(f"{variant}: {faults[0] if faults else 'nothing was found wrong'}")
        return bool(faults)

    lane_controls = zip(lanes, CONTROLS, strict=False)
    catches = await asyncio.gather(*(is_caught(lane, *control) for lane, control in lane_controls))
    return {variant: is_control_caught for (variant, _, _), is_control_caught in zip(CONTROLS, catches, strict=True)}


def _build_verdict(
    exact_judgement: Judgement, concurrent_judgement: Judgement, kills: int, controls: dict[str, bool], sandbox: Sandbox
) -> Verdict:
    call_count, met_count = (
        sum(count.values())
        for count in (
            exact_judgement.try_counts + concurrent_judgement.try_counts,
            exact_judgement.met_counts + concurrent_judgement.met_counts,
        )
    )
    return Verdict(
        figures={
            "kills": kills,
            "cells": len(exact_judgement.try_counts),
            "kills_per_cell": min(exact_judgement.try_counts.values()),
            "calls_killed_in_a_crowd": sum(concurrent_judgement.try_counts.values()),
            "duplicate_effects": len(exact_judgement.duplicates + concurrent_judgement.duplicates),
            "lost_acknowledged_effects": len(exact_judgement.losses + concurrent_judgement.losses),
            "expected_outcomes_met": met_count / call_count,
            "kills_that_missed_their_boundary": len(exact_judgement.missed_kills),
            "effects_or_answers_without_entry": len(
                exact_judgement.entry_mismatches + concurrent_judgement.entry_mismatches
            ),
        },
        controls=controls,
        notes=[
            *(f"{tool}: {what}" for tool, what in TOOL_KINDS.items()),
            "In the matrix one call at a time is under way per gateway: each kill strikes the commit or effect meant.",
            "After each kill the call's row and the ledger were read: every kill was where it was meant to be, "
            "or is counted as missed.",
            "'While the upstream works': killed as soon as the ledger has the whole request; the effect comes 0.6 s "
            "later (a booking's 4.5 s later, when its retry is already there).",
            "Gateways start the first time as `deputize serve`, then as forks of a process that has imported the "
            "same modules, running the same command in the same folder: it spares the time for imports.",
            "A cell reads: how the one retry with the same key ended, and effects at the ledger after it.",
            f"In a crowd {CALLS_AT_ONCE} calls are under way at once and commits carry many; where each stood is "
            "read from its "
            "row after the kill, and only that its end fits, that nothing is repeated, lost or unrecorded, is judged.",
            "A read has no claim, and repeating it is no duplicate; the ledger only notes that it was asked.",
        ],
    )
