"""What must hold of every call that people were asked about: at the ledger, in the rows, in the audit entries.

Nothing that a gateway said is believed where the ledger or an entry could say otherwise.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from proofs.approvals.case import ApprovalCase, Expectation, NoRunReason
from proofs.approvals.identities import BREAK_GLASS_USERS
from proofs.approvals.testbed import TENANT
from proofs.kit.ledger import Effect
from proofs.kit.worker_pool import Database

_CALLS = "select id, tool, state, owner_epoch, error from deputize.calls where tenant = $1 and id = any($2::uuid[])"
_TICKETS = """
select id, call_id, state, expires_at, closed_at from deputize.approvals where tenant = $1 and call_id = any($2::uuid[])
order by opened_at, id
"""
_VOTES = "select id, voter, approve, break_glass from deputize.votes where tenant = $1"
# Of every tenant: whoever is refused is refused in their own.
_ENTRIES = "select call_id, entry, pg_xact_commit_timestamp(xmin) as at from deputize.audit_entries order by at"
_RECONCILED_CALLS = "select distinct call_id from deputize.human_tasks where tenant = $1 and kind <> 'approval'"
_APPROVED_STATES = ("approved", "used")
# Between the moment PostgreSQL says that there is still time and the commit of what it said that to.
_COMMIT_SLACK = timedelta(seconds=1)


@dataclass(kw_only=True, slots=True)
class ApprovalFindings:
    """Sentences about what is wrong, by what it is."""

    states: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    acted_after_change: list[str] = field(default_factory=list)
    acted_after_expiry: list[str] = field(default_factory=list)
    acted_without_approval: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    wrong_decisions: list[str] = field(default_factory=list)
    undenied_expiries: list[str] = field(default_factory=list)
    entry_mismatches: list[str] = field(default_factory=list)
    open_calls: list[str] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    run_count: int = 0
    void_count: int = 0
    expired_count: int = 0
    unknown_count: int = 0

    def list_sentences(self) -> list[str]:
        lists = (
            self.acted_after_change,
            self.acted_after_expiry,
            self.acted_without_approval,
            self.twice,
            self.losses,
            self.wrong_decisions,
            self.undenied_expiries,
            self.entry_mismatches,
            self.open_calls,
            self.other,
        )
        return [sentence for each in lists for sentence in each]


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRecord:
    """Everything that is written about one call."""

    case: ApprovalCase
    row: Any
    tickets: Sequence[Any]
    votes: Mapping[str, Sequence[Any]]
    entries: Sequence[tuple[dict[str, Any], datetime]]
    effects: Sequence[Effect]
    unbound_entries: "UnboundEntries"

    @property
    def start_times(self) -> list[datetime]:
        """When each owner began it: the first intent is that of the question."""
        return [at for entry, at in self.entries if entry["kind"] == "intent"][1:]

    def __str__(self) -> str:
        tickets = ", ".join(ticket["state"] for ticket in self.tickets)
        state_text = f"{self.row['state']} ({self.row['error']}), tickets {tickets}" if self.row else "nowhere"
        return f"{self.case.label} [{self.case.kind}] {self.case.call_id}: {state_text}, {len(self.effects)} effects"


@dataclass(kw_only=True, slots=True)
class UnboundEntries:
    """Entries of no call: who was refused, by approval request; who decided; and what administrators did, and when
    first.
    """

    refusals: Counter[str] = field(default_factory=Counter)
    decision_counts: Counter[str] = field(default_factory=Counter)
    commands: dict[tuple[str, str], datetime] = field(default_factory=dict)
    reconciled_calls: set[str] = field(default_factory=set)


async def judge_cases(cases: Sequence[ApprovalCase], effects: Iterable[Effect], database: Database) -> ApprovalFindings:
    """Judge cases by what the ledger and PostgreSQL have on record."""
    return judge_records(await _fetch_records(cases, effects, database))


def judge_records(records: Sequence[CaseRecord]) -> ApprovalFindings:
    """Judge each case by everything that is written about it."""
    findings = ApprovalFindings()
    for record in records:
        findings.states[f"{record.case.kind}: {record.row['state'] if record.row else 'nowhere'}"] += 1
        findings.refusals.update(record.case.refusals_by_way)
        findings.other += [f"{record}: {each}" for each in record.case.faults if not each.startswith("decided by")]
        findings.wrong_decisions += [
            f"{record}: {each}" for each in record.case.faults if each.startswith("decided by")
        ]
        if record.row is None:
            findings.losses.append(f"{record}")
            continue
        _check_ledger(findings, record)
        _check_voters(findings, record)
        _check_entries(findings, record)
        _check_end(findings, record)
    return findings


def _check_ledger(findings: ApprovalFindings, record: CaseRecord) -> None:
    case, effects = record.case, record.effects
    findings.run_count += bool(effects)
    spent_requests = [ticket for ticket in record.tickets if ticket["state"] == "used"]
    if len(effects) > 1 or len(spent_requests) > 1 or len({effect.key for effect in effects}) > 1:
        findings.twice.append(f"{record}")
    if effects and case.expectation is Expectation.NEVER:
        sentences = {
            NoRunReason.CHANGED: findings.acted_after_change,
            NoRunReason.EXPIRED: findings.acted_after_expiry,
        }.get(case.reason, findings.acted_without_approval)
        sentences.append(f"{record}")
    if effects and case.tool == "asked.wipe" and any(effect.tool != f"wipe {case.guard_text}" for effect in effects):
        findings.acted_after_change.append(f"{record}: acted as {effects[0].tool!r}")
    if effects and (not spent_requests or not record.start_times):
        findings.acted_without_approval.append(f"{record}: acted without a ticket that was used")
    if (
        spent_requests
        and record.start_times
        and record.start_times[0] > spent_requests[-1]["expires_at"] + _COMMIT_SLACK
    ):
        findings.acted_after_expiry.append(
            f"{record}: begun at {record.start_times[0]}, over at {spent_requests[-1]['expires_at']}"
        )
    if case.concurrent_command is not None and case.expectation is Expectation.EITHER and effects:
        changed_at = record.unbound_entries.commands.get(case.concurrent_command)
        if changed_at is None:
            findings.other.append(f"{record}: nobody wrote down {case.concurrent_command}")
        elif record.start_times and record.start_times[0] > changed_at:
            findings.acted_after_change.append(
                f"{record}: begun {record.start_times[0] - changed_at} after {case.concurrent_command}"
            )
    if case.expectation is Expectation.RUNS and not _has_ended(record):
        findings.losses.append(f"{record}")
    if (
        case.expectation is Expectation.EITHER
        and bool(effects) != (record.row["state"] == "succeeded")
        and not _is_unsure(record)
    ):
        findings.losses.append(f"{record}: what is told is not what happened")


def _has_ended(record: CaseRecord) -> bool:
    return (record.row["state"] == "succeeded" and len(record.effects) == 1) or _is_unknown(record)


def _is_unknown(record: CaseRecord) -> bool:
    """A worker died with it, and its upstream could not be asked again: said so, and put to someone."""
    is_reported = record.row["state"] == "unknown" and record.case.call_id in record.unbound_entries.reconciled_calls
    return is_reported and record.case.is_lossy and len(record.effects) <= 1


def _is_unsure(record: CaseRecord) -> bool:
    """Unknown; or taken over from a worker that died with it, by one that may not go on with what changed since."""
    return _is_unknown(record) or (record.case.concurrent_command is not None and record.row["owner_epoch"] > 1)


def _check_voters(findings: ApprovalFindings, record: CaseRecord) -> None:
    """Every voice is that of someone who may, and a yes has as many of them as it needs."""
    case = record.case
    for ticket in record.tickets:
        votes = record.votes.get(str(ticket["id"]), ())
        strangers = {vote["voter"] for vote in votes} - case.allowed_voters
        if strangers or case.user in {vote["voter"] for vote in votes}:
            findings.wrong_decisions.append(f"{record}: {sorted(strangers)} voted")
        yes = {vote["voter"] for vote in votes if vote["approve"]}
        glass = {vote["voter"] for vote in votes if vote["break_glass"]}
        has_enough = len(yes - set(BREAK_GLASS_USERS)) >= case.quorum or len(glass) == len(BREAK_GLASS_USERS)
        if ticket["state"] in _APPROVED_STATES and not has_enough:
            findings.wrong_decisions.append(f"{record}: approved by {sorted(yes)}")
        if ticket["state"] == "denied" and all(vote["approve"] for vote in votes):
            findings.wrong_decisions.append(f"{record}: denied, and nobody said no")


def _check_entries(findings: ApprovalFindings, record: CaseRecord) -> None:
    case, unbound_entries = record.case, record.unbound_entries
    decisions = Counter(
        (entry["subject"], entry["outcome"]) for entry, _ in record.entries if entry["kind"] == "decision"
    )
    for ticket in record.tickets:
        name, state = str(ticket["id"]), ticket["state"]
        outcomes = {outcome: decisions[name, outcome] for outcome in ("approved", "denied")}
        votes = record.votes.get(name, ())
        expected_outcomes = {
            "approved": int(state in _APPROVED_STATES or (state in ("void", "expired") and outcomes["approved"] == 1)),
            "denied": int(state == "denied"),
        }
        if outcomes != expected_outcomes:
            findings.entry_mismatches.append(f"{record}: {state}, and entries say {outcomes}")
        if unbound_entries.decision_counts[name] != len(votes):
            findings.entry_mismatches.append(
                f"{record}: {unbound_entries.decision_counts[name]} entries of {len(votes)} voices"
            )
        if not case.refusals[name] <= unbound_entries.refusals[name] <= case.tries[name]:
            findings.entry_mismatches.append(
                f"{record}: {unbound_entries.refusals[name]} refusals on record, {case.refusals[name]} heard, "
                f"{case.tries[name]} tries"
            )
    for decision in case.decisions:
        state = next((ticket["state"] for ticket in record.tickets if str(ticket["id"]) == decision.ticket), "nowhere")
        allowed_states = {"approved": ("approved", "used", "void", "expired"), "denied": ("denied",)}.get(
            decision.state
        )
        if allowed_states is not None and state not in allowed_states:
            findings.entry_mismatches.append(f"{record}: {decision.who} was told {decision.state}, and it is {state}")
    if len(record.start_times) != record.row["owner_epoch"]:
        entry_texts = [f"{entry['kind']} {entry.get('outcome', '')} {at:%M:%S.%f}" for entry, at in record.entries]
        findings.entry_mismatches.append(f"{record}: {record.row['owner_epoch']} owners, and entries say {entry_texts}")


def _check_end(findings: ApprovalFindings, record: CaseRecord) -> None:
    state, tickets = record.row["state"], record.tickets
    findings.unknown_count += state == "unknown"
    findings.void_count += any(ticket["state"] == "void" for ticket in tickets)
    has_open_request = any(ticket["state"] == "open" for ticket in tickets)
    if state in ("queued", "running") or (state == "awaiting_approval") != has_open_request:
        findings.open_calls.append(f"{record}")
    if record.case.has_short_deadline and not record.effects and not _is_unknown(record):
        findings.expired_count += 1
        if state != "denied" or record.row["error"] not in ("approval-expired", "approval-rejected"):
            findings.undenied_expiries.append(f"{record}")


async def _fetch_records(
    cases: Sequence[ApprovalCase], effects: Iterable[Effect], database: Database
) -> list[CaseRecord]:
    ids = [case.call_id for case in cases if case.call_id]
    rows = {str(row["id"]): row for row in await database.fetch(_CALLS, TENANT, ids)}
    tickets, votes, effects_by_label = defaultdict(list), defaultdict(list), defaultdict(list)
    for row in await database.fetch(_TICKETS, TENANT, ids):
        tickets[str(row["call_id"])].append(row)
    for row in await database.fetch(_VOTES, TENANT):
        votes[str(row["id"])].append(row)
    for effect in effects:
        effects_by_label[effect.call].append(effect)
    unbound_entries, entries = await _fetch_entries(database)
    return [
        CaseRecord(
            case=tale,
            row=rows.get(tale.call_id),
            tickets=tickets[tale.call_id],
            votes=votes,
            entries=entries[tale.call_id],
            effects=[*effects_by_label[tale.label], *effects_by_label[f"{tale.label}-other"]],
            unbound_entries=unbound_entries,
        )
        for tale in cases
    ]


async def _fetch_entries(database: Database) -> tuple[UnboundEntries, dict[str, list[tuple[dict[str, Any], datetime]]]]:
    unbound_entries, entries_by_call = UnboundEntries(), defaultdict(list)
    for row in await database.fetch(_ENTRIES):
        entry = orjson.loads(row["entry"])
        if row["call_id"] is not None:
            entries_by_call[str(row["call_id"])].append((entry, row["at"]))
        elif entry["kind"] == "refusal":
            unbound_entries.refusals[entry.get("subject", "")] += 1
        elif entry["kind"] == "command" and entry["command"] in ("approve", "deny", "break_glass"):
            unbound_entries.decision_counts[entry["subject"]] += 1
        elif entry["kind"] == "command":
            unbound_entries.commands.setdefault((entry["command"], entry["subject"]), row["at"])
    unbound_entries.reconciled_calls = {str(row["call_id"]) for row in await database.fetch(_RECONCILED_CALLS, TENANT)}
    return unbound_entries, entries_by_call
