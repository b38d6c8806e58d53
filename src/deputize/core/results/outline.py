"""Show what a JSON value holds in few characters: its shape, its first parts, its facts, or only its size."""

from typing import Any, Final

import orjson

# Items of a list, characters of a text and depth, from the most detailed outline to the least.
_CUTS: Final = ((20, 400, 6), (10, 200, 5), (5, 120, 4), (3, 80, 4), (2, 40, 3), (1, 24, 2))
_MAX_PARTS: Final = 400
_MAX_SHAPE_LENGTH: Final = 300
_MAX_SHAPE_NAMES: Final = 8
_MAX_FACT_LENGTH: Final = 80
_MAX_FACTS: Final = 50
_NAME_LENGTH: Final = 60
_JSON_TYPES: Final = {bool: "boolean", int: "integer", float: "number", str: "text", type(None): "null"}


def measure_length(value: Any) -> int:
    """Measure how many characters a value takes as JSON."""
    return len(orjson.dumps(value).decode())


def get_type_name(value: Any) -> str:
    """Return the JSON type of a value, with the word `text` for a string."""
    if isinstance(value, dict):
        return "object"
    return "list" if isinstance(value, list | tuple) else _JSON_TYPES.get(type(value), "text")


def cut_value(value: Any, max_length: int) -> Any | None:
    """Cut a value to its first parts so that it has at most so many characters as JSON; None if that is impossible.

    Takes time in proportion to what it returns, however large the value is.
    """
    for items, characters, depth in _CUTS:
        outline = _Cut(items, characters).cut(value, depth)
        if measure_length(outline) <= max_length:
            return outline
    return None


class _Cut:
    """Cuts one value, and stops in width after a number of parts."""

    def __init__(self, items: int, characters: int) -> None:
        self._items, self._characters = items, characters
        self._parts = 0

    def cut(self, value: Any, depth: int) -> Any:
        self._parts += 1
        if isinstance(value, str):
            return cut_text(value, self._characters)
        if isinstance(value, dict | list | tuple) and value and (depth == 0 or self._parts > _MAX_PARTS):
            return f"… {describe_size(value)}"
        if isinstance(value, dict):
            return self._cut_object(value, depth)
        if isinstance(value, list | tuple):
            items = [self.cut(each, depth - 1) for each in value[: self._items]]
            left = len(value) - len(items)
            return [*items, f"… {left} more"] if left else items
        return value

    def _cut_object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, member in value.items():
            if len(members) >= 2 * self._items:
                break
            members[cut_text(name, _NAME_LENGTH)] = self.cut(member, depth - 1)
        left = len(value) - len(members)
        return {**members, "…": f"{left} more"} if left else members


def cut_text(text: str, length: int) -> str:
    """Cut a text, and say how long it is."""
    return text if len(text) <= length else f"{text[:length]}… ({len(text)} characters)"


def describe_size(value: Any) -> str:
    """Describe the type of a value and how much it holds."""
    match get_type_name(value):
        case "list":
            return f"list of {len(value)} items"
        case "object":
            return f"object with {len(value)} members"
        case "text":
            return f"text of {len(value)} characters"
        case name:
            return name


def describe_shape(value: Any) -> str:
    """Describe the shape of a value, such as `object {rows: list of 120000 × object {id: integer}}`."""
    return cut_text(_describe_shape(value, 3), _MAX_SHAPE_LENGTH)


def _describe_shape(value: Any, depth: int) -> str:
    if isinstance(value, dict) and value and depth:
        names = [
            f"{cut_text(name, _NAME_LENGTH)}: {_describe_shape(member, depth - 1)}"
            for name, member in _take_members(value, _MAX_SHAPE_NAMES)
        ]
        more = [f"… {len(value) - len(names)} more"] if len(value) > len(names) else []
        return f"object {{{', '.join(names + more)}}}"
    if isinstance(value, list | tuple) and value and depth:
        return f"list of {len(value)} × {_describe_shape(value[0], depth - 1)}"
    return describe_size(value)


def _take_members(value: dict[str, Any], count: int) -> list[tuple[str, Any]]:
    return [member for member, _ in zip(value.items(), range(count), strict=False)]


def extract_facts(value: Any, max_length: int) -> dict[str, Any] | None:
    """Extract the short values near the top of a value, by their paths; None if there are none that fit."""
    facts: dict[str, Any] = {}
    length = 2
    for path, fact in _iterate_facts(value):
        length += measure_length({path: fact}) - 1
        if length > max_length or len(facts) == _MAX_FACTS:
            break
        facts[path] = fact
    return facts or None


def _iterate_facts(value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return []
    facts: list[tuple[str, Any]] = []
    for name, member in _take_members(value, _MAX_FACTS):
        path = "/" + cut_text(name, _NAME_LENGTH).replace("~", "~0").replace("/", "~1")
        if isinstance(member, dict):
            facts += [
                (f"{path}/{inner}", each)
                for inner, each in _take_members(member, _MAX_FACTS)
                if len(inner) <= _NAME_LENGTH and _is_fact(each)
            ]
        elif isinstance(member, list | tuple):
            facts.append((path, describe_size(member)))
        elif _is_fact(member):
            facts.append((path, member))
    return facts


def _is_fact(value: Any) -> bool:
    return not isinstance(value, dict | list | tuple) and (not isinstance(value, str) or len(value) <= _MAX_FACT_LENGTH)
