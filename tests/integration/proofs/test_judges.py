"""Each judge of a proof finds one planted fault of each category, in that category and in no other."""

from collections import Counter
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest

from proofs.approvals.case import ApprovalCase, Expectation, HeardDecision, NoRunReason
from proofs.approvals.judge import ApprovalFindings, CaseRecord, UnboundEntries
from proofs.approvals.judge import judge_records as judge_approvals
from proofs.barrier import BarrierCall, BarrierFindings, RevocableAuthority
from proofs.barrier import EntryRow as BarrierRow
from proofs.barrier import check_call as check_barrier_call
from proofs.crash_matrix.judge import judge_observations
from proofs.crash_matrix.lane import LaneReply, Observation
from proofs.crash_matrix.matrix import Boundary, Cell, EffectTool, RetryEnd
from proofs.fairness import count_overlaps, find_misdone_jobs
from proofs.kit.declarations import get_declaration
from proofs.kit.ledger import Effect
from proofs.kit.worker_pool import WorkerFault
from proofs.policy.changes_under_load import EntryRow as PolicyRow
from proofs.policy.changes_under_load import PolicyCall, PolicyFindings
from proofs.policy.changes_under_load import check_call as check_policy_call
from proofs.recovery.judge import RunRecords
from proofs.recovery.judge import judge_records as judge_runs

pytestmark = pytest.mark.nightly

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def _list_categories(judgement: Any) -> set[str]:
    """List the categories in which something was found wrong."""
    return {
        each.name for each in fields(judgement) if isinstance(value := getattr(judgement, each.name), list) and value
    }


# The crash matrix: a booking whose gateway was killed after the effect, and whose retry took it over.

_CELL = Cell(boundary=Boundary.AFTER_EFFECT, tool=EffectTool.BOOK)
_EFFECT = Effect(sequence=1, key="c1", tool="book", call="label")
_ENTRIES = {"c1": [{"kind": "intent"}, {"kind": "outcome", "outcome": "succeeded"}]}
_OBSERVATION = Observation(
    cell=_CELL,
    label="label",
    evidence=_CELL.expected_evidence[0],
    first=None,
    retry=LaneReply(status=200, body=orjson.dumps({"state": "succeeded", "call_id": "c1"}), is_replay=False),
    end=RetryEnd.TAKEN_OVER,
)


@pytest.mark.parametrize(
    ("observation", "effects", "entries", "categories"),
    [
        (_OBSERVATION, [_EFFECT], _ENTRIES, set()),
        (_OBSERVATION, [_EFFECT, _EFFECT], _ENTRIES, {"duplicates", "unexpected"}),
        (_OBSERVATION, [], _ENTRIES, {"losses", "unexpected"}),
        (replace(_OBSERVATION, end=RetryEnd.ANEW), [_EFFECT], _ENTRIES, {"unexpected"}),
        (replace(_OBSERVATION, evidence="no row"), [_EFFECT], _ENTRIES, {"missed_kills"}),
        (_OBSERVATION, [_EFFECT], {"c1": _ENTRIES["c1"][1:]}, {"entry_mismatches"}),
        (_OBSERVATION, [_EFFECT], {"c1": _ENTRIES["c1"][:1]}, {"entry_mismatches"}),
        (_OBSERVATION, [_EFFECT], {}, {"entry_mismatches"}),
    ],
)
def test_the_crash_matrix_is_judged_by_ledger_and_entries(
    observation: Observation, effects: list[Effect], entries: dict[str, Any], categories: set[str]
) -> None:
    judgement = judge_observations([observation], effects, entries)
    assert _list_categories(judgement) == categories
    assert sum(judgement.met_counts.values()) == (not categories & {"unexpected", "missed_kills"})


def test_an_effect_of_another_label_is_not_counted() -> None:
    other = _EFFECT.model_copy(update={"call": "other"})
    assert _list_categories(judge_observations([_OBSERVATION], [_EFFECT, other], _ENTRIES)) == set()


# Recovery: a run of three steps whose first worker was killed.

_STEPS = [Effect(sequence=n, key=f"k:{n}", tool="book", call="run") for n in range(3)]
_ROW = {"tool": "steps.book", "state": "succeeded", "owner_epoch": 2, "error": None}
_RUN_ENTRIES = [
    *({"kind": "intent", "time": (NOW + timedelta(seconds=seconds)).isoformat()} for seconds in (0, 1, 9)),
    {"kind": "outcome", "outcome": "succeeded", "time": (NOW + timedelta(seconds=10)).isoformat()},
]
_FAULT = WorkerFault(at=NOW + timedelta(seconds=2), boot="b1", open_runs=("c1",))


def _record_run(row: dict[str, Any] | None, entries: Any = None, reconciled: tuple[str, ...] = ()) -> RunRecords:
    return RunRecords(
        rows={} if row is None else {"c1": {**_ROW, **row}},
        entries={"c1": _RUN_ENTRIES if entries is None else entries},
        reconciled_calls=reconciled,
        lease_ends={"b1": NOW + timedelta(seconds=5)},
    )


def _end_run(state: str) -> list[dict[str, Any]]:
    return [*_RUN_ENTRIES[:-1], {**_RUN_ENTRIES[-1], "outcome": state}]


@pytest.mark.parametrize(
    ("effects", "records", "categories"),
    [
        (_STEPS, _record_run({}), set()),
        ([*_STEPS, _STEPS[0]], _record_run({}), {"duplicates"}),
        ([*_STEPS[:2], _STEPS[2].model_copy(update={"key": "other:2"})], _record_run({}), {"duplicates"}),
        (_STEPS[:2], _record_run({}), {"losses"}),
        (_STEPS, _record_run(None), {"losses"}),
        (_STEPS[:2], _record_run({"state": "unknown"}, _end_run("unknown"), ("c1",)), {"losses"}),
        (_STEPS, _record_run({"tool": "steps.send", "state": "failed"}, _end_run("failed")), {"losses"}),
        (_STEPS[:1], _record_run({"tool": "steps.send", "state": "unknown"}, _end_run("unknown"), ("c1",)), set()),
        (_STEPS[:1], _record_run({"tool": "steps.send", "state": "unknown"}, _end_run("unknown")), {"missing_tasks"}),
        (_STEPS, _record_run({"state": "running"}, _end_run("running")), {"open_runs"}),
        (_STEPS, _record_run({"owner_epoch": 1}), {"entry_mismatches"}),
        (_STEPS, _record_run({}, _RUN_ENTRIES[:-1]), {"entry_mismatches"}),
    ],
)
def test_recovery_is_judged_by_ledger_rows_and_entries(
    effects: list[Effect], records: RunRecords, categories: set[str]
) -> None:
    judgement = judge_runs({"run": "c1"}, effects, [], [], records)
    assert _list_categories(judgement) == categories


def test_a_takeover_is_timed_from_the_end_of_the_lease_without_the_time_of_an_outage() -> None:
    outage = (NOW + timedelta(seconds=6), NOW + timedelta(seconds=8))
    for downtimes, seconds in (([], 4.0), ([outage], 2.0)):
        judgement = judge_runs({"run": "c1"}, _STEPS, [_FAULT], downtimes, _record_run({}))
        assert (judgement.takeover_waits, judgement.takeover_count) == ([seconds], 1)


# Approvals: one person asked, one approved, and the call ran once.

_CASE = ApprovalCase(
    label="case", kind="plain", user="ana", agent=None, tool="asked.book", token="t", call_id="c1", request_ids=["r1"],
    expectation=Expectation.RUNS, allowed_voters={"bo"},
)  # fmt: skip
_TICKET = {"id": "r1", "state": "used", "expires_at": NOW + timedelta(minutes=5)}
_YES = {"voter": "bo", "approve": True, "break_glass": False}
_CALL = {"state": "succeeded", "error": None, "owner_epoch": 1}
_CASE_ENTRIES = [
    ({"kind": "intent"}, NOW),
    ({"kind": "decision", "subject": "r1", "outcome": "approved"}, NOW + timedelta(seconds=1)),
    ({"kind": "intent"}, NOW + timedelta(seconds=2)),
]
_DONE = Effect(sequence=1, key="c1", tool="book", call="case")
_COMMAND = ("revoke", "ana")


def _record(
    case: dict[str, Any] | None = None,
    row: dict[str, Any] | None = None,
    ticket: dict[str, Any] | None = None,
    **changes: Any,
) -> CaseRecord:
    votes = changes.pop("votes", [_YES])
    unbound = changes.pop("unbound", UnboundEntries(decision_counts=Counter({"r1": len(votes)})))
    facts: dict[str, Any] = {
        "case": replace(_CASE, **(case or {})),
        "row": {**_CALL, **(row or {})},
        "tickets": [{**_TICKET, **(ticket or {})}],
        "votes": {"r1": votes},
        "entries": _CASE_ENTRIES,
        "effects": [_DONE],
        "unbound_entries": unbound,
    }
    return CaseRecord(**{**facts, **changes})


_EXPIRED = {"state": "expired"}
_UNDECIDED = [_CASE_ENTRIES[0]]
_NEVER = {"expectation": Expectation.NEVER}
_REVOKED = UnboundEntries(decision_counts=Counter({"r1": 1}), commands={_COMMAND: NOW + timedelta(seconds=1)})


@pytest.mark.parametrize(
    ("record", "categories"),
    [
        (_record(), set()),
        (_record(effects=[_DONE, _DONE]), {"twice", "losses"}),
        (_record(tickets=[_TICKET, {**_TICKET, "id": "r2"}]), {"twice", "wrong_decisions", "entry_mismatches"}),
        (_record({**_NEVER, "reason": NoRunReason.CHANGED}), {"acted_after_change"}),
        (_record({**_NEVER, "reason": NoRunReason.EXPIRED}), {"acted_after_expiry"}),
        (_record({**_NEVER, "reason": NoRunReason.NOT_APPROVED}), {"acted_without_approval"}),
        (_record({"tool": "asked.wipe"}), {"acted_after_change"}),
        (_record(ticket={"state": "approved"}), {"acted_without_approval"}),
        (_record(ticket={"expires_at": NOW}), {"acted_after_expiry"}),
        (
            _record({"expectation": Expectation.EITHER, "concurrent_command": _COMMAND}, unbound=_REVOKED),
            {"acted_after_change"},
        ),
        (_record({"expectation": Expectation.EITHER, "concurrent_command": _COMMAND}), {"other"}),
        (_record(effects=[]), {"losses"}),
        (_record(row={"state": "failed"}), {"losses"}),
        (_record({"expectation": Expectation.EITHER}, row={"state": "failed"}), {"losses"}),
        (_record(votes=[{**_YES, "voter": "stranger"}]), {"wrong_decisions"}),
        (_record({"allowed_voters": {"bo", "ana"}}, votes=[{**_YES, "voter": "ana"}]), {"wrong_decisions"}),
        (_record({"quorum": 2}), {"wrong_decisions"}),
        (_record({"faults": ["decided by a stranger"]}), {"wrong_decisions"}),
        (_record({"faults": ["something else"]}), {"other"}),
        (_record(entries=[_CASE_ENTRIES[0], _CASE_ENTRIES[2]]), {"entry_mismatches"}),
        (_record(unbound=UnboundEntries()), {"entry_mismatches"}),
        (_record({"refusals": Counter({"r1": 1}), "tries": Counter({"r1": 1})}), {"entry_mismatches"}),
        (_record(row={"owner_epoch": 2}), {"entry_mismatches"}),
        (
            _record({"decisions": [HeardDecision(ticket="r1", who="bo", action="deny", state="denied", at=0.0)]}),
            {"entry_mismatches"},
        ),
        (_record({"expectation": Expectation.EITHER}, row={"state": "queued"}, effects=[]), {"open_calls"}),
        (
            _record(
                {**_NEVER, "has_short_deadline": True},
                row={"state": "failed", "owner_epoch": 0},
                ticket=_EXPIRED,
                votes=[],
                entries=_UNDECIDED,
                effects=[],
            ),
            {"undenied_expiries"},
        ),
        (
            _record(
                {**_NEVER, "has_short_deadline": True},
                ticket=_EXPIRED,
                votes=[],
                entries=_UNDECIDED,
                effects=[],
                row={"state": "denied", "error": "approval-expired", "owner_epoch": 0},
            ),
            set(),
        ),
    ],
)
def test_approvals_are_judged_by_ledger_rows_votes_and_entries(record: CaseRecord, categories: set[str]) -> None:
    assert _list_categories(judge_approvals([record])) == categories


def test_a_call_that_is_nowhere_is_lost() -> None:
    assert _list_categories(judge_approvals([replace(_record(), row=None)])) == {"losses"}


def test_every_category_of_approvals_has_a_planted_fault() -> None:
    cases: Any = test_approvals_are_judged_by_ledger_rows_votes_and_entries
    planted = set().union(*(categories for _, categories in cases.pytestmark[0].args[1]))
    assert planted == {each.name for each in fields(ApprovalFindings) if each.type == list[str]}


# Fairness: jobs that must not meet, each done once.


@pytest.mark.parametrize(
    ("end", "notes", "is_misdone"),
    [
        (("succeeded", 1), 1, False),
        (("succeeded", 2), 2, False),
        (("succeeded", 2), 1, False),
        (("succeeded", 1), 2, True),
        (("succeeded", 2), 3, True),
        (("succeeded", 1), 0, True),
        (("failed", 1), 1, True),
        (None, 1, True),
    ],
)
def test_a_job_is_done_once_or_once_by_each_owner(end: tuple[str, int] | None, notes: int, is_misdone: bool) -> None:
    ends = {} if end is None else {"c1": end}
    assert bool(find_misdone_jobs({"job": "c1"}, ends, {"job": notes})) is is_misdone


def _make_turn(began: int, ended: int, place: str = "desk") -> dict[str, Any]:
    return {"kind": "desk", "place": place, "label": "x", "began": began, "ended": ended}


@pytest.mark.parametrize(
    ("turns", "count"),
    [
        ([_make_turn(0, 5), _make_turn(5, 9)], 0),
        ([_make_turn(0, 5), _make_turn(4, 9)], 1),
        ([_make_turn(0, 9), _make_turn(1, 2), _make_turn(3, 4)], 2),
        ([_make_turn(0, 5), _make_turn(1, 2, "other")], 0),
    ],
)
def test_jobs_that_meet_are_counted_by_place(turns: list[dict[str, Any]], count: int) -> None:
    assert count_overlaps(turns) == count


# Barrier: a write on an authority that was taken back at 100; its deciding row and effect come before, or not at all.

_AUTHORITY = RevocableAuthority(number=1, kind="subject", token="t", value="ana")


@pytest.mark.parametrize(
    ("slug", "rows", "effect_count", "signs"),
    [
        (None, [("intent", 90)], 1, set()),
        ("revoked", [("refusal", 110)], 0, set()),
        ("revoked", [("intent", 110), ("refusal", 111)], 0, set()),
        (None, [("intent", 110)], 1, {"late"}),
        ("revoked", [("refusal", 90)], 0, {"early"}),
        ("revoked", [("intent", 90), ("refusal", 91)], 0, {"early"}),
        (None, [("intent", 90)], 2, {"other"}),
        (None, [("intent", 90), ("intent", 91)], 1, {"other"}),
        (None, [], 1, {"early", "other"}),
        ("unavailable", [("refusal", 90)], 0, {"refused"}),
        ("unavailable", [("intent", 90)], 0, {"refused"}),
        ("unavailable", [("intent", 110)], 1, {"late", "refused"}),
        ("unavailable", [("intent", 90)], 2, {"other", "refused"}),
    ],
)
def test_a_call_at_the_barrier_is_judged_by_commit_order(
    slug: str | None, rows: list[tuple[str, int]], effect_count: int, signs: set[str]
) -> None:
    findings = BarrierFindings()
    call = BarrierCall(id="c1", is_write=True, is_released=False, slug=slug)
    entry_rows = [BarrierRow(kind=kind, at=at) for kind, at in rows]
    check_barrier_call(findings, _AUTHORITY, call, entry_rows, Counter({"c1": effect_count}), 100)
    assert {what.partition(":")[0] for what in findings.violations} == signs


# Policies: set 1 permits from 0 on, set 2 forbids from 100 on.

_SETS = [(1, True, 0), (2, False, 100)]


@pytest.mark.parametrize(
    ("slug", "rows", "effect_count", "signs"),
    [
        (None, [("intent", 1, 90)], 1, set()),
        ("permission-denied", [("refusal", 2, 110)], 0, set()),
        (None, [("intent", 1, 110)], 1, {"late"}),
        ("permission-denied", [("intent", 1, 90), ("refusal", 2, 105)], 0, {"early"}),
        ("permission-denied", [("refusal", 2, 90)], 0, {"early"}),
        (None, [("intent", 1, 90)], 2, {"other"}),
        (None, [("intent", 7, 90)], 1, {"other"}),
        ("unavailable", [("intent", 1, 90), ("refusal", None, 95)], 0, {"refused"}),
        ("unavailable", [("intent", 1, 90)], 2, {"other", "refused"}),
    ],
)
def test_a_call_during_policy_changes_is_judged_by_commit_order(
    slug: str | None, rows: list[tuple[str, int | None, int]], effect_count: int, signs: set[str]
) -> None:
    findings = PolicyFindings()
    call = PolicyCall(id="c1", is_write=True, is_released=False, slug=slug)
    entry_rows = [PolicyRow(kind=kind, number=number, at=at) for kind, number, at in rows]
    check_policy_call(findings, call, entry_rows, Counter({"c1": effect_count}), _SETS, [at for _, _, at in _SETS])
    assert {what.partition(":")[0] for what in findings.violations} == signs


def test_a_proof_names_the_programs_that_it_lacks_before_it_starts() -> None:
    declaration = replace(get_declaration("restore"), needs={"sh": "dash", "no-such-program": "some-package"})
    assert declaration.explain_missing_programs() == (
        "restore needs no-such-program: apt-get install -y some-package, then run it again"
    )
