"""What must hold of every call that people were asked about: at the ledger, in the rows, in the audit entries.

Nothing that a gateway said is believed where the ledger or an entry could say otherwise. Above: `proofs.approvals`.
Below: the ledger's book and the database, read once everything has ended.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from proofs.asked.house import TENANT
from proofs.asked.people import GLAZIERS
from proofs.asked.tale import Expect, Tale, Why
from proofs.fleet.crew import Database
from proofs.kit.ledger import Effect

_CALLS = "select id, tool, state, owner_epoch, error from deputize.calls where tenant = $1 and id = any($2::uuid[])"
_TICKETS = """
select id, call_id, state, expires_at, closed_at from deputize.approvals where tenant = $1 and call_id = any($2::uuid[])
order by opened_at, id
"""
_VOTES = "select id, voter, approve, glass from deputize.votes where tenant = $1"
# Of every tenant: whoever is refused is refused in their own.
_ENTRIES = "select call_id, entry, pg_xact_commit_timestamp(xmin) as at from deputize.audit_entries order by at"
_ATTENDED = "select distinct call_id from deputize.tickets where tenant = $1 and kind <> 'approval'"
_APPROVED = ("approved", "used")
# Between the moment PostgreSQL says that there is still time and the commit of what it said that to.
_COMMIT = timedelta(seconds=1)


@dataclass(kw_only=True, slots=True)
class Found:
    """Sentences about what is wrong, by what it is."""

    states: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    after_change: list[str] = field(default_factory=list)
    after_expiry: list[str] = field(default_factory=list)
    unapproved: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrongly_decided: list[str] = field(default_factory=list)
    expired_not_denied: list[str] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    unended: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    ran: int = 0
    void: int = 0
    expired: int = 0
    unknown: int = 0

    def sentences(self) -> list[str]:
        lists = (
            self.after_change, self.after_expiry, self.unapproved, self.twice, self.lost, self.wrongly_decided,
            self.expired_not_denied, self.unrecorded, self.unended, self.other,
        )  # fmt: skip
        return [sentence for each in lists for sentence in each]


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """Everything that is written about one call."""

    tale: Tale
    row: Any
    tickets: Sequence[Any]
    votes: Mapping[str, Sequence[Any]]
    entries: Sequence[tuple[dict[str, Any], datetime]]
    effects: Sequence[Effect]
    elsewhere: "Elsewhere"

    @property
    def began(self) -> list[datetime]:
        """When each owner began it: the first intent is that of the question."""
        return [at for entry, at in self.entries if entry["kind"] == "intent"][1:]

    def __str__(self) -> str:
        tickets = ", ".join(ticket["state"] for ticket in self.tickets)
        told = f"{self.row['state']} ({self.row['error']}), tickets {tickets}" if self.row else "nowhere"
        return f"{self.tale.label} [{self.tale.kind}] {self.tale.call}: {told}, {len(self.effects)} effects"


@dataclass(kw_only=True, slots=True)
class Elsewhere:
    """Entries of no call: who was refused, by ticket; who decided; and what administrators did, and when first."""

    refusals: Counter[str] = field(default_factory=Counter)
    words: Counter[str] = field(default_factory=Counter)
    commands: dict[tuple[str, str], datetime] = field(default_factory=dict)
    attended: set[str] = field(default_factory=set)


async def judge(tales: Sequence[Tale], effects: Iterable[Effect], database: Database) -> Found:
    found = Found()
    for record in await _records(tales, effects, database):
        found.states[f"{record.tale.kind}: {record.row['state'] if record.row else 'nowhere'}"] += 1
        found.refused.update(record.tale.refused_by)
        found.other += [f"{record}: {each}" for each in record.tale.wrong if not each.startswith("decided by")]
        found.wrongly_decided += [f"{record}: {each}" for each in record.tale.wrong if each.startswith("decided by")]
        if record.row is None:
            found.lost.append(f"{record}")
            continue
        _at_the_ledger(found, record)
        _by_whom(found, record)
        _in_the_entries(found, record)
        _ended(found, record)
    return found


def _at_the_ledger(found: Found, record: Record) -> None:
    tale, effects = record.tale, record.effects
    found.ran += bool(effects)
    used = [ticket for ticket in record.tickets if ticket["state"] == "used"]
    if len(effects) > 1 or len(used) > 1 or len({effect.key for effect in effects}) > 1:
        found.twice.append(f"{record}")
    if effects and tale.expect is Expect.NEVER:
        where = {Why.CHANGED: found.after_change, Why.EXPIRED: found.after_expiry}.get(tale.why, found.unapproved)
        where.append(f"{record}")
    if effects and tale.tool == "asked.wipe" and any(effect.tool != f"wipe {tale.mark}" for effect in effects):
        found.after_change.append(f"{record}: acted as {effects[0].tool!r}")
    if effects and (not used or not record.began):
        found.unapproved.append(f"{record}: acted without a ticket that was used")
    if used and record.began and record.began[0] > used[-1]["expires_at"] + _COMMIT:
        found.after_expiry.append(f"{record}: begun at {record.began[0]}, over at {used[-1]['expires_at']}")
    if tale.raced is not None and tale.expect is Expect.EITHER and effects:
        changed = record.elsewhere.commands.get(tale.raced)
        if changed is None:
            found.other.append(f"{record}: nobody wrote down {tale.raced}")
        elif record.began and record.began[0] > changed:
            found.after_change.append(f"{record}: begun {record.began[0] - changed} after {tale.raced}")
    if tale.expect is Expect.RUNS and not _came_to_its_end(record):
        found.lost.append(f"{record}")
    if tale.expect is Expect.EITHER and bool(effects) != (record.row["state"] == "succeeded") and not _unsure(record):
        found.lost.append(f"{record}: what is told is not what happened")


def _came_to_its_end(record: Record) -> bool:
    return (record.row["state"] == "succeeded" and len(record.effects) == 1) or _unknown(record)


def _unknown(record: Record) -> bool:
    """A worker died with it, and its upstream could not be asked again: said so, and put to somebody."""
    told = record.row["state"] == "unknown" and record.tale.call in record.elsewhere.attended
    return told and record.tale.lossy and len(record.effects) <= 1


def _unsure(record: Record) -> bool:
    """Unknown; or taken over from a worker that died with it, by one that may not go on with what changed since."""
    return _unknown(record) or (record.tale.raced is not None and record.row["owner_epoch"] > 1)


def _by_whom(found: Found, record: Record) -> None:
    """Every voice is that of somebody who may, and a yes has as many of them as it needs."""
    tale = record.tale
    for ticket in record.tickets:
        votes = record.votes.get(str(ticket["id"]), ())
        strangers = {vote["voter"] for vote in votes} - tale.rightful
        if strangers or tale.user in {vote["voter"] for vote in votes}:
            found.wrongly_decided.append(f"{record}: {sorted(strangers)} voted")
        yes = {vote["voter"] for vote in votes if vote["approve"]}
        glass = {vote["voter"] for vote in votes if vote["glass"]}
        enough = len(yes - set(GLAZIERS)) >= tale.people_needed or len(glass) == len(GLAZIERS)
        if ticket["state"] in _APPROVED and not enough:
            found.wrongly_decided.append(f"{record}: approved by {sorted(yes)}")
        if ticket["state"] == "denied" and all(vote["approve"] for vote in votes):
            found.wrongly_decided.append(f"{record}: denied, and nobody said no")


def _in_the_entries(found: Found, record: Record) -> None:
    tale, elsewhere = record.tale, record.elsewhere
    decisions = Counter(
        (entry["subject"], entry["outcome"]) for entry, _ in record.entries if entry["kind"] == "decision"
    )
    for ticket in record.tickets:
        name, state = str(ticket["id"]), ticket["state"]
        said = {outcome: decisions[name, outcome] for outcome in ("approved", "denied")}
        votes = record.votes.get(name, ())
        wanted = {
            "approved": int(state in _APPROVED or (state in ("void", "expired") and said["approved"] == 1)),
            "denied": int(state == "denied"),
        }
        if said != wanted:
            found.unrecorded.append(f"{record}: {state}, and entries say {said}")
        if elsewhere.words[name] != len(votes):
            found.unrecorded.append(f"{record}: {elsewhere.words[name]} entries of {len(votes)} voices")
        if not tale.refused[name] <= elsewhere.refusals[name] <= tale.tries[name]:
            found.unrecorded.append(
                f"{record}: {elsewhere.refusals[name]} refusals on record, {tale.refused[name]} heard, "
                f"{tale.tries[name]} tries"
            )
    for heard in tale.heard:
        state = next((ticket["state"] for ticket in record.tickets if str(ticket["id"]) == heard.ticket), "nowhere")
        kept = {"approved": ("approved", "used", "void", "expired"), "denied": ("denied",)}.get(heard.state)
        if kept is not None and state not in kept:
            found.unrecorded.append(f"{record}: {heard.who} was told {heard.state}, and it is {state}")
    if len(record.began) != record.row["owner_epoch"]:
        told = [f"{entry['kind']} {entry.get('outcome', '')} {at:%M:%S.%f}" for entry, at in record.entries]
        found.unrecorded.append(f"{record}: {record.row['owner_epoch']} owners, and entries say {told}")


def _ended(found: Found, record: Record) -> None:
    state, tickets = record.row["state"], record.tickets
    found.unknown += state == "unknown"
    found.void += any(ticket["state"] == "void" for ticket in tickets)
    open_still = any(ticket["state"] == "open" for ticket in tickets)
    if state in ("queued", "running") or (state == "awaiting_approval") != open_still:
        found.unended.append(f"{record}")
    if record.tale.hasty and not record.effects and not _unknown(record):
        found.expired += 1
        if state != "denied" or record.row["error"] not in ("approval-expired", "approval-rejected"):
            found.expired_not_denied.append(f"{record}")


async def _records(tales: Sequence[Tale], effects: Iterable[Effect], database: Database) -> list[Record]:
    ids = [tale.call for tale in tales if tale.call]
    rows = {str(row["id"]): row for row in await database.fetch(_CALLS, TENANT, ids)}
    tickets, votes, acts = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in await database.fetch(_TICKETS, TENANT, ids):
        tickets[str(row["call_id"])].append(row)
    for row in await database.fetch(_VOTES, TENANT):
        votes[str(row["id"])].append(row)
    for effect in effects:
        acts[effect.call].append(effect)
    elsewhere, entries = await _entries(database)
    return [
        Record(
            tale=tale,
            row=rows.get(tale.call),
            tickets=tickets[tale.call],
            votes=votes,
            entries=entries[tale.call],
            effects=[*acts[tale.label], *acts[f"{tale.label}-other"]],
            elsewhere=elsewhere,
        )
        for tale in tales
    ]


async def _entries(database: Database) -> tuple[Elsewhere, dict[str, list[tuple[dict[str, Any], datetime]]]]:
    elsewhere, of_calls = Elsewhere(), defaultdict(list)
    for row in await database.fetch(_ENTRIES):
        entry = orjson.loads(row["entry"])
        if row["call_id"] is not None:
            of_calls[str(row["call_id"])].append((entry, row["at"]))
        elif entry["kind"] == "refusal":
            elsewhere.refusals[entry.get("subject", "")] += 1
        elif entry["kind"] == "command" and entry["command"] in ("approve", "deny", "break_glass"):
            elsewhere.words[entry["subject"]] += 1
        elif entry["kind"] == "command":
            elsewhere.commands.setdefault((entry["command"], entry["subject"]), row["at"])
    elsewhere.attended = {str(row["call_id"]) for row in await database.fetch(_ATTENDED, TENANT)}
    return elsewhere, of_calls
