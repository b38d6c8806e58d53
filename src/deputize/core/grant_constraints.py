"""Parse and check the constraints of a delegation: conditions that each call made with it must satisfy.

    {"environments": ["staging"], "arguments": {"shop.refund": {"amount": {"maximum": 50}, "unit": {"const": "EUR"}}}}

A delegation derived from another one has its constraints as well as its own. What is not defined here is refused when
the delegation is made, so that every constraint that a person sees is one that holds.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

import orjson

from deputize.core.canonical import canonicalize
from deputize.core.contract.names import to_full_name
from deputize.core.value_types import frozen

MAX_CONSTRAINTS_BYTES: Final = 4096
ENVIRONMENTS: Final = frozenset({"development", "staging", "production"})
_WORDS: Final = frozenset({"environments", "arguments"})
_CONDITIONS: Final = frozenset({"const", "enum", "minimum", "maximum"})


class InvalidConstraints(ValueError):
    """The constraints contain something that cannot be enforced; the message says what, and what is possible."""


@frozen
class GrantConstraints:
    """The constraints of one delegation, parsed. `arguments` has conditions by tool and argument."""

    environments: frozenset[str] | None
    arguments: Mapping[str, Mapping[str, Mapping[str, Any]]]

    def find_violation(self, *, environment: str, tool: str, arguments: Mapping[str, Any]) -> str | None:
        """Describe what the call violates, or return None. An argument that has conditions must be present."""
        if self.environments is not None and environment not in self.environments:
            return f"it was delegated for {', '.join(sorted(self.environments))}, and this gateway is {environment}"
        for name, conditions in self.arguments.get(tool, {}).items():
            if name not in arguments:
                return f"it requires the argument {name}"
            violation = next(
                (word for word, bound in conditions.items() if not _is_satisfied(word, bound, arguments[name])), None
            )
            if violation is not None:
                # The bound is the delegating person's own text; the argument may be sensitive and is not quoted.
                bound = orjson.dumps(conditions[violation]).decode()
                return f"it requires {name} to have {violation} {bound}"
        return None


def parse_constraints(data: bytes) -> tuple[str, GrantConstraints]:
    """Parse constraints and return them with their canonical text; raise `InvalidConstraints`."""
    try:
        value = orjson.loads(data)
        text = canonicalize(value).decode()
    except ValueError as error:
        raise InvalidConstraints("constraints is not a JSON object") from error
    if not isinstance(value, dict):
        raise InvalidConstraints("constraints is not a JSON object")
    if len(data) > MAX_CONSTRAINTS_BYTES:
        raise InvalidConstraints(f"constraints is longer than {MAX_CONSTRAINTS_BYTES} bytes")
    _require_words(value, _WORDS, "constraints")
    arguments = _require_object(value.get("arguments", {}), "constraints.arguments")
    return text, GrantConstraints(
        environments=_parse_environments(value["environments"]) if "environments" in value else None,
        arguments={to_full_name(tool): _parse_tool(tool, conditions) for tool, conditions in arguments.items()},
    )


@lru_cache(maxsize=10_000)
def load_constraints(text: str) -> GrantConstraints:
    """Parse constraints that were checked when their delegation was made."""
    return parse_constraints(text.encode())[1]


def _parse_environments(value: Any) -> frozenset[str]:
    if not isinstance(value, list) or not value or not all(each in ENVIRONMENTS for each in map(str, value)):
        raise InvalidConstraints(f"constraints.environments is not a list of {', '.join(sorted(ENVIRONMENTS))}")
    return frozenset(value)


def _parse_tool(tool: str, value: Any) -> dict[str, dict[str, Any]]:
    arguments = _require_object(value, f"constraints.arguments.{tool}")
    for name, conditions in arguments.items():
        _parse_conditions(f"constraints.arguments.{tool}.{name}", conditions)
    return arguments


def _parse_conditions(where: str, value: Any) -> None:
    conditions = _require_object(value, where)
    _require_words(conditions, _CONDITIONS, where)
    if not conditions:
        raise InvalidConstraints(f"{where} has no condition: use one of {', '.join(sorted(_CONDITIONS))}")
    for word in ("minimum", "maximum"):
        if word in conditions and not _is_number(conditions[word]):
            raise InvalidConstraints(f"{where}.{word} is not a number")
    if "enum" in conditions and not isinstance(conditions["enum"], list):
        raise InvalidConstraints(f"{where}.enum is not a list of values")


def _require_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidConstraints(f"{where} is not a JSON object")
    return value


def _require_words(value: dict[str, Any], words: frozenset[str], where: str) -> None:
    unknown = sorted(value.keys() - words)
    if unknown:
        raise InvalidConstraints(
            f"{where} contains {', '.join(unknown)}, which this gateway cannot enforce; it knows "
            f"{', '.join(sorted(words))}"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_satisfied(word: str, bound: Any, value: Any) -> bool:
    match word:
        case "const":
            return _is_equal(value, bound)
        case "enum":
            return any(_is_equal(value, each) for each in bound)
        case "minimum":
            return _is_number(value) and bool(value >= bound)
        case _:
            return _is_number(value) and bool(value <= bound)


def _is_equal(value: Any, other: Any) -> bool:
    """Compare as JSON, where true is not 1."""
    return canonicalize([value]) == canonicalize([other])
