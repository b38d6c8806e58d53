"""What a draft would have answered: recorded questions asked again, each kind of them once, each call counted.

Nothing is guessed. What a draft reads and a record does not hold is said to be untold, unless the call itself can tell
it: when it was made, and in which session. Pure; `lifecycle/backtest.py` brings the records.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from deputize.core.decision import Behavior, Demand, Rule, Verdict
from deputize.core.frozen import frozen
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.engines import Engine, combined
from deputize.govern.policy.kept import Kept
from deputize.govern.policy.records import Replay, question_from
from deputize.govern.policy.slices import Slice
from deputize.govern.policy.wants import Wants, wanted_by

# Entries of one call lie close together, and the last of them says what held. So many calls are waited for.
MOST_PENDING = 50_000
_MOST_KEPT = 50_000
# What an entry tells of its call where the record is silent.
_TOLD_BY_ENTRY = frozenset({"time", "session"})
_OF_OTHERS = ("authzen:", "hook:")
# A rule that spoke, by id and place.
Spoke = tuple[str, str]


@frozen
class Made:
    """One recorded call: the record it was decided from, and what of it is not in there."""

    call_id: str
    record_id: str
    at_ms: int
    session: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Who:
    """Whose calls are counted together."""

    tool: str
    user: str
    agents: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"tool": self.tool, "user": self.user, "agents": list(self.agents)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Calls of one caller to one tool that would be answered otherwise, all alike. Asked about before and after, it is
    a change where it would be asked of others, or of more or fewer of them.
    """

    who: Who
    before: Behavior
    after: Behavior
    rules_before: tuple[Spoke, ...]
    rules_after: tuple[Spoke, ...]
    wants_before: tuple[Wants, ...] = ()
    wants_after: tuple[Wants, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def is_looser(self) -> bool:
        return self.after.strictness < self.before.strictness

    @property
    def asks_others(self) -> bool:
        return self.after is self.before

    def to_json(self) -> dict[str, Any]:
        return {
            **self.who.to_json(),
            "before": _answered(self.before, self.rules_before, self.wants_before),
            "after": {**_answered(self.after, self.rules_after, self.wants_after), "errors": list(self.errors)},
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Untold:
    """Calls of which nobody can tell what the draft would answer, and what it would have to know."""

    who: Who
    lacks: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.who.to_json(), "lacks": list(self.lacks)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Same:
    """Calls answered alike; `by_others` where other rules would say so."""

    by_others: bool


Answer = Change | Untold | Same


@dataclass(kw_only=True, slots=True)
class Count:
    calls: int = 0
    first_ms: int = 0
    last_ms: int = 0
    example: str = ""

    def add(self, made: Made) -> None:
        self.first_ms = made.at_ms if not self.calls else min(made.at_ms, self.first_ms)
        if made.at_ms >= self.last_ms:
            self.last_ms, self.example = made.at_ms, made.call_id
        self.calls += 1

    def to_json(self) -> dict[str, Any]:
        return {"calls": self.calls, "first_ms": self.first_ms, "last_ms": self.last_ms, "example": self.example}


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Most calls first. `questions` are the distinct records behind the calls."""

    questions: int
    changes: tuple[tuple[Change, Count], ...]
    untold: tuple[tuple[Untold, Count], ...]
    same: int
    by_others: int
    unrecorded: int

    def to_json(self) -> dict[str, Any]:
        changed, untold = _total(self.changes), _total(self.untold)
        looser = sum(count.calls for change, count in self.changes if change.is_looser)
        asked_of_others = sum(count.calls for change, count in self.changes if change.asks_others)
        return {
            "calls": changed + untold + self.same + self.by_others,
            "questions": self.questions,
            "changed": changed,
            "looser": looser,
            "stricter": changed - looser - asked_of_others,
            "asked_of_others": asked_of_others,
            "untold": untold,
            "same": self.same + self.by_others,
            "same_by_other_rules": self.by_others,
            "unrecorded": self.unrecorded,
            "changes": [change.to_json() | count.to_json() for change, count in self.changes],
            "cannot_tell": [each.to_json() | count.to_json() for each, count in self.untold],
        }


@frozen
class _Open:
    """A record that leaves something to the call itself: when it was made, or in which session."""

    replay: Replay
    slice: Slice


class Backtest:
    """Learns records and counts calls, page by page; a record is asked about once, however often it is named."""

    def __init__(self, draft: CompiledPolicies, *, engine: Engine = "cedar") -> None:
        self._draft = draft
        self._asks_elsewhere = engine != "cedar"
        self._answers: dict[str, Answer] = {}
        self._open: dict[str, _Open] = {}
        self._for_calls: Kept[tuple[str, int, str | None], Answer] = Kept(_MOST_KEPT)
        # Equal answers are one object: there are many records and few kinds of answer.
        self._known: dict[Answer, Answer] = {}
        self._pending: dict[str, Made] = {}
        self._counts: dict[Answer, Count] = {}
        self._unrecorded = 0

    def unknown(self, record_ids: Iterable[str]) -> list[str]:
        wanted = dict.fromkeys(record_ids)
        return [each for each in wanted if each not in self._answers and each not in self._open]

    def learn(self, record_id: str, record: bytes) -> None:
        replay = question_from(record)
        slice_ = self._draft.slice_for(replay.asked)
        if _TOLD_BY_ENTRY.isdisjoint(replay.lacks(slice_.reads)):
            self._answers[record_id] = self._answer(replay, slice_)
        else:
            self._open[record_id] = _Open(replay=replay, slice=slice_)

    def count(self, made: Made) -> None:
        """Of several entries of one call the last one counts: it says what held."""
        self._pending.pop(made.call_id, None)
        self._pending[made.call_id] = made
        if len(self._pending) > MOST_PENDING:
            self._settle(self._pending.pop(next(iter(self._pending))))

    def report(self) -> Report:
        for made in self._pending.values():
            self._settle(made)
        self._pending.clear()
        changes = [(each, count) for each, count in self._counts.items() if isinstance(each, Change)]
        untold = [(each, count) for each, count in self._counts.items() if isinstance(each, Untold)]
        return Report(
            questions=len(self._answers) + len(self._open),
            changes=tuple(sorted(changes, key=lambda pair: (-pair[1].calls, pair[0].who.tool, pair[0].who.user))),
            untold=tuple(sorted(untold, key=lambda pair: (-pair[1].calls, pair[0].who.tool, pair[0].who.user))),
            same=self._alike(by_others=False),
            by_others=self._alike(by_others=True),
            unrecorded=self._unrecorded,
        )

    def _alike(self, *, by_others: bool) -> int:
        found = self._counts.get(Same(by_others=by_others))
        return found.calls if found else 0

    def _settle(self, made: Made) -> None:
        answer = self._answers.get(made.record_id)
        if answer is None:
            question = self._open.get(made.record_id)
            if question is None:
                self._unrecorded += 1
                return
            answer = self._answer_for(question, made)
        self._counts.setdefault(answer, Count()).add(made)

    def _answer_for(self, question: _Open, made: Made) -> Answer:
        """Rules see time in whole seconds."""
        key = (made.record_id, made.at_ms // 1000, made.session)
        found = self._for_calls.get(key)
        if found is not None:
            return found
        replay = question.replay
        asked = replace(
            replay.asked,
            now_ms=made.at_ms if "time" in replay.absent else replay.asked.now_ms,
            session=made.session if "session" in replay.absent else replay.asked.session,
        )
        known = replace(replay, asked=asked, absent=replay.absent - _TOLD_BY_ENTRY)
        return self._for_calls.keep(key, self._answer(known, question.slice))

    def _answer(self, replay: Replay, slice_: Slice) -> Answer:
        answer = self._worked_out(replay, slice_)
        return self._known.setdefault(answer, answer)

    def _worked_out(self, replay: Replay, slice_: Slice) -> Answer:
        asked, before = replay.asked, replay.verdict
        who = Who(tool=asked.tool["name"], user=asked.caller["user"], agents=tuple(asked.caller["agents"]))
        lacks = replay.lacks(slice_.reads)
        if lacks:
            return Untold(who=who, lacks=lacks)
        drafted = self._draft.replay(asked)
        after = self._with_others(before, drafted)
        if after is None:
            return Untold(who=who, lacks=("what a hook or a decision point would say",))
        wanted_before, wanted_after = _wanted(before.demands), _wanted(after.demands)
        if after.behavior is before.behavior and wanted_after == wanted_before:
            return Same(by_others=_ids(after.rules) != _ids(before.rules))
        return Change(
            who=who, before=before.behavior, after=after.behavior, rules_before=_spoke(before.rules),
            rules_after=_spoke(after.rules), wants_before=wanted_before, wants_after=wanted_after, errors=after.errors,
        )  # fmt: skip

    def _with_others(self, before: Verdict, drafted: Verdict) -> Verdict | None:
        """The draft's answer beside what hooks and decision points said then; None where they were not heard out.

        Where one of them was the strictest, it would be again. Where our own rules were, the others were at most as
        strict, so a draft that is no milder settles it.
        """
        others = tuple(rule for rule in before.rules if rule.id.startswith(_OF_OTHERS))
        asking = tuple(each for each in before.demands if each.rule.startswith(_OF_OTHERS))
        if before.source != "cedar":
            return combined(replace(before, rules=others or before.rules, demands=asking or before.demands), drafted)
        heard_out = not others and not (self._asks_elsewhere and before.behavior is Behavior.DENY)
        if not heard_out and drafted.behavior.strictness < before.behavior.strictness:
            return None
        return replace(drafted, demands=drafted.demands + asking) if drafted.behavior is Behavior.ASK else drafted


def _ids(rules: Sequence[Rule]) -> set[str]:
    return {rule.id for rule in rules if not rule.id.startswith(_OF_OTHERS)}


def _spoke(rules: Sequence[Rule]) -> tuple[Spoke, ...]:
    return tuple((rule.id, rule.where) for rule in rules)


def _wanted(demands: Sequence[Demand]) -> tuple[Wants, ...]:
    """Each kind once and in one order: which rule wants it, and how often, changes nothing for who is asked."""
    kinds = {wanted_by(each) for each in demands}
    return tuple(sorted(kinds, key=lambda each: (each.groups, each.quorum, each.deadline_seconds or 0, each.step_up)))


def _answered(behavior: Behavior, rules: Sequence[Spoke], wanted: Sequence[Wants]) -> dict[str, Any]:
    said: dict[str, Any] = {"behavior": behavior, "rules": _spelt(rules)}
    return {**said, "wants": [each.to_json() for each in wanted]} if behavior is Behavior.ASK else said


def _spelt(rules: Sequence[Spoke]) -> list[dict[str, str]]:
    return [{"id": name, "where": where} for name, where in rules]


def _total(counts: Sequence[tuple[Any, Count]]) -> int:
    return sum(count.calls for _, count in counts)
