"""Prove the keywords of texts, numbers, sizes and enumerations from what other schemas say about the same value."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakKind, Path, SchemaBreak, format_kinds, format_value
from deputize.catalog.compatibility.conjunctions import Bound, Conjunction
from deputize.catalog.compatibility.json_equality import are_equal, get_kind, read_kinds

ScalarRule = Callable[[Conjunction, str, Any, Path], SchemaBreak | None]


def _check_type(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    kinds = read_kinds(limit)
    if source.kinds <= kinds:
        return None
    return _make_break(path, format_kinds(kinds), format_kinds(source.kinds))


def _check_enumeration(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    allowed_values = limit if keyword == "enum" else [limit]
    values = source.finite_values
    if values is None:
        return _make_break(path, _format_choice(allowed_values), format_kinds(source.kinds))
    extra_values = [value for value in values if not any(are_equal(value, each) for each in allowed_values)]
    return _make_break(path, _format_choice(allowed_values), _format_choice(extra_values)) if extra_values else None


def _check_lower(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    demand, bound = Bound(limit, keyword == "exclusiveMinimum"), source.lower
    if not source.has_numbers or (bound is not None and _is_within(bound, demand, bound.value > demand.value)):
        return None
    have = "less" if bound is None else _format_bound("at least", "more than", bound)
    return _make_break(path, _format_bound("at least", "more than", demand), have)


def _check_upper(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    demand, bound = Bound(limit, keyword == "exclusiveMaximum"), source.upper
    if not source.has_numbers or (bound is not None and _is_within(bound, demand, bound.value < demand.value)):
        return None
    have = "more" if bound is None else _format_bound("at most", "less than", bound)
    return _make_break(path, _format_bound("at most", "less than", demand), have)


def _is_within(bound: Bound, demand: Bound, is_stricter: bool) -> bool:
    return is_stricter or (bound.value == demand.value and (bound.is_exclusive or not demand.is_exclusive))


def _check_multiple(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    if not source.has_numbers or (limit == 1 and "fraction" not in source.kinds):
        return None
    # The multiples of fractions are compared in binary by validators, so that only the same one is certain.
    for each in source.iterate_values("multipleOf"):
        if each == limit or (get_kind(each) == get_kind(limit) == "integer" and int(each) % int(limit) == 0):
            return None
    return _make_break(path, f"a multiple of {limit}", "others")


def _check_least_size(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    kind, unit = _SIZED_KINDS[keyword]
    size = source.get_limit(keyword) or 0
    if kind not in source.kinds or size >= limit:
        return None
    return _make_break(path, f"at least {limit} {unit}", f"{size:g}" if size else "fewer")


def _check_most_size(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    kind, unit = _SIZED_KINDS[keyword]
    size = source.get_limit(keyword)
    if kind not in source.kinds or (size is not None and size <= limit):
        return None
    return _make_break(path, f"at most {limit} {unit}", "more" if size is None else f"{size:g}")


def _check_same_text(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    if "string" not in source.kinds or any(each == limit for each in source.iterate_values(keyword)):
        return None
    return _make_break(path, f"a text of the {keyword} {format_value(limit)}", "another text")


def _check_unique_items(source: Conjunction, keyword: str, limit: Any, path: Path) -> SchemaBreak | None:
    most = source.get_limit("maxItems")
    if not limit or "array" not in source.kinds or source.has_unique_items or (most is not None and most <= 1):
        return None
    return _make_break(path, "a list of different items", "one that repeats some")


def _format_bound(inclusive: str, exclusive: str, bound: Bound) -> str:
    return f"{exclusive if bound.is_exclusive else inclusive} {bound.value}"


def _format_choice(values: list[Any]) -> str:
    choice = ", ".join(format_value(value) for value in values[:5])
    return f"one of {choice}, …" if len(values) > 5 else f"one of {choice}" if len(values) > 1 else choice or "nothing"


def _make_break(path: Path, need: str, have: str) -> SchemaBreak:
    return SchemaBreak(path=path, kind=BreakKind.VALUE, need=need, have=have)


_SIZED_KINDS: Final = {
    "minLength": ("string", "characters"), "maxLength": ("string", "characters"),
    "minItems": ("array", "items"), "maxItems": ("array", "items"),
    "minProperties": ("object", "properties"), "maxProperties": ("object", "properties"),
}  # fmt: skip
SCALAR_RULES: Final[Mapping[str, ScalarRule]] = {
    "type": _check_type,
    "enum": _check_enumeration,
    "const": _check_enumeration,
    "minimum": _check_lower,
    "exclusiveMinimum": _check_lower,
    "maximum": _check_upper,
    "exclusiveMaximum": _check_upper,
    "multipleOf": _check_multiple,
    "minLength": _check_least_size,
    "minItems": _check_least_size,
    "minProperties": _check_least_size,
    "maxLength": _check_most_size,
    "maxItems": _check_most_size,
    "maxProperties": _check_most_size,
    "pattern": _check_same_text,
    "format": _check_same_text,
    "uniqueItems": _check_unique_items,
}
