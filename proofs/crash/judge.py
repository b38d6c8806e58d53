"""Judges a round of kills: what happened at the ledger, what PostgreSQL has written down, both against the table.

Above: `crash_matrix`. Below: `cells`, what was expected; `lane`, what was observed.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from proofs.crash.cells import Boundary, Cell, End, Tool, exists
from proofs.crash.lane import TENANT, Observation
from proofs.kit.ledger import Effect

_ENTRIES = """
select call_id, entry from deputize.audit_entries where tenant = $1 and call_id = any($2::uuid[])
"""


@dataclass(kw_only=True, slots=True)
class Judgement:
    """What is wrong, one sentence each; all empty is what the proof is for."""

    duplicates: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    astray: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    met: Counter[Cell] = field(default_factory=Counter)
    tried: Counter[Cell] = field(default_factory=Counter)

    def sentences(self) -> list[str]:
        return [*self.duplicates, *self.lost, *self.unexpected, *self.astray, *self.unrecorded]


async def judge(
    observations: Sequence[Observation], effects: Sequence[Effect], database: "asyncpg.Pool[asyncpg.Record]"
) -> Judgement:
    """`effects` is the ledger's whole book; only what these observations' labels name is looked at."""
    done: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        if effect.tool != Tool.LOOK:
            done[effect.call].append(effect)
    entries = await _entries(observations, done, database)
    judgement = Judgement()
    for seen in observations:
        happened = done[seen.label]
        _against_the_table(judgement, seen, len(happened))
        if len(happened) > 1:
            judgement.duplicates.append(f"{seen.cell}: {len(happened)} effects of one call")
        if seen.cell.tool is not Tool.LOOK and _acknowledged(seen) and not happened:
            judgement.lost.append(f"{seen.cell}: success was told, and nothing had happened")
        judgement.unrecorded += _unrecorded(seen, happened, entries)
    return judgement


def _against_the_table(judgement: Judgement, seen: Observation, happened: int) -> None:
    expected = seen.cell.expected
    judgement.tried[seen.cell] += 1
    if not seen.in_a_crowd and seen.evidence not in seen.cell.evidence:
        judgement.astray.append(f"{seen.cell}: struck at '{seen.evidence}', not at '{seen.cell.evidence[0]}'")
    elif seen.end is expected.end and (seen.in_a_crowd or happened == expected.effects):
        judgement.met[seen.cell] += 1
    else:
        judgement.unexpected.append(f"{seen.cell}: {seen.end} with {happened} effects, not {expected}")


def _acknowledged(seen: Observation) -> bool:
    return seen.retry.acknowledges or (seen.first is not None and seen.first.acknowledges)


def _unrecorded(seen: Observation, happened: Sequence[Effect], entries: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Every effect has an intent; every answer, good or unknown, has the entry that says the same."""
    wrong: list[str] = []
    for effect in happened:
        if not any(entry["kind"] == "intent" for entry in entries[effect.key]):
            wrong.append(f"{seen.cell}: an effect without an intent")
    kind = "read" if seen.cell.tool is Tool.LOOK else "outcome"
    for reply in (seen.first, seen.retry):
        if reply is None or not (reply.acknowledges or seen.end is End.UNKNOWN):
            continue
        state = reply.fields["state"]
        written = entries[reply.fields["call_id"]]
        if not any(entry["kind"] == kind and entry.get("outcome") == state for entry in written):
            wrong.append(f"{seen.cell}: {state} was told without an entry that says so")
    return wrong


async def _entries(
    observations: Sequence[Observation], done: dict[str, list[Effect]], database: "asyncpg.Pool[asyncpg.Record]"
) -> dict[str, list[dict[str, Any]]]:
    calls: set[str] = set()
    for seen in observations:
        calls |= {effect.key for effect in done[seen.label]}
        calls |= {reply.fields["call_id"] for reply in (seen.first, seen.retry) if reply is not None}
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await database.fetch(_ENTRIES, TENANT, sorted(calls)):
        found[str(row["call_id"])].append(orjson.loads(row["entry"]))
    return found


def table(judgement: Judgement) -> list[str]:
    """Boundary by tool: the expected end of one retry, effects at the ledger, and in how many tries that was seen."""
    head = f"{'killed':45}" + "".join(f"{tool:25}" for tool in Tool)
    lines = [head.rstrip()]
    for boundary in Boundary:
        cells = [Cell(boundary=boundary, tool=tool) if exists(boundary, tool) else None for tool in Tool]
        lines.append((f"{boundary:45}" + "".join(f"{_shown(judgement, cell):25}" for cell in cells)).rstrip())
    return lines


def _shown(judgement: Judgement, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    tried = judgement.tried[cell]
    return f"{cell.expected} ({judgement.met[cell]} of {tried})" if tried else f"{cell.expected}"
