"""What must hold of runs after a storm: at the ledger, in the calls' rows, in the audit entries, and in time."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from proofs.kit.ledger import Effect
from proofs.kit.worker_pool import Database, WorkerFault

STEPS = 3
_CALLS = "select id, tool, state, owner_epoch, error from deputize.calls where id = any($1::uuid[])"
_ENTRIES = "select call_id, entry from deputize.audit_entries where call_id = any($1::uuid[])"
_LEASES = "select boot, expires_at from deputize.leases"
_RECONCILED_CALLS = "select distinct call_id from deputize.human_tasks where call_id = any($1::uuid[])"
_BOOK = "steps.book"

Downtime = tuple[datetime, datetime]


@dataclass(kw_only=True, slots=True)
class Judgement:
    states: Counter[str] = field(default_factory=Counter)
    duplicates: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    open_runs: list[str] = field(default_factory=list)
    entry_mismatches: list[str] = field(default_factory=list)
    missing_tasks: list[str] = field(default_factory=list)
    takeover_waits: list[float] = field(default_factory=list)
    takeover_count: int = 0

    def list_sentences(self) -> list[str]:
        return [*self.duplicates, *self.losses, *self.open_runs, *self.entry_mismatches, *self.missing_tasks]


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecords:
    """What PostgreSQL has on record about runs, by call, and when each worker's lease ended."""

    rows: Mapping[str, Any]
    entries: Mapping[str, Sequence[dict[str, Any]]]
    reconciled_calls: Collection[str]
    lease_ends: Mapping[str, datetime]


async def judge_runs(
    calls: Mapping[str, str],
    effects: Sequence[Effect],
    faults: Sequence[WorkerFault],
    downtimes: Sequence[Downtime],
    database: Database,
) -> Judgement:
    """Judge runs; `calls` is the call of each label."""
    ids = list(calls.values())
    entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for entry_row in await database.fetch(_ENTRIES, ids):
        entries[str(entry_row["call_id"])].append(orjson.loads(entry_row["entry"]))
    records = RunRecords(
        rows={str(row["id"]): row for row in await database.fetch(_CALLS, ids)},
        entries=entries,
        reconciled_calls={str(row["call_id"]) for row in await database.fetch(_RECONCILED_CALLS, ids)},
        lease_ends={str(row["boot"]): row["expires_at"] for row in await database.fetch(_LEASES)},
    )
    return judge_records(calls, effects, faults, downtimes, records)


def judge_records(
    calls: Mapping[str, str],
    effects: Sequence[Effect],
    faults: Sequence[WorkerFault],
    downtimes: Sequence[Downtime],
    records: RunRecords,
) -> Judgement:
    """Judge runs by what is on record. An upstream that deduplicates has each step once and all of them in the end;
    one that cannot has no step twice, and all of them where success was told.
    """
    steps: dict[str, Counter[str]] = defaultdict(Counter)
    for effect in effects:
        steps[effect.call][effect.key] += 1
    judgement = Judgement()
    for label, call_id in calls.items():
        row = records.rows.get(call_id)
        if row is None:
            judgement.losses.append(f"{label}: accepted as {call_id}, which is nowhere")
            continue
        judgement.states[f"{row['tool']} {row['state']}"] += 1
        judgement.takeover_count += row["owner_epoch"] > 1
        _check_ledger(judgement, label, row, steps[label])
        _check_entries(judgement, label, row, records.entries.get(call_id, ()))
        if row["state"] == "unknown" and call_id not in records.reconciled_calls:
            judgement.missing_tasks.append(f"{label}: unknown, and nobody was asked about it")
    for fault in faults:
        for call_id in fault.open_runs:
            entries = records.entries.get(call_id, ())
            wait = _compute_takeover_wait(fault, records.lease_ends.get(fault.boot), entries, downtimes)
            if wait is not None:
                judgement.takeover_waits.append(wait)
    return judgement


def _check_ledger(judgement: Judgement, label: str, row: Any, steps: Counter[str]) -> None:
    twice = [key for key, times in steps.items() if times > 1]
    if twice or len({key.partition(":")[0] for key in steps}) > 1:
        judgement.duplicates.append(f"{label}: {dict(steps)}")
    if row["state"] in ("queued", "running"):
        judgement.open_runs.append(f"{label}: still {row['state']}")
    elif row["tool"] == _BOOK and row["state"] != "succeeded":
        judgement.losses.append(f"{label}: {row['state']} ({row['error']}), with {len(steps)} of {STEPS} steps")
    elif row["state"] == "succeeded" and len(steps) != STEPS:
        judgement.losses.append(f"{label}: success was told of {len(steps)} of {STEPS} steps")
    elif row["state"] not in ("succeeded", "unknown"):
        judgement.losses.append(f"{label}: {row['state']} ({row['error']})")


def _check_entries(judgement: Judgement, label: str, row: Any, entries: Sequence[dict[str, Any]]) -> None:
    """One intent when it was queued and one for each owner; and the end that is told stands in an entry."""
    intents = sum(entry["kind"] == "intent" for entry in entries)
    if intents != row["owner_epoch"] + 1:
        judgement.entry_mismatches.append(f"{label}: {intents} intents of {row['owner_epoch']} owners")
    if not any(entry["kind"] == "outcome" and entry.get("outcome") == row["state"] for entry in entries):
        judgement.entry_mismatches.append(f"{label}: {row['state']} is in no entry")


def _compute_takeover_wait(
    fault: WorkerFault, lease_end: datetime | None, entries: Sequence[dict[str, Any]], downtimes: Sequence[Downtime]
) -> float | None:
    """From the end of the dead worker's lease to the first sign of another, without the time there was no database."""
    if lease_end is None:
        return None
    signs = sorted(datetime.fromisoformat(entry["time"]) for entry in entries)
    # A frozen worker renews its lease when it wakes: what counts is when it would have ended.
    began = min(lease_end, fault.at + timedelta(seconds=LEASE_SECONDS)) if fault.is_freeze else lease_end
    takeover_at = next((sign for sign in signs if sign > began), None)
    if takeover_at is None:
        return None
    down = sum(
        (
            (min(up, takeover_at) - max(went, began)).total_seconds()
            for went, up in downtimes
            if went < takeover_at and up > began
        ),
        0.0,
    )
    return max((takeover_at - began).total_seconds() - down, 0.0)


LEASE_SECONDS = 3.0


def compute_percentile(values: Sequence[float], share: float) -> float:
    sorted_values = sorted(values)
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)] if sorted_values else 0.0
