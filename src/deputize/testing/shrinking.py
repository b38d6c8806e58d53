"""Shrink arguments that a tool fails on to the simplest ones that it still fails on."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

_MAX_TRIES: Final = 60


def shrink_arguments(
    arguments: dict[str, Any],
    *,
    is_valid: Callable[[dict[str, Any]], bool],
    is_failing: Callable[[dict[str, Any]], bool],
) -> dict[str, Any]:
    """Take simplifications as long as the arguments stay valid and the tool keeps failing, with a bounded number of
    calls.
    """
    tries = 0
    current = arguments
    while True:
        for candidate in _list_simpler(current):
            if not is_valid(candidate):
                continue
            if tries >= _MAX_TRIES:
                return current
            tries += 1
            if is_failing(candidate):
                current = candidate
                break
        else:
            return current


def _list_simpler(value: Any) -> Iterator[Any]:
    """Yield simpler values, the simplest first; each is strictly simpler, so that shrinking ends."""
    if isinstance(value, dict):
        for name in list(value):
            yield {key: copy.deepcopy(each) for key, each in value.items() if key != name}
        for name, each in value.items():
            for simpler in _list_simpler(each):
                yield {**copy.deepcopy(value), name: simpler}
    elif isinstance(value, list):
        if value:
            yield []
            yield value[: len(value) // 2]
            yield value[1:]
        for place, each in enumerate(value[:5]):
            for simpler in _list_simpler(each):
                yield [*value[:place], simpler, *value[place + 1 :]]
    elif isinstance(value, str):
        for length in sorted({0, 1, len(value) // 2, len(value) - 1}):
            if 0 <= length < len(value):
                yield value[:length]
    elif isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int | float):
        for simpler in (0, 1, int(value / 2), value - 1 if value > 0 else value + 1, abs(value)):
            if _measure_number(simpler) < _measure_number(value):
                yield simpler


def _measure_number(value: float) -> tuple[float, bool, bool]:
    return abs(value), value < 0, not float(value).is_integer()
