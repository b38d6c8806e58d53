"""What people approve again and again: the narrowest permit that would have covered it, as a draft.

Learned from, for one caller, tool and rule: at least five calls that people approved, at least two different people,
and nothing denied. A draft holds for what was approved and for nothing else, and ends. It is evaluated here on every
question it was learned from and on every one that was denied; what does not come out right is withheld, and told why.
Nothing here puts anything in force. Pure; `lifecycle/approvals/suggesting.py` brings tickets, votes and records.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any, TypeVar

from deputize.core.decision import Behavior, Verdict
from deputize.core.errors import PolicyInvalid
from deputize.core.frozen import frozen
from deputize.govern.approvals.demands import person
from deputize.govern.approvals.permit import MOST_COMBINATIONS, MOST_VALUES, Common, Seen, day, spelled, text
from deputize.govern.policy.cedar import CompiledPolicies, judge, parsed_entities
from deputize.govern.policy.reads import Reads, reads_of
from deputize.govern.policy.records import Replay
from deputize.govern.policy.rules import PolicyFile, parse
from deputize.govern.policy.slices import Slice
from deputize.govern.policy.world import FactTypes

FEWEST_CALLS = 5
FEWEST_PEOPLE = 2
T = TypeVar("T")
_UNFIT = re.compile(r"[^A-Za-z0-9_]+")
# Rules see agents without their order, all but the nearest.
_MOST_AGENTS = 2
_OF_OTHERS = ("hook:", "authzen:")
_TOLD_BY_ENTRY = frozenset({"time", "session"})


@frozen
class Past:
    """A question that people answered: who of them, about what, and which rules had asked."""

    ticket: str
    approved: bool
    people: frozenset[str]
    at_ms: int
    rules: frozenset[str]
    replay: Replay


@frozen
class Tool:
    """A tool as it is now: which of its arguments rules can read, and which they cannot."""

    digest: str
    facts: FactTypes
    unseen: tuple[str, ...]


# By name and version.
ToolOf = Callable[[str, str], Tool | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Calls that are compared with each other: one caller, one tool as it was, the same rules that asked."""

    tool: str
    version: str
    digest: str
    environment: str
    user: str
    issuer: str
    trust: str
    human: bool
    agents: tuple[str, ...]
    task: str | None
    rules: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool, "version": self.version, "environment": self.environment, "user": self.user,
            "agents": list(self.agents), "task": self.task, "asked_by": list(self.rules),
        }  # fmt: skip


@frozen
class Draft:
    kind: Kind
    name: str
    rule: str
    until: int
    learned_from: tuple[Past, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            **self.kind.to_json(),
            "id": self.name,
            "rule": self.rule,
            "until": self.until,
            **_told(self.learned_from),
        }


@frozen
class Withheld:
    """Enough was approved, and yet no permit is suggested."""

    kind: Kind
    why: str
    learned_from: tuple[Past, ...]

    def to_json(self) -> dict[str, Any]:
        return {**self.kind.to_json(), "why": self.why, **_told(self.learned_from)}


@frozen
class Suggested:
    drafts: tuple[Draft, ...]
    withheld: tuple[Withheld, ...]
    # All drafts in one file, each under where it comes from; none without drafts.
    file: PolicyFile | None


class _No(Exception):
    """Why nothing is suggested, in words that follow what it is about."""


def suggest(past: Sequence[Past], policies: CompiledPolicies, tool_of: ToolOf, *, now_ms: int, until: int) -> Suggested:
    """`policies` are those in force, `tool_of` knows the tools there are, `until` is when a draft ends, in seconds."""
    learner = _Learner(policies, tool_of, now_ms, until, [each for each in past if not each.approved])
    kinds: dict[Kind, list[Past]] = {}
    for each in past:
        kinds.setdefault(_kind(each), []).append(each)
    ordered = sorted(kinds.items(), key=lambda item: repr(item[0]))
    found = [each for kind, alike in ordered for each in learner.learn(kind, alike)]
    drafts = tuple(each for each in found if isinstance(each, Draft))
    return Suggested(
        drafts=drafts,
        withheld=tuple(each for each in found if isinstance(each, Withheld)),
        file=_file(drafts, {file.path for file in policies.files}, until) if drafts else None,
    )


class _Learner:
    def __init__(
        self,
        policies: CompiledPolicies,
        tool_of: ToolOf,
        now_ms: int,
        until: int,
        denied: Sequence[Past],
    ) -> None:
        self._policies = policies
        self._tool_of = tool_of
        self._now_ms = now_ms
        self._until = until
        self._denied = denied
        self._ids = {rule.id for rule in policies.rules}

    def learn(self, kind: Kind, alike: Sequence[Past]) -> Iterator[Draft | Withheld]:
        approved = [each for each in alike if each.approved]
        if not _enough(approved):
            return
        try:
            tool, reads = self._require(kind, alike)
            asking = self._still_asked(approved)
            if not asking:
                return  # the policies in force allow it already
            parts = _parts(asking, tool)
            enough = [part for part in parts if _enough(part)]
            if not enough:
                raise _No("the facts that are no numbers differ from call to call")
        except _No as no:
            yield Withheld(kind=kind, why=str(no), learned_from=tuple(approved))
            return
        for part in enough:
            try:
                yield self._checked(self._draft(kind, part, tool, reads))
            except _No as no:
                yield Withheld(kind=kind, why=str(no), learned_from=tuple(part))

    def _require(self, kind: Kind, alike: Sequence[Past]) -> tuple[Tool, Reads]:
        """Everything that must be so before a permit could be as narrow as what was approved."""
        denied = sum(not each.approved for each in alike)
        if denied:
            raise _No(f"people denied {denied} of these calls")
        tool = self._tool_of(kind.tool, kind.version)
        if tool is None or tool.digest != kind.digest:
            raise _No("the tool is another one since, and nobody has approved that")
        if tool.unseen:
            raise _No(
                f"rules cannot read {', '.join(tool.unseen)}, so a permit would hold for any value of it: "
                "mark the argument with Fact, where it is a number, a text or a yes or no"
            )
        if len(kind.agents) > _MOST_AGENTS:
            raise _No("rules cannot tell in which order more than two agents act for each other")
        rules = {rule.id: rule for rule in self._policies.slice_for(alike[0].replay.asked).rules}
        gone = [name for name in kind.rules if name not in rules]
        if any(name.startswith(_OF_OTHERS) for name in gone):
            raise _No("a hook or a decision point asked, and no permit lifts that")
        if gone:
            raise _No(f"{', '.join(gone)} asked, and is not among the rules in force")
        reads = reads_of([rules[name] for name in kind.rules])
        if "time" in reads.context:
            raise _No("the rule that asks looks at the time, and so would have to the permit")
        return tool, reads

    def _still_asked(self, approved: Sequence[Past]) -> list[Past]:
        slice_ = self._policies.slice_for(approved[0].replay.asked)
        return [each for each in approved if self._judged(slice_, each).behavior is not Behavior.ALLOW]

    def _draft(self, kind: Kind, part: Sequence[Past], tool: Tool, reads: Reads) -> Draft:
        seen = _seen(kind, part, tool, reads)
        name = _free(_name(kind, spelled(seen, name="", reason="", until=0), self._until), self._ids)
        reason = f"People approved {len(part)} calls like this and denied none; ends {day(self._until)}."
        rule = spelled(seen, name=name, reason=reason, until=self._until)
        return Draft(kind=kind, name=name, rule=rule, until=self._until, learned_from=tuple(part))

    def _checked(self, draft: Draft) -> Draft:
        """Evaluated beside the rules in force, and by itself on what was denied."""
        try:
            (rule,) = parse([PolicyFile(path="draft", text=draft.rule)])
        except PolicyInvalid as error:
            raise _No(f"it cannot be said in a rule: {error.message}") from error
        alone = Slice([rule])
        for each in self._denied:
            if (
                each.replay.asked.tool["name"] == draft.kind.tool
                and self._judged(alone, each).behavior is Behavior.ALLOW
            ):
                raise _No("a permit that covers it would also cover what people denied")
        beside = Slice([*self._policies.slice_for(draft.learned_from[0].replay.asked).rules, rule])
        for each in draft.learned_from:
            verdict = self._judged(beside, each)
            if verdict.behavior is not Behavior.ALLOW:
                named = ", ".join(f"{spoke.id} ({spoke.where})" for spoke in verdict.rules)
                raise _No(f"no permit lifts what {named} says: narrow that rule, if you want to")
        return draft

    def _judged(self, slice_: Slice, each: Past) -> Verdict:
        """What these rules say to the same question now."""
        asked = replace(each.replay.asked, now_ms=self._now_ms)
        return judge(slice_, asked, parsed_entities(asked))


def is_evidence(replay: Replay, policies: CompiledPolicies) -> bool:
    """Whether a record tells all that the policies in force would read, so that they can be asked about it again."""
    lacks = set(replay.lacks(policies.slice_for(replay.asked).reads)) - _TOLD_BY_ENTRY
    return not lacks and replay.verdict.source == "cedar"


def _kind(each: Past) -> Kind:
    asked = each.replay.asked
    caller, tool = asked.caller, asked.tool
    return Kind(
        tool=tool["name"], version=tool["version"], digest=tool["digest"], environment=asked.environment,
        user=caller["user"], issuer=caller["issuer"], trust=caller["trust"], human=caller["human"],
        agents=tuple(caller["agents"]), task=caller["task"], rules=tuple(sorted(each.rules)),
    )  # fmt: skip


def _enough(approved: Sequence[Past]) -> bool:
    people = {person(name) for each in approved for name in each.people}
    return len(approved) >= FEWEST_CALLS and len(people) >= FEWEST_PEOPLE


def _parts(approved: Sequence[Past], tool: Tool) -> list[list[Past]]:
    """Apart by every fact that is no number, and by which facts are there at all."""
    parts: dict[tuple[Any, ...], list[Past]] = {}
    for each in approved:
        facts = each.replay.asked.facts
        if any(isinstance(value, tuple) and value for value in facts.values()):
            raise _No("rules see a list without its order")
        key = tuple((name, _fixed(facts.get(name))) for name in sorted(tool.facts))
        parts.setdefault(key, []).append(each)
    return list(parts.values())


def _fixed(value: Any) -> tuple[str, Any]:
    """By type, too: true is not 1."""
    return type(value).__name__, None if type(value) is int else value


def _seen(kind: Kind, part: Sequence[Past], tool: Tool, reads: Reads) -> Seen:
    asked = [each.replay.asked for each in part]
    facts = {name: asked[0].facts.get(name) for name in sorted(tool.facts)}
    numbers = tuple(name for name, value in facts.items() if type(value) is int)
    combinations = sorted({tuple(each.facts[name] for name in numbers) for each in asked})
    varying = sum(len({each[place] for each in combinations}) > 1 for place in range(len(numbers)))
    if len(combinations) > (MOST_VALUES if varying == 1 else MOST_COMBINATIONS):
        raise _No(f"{len(combinations)} different values were approved, which is no rule any more")
    return Seen(
        common=Common(
            tool=kind.tool, version=kind.version, environment=kind.environment, user=kind.user, issuer=kind.issuer,
            trust=kind.trust, human=kind.human, agents=kind.agents, task=kind.task,
        ),
        groups=tuple(sorted(set[str].intersection(*(set(each.caller["groups"]) for each in asked)))),
        scopes=_few({tuple(sorted(each.caller["scopes"])) for each in asked}, "sets of scopes"),
        labels=_few({tuple(sorted(each.labels)) for each in asked}, "labels") if "labels" in reads.context else None,
        sessions=_few({each.session for each in asked}, "sessions") if "session" in reads.context else None,
        most_cost=max(each.cost_micros for each in asked) if "cost" in reads.context else None,
        facts={name: value for name, value in facts.items() if name not in numbers},
        numbers=numbers,
        combinations=tuple(combinations),
    )  # fmt: skip


def _few(values: set[T], what: str) -> tuple[T, ...]:
    if len(values) > MOST_COMBINATIONS:
        raise _No(f"the calls came with {len(values)} different {what}")
    return tuple(sorted(values, key=repr))


def _name(kind: Kind, said: str, until: int) -> str:
    """Of what it says and when it ends: the same draft has the same id, and one that takes its place another."""
    digest = hashlib.sha256(f"{until} {said}".encode()).hexdigest()[:8]
    return f"learned-{_UNFIT.sub('-', kind.tool)[:80]}-{digest}"


def _free(name: str, taken: Container[str], end: str = "") -> str:
    """The name, or the next like it that nothing has."""
    tried = chain([f"{name}{end}"], (f"{name}-{number}{end}" for number in count(2)))
    return next(each for each in tried if each not in taken)


def _file(drafts: Sequence[Draft], taken: Container[str], until: int) -> PolicyFile:
    """Named by its end, so that whoever tidies up knows what can go."""
    path = _free(f"policies/learned-until-{day(until)}", taken, ".cedar")
    return PolicyFile(path=path, text="\n".join(_commented(draft) for draft in drafts))


def _told(past: Sequence[Past]) -> dict[str, Any]:
    return {
        "calls": len(past),
        "people": sorted({name for each in past for name in each.people}),
        "first_ms": min(each.at_ms for each in past),
        "last_ms": max(each.at_ms for each in past),
        "tickets": sorted(each.ticket for each in past),
    }


def _commented(draft: Draft) -> str:
    """Names of people and agents stand in quotes, so that none of them ends a comment."""
    kind, told = draft.kind, _told(draft.learned_from)
    agents = f" through {', '.join(text(agent) for agent in kind.agents)}" if kind.agents else ""
    people = ", ".join(text(name) for name in told["people"])
    return (
        f"// {kind.tool} {kind.version} for {text(kind.user)}{agents}, which {', '.join(kind.rules)} asks about:\n"
        f"// {told['calls']} calls between {day(told['first_ms'] // 1000)} and {day(told['last_ms'] // 1000)} "
        f"were approved by {people}, none denied.\n{draft.rule}"
    )
