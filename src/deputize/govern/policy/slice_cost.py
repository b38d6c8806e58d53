"""Estimate how long rules take to evaluate, before they are evaluated.

Cedar matches `like` in time proportional to the length of the pattern times that of the text, and copies every literal
of a rule. Both come from outside, and an evaluation cannot be interrupted: one tenant's patterns delayed another's call
by 14 s. So the cost is limited when policies become active, and a slice that takes long is evaluated in another process
(`evaluation_job.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import orjson

from deputize.core.value_types import frozen

# Matching a text with `like`: longer facts are not compared at all.
MAX_FACT_LENGTH: Final = 8192
# The time that one evaluation may take on the event loop, and the time that the rules of one scope may take at all.
MAX_LOOP_SECONDS: Final = 0.02
MAX_SCOPE_SECONDS: Final = 0.5
# Measured with cedarpy 4.12: one character of a pattern with one of a text, and one byte of a rule.
_SECONDS_PER_LIKE: Final = 1.5e-9
_SECONDS_PER_BYTE: Final = 30e-9
# Each character of a pattern takes this many bytes in a rule's JSON.
_PATTERN_BYTES: Final = 16
# Names and ids, which rules can compare too, are at most this long.
_MIN_TEXT_LENGTH: Final = 512


@frozen
class RuleCost:
    """The cost of rules: characters of `like` patterns, and bytes of everything else."""

    like_length: int
    size: int

    def estimate_seconds(self, longest_text: int = MAX_FACT_LENGTH) -> float:
        """Estimate the time that one evaluation takes if no text is longer."""
        length = max(longest_text, _MIN_TEXT_LENGTH)
        return self.like_length * length * _SECONDS_PER_LIKE + self.size * _SECONDS_PER_BYTE


def measure_rules(rules_json: Iterable[bytes]) -> RuleCost:
    """Measure rules, given as Cedar's JSON of each."""
    like_length = size = 0
    for rule_json in rules_json:
        conditions = orjson.loads(rule_json)["conditions"] if b'"like"' in rule_json else ()
        length = sum(_iterate_pattern_lengths(conditions))
        like_length += length
        size += max(0, len(rule_json) - _PATTERN_BYTES * length)
    return RuleCost(like_length=like_length, size=size)


def find_longest_text(facts: Mapping[str, Any]) -> int:
    """Find the length of the longest fact that is a text, as far as it can be compared."""
    return min(MAX_FACT_LENGTH, max((len(value) for value in facts.values() if isinstance(value, str)), default=0))


def _iterate_pattern_lengths(conditions: Any) -> Iterator[int]:
    stack = [conditions]
    while stack:
        match stack.pop():
            case {"like": {"left": left, "pattern": list(pattern)}}:
                stack.append(left)
                yield sum(len(each["Literal"]) if isinstance(each, dict) else 1 for each in pattern)
            case {"Value": _}:
                pass
            case dict() as node:
                stack += node.values()
            case list() as nodes:
                stack += nodes
            case _:
                pass
