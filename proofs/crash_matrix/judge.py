"""Judges a round of kills: what happened at the ledger, what PostgreSQL has written down, both against the table."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from proofs.crash_matrix.lane import TENANT, Observation
from proofs.crash_matrix.matrix import Boundary, Cell, EffectTool, RetryEnd, is_applicable
from proofs.kit.ledger import Effect

_ENTRIES = """
select call_id, entry from deputize.audit_entries where tenant = $1 and call_id = any($2::uuid[])
"""


@dataclass(kw_only=True, slots=True)
class Judgement:
    """What is wrong, one sentence each; all empty is what the proof is for."""

    duplicates: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    missed_kills: list[str] = field(default_factory=list)
    entry_mismatches: list[str] = field(default_factory=list)
    met_counts: Counter[Cell] = field(default_factory=Counter)
    try_counts: Counter[Cell] = field(default_factory=Counter)

    def list_sentences(self) -> list[str]:
        return [*self.duplicates, *self.losses, *self.unexpected, *self.missed_kills, *self.entry_mismatches]


async def judge_kills(
    observations: Sequence[Observation], effects: Sequence[Effect], database: "asyncpg.Pool[asyncpg.Record]"
) -> Judgement:
    """Judge a round; `effects` is the ledger's whole book, of which only what these observations name is looked at."""
    labels = {observation.label for observation in observations}
    keys = {effect.key for effect in effects if effect.call in labels and effect.tool != EffectTool.LOOK}
    return judge_observations(observations, effects, await _fetch_entries(observations, keys, database))


def judge_observations(
    observations: Sequence[Observation], effects: Sequence[Effect], entries: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Judgement:
    """Judge observations by the ledger's effects and the audit entries of each call."""
    effects_by_label: dict[str, list[Effect]] = defaultdict(list)
    for effect in effects:
        if effect.tool != EffectTool.LOOK:
            effects_by_label[effect.call].append(effect)
    judgement = Judgement()
    for observation in observations:
        effects_of_call = effects_by_label[observation.label]
        _check_against_table(judgement, observation, len(effects_of_call))
        if len(effects_of_call) > 1:
            judgement.duplicates.append(f"{observation.cell}: {len(effects_of_call)} effects of one call")
        if observation.cell.tool is not EffectTool.LOOK and _is_acknowledged(observation) and not effects_of_call:
            judgement.losses.append(f"{observation.cell}: success was told, and nothing had happened")
        judgement.entry_mismatches += _find_entry_mismatches(observation, effects_of_call, entries)
    return judgement


def _check_against_table(judgement: Judgement, observation: Observation, effect_count: int) -> None:
    expected_end = observation.cell.expected_end
    judgement.try_counts[observation.cell] += 1
    if not observation.is_concurrent and observation.evidence not in observation.cell.expected_evidence:
        judgement.missed_kills.append(
            f"{observation.cell}: struck at '{observation.evidence}', not at '{observation.cell.expected_evidence[0]}'"
        )
    elif observation.end is expected_end.end and (observation.is_concurrent or effect_count == expected_end.effects):
        judgement.met_counts[observation.cell] += 1
    else:
        judgement.unexpected.append(
            f"{observation.cell}: {observation.end} with {effect_count} effects, not {expected_end}"
        )


def _is_acknowledged(observation: Observation) -> bool:
    return observation.retry.is_acknowledgement or (
        observation.first is not None and observation.first.is_acknowledgement
    )


def _find_entry_mismatches(
    observation: Observation, effects_of_call: Sequence[Effect], entries: Mapping[str, Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Every effect has an intent; every answer, good or unknown, has the entry that says the same."""
    wrong: list[str] = []
    for effect in effects_of_call:
        if not any(entry["kind"] == "intent" for entry in entries.get(effect.key, ())):
            wrong.append(f"{observation.cell}: an effect without an intent")
    kind = "read" if observation.cell.tool is EffectTool.LOOK else "outcome"
    for reply in (observation.first, observation.retry):
        if reply is None or not (reply.is_acknowledgement or observation.end is RetryEnd.UNKNOWN):
            continue
        state = reply.json_fields["state"]
        call_entries = entries.get(reply.json_fields["call_id"], ())
        if not any(entry["kind"] == kind and entry.get("outcome") == state for entry in call_entries):
            wrong.append(f"{observation.cell}: {state} was told without an entry that says so")
    return wrong


async def _fetch_entries(
    observations: Sequence[Observation], keys: set[str], database: "asyncpg.Pool[asyncpg.Record]"
) -> dict[str, list[dict[str, Any]]]:
    calls = set(keys)
    for observation in observations:
        calls |= {reply.json_fields["call_id"] for reply in (observation.first, observation.retry) if reply is not None}
    entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await database.fetch(_ENTRIES, TENANT, sorted(calls)):
        entries[str(row["call_id"])].append(orjson.loads(row["entry"]))
    return entries


def render_table(judgement: Judgement) -> list[str]:
    """Boundary by tool: the expected end of one retry, effects at the ledger, and in how many tries that was seen."""
    head = f"{'killed':45}" + "".join(f"{tool:25}" for tool in EffectTool)
    lines = [head.rstrip()]
    for boundary in Boundary:
        cells = [Cell(boundary=boundary, tool=tool) if is_applicable(boundary, tool) else None for tool in EffectTool]
        lines.append((f"{boundary:45}" + "".join(f"{_render_cell(judgement, cell):25}" for cell in cells)).rstrip())
    return lines


def _render_cell(judgement: Judgement, cell: Cell | None) -> str:
    if cell is None:
        return "-"
    try_count = judgement.try_counts[cell]
    return f"{cell.expected_end} ({judgement.met_counts[cell]} of {try_count})" if try_count else f"{cell.expected_end}"
