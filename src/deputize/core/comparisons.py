"""Parse and evaluate comparisons between values of a call, which JSON Schema cannot express.

    /output/start < /output/end
    count(/output/items) <= /input/limit
    sum(/output/lines/*/amount) == /output/total within 0.01
    /output/lines/*/product in /output/products/*/id
    /change/rows == /output/inserted

A path is a JSON Pointer into `{"input": …, "output": …}`, where `*` stands for every element or member. Of a tool that
reads its state there are also `before` and `after`, and `change`, which has by how much each number of it changed.
Numbers compare as numbers, two date-times as instants. A value that is missing, or of a type that cannot be compared,
fails the comparison. Evaluation takes time in proportion to the size of the document.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

_OPERAND: Final = r'(?:count|sum|min|max)\([^\s()]+\)|/[^\s()]*|-?[0-9][0-9.eE+-]*|"[^"]*"|true|false|null'
_COMPARISON: Final = re.compile(
    rf"^(?P<left>{_OPERAND}) (?P<operator>==|!=|<=|>=|<|>|in) (?P<right>{_OPERAND})"
    r"(?: within (?P<tolerance>[0-9.eE+-]+))?$"
)
_MEASURED: Final = re.compile(r"^(?P<measure>count|sum|min|max)\((?P<path>.+)\)$")
_STATE_ROOTS: Final = ("before", "after", "change")
# What the result of a call is compared with.
RESULT_ROOTS: Final = ("input", "output", *_STATE_ROOTS)
_MAX_STEPS: Final = 16
_MISSING: Final = object()
_ORDERS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class InvalidComparison(ValueError):
    """The text is not a comparison; the message says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """One side of a comparison: the values at a path, one number computed from them, or a constant."""

    steps: tuple[str, ...] = ()
    measure: str = ""
    constant: Any = None

    @property
    def is_many(self) -> bool:
        """True if there can be any number of values."""
        return "*" in self.steps and not self.measure

    def read_values(self, document: Mapping[str, Any]) -> list[Any] | None:
        """Read the values from a document; None if one is missing or cannot be measured."""
        if not self.steps:
            return [self.constant]
        values = _follow_path(document, self.steps)
        if values is None or not self.measure:
            return values
        if "*" not in self.steps:
            # count(/output/items) means the elements of the list, as does count(/output/items/*).
            values = _list_members(values[0])
        return None if values is None else _measure_values(values, self.measure)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A comparison that a result has to satisfy."""

    text: str
    left: Operand
    operator: str
    right: Operand
    tolerance: float = 0.0
    compares_state: bool = False

    def holds(self, document: Mapping[str, Any]) -> bool:
        """Tell whether it holds for `{"input": …, "output": …}`: for every value on the left, if there are many."""
        left_values, right_values = self.left.read_values(document), self.right.read_values(document)
        if left_values is None or right_values is None:
            return False
        if self.operator == "in":
            choice_keys = {_make_key(each) for value in right_values for each in self._list_choices(value)}
            return all(_make_key(each) in choice_keys for each in left_values)
        right = right_values[0]
        right_time = _parse_time(right)
        # Made once for all values on the left: the value on the right can be the larger part of the document.
        right_key = _make_key(right if right_time is None else right_time)
        return all(self._compare(each, right, right_time, right_key) for each in left_values)

    def _list_choices(self, value: Any) -> Iterator[Any]:
        """List what a value on the right of `in` offers: the elements of a list, unless a path already named each."""
        return iter([value]) if self.right.is_many else iter(value if isinstance(value, list) else [])

    def _compare(self, left: Any, right: Any, right_time: datetime | None, right_key: Any) -> bool:
        if _is_number(left) and _is_number(right):
            is_close = bool(abs(left - right) <= self.tolerance)
            match self.operator:
                case "==":
                    return is_close
                case "!=":
                    return not is_close
                case "<=" | ">=" if is_close:
                    return True
            return _ORDERS[self.operator](left, right)
        left_time = None if right_time is None else _parse_time(left)
        if self.operator in ("==", "!="):
            left_key = _make_key(left if left_time is None else left_time)
            return bool(left_key == right_key) == (self.operator == "==")
        return left_time is not None and _ORDERS[self.operator](left_time, right_time)


def parse_comparison(text: str, roots: Collection[str] = RESULT_ROOTS) -> Comparison:
    """Parse a comparison between values under these roots. Raises `InvalidComparison`."""
    match = _COMPARISON.match(text)
    if match is None:
        raise InvalidComparison("is not of the form LEFT OPERATOR RIGHT, with one space between each")
    tolerance = _parse_number(match["tolerance"]) if match["tolerance"] else 0.0
    left, right = _parse_operand(match["left"], roots), _parse_operand(match["right"], roots)
    if not left.steps:
        raise InvalidComparison("begins with a constant; put the path on the left")
    if right.is_many and match["operator"] != "in":
        raise InvalidComparison("has many values on the right; only `in` takes them")
    if match["operator"] == "in" and not right.steps:
        raise InvalidComparison("has a constant behind `in`; name the path of a list")
    return Comparison(
        text=text,
        left=left,
        operator=match["operator"],
        right=right,
        tolerance=tolerance,
        compares_state=any(each.steps and each.steps[0] in _STATE_ROOTS for each in (left, right)),
    )


def compute_change(before: Any, after: Any) -> Any:
    """Compute by how much each number of a state changed, in the state's own shape. Other values are left out."""
    if _is_number(before) and _is_number(after):
        return after - before
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changes = {name: compute_change(before[name], value) for name, value in after.items() if name in before}
        return {name: change for name, change in changes.items() if change is not None}
    return None


def _parse_operand(text: str, roots: Collection[str]) -> Operand:
    if match := _MEASURED.match(text):
        return Operand(steps=_parse_path(match["path"], roots), measure=match["measure"])
    if text.startswith("/"):
        return Operand(steps=_parse_path(text, roots))
    try:
        constant = json.loads(text)
    except ValueError as error:
        raise InvalidComparison(f"has the constant {text}, which is not JSON") from error
    if isinstance(constant, float) and not math.isfinite(constant):
        raise InvalidComparison(f"has the constant {text}, which is too large")
    return Operand(constant=constant)


def _parse_path(path: str, roots: Collection[str]) -> tuple[str, ...]:
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in path.removeprefix("/").split("/"))
    if not path.startswith("/") or steps[0] not in roots:
        *names, last_name = (f"/{each}" for each in roots)
        raise InvalidComparison(f"has the path {path}, which does not begin with {', '.join(names)} or {last_name}")
    if len(steps) > _MAX_STEPS or steps.count("*") > 1:
        raise InvalidComparison(f"has the path {path}, with more than {_MAX_STEPS} steps or more than one *")
    return steps


def _parse_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise InvalidComparison(f"has the tolerance {text}, which is not a number") from error
    if not math.isfinite(number) or number < 0:
        raise InvalidComparison("has a tolerance that is not finite")
    return number


def _follow_path(document: Any, steps: tuple[str, ...]) -> list[Any] | None:
    """Return the values at a path; None if it leads nowhere, or with `*` does so in any of the members."""
    place = steps.index("*") if "*" in steps else None
    if place is None:
        value = _find_member(document, steps)
        return None if value is _MISSING else [value]
    members = _list_members(_find_member(document, steps[:place]))
    if members is None:
        return None
    values = [_find_member(each, steps[place + 1 :]) for each in members]
    return None if any(each is _MISSING for each in values) else values


def _find_member(value: Any, steps: tuple[str, ...]) -> Any:
    for step in steps:
        if isinstance(value, Mapping) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step.isdecimal() and len(step) <= 9 and int(step) < len(value):
            value = value[int(step)]
        else:
            return _MISSING
    return value


def _list_members(value: Any) -> list[Any] | None:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else None


def _measure_values(values: list[Any], measure: str) -> list[Any] | None:
    if measure == "count":
        return [len(values)]
    if not all(_is_number(each) for each in values):
        return None
    if measure == "sum":
        try:
            return [math.fsum(values)]
        except OverflowError:
            return None
    if not values:
        return None
    return [min(values) if measure == "min" else max(values)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _parse_time(value: Any) -> datetime | None:
    """Parse a date-time with its offset from UTC; without one, it is no instant."""
    if not isinstance(value, str) or not 20 <= len(value) <= 40:
        return None
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _make_key(value: Any) -> Any:
    """Make a value that equals another's exactly if both are the same JSON: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, datetime) or _is_number(value):
        return value
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
