"""Judge whether tools that return the same fact agree, and which of them is believed.

Pure functions over the rules of the settings; `lifecycle/consistency.py` stores and loads the values.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import combinations
from typing import Any, Final

from deputize.core.canonical import canonicalize
from deputize.core.contract.effects import MutationClass
from deputize.core.json_pointer import MISSING, find_value, parse_pointer
from deputize.core.patterns import matches_glob
from deputize.core.settings.consistency import ConsistencyRule
from deputize.core.value_types import frozen

_MAX_ENTITY_LENGTH: Final = 1024


@frozen
class RuleSource:
    """A source of a consistency rule: JSON Pointers to the entity and to the value."""

    rule: ConsistencyRule
    entity_steps: tuple[str, ...]
    value_steps: tuple[str, ...]

    def read_entity(self, document: Mapping[str, Any]) -> str | None:
        """Read which thing a call is about; None if that is neither a text nor a whole number.

        The number 7 and the text "7" name the same thing: tools type their ids differently.
        """
        entity = find_value(document, self.entity_steps)
        if isinstance(entity, str):
            return entity if 0 < len(entity) <= _MAX_ENTITY_LENGTH else None
        is_whole = isinstance(entity, int) or (isinstance(entity, float) and entity.is_integer())
        return str(int(entity)) if is_whole and not isinstance(entity, bool) else None

    def read_value(self, document: Mapping[str, Any]) -> Any:
        """Read what a call says; None if it says nothing."""
        value = find_value(document, self.value_steps)
        return None if value is MISSING else value


@frozen
class ObservedValue:
    """What a tool said about a thing, in which call, and when by the database's clock."""

    tool: str
    authority_rank: int
    call_id: str
    seen_at: datetime
    value: Any

    def describe(self) -> str:
        """Describe the source without its value."""
        return f"{self.tool} (call {self.call_id}, {self.seen_at:%Y-%m-%dT%H:%M:%SZ})"

    def to_json(self) -> dict[str, str]:
        return {"tool": self.tool, "call_id": self.call_id, "seen_at": f"{self.seen_at:%Y-%m-%dT%H:%M:%SZ}"}


@frozen
class Disagreement:
    """Sources that returned different values. `believed_source` is None if the rule cannot tell which is right."""

    sources: tuple[ObservedValue, ...]
    believed_source: ObservedValue | None
    # The sources that say something else than the believed one.
    differing_sources: tuple[ObservedValue, ...] = ()


class SourceRules:
    """The rules of the settings, found by the name of a tool."""

    def __init__(self, rules: Sequence[ConsistencyRule]) -> None:
        self._by_tool: dict[str, tuple[RuleSource, ...]] = {}
        for rule in rules:
            for source in rule.sources:
                part = RuleSource(
                    rule=rule, entity_steps=parse_pointer(source.entity), value_steps=parse_pointer(source.value)
                )
                self._by_tool[source.tool] = (*self._by_tool.get(source.tool, ()), part)
        self._reported_sizes: set[tuple[str, str]] = set()

    def __contains__(self, tool: str) -> bool:
        return tool in self._by_tool

    def find_sources(self, tenant: str, tool: str) -> Iterator[RuleSource]:
        """Find the rules that a tool is a source of."""
        return (each for each in self._by_tool.get(tool, ()) if matches_glob(tenant, each.rule.tenants))

    def should_report_size(self, rule: str, tool: str) -> bool:
        """Tell whether this is the first value of the source that is too large to be compared."""
        is_first = (rule, tool) not in self._reported_sizes
        self._reported_sizes.add((rule, tool))
        return is_first


def judge_sources(rule: ConsistencyRule, own: ObservedValue, others: Sequence[ObservedValue]) -> Disagreement | None:
    """Compare a value with those of the other sources; None if it agrees with each of them."""
    if all(is_agreement(rule, own.value, each.value) for each in others):
        return None
    # The newest first: of sources that are believed together, it is the one that is named.
    sources = tuple(sorted((own, *others), key=lambda each: (each.seen_at, each is own), reverse=True))
    group = _find_believed_group(rule, sources)
    if not group:
        return Disagreement(sources=sources, believed_source=None)
    differing_sources = (each for each in sources if not is_agreement(rule, each.value, group[0].value))
    return Disagreement(sources=sources, believed_source=group[0], differing_sources=tuple(differing_sources))


def is_agreement(rule: ConsistencyRule, left: Any, right: Any) -> bool:
    """Tell whether two values agree: numbers within the tolerance, everything else exactly."""
    if _is_number(left) and _is_number(right):
        # In decimals, as people write them: 100.01 and 100.00 are 0.01 apart.
        return abs(Decimal(str(left)) - Decimal(str(right))) <= Decimal(str(rule.tolerance))
    if isinstance(left, str) and isinstance(right, str):
        return left.casefold() == right.casefold() if rule.ignore_case else left == right
    return canonicalize({"value": left}) == canonicalize({"value": right})


def describe_ignored_sources(
    rules: Sequence[ConsistencyRule], classes_by_tool: Mapping[str, set[MutationClass]]
) -> Iterator[tuple[str, str, str]]:
    """Describe the sources that are not compared, as rule, tool and reason: unknown tools, and tools that write."""
    for rule in rules:
        for source in rule.sources:
            classes = classes_by_tool.get(source.tool)
            if classes is None:
                yield rule.name, source.tool, "no such tool is registered"
            elif MutationClass.READ not in classes:
                yield rule.name, source.tool, "it is not a read"


def _find_believed_group(rule: ConsistencyRule, sources: Sequence[ObservedValue]) -> Sequence[ObservedValue]:
    """Find the sources that are believed, which agree with each other; none if the rule cannot tell."""
    match rule.resolution:
        case "authority":
            highest_rank = max(each.authority_rank for each in sources)
            group = tuple(each for each in sources if each.authority_rank == highest_rank)
            return group if _is_unanimous(rule, group) else ()
        case "freshness":
            return sources[:1]
        case "majority":
            return _find_largest_group(rule, sources)
        case "human":
            return ()


def _find_largest_group(rule: ConsistencyRule, sources: Sequence[ObservedValue]) -> Sequence[ObservedValue]:
    """Find the largest group, of two at least, whose members all agree with each other; none if two are as large."""
    numbers = range(len(sources))
    agreements = {
        pair for pair in combinations(numbers, 2) if is_agreement(rule, sources[pair[0]].value, sources[pair[1]].value)
    }
    for size in range(len(sources) - 1, 1, -1):
        groups = [group for group in combinations(numbers, size) if agreements.issuperset(combinations(group, 2))]
        if groups:
            return [sources[number] for number in groups[0]] if len(groups) == 1 else ()
    return ()


def _is_unanimous(rule: ConsistencyRule, group: Sequence[ObservedValue]) -> bool:
    return all(is_agreement(rule, left.value, right.value) for left, right in combinations(group, 2))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
