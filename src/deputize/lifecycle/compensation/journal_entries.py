"""Load entries of the journal, and judge whether the effect of each can be taken back now, and by which call."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, Literal
from uuid import UUID

import asyncpg

from deputize.catalog.schemas import get_properties, resolve_refs
from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.compensation_binding import BoundCompensation
from deputize.core.contract.contract import Effects
from deputize.core.errors import Problem
from deputize.core.value_types import frozen
from deputize.lifecycle.recording.journal import unseal_compensation
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("journal")
# Of one plan; a call has a few effects, and its arguments may be large.
_MAX_EFFECTS: Final = 2_000
_MAX_SEALED_BYTES: Final = 4_000_000
_ROWS_AT_ONCE: Final = 20

Verdict = Literal["ready", "done", "blocked"]


@frozen
class EntryVerdict:
    """Whether an effect can be taken back: by this call, or why not. `tool` takes it back, where that is known."""

    verdict: Verdict = "blocked"
    reason: str | None = None
    detail: str | None = None
    tool: str | None = None
    compensation: BoundCompensation | None = None


async def load_newest_entries(
    connection: Connection, tenant: str, entry_ids: Sequence[UUID]
) -> tuple[list[Sequence[asyncpg.Record]], bool]:
    """Load entries as `load_entries` does, up to what one plan holds; tell whether these are all."""
    rows: list[asyncpg.Record] = []
    size = 0
    async for row in connection.cursor(_SQL["load_entries"], tenant, entry_ids, prefetch=_ROWS_AT_ONCE):
        size += len(row["sealed"] or b"")
        is_full = size > _MAX_SEALED_BYTES or len(rows) >= _MAX_EFFECTS
        if is_full and rows and rows[-1]["id"] != row["id"]:
            return _group_by_entry(rows), False
        rows.append(row)
    return _group_by_entry(rows), True


async def load_entries(
    connection: Connection, tenant: str, entry_ids: Sequence[UUID]
) -> list[Sequence[asyncpg.Record]]:
    """Load entries, newest first, each with a row for every effect."""
    return _group_by_entry(await connection.fetch(_SQL["load_entries"], tenant, entry_ids))


def _group_by_entry(rows: Sequence[asyncpg.Record]) -> list[Sequence[asyncpg.Record]]:
    return [list(group) for _, group in groupby(rows, key=lambda row: row["id"])]


def judge_entry(row: asyncpg.Record, keys: KeySet, tools: TenantTools) -> EntryVerdict:
    """Judge an entry by its first row, without regard to who changed the same later."""
    if is_taken_back(row):
        detail = f"call {row['undo_call_id']} took it back"
        if not row["is_undone"]:
            detail += ", and was itself taken back since: undo the call that did so"
        return EntryVerdict(verdict="done", reason="already_undone", detail=detail)
    if row["undo_id"] is not None:
        detail = f"whether call {row['undo_call_id']} took it back is unknown: settle that call first"
        return EntryVerdict(reason="undo_uncertain", detail=detail)
    if row["certainty"] == "uncertain":
        return EntryVerdict(reason="uncertain", detail="whether it happened is unknown: settle the call first")
    if row["compensation_class"] == "irreversible":
        return EntryVerdict(reason="irreversible", detail=f"nothing takes back a call of {row['tool']}")
    if row["is_over"]:
        detail = f"it could be taken back until {row['undo_until'].isoformat(timespec='seconds')}"
        return EntryVerdict(reason="window_over", detail=detail)
    if row["sealed"] is None:
        return EntryVerdict(reason="not_kept", detail="the arguments of the call were erased, or never recorded")
    bound = unseal_compensation(keys, str(row["id"]), row["sealed"])
    return replace(_judge_binding(row["tool"], bound, tools), tool=bound.tool)


def is_taken_back(row: asyncpg.Record) -> bool:
    """Tell whether a call took the effect back, even if that call was itself taken back since."""
    return row["undo_id"] is not None and row["undo_certainty"] == "happened"


def _judge_binding(tool: str, bound: BoundCompensation, tools: TenantTools) -> EntryVerdict:
    """Judge whether the tool that takes a call back can be called with what was kept."""
    if bound.missing:
        detail = f"{bound.tool} needs {', '.join(bound.missing)} of the call, which is not known"
        return EntryVerdict(reason="not_bound", detail=detail)
    try:
        contract = tools.resolve_version(bound.tool).contract
    except Problem as problem:
        return EntryVerdict(reason="no_tool", detail=f"{bound.tool} takes it back: {problem.message}")
    if contract.effects is Effects.READ:
        return EntryVerdict(reason="no_tool", detail=f"{bound.tool} only reads now")
    if bound.is_by_name:
        if contract.full_name == tool:
            # With the same arguments it would do the same again.
            detail = f"{bound.tool} takes back itself, and the contract does not say with what: declare compensation"
            return EntryVerdict(reason="not_bound", detail=detail)
        properties = get_properties(contract.input_schema)
        arguments = {name: value for name, value in bound.arguments.items() if name in properties}
        required = resolve_refs(contract.input_schema, contract.input_schema).get("required")
        absent = sorted(set(required if isinstance(required, list) else ()) - arguments.keys())
        if absent:
            detail = (
                f"{bound.tool} needs {', '.join(absent)}, and the contract binds nothing to it: declare compensation"
            )
            return EntryVerdict(reason="not_bound", detail=detail)
        origins = {name: origin for name, origin in bound.origins.items() if name in arguments}
        bound = BoundCompensation(tool=bound.tool, arguments=arguments, origins=origins)
    return EntryVerdict(verdict="ready", compensation=bound)
