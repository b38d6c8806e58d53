"""Whether policies may take force: read, type-checked strictly against the tenant's world, and looked at for rules that
can never speak. Everything is told at once, by file and line.

Cedar's validator knows which conditions can never hold but does not say so through `cedarpy`. It does not look behind
such a condition, though: with a fault added to the end of each rule, those in which it is not found never get there.
"""

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import cedarpy
import orjson

from deputize.govern.policy.reads import reads_of
from deputize.govern.policy.rules import Mistake, PolicyFile, PolicyRule, examine, refusal
from deputize.govern.policy.spelling import misspelt
from deputize.govern.policy.world import CONTEXT, TOOL, USER, FactTypes, schema

# Names there are, by kind of thing: `{"Tool": {"crm.refund"}, "Namespace": …, "Server": …, "Tenant": …}`. What is of a
# kind that is not a key is not looked for.
Known = Mapping[str, Collection[str]]

_FOREWORD = re.compile(r"^for policy `[^`]*`, ")
_NO_ATTRIBUTE = re.compile(r"attribute `(\w{1,60})` ")
_AT_ONCE = 100
_LONGEST_MESSAGE = 600
# A call is held against every rule that can speak about its tool, while all others wait: 5,000 took 28 ms.
MOST_ABOUT_ONE = 1_000
_FAULT = "resource.nothing_is_called_this"
_REMEDIES = {
    "unable to guarantee safety of access to optional attribute": "ask first whether it is there, with has",
    "unable to find an applicable action": "only a User calls, only a Tool is called, and the action is call",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Errors keep policies from taking force; warnings are for their author."""

    errors: tuple[Mistake, ...] = ()
    warnings: tuple[Mistake, ...] = ()

    def require(self) -> None:
        """Raises `PolicyInvalid` with every error, if there is one."""
        if self.errors:
            raise refusal(self.errors)


def check(files: Sequence[PolicyFile], facts: FactTypes, *, known: Known | None = None) -> Findings:
    rules, mistakes = examine(files)
    typed = list(_type_errors(rules, facts))
    faulty = {id(rule) for rule, _ in typed}
    sound = [rule for rule in rules if id(rule) not in faulty]
    errors = [*mistakes, *(_at(rule, message) for rule, message in typed), *_crowds(rules)]
    warnings = [*_never(sound, facts), *_missing(sound, known or {}), *_shadowed(sound)]
    warnings += (_at(rule, sentence) for rule in sound for sentence in misspelt(rule))
    order = {file.path: place for place, file in enumerate(files)}
    return Findings(errors=_sorted(errors, order), warnings=_sorted(warnings, order))


def _sorted(found: Sequence[Mistake], order: Mapping[str, int]) -> tuple[Mistake, ...]:
    return tuple(sorted(dict.fromkeys(found), key=lambda each: (order[each.file], each.line)))


def _type_errors(rules: Sequence[PolicyRule], facts: FactTypes) -> Iterator[tuple[PolicyRule, str]]:
    for rule, message in _validated(rules, [rule.text for rule in rules], facts):
        # Cedar quotes names and whole types, which are as long as a rule may be.
        told = _FOREWORD.sub("", message)[:_LONGEST_MESSAGE]
        remedy = next((fix for start, fix in _REMEDIES.items() if told.startswith(start)), _meant(told))
        yield rule, f"{told}: {remedy}" if remedy else told


def _meant(told: str) -> str:
    unknown = _NO_ATTRIBUTE.match(told)
    near = difflib.get_close_matches(unknown[1], {*USER, *TOOL, *CONTEXT}, n=1) if unknown else []
    return f"did you mean {near[0]}?" if near else ""


def _validated(rules: Sequence[PolicyRule], texts: Sequence[str], facts: FactTypes) -> Iterator[tuple[PolicyRule, str]]:
    """Cedar numbers policies by where they stand in the text. It is asked about some at a time, because its time grows
    with the square of what it finds (10,000 faulty rules: 14 s at once, 1 s in hundreds).
    """
    typed = schema(facts)
    for start in range(0, len(rules), _AT_ONCE):
        result = cedarpy.validate_policies("\n".join(texts[start : start + _AT_ONCE]), typed, release_gil=True)
        for error in result.errors:
            yield rules[start + int(error.policy_id.removeprefix("policy"))], error.error


def _never(rules: Sequence[PolicyRule], facts: FactTypes) -> Iterator[Mistake]:
    spoilt = [f"{rule.text.removesuffix(';')}\nwhen {{ {_FAULT} }};" for rule in rules]
    reached = {id(rule) for rule, _ in _validated(rules, spoilt, facts)}
    for rule in rules:
        unknown = _unknown(rule, facts)
        if unknown:
            yield _at(rule, f"{rule.id} asks for {', '.join(unknown)}, which nothing has: is it spelt right?")
        elif id(rule) not in reached:
            yield _at(rule, f"{rule.id} can never speak: its conditions can never hold")


def _unknown(rule: PolicyRule, facts: FactTypes) -> list[str]:
    """What `has` asks for in vain: the type check is content, because the answer is a plain no."""
    known = {"principal": USER, "resource": TOOL, "context": CONTEXT}
    found: list[str] = []
    for path in reads_of([rule]).paths:
        whose, *names = path.split(".")
        of_fact = whose == "context" and names[:1] == ["facts"] and len(names) > 1
        if (of_fact and names[1] not in facts) or (names and names[0] not in known[whose]):
            found.append(path)
    return found


def _about(rule: PolicyRule) -> tuple[str, str] | None:
    """What a rule's scope names, if it names anything."""
    scope = rule.read.resource
    entity = scope.get("entity") or (scope.get("in") or {}).get("entity")
    return None if entity is None else (entity["type"], entity["id"])


def _crowds(rules: Sequence[PolicyRule]) -> Iterator[Mistake]:
    counts = Counter[tuple[str, str] | None]()
    for rule in rules:
        about = _about(rule)
        counts[about] += 1
        if counts[about] == MOST_ABOUT_ONE + 1:
            what = "every tool" if about is None else " ".join(about)
            why = f"{rule.id} stands behind {MOST_ABOUT_ONE} rules about {what}, all of which each call would wait for"
            yield _at(rule, f"{why}: name tools or namespaces in their scopes, or list values as in [a, b].contains(c)")


def _missing(rules: Sequence[PolicyRule], known: Known) -> Iterator[Mistake]:
    for rule in rules:
        about = _about(rule)
        if about is not None:
            kind, name = about
            if kind in known and name not in known[kind]:
                yield _at(rule, f"{rule.id} can never speak: there is no {kind} {name}")


def _shadowed(rules: Sequence[PolicyRule]) -> Iterator[Mistake]:
    """Rules about exactly what another rule is about, which has the say whenever they would."""
    strongest: dict[bytes, PolicyRule] = {}
    for rule in sorted(rules, key=_weakness):
        about = {key: value for key, value in orjson.loads(rule.ast).items() if key != "effect"}
        body = orjson.dumps(about, option=orjson.OPT_SORT_KEYS)
        stronger = strongest.setdefault(body, rule)
        if stronger is not rule and not _both_matter(stronger, rule):
            yield _at(rule, f"{rule.id} never has the say: {stronger.id} ({stronger.where}) is about the same")


def _weakness(rule: PolicyRule) -> int:
    """A forbid beats all, a permit beats a permit that asks; a forbid that asks comes in between."""
    return {("forbid", False): 0, ("forbid", True): 1, ("permit", False): 2, ("permit", True): 3}[
        rule.effect, rule.asks
    ]


def _both_matter(stronger: PolicyRule, rule: PolicyRule) -> bool:
    """A forbid that asks needs a permit to ask about; of two rules that ask, each has the people it wants."""
    if stronger.effect == "forbid" and stronger.asks and rule.effect == "permit":
        return True
    return stronger.asks and rule.asks and stronger.wants != rule.wants


def _at(rule: PolicyRule, message: str) -> Mistake:
    return Mistake(file=rule.file, line=rule.line, message=message)
