"""What must hold of runs after a storm: at the ledger, in the calls' rows, in the audit entries, and in time.

Above: `recovery`. Below: the ledger's book and the database, read once everything has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from proofs.fleet.crew import Blow, Database
from proofs.kit.ledger import Effect

STEPS = 3
_CALLS = "select id, tool, state, owner_epoch, error from deputize.calls where id = any($1::uuid[])"
_ENTRIES = "select call_id, entry from deputize.audit_entries where call_id = any($1::uuid[])"
_LEASES = "select boot, expires_at from deputize.leases"
_TICKETED = "select distinct call_id from deputize.tickets where call_id = any($1::uuid[])"
_BOOK = "steps.book"

Downtime = tuple[datetime, datetime]


@dataclass(kw_only=True, slots=True)
class Judgement:
    states: Counter[str] = field(default_factory=Counter)
    duplicates: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    unended: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    unattended: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    taken_over: int = 0

    def sentences(self) -> list[str]:
        return [*self.duplicates, *self.lost, *self.unended, *self.unrecorded, *self.unattended]


async def judge(
    calls: Mapping[str, str],
    effects: Sequence[Effect],
    blows: Sequence[Blow],
    downtimes: Sequence[Downtime],
    database: Database,
) -> Judgement:
    """`calls` is the call of each label. An upstream that deduplicates has each step once and all of them in the end;
    one that cannot has no step twice, and all of them where success was told.
    """
    ids = list(calls.values())
    rows = {str(row["id"]): row for row in await database.fetch(_CALLS, ids)}
    entries: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for written in await database.fetch(_ENTRIES, ids):
        entries[str(written["call_id"])].append(orjson.loads(written["entry"]))
    ticketed = {str(row["call_id"]) for row in await database.fetch(_TICKETED, ids)}
    steps: dict[str, Counter[str]] = defaultdict(Counter)
    for effect in effects:
        steps[effect.call][effect.key] += 1
    found = Judgement()
    for label, call_id in calls.items():
        row = rows.get(call_id)
        if row is None:
            found.lost.append(f"{label}: accepted as {call_id}, which is nowhere")
            continue
        found.states[f"{row['tool']} {row['state']}"] += 1
        found.taken_over += row["owner_epoch"] > 1
        _at_the_ledger(found, label, row, steps[label])
        _in_the_entries(found, label, row, entries[call_id])
        if row["state"] == "unknown" and call_id not in ticketed:
            found.unattended.append(f"{label}: unknown, and nobody was asked about it")
    leases = {str(row["boot"]): row["expires_at"] for row in await database.fetch(_LEASES)}
    for blow in blows:
        for call_id in blow.runs:
            wait = _wait(blow, leases.get(blow.boot), entries.get(call_id, []), downtimes)
            if wait is not None:
                found.waits.append(wait)
    return found


def _at_the_ledger(found: Judgement, label: str, row: Any, steps: Counter[str]) -> None:
    twice = [key for key, times in steps.items() if times > 1]
    if twice or len({key.partition(":")[0] for key in steps}) > 1:
        found.duplicates.append(f"{label}: {dict(steps)}")
    if row["state"] in ("queued", "running"):
        found.unended.append(f"{label}: still {row['state']}")
    elif row["tool"] == _BOOK and row["state"] != "succeeded":
        found.lost.append(f"{label}: {row['state']} ({row['error']}), with {len(steps)} of {STEPS} steps")
    elif row["state"] == "succeeded" and len(steps) != STEPS:
        found.lost.append(f"{label}: success was told of {len(steps)} of {STEPS} steps")
    elif row["state"] not in ("succeeded", "unknown"):
        found.lost.append(f"{label}: {row['state']} ({row['error']})")


def _in_the_entries(found: Judgement, label: str, row: Any, entries: Sequence[dict[str, Any]]) -> None:
    """One intent when it was queued and one for each owner; and the end that is told stands in an entry."""
    intents = sum(entry["kind"] == "intent" for entry in entries)
    if intents != row["owner_epoch"] + 1:
        found.unrecorded.append(f"{label}: {intents} intents of {row['owner_epoch']} owners")
    if not any(entry["kind"] == "outcome" and entry.get("outcome") == row["state"] for entry in entries):
        found.unrecorded.append(f"{label}: {row['state']} is in no entry")


def _wait(
    blow: Blow, expired: datetime | None, entries: Sequence[dict[str, Any]], downtimes: Sequence[Downtime]
) -> float | None:
    """From the end of the dead worker's lease to the first sign of another, without the time there was no database."""
    if expired is None:
        return None
    signs = sorted(datetime.fromisoformat(entry["time"]) for entry in entries)
    # A frozen worker renews its lease when it wakes: what counts is when it would have ended.
    began = min(expired, blow.at + timedelta(seconds=LEASE_SECONDS)) if blow.frozen else expired
    taken = next((sign for sign in signs if sign > began), None)
    if taken is None:
        return None
    down = sum(
        ((min(up, taken) - max(went, began)).total_seconds() for went, up in downtimes if went < taken and up > began),
        0.0,
    )
    return max((taken - began).total_seconds() - down, 0.0)


LEASE_SECONDS = 3.0


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
