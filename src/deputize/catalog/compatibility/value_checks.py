"""Check single values, such as those of an enumeration, against a schema; None where that cannot be decided."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

from deputize.catalog.compatibility.json_equality import are_equal, get_kind, read_kinds
from deputize.catalog.compatibility.schema_parts import SchemaPart, list_keywords
from deputize.catalog.schemas import BadSchema, Validator, compile_schema

_DEEPEST: Final = 16
_MAX_TEXT_LENGTH: Final = 1_000
_MAX_ITEMS: Final = 100
# Keywords of scalars, which the validator of calls checks itself.
_SCALAR_KEYWORDS: Final = frozenset(
    {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
     "format"}
)  # fmt: skip
_SIZES: Final = {
    "minItems": ("array", 1), "maxItems": ("array", -1), "minProperties": ("object", 1), "maxProperties": ("object", -1)
}  # fmt: skip


def is_valid(value: Any, part: SchemaPart, depth: int = 0) -> bool | None:
    """Tell whether a value is valid; None if that depends on something that is not decided here."""
    if isinstance(part.schema, bool):
        return part.schema
    if depth > _DEEPEST:
        return None
    part.document.budget.spend()
    return _combine(is_allowed(value, part, keyword, depth) for keyword, _ in list_keywords(part))


def is_allowed(value: Any, part: SchemaPart, keyword: str, depth: int = 0) -> bool | None:
    """Tell whether one keyword of a schema allows a value; None if that is not decided here."""
    limit = part.schema[keyword]
    if keyword in _SCALAR_KEYWORDS:
        return _is_scalar_allowed(value, keyword, limit)
    if keyword in _SIZES:
        kind, sign = _SIZES[keyword]
        return get_kind(value) != kind or len(value) * sign >= limit * sign
    match keyword:
        case "type":
            return get_kind(value) in read_kinds(limit)
        case "const":
            return are_equal(value, limit)
        case "enum":
            return any(are_equal(value, each) for each in limit)
        case "required":
            return not isinstance(value, dict) or all(name in value for name in limit)
        case "uniqueItems" if isinstance(value, list):
            return not limit or _has_unique_items(value)
        case "uniqueItems":
            return True
        case _:
            return _is_allowed_by_parts(value, part, keyword, depth + 1)


def _is_allowed_by_parts(value: Any, part: SchemaPart, keyword: str, depth: int) -> bool | None:
    """Check a keyword that holds other schemas."""
    limit = part.schema[keyword]
    match keyword:
        case "$ref":
            target = part.resolve()
            return None if target is None else is_valid(value, target, depth)
        case "allOf":
            return _combine(is_valid(value, part.get_part(each), depth) for each in limit)
        case "anyOf":
            results = [is_valid(value, part.get_part(each), depth) for each in limit]
            return True if True in results else None if None in results else False
        case "oneOf":
            results = [is_valid(value, part.get_part(each), depth) for each in limit]
            return None if None in results else results.count(True) == 1
        case "not":
            result = is_valid(value, part.get_part(limit), depth)
            return None if result is None else not result
        case "properties" if isinstance(value, dict):
            return _combine(
                is_valid(value[name], part.get_part(each), depth) for name, each in limit.items() if name in value
            )
        case "additionalProperties" if isinstance(value, dict) and "patternProperties" not in part.schema:
            names = value.keys() - part.schema.get("properties", {}).keys()
            return _combine(is_valid(value[name], part.get_part(limit), depth) for name in names)
        case "items" if isinstance(value, list) and "prefixItems" not in part.schema and len(value) <= _MAX_ITEMS:
            return _combine(is_valid(each, part.get_part(limit), depth) for each in value)
        case "properties" | "additionalProperties" if not isinstance(value, dict):
            return True
        case "items" | "prefixItems" | "contains" if not isinstance(value, list):
            return True
        case _:
            return None


def _is_scalar_allowed(value: Any, keyword: str, limit: Any) -> bool | None:
    if isinstance(value, dict | list | bool | None):
        return True
    if isinstance(value, str) != (keyword in ("minLength", "maxLength", "pattern", "format")):
        return True
    if isinstance(value, str) and len(value) > _MAX_TEXT_LENGTH:
        return None
    return check_scalar(value, keyword, limit)


def check_scalar(value: str | float, keyword: str, limit: str | float) -> bool | None:
    """Check a text or a number with the validator that checks calls; None if the keyword is invalid."""
    validator = _compile_keyword(keyword, limit)
    return None if validator is None else validator.is_valid(value)


@lru_cache(maxsize=1024, typed=True)
def _compile_keyword(keyword: str, limit: str | float) -> Validator | None:
    try:
        return compile_schema({keyword: limit})
    except (BadSchema, ValueError, TypeError):
        return None


def _has_unique_items(items: list[Any]) -> bool | None:
    if len(items) > _MAX_ITEMS:
        return None
    return not any(are_equal(one, other) for place, one in enumerate(items) for other in items[:place])


def _combine(results: Iterable[bool | None]) -> bool | None:
    """Combine the results of keywords that must all hold: False decides, and None is open."""
    is_open = False
    for result in results:
        if result is False:
            return False
        is_open = is_open or result is None
    return None if is_open else True
