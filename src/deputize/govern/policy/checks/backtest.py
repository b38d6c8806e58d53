"""Backtest a draft: replay recorded decisions with it, each record once, and count the calls whose verdict changes.

Nothing is guessed: if a draft reads an attribute that a record does not hold, the call counts as indeterminate, unless
the audit entry supplies it (time and session). Pure: `operations/admin/policy/backtests.py` loads the records.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deputize.core.bounded_dict import BoundedDict
from deputize.core.decision import ApprovalRequirement, Behavior, MatchedRule, Verdict
from deputize.core.value_types import frozen
from deputize.govern.policy.approval_annotations import ApprovalTerms, get_approval_terms
from deputize.govern.policy.cedar import CompiledPolicies, is_costly
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.decision_records import Replay, parse_replay
from deputize.govern.policy.engines import Engine, combine_verdicts
from deputize.govern.policy.slices import PolicySlice
from deputize.govern.policy.unmet_demand import deny_replayed

# The audit entries of one call are close together, and the last one has the final decision. Calls held back for it:
MAX_PENDING = 50_000
_MAX_CACHED_ANSWERS = 50_000
# Attributes that the audit entry supplies if the record does not.
_ENTRY_ATTRIBUTES = frozenset({"time", "session"})
_EXTERNAL_RULE_PREFIXES = ("authzen:", "hook:")
# A matched rule, by id and place.
RuleRef = tuple[str, str]


@frozen
class BacktestCall:
    """One recorded call: its decision record, and what the record does not hold."""

    call_id: str
    record_id: str
    at_ms: int
    session: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BacktestSubject:
    """The tool and caller whose calls are counted together."""

    tool: str
    user: str
    agents: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "user": self.user, "agents": list(self.agents)}


@dataclass(frozen=True, kw_only=True, slots=True)
class BacktestChange:
    """Calls of one caller to one tool whose verdict changes in the same way.

    If the verdict is ask before and after, different approval terms are the change.
    """

    subject: BacktestSubject
    before: Behavior
    after: Behavior
    rules_before: tuple[RuleRef, ...]
    rules_after: tuple[RuleRef, ...]
    terms_before: tuple[ApprovalTerms, ...] = ()
    terms_after: tuple[ApprovalTerms, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def is_looser(self) -> bool:
        return self.after.strictness < self.before.strictness

    @property
    def has_other_approvers(self) -> bool:
        return self.after is self.before

    def to_json(self) -> dict[str, Any]:
        return {
            **self.subject.to_json(),
            "before": _serialize_answer(self.before, self.rules_before, self.terms_before),
            "after": {**_serialize_answer(self.after, self.rules_after, self.terms_after), "errors": list(self.errors)},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class IndeterminateCalls:
    """Calls whose new verdict is unknown, with the attributes that are missing."""

    subject: BacktestSubject
    missing: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.subject.to_json(), "missing": list(self.missing)}


@dataclass(frozen=True, kw_only=True, slots=True)
class UnchangedCalls:
    """Calls with an equal verdict; `by_other_rules` if other rules give it."""

    by_other_rules: bool


BacktestAnswer = BacktestChange | IndeterminateCalls | UnchangedCalls


@dataclass(kw_only=True, slots=True)
class CallCount:
    """How many calls got one answer, when, and the latest as an example."""

    calls: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""

    def add_call(self, call: BacktestCall) -> None:
        self.first_ms = call.at_ms if not self.calls else min(call.at_ms, self.first_ms)
        if call.at_ms >= self.last_ms:
            self.last_ms, self.example = call.at_ms, call.call_id
        self.calls += 1

    def to_json(self) -> dict[str, Any]:
        return {"calls": self.calls, "first_ms": self.first_ms, "last_ms": self.last_ms, "example": self.example}


@dataclass(frozen=True, kw_only=True, slots=True)
class BacktestReport:
    """The result of a backtest, most calls first. `questions` counts the distinct records behind the calls."""

    questions: int
    changes: tuple[tuple[BacktestChange, CallCount], ...]
    indeterminate: tuple[tuple[IndeterminateCalls, CallCount], ...]
    same_count: int
    same_by_other_rules: int
    unrecorded_count: int

    def to_json(self) -> dict[str, Any]:
        changed_count, indeterminate_count = _sum_calls(self.changes), _sum_calls(self.indeterminate)
        looser_count = sum(count.calls for change, count in self.changes if change.is_looser)
        other_approvers_count = sum(count.calls for change, count in self.changes if change.has_other_approvers)
        return {
            "calls": changed_count + indeterminate_count + self.same_count + self.same_by_other_rules,
            "questions": self.questions,
            "changed": changed_count,
            "looser": looser_count,
            "stricter": changed_count - looser_count - other_approvers_count,
            "asked_of_others": other_approvers_count,
            "undetermined": indeterminate_count,
            "same": self.same_count + self.same_by_other_rules,
            "same_by_other_rules": self.same_by_other_rules,
            "unrecorded": self.unrecorded_count,
            "changes": [change.to_json() | count.to_json() for change, count in self.changes],
            "cannot_tell": [each.to_json() | count.to_json() for each, count in self.indeterminate],
        }


# Return the verdict of a costly query, or raise: then the same step is repeated once the verdict is known.
EvaluateApart = Callable[[PolicySlice, PolicyQuery], Verdict]


@frozen
class _PartialRecord:
    """A record that needs the time or session of the call."""

    replay: Replay
    slice: PolicySlice


class Backtest:
    """Replays records and counts calls, page by page. Each record is evaluated once, however many calls share it.

    A step that raises has changed nothing, so that it can be repeated.
    """

    def __init__(
        self, draft: CompiledPolicies, *, engine: Engine = "cedar", evaluate_off_loop: EvaluateApart | None = None
    ) -> None:
        """Use `evaluate_off_loop` for queries that take long, if an event loop runs in this process."""
        self._draft = draft
        self._evaluate_off_loop = evaluate_off_loop
        self._has_external_engine = engine != "cedar"
        self._answers: dict[str, BacktestAnswer] = {}
        self._partial_records: dict[str, _PartialRecord] = {}
        self._call_answers: BoundedDict[tuple[str, int, str | None], BacktestAnswer] = BoundedDict(_MAX_CACHED_ANSWERS)
        # Equal answers share one object, because there are many records and few kinds of answer.
        self._unique_answers: dict[BacktestAnswer, BacktestAnswer] = {}
        self._pending: dict[str, BacktestCall] = {}
        self._counts: dict[BacktestAnswer, CallCount] = {}
        self._unrecorded_count = 0

    def list_unknown_records(self, record_ids: Iterable[str]) -> list[str]:
        unique_ids = dict.fromkeys(record_ids)
        return [each for each in unique_ids if each not in self._answers and each not in self._partial_records]

    def learn_record(self, record_id: str, record: bytes) -> None:
        replay = parse_replay(record)
        slice_ = self._draft.get_query_slice(replay.query)
        if _ENTRY_ATTRIBUTES.isdisjoint(replay.find_missing(slice_.reads)):
            self._answers[record_id] = self._answer_replay(replay, slice_)
        else:
            self._partial_records[record_id] = _PartialRecord(replay=replay, slice=slice_)

    def count_call(self, call: BacktestCall) -> None:
        """Count a call. Of several audit entries of one call the last one counts, because it is final."""
        self._pending.pop(call.call_id, None)
        self._pending[call.call_id] = call
        if len(self._pending) > MAX_PENDING:
            self._count_first_pending()

    def build_report(self) -> BacktestReport:
        while self._pending:
            self._count_first_pending()
        changes = [(each, count) for each, count in self._counts.items() if isinstance(each, BacktestChange)]
        indeterminate = [(each, count) for each, count in self._counts.items() if isinstance(each, IndeterminateCalls)]
        return BacktestReport(
            questions=len(self._answers) + len(self._partial_records),
            changes=tuple(
                sorted(changes, key=lambda pair: (-pair[1].calls, pair[0].subject.tool, pair[0].subject.user))
            ),
            indeterminate=tuple(
                sorted(indeterminate, key=lambda pair: (-pair[1].calls, pair[0].subject.tool, pair[0].subject.user))
            ),
            same_count=self._count_unchanged(by_other_rules=False),
            same_by_other_rules=self._count_unchanged(by_other_rules=True),
            unrecorded_count=self._unrecorded_count,
        )

    def _count_unchanged(self, *, by_other_rules: bool) -> int:
        count = self._counts.get(UnchangedCalls(by_other_rules=by_other_rules))
        return count.calls if count else 0

    def _count_first_pending(self) -> None:
        call_id, call = next(iter(self._pending.items()))
        self._count_answer(call)
        del self._pending[call_id]

    def _count_answer(self, call: BacktestCall) -> None:
        answer = self._answers.get(call.record_id)
        if answer is None:
            partial_record = self._partial_records.get(call.record_id)
            if partial_record is None:
                self._unrecorded_count += 1
                return
            answer = self._answer_partial_record(partial_record, call)
        self._counts.setdefault(answer, CallCount()).add_call(call)

    def _answer_partial_record(self, partial_record: _PartialRecord, call: BacktestCall) -> BacktestAnswer:
        """Answer a record with the time and session of the call. Rules see whole seconds, and so does the cache key."""
        key = (call.record_id, call.at_ms // 1000, call.session)
        answer = self._call_answers.get(key)
        if answer is not None:
            return answer
        replay = partial_record.replay
        query = replace(
            replay.query,
            now_ms=call.at_ms if "time" in replay.absent else replay.query.now_ms,
            session=call.session if "session" in replay.absent else replay.query.session,
        )
        full_replay = replace(replay, query=query, absent=replay.absent - _ENTRY_ATTRIBUTES)
        return self._call_answers.put(key, self._answer_replay(full_replay, partial_record.slice))

    def _answer_replay(self, replay: Replay, slice_: PolicySlice) -> BacktestAnswer:
        answer = self._compute_answer(replay, slice_)
        return self._unique_answers.setdefault(answer, answer)

    def _compute_answer(self, replay: Replay, slice_: PolicySlice) -> BacktestAnswer:
        query, before = replay.query, replay.verdict
        subject = BacktestSubject(
            tool=query.tool["name"], user=query.caller["user"], agents=tuple(query.caller["agents"])
        )
        missing = replay.find_missing(slice_.reads)
        if missing:
            return IndeterminateCalls(subject=subject, missing=missing)
        if self._evaluate_off_loop is not None and is_costly(slice_, query.facts):
            draft_verdict = self._evaluate_off_loop(slice_, query)
        else:
            draft_verdict = self._draft.evaluate_query(query, may_take_long=True)
        after = self._combine_with_external(before, deny_replayed(draft_verdict, before))
        if after is None:
            return IndeterminateCalls(subject=subject, missing=("the verdict of a hook or decision point",))
        terms_before, terms_after = _list_unique_terms(before.requirements), _list_unique_terms(after.requirements)
        if after.behavior is before.behavior and terms_after == terms_before:
            return UnchangedCalls(by_other_rules=_select_own_ids(after.rules) != _select_own_ids(before.rules))
        return BacktestChange(
            subject=subject,
            before=before.behavior,
            after=after.behavior,
            rules_before=_list_rule_refs(before.rules),
            rules_after=_list_rule_refs(after.rules),
            terms_before=terms_before,
            terms_after=terms_after,
            errors=after.errors,
        )

    def _combine_with_external(self, before: Verdict, draft_verdict: Verdict) -> Verdict | None:
        """Combine the draft's verdict with the recorded verdicts of hooks and decision points; None if unknown.

        If one of them was the strictest, it still is. If Cedar was, the others were at most as strict, so a draft that
        is at least as strict as before decides.
        """
        external_rules = tuple(rule for rule in before.rules if rule.id.startswith(_EXTERNAL_RULE_PREFIXES))
        external_requirements = tuple(
            each for each in before.requirements if each.rule.startswith(_EXTERNAL_RULE_PREFIXES)
        )
        if before.source != "cedar":
            return combine_verdicts(
                replace(
                    before,
                    rules=external_rules or before.rules,
                    requirements=external_requirements or before.requirements,
                ),
                draft_verdict,
            )
        has_all_answers = not external_rules and not (self._has_external_engine and before.behavior is Behavior.DENY)
        if not has_all_answers and draft_verdict.behavior.strictness < before.behavior.strictness:
            return None
        return (
            replace(draft_verdict, requirements=draft_verdict.requirements + external_requirements)
            if draft_verdict.behavior is Behavior.ASK
            else draft_verdict
        )


def _select_own_ids(rules: Sequence[MatchedRule]) -> set[str]:
    return {rule.id for rule in rules if not rule.id.startswith(_EXTERNAL_RULE_PREFIXES)}


def _list_rule_refs(rules: Sequence[MatchedRule]) -> tuple[RuleRef, ...]:
    return tuple((rule.id, rule.where) for rule in rules)


def _list_unique_terms(requirements: Sequence[ApprovalRequirement]) -> tuple[ApprovalTerms, ...]:
    """List the different approval terms in a stable order. Which rule sets them does not matter to approvers."""
    terms = {get_approval_terms(each) for each in requirements}
    return tuple(sorted(terms, key=lambda each: (each.groups, each.quorum, each.deadline_seconds or 0, each.step_up)))


def _serialize_answer(behavior: Behavior, rules: Sequence[RuleRef], terms: Sequence[ApprovalTerms]) -> dict[str, Any]:
    answer: dict[str, Any] = {"behavior": behavior, "rules": _serialize_rule_refs(rules)}
    return {**answer, "approval_terms": [each.to_json() for each in terms]} if behavior is Behavior.ASK else answer


def _serialize_rule_refs(rules: Sequence[RuleRef]) -> list[dict[str, str]]:
    return [{"id": name, "where": where} for name, where in rules]


def _sum_calls(counts: Sequence[tuple[Any, CallCount]]) -> int:
    return sum(count.calls for _, count in counts)
