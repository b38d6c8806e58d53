"""What a server's definition of a tool means, apart from how it was written: the ground that pins stand on.

Nothing that a server declares is left out but its asides to other clients (`_meta`). What JSON or JSON Schema says
has no order gets one, so that two ways to write one thing have one digest; whatever else differs, differs.
"""

from collections.abc import Callable, Mapping
from typing import Any

from deputize.core.canonical import NotCanonical, canonical, digest

_ASIDES = frozenset({"_meta"})
_SCHEMAS = frozenset({"inputSchema", "outputSchema"})
# Keywords of a schema by what they hold. The lists under the first two are sets: their order says nothing about what is
# valid. `items` and `dependencies` come in two shapes.
_SETS = frozenset({"required", "type", "enum"})
_SETS_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf"})
_SETS_BY_NAME = frozenset({"dependentRequired", "dependencies"})
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_ONE_OR_MORE = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames", "items", "prefixItems", "additionalItems",
     "unevaluatedItems", "contains", "not", "if", "then", "else", "contentSchema"}
)  # fmt: skip
# Deeper than any schema that is admitted, order counts: sorting takes time, and whoever sends this much gets none.
_DEEPEST = 64
_LARGEST = 2**53 - 1
_MARK = "\0"


def without_asides(said: Mapping[str, Any]) -> dict[str, Any]:
    """What was said to everybody. `_meta` is for clients that know its keys; nobody here does, nor passes it on."""
    return {name: value for name, value in said.items() if name not in _ASIDES}


def digest_of(said: Mapping[str, Any]) -> str:
    """Names what a definition means. Raises `NotCanonical` for what JSON cannot say."""
    try:
        meant = {
            _name(name): _schema(value, 0) if name in _SCHEMAS else _value(value)
            for name, value in without_asides(said).items()
        }
    except RecursionError as error:
        raise NotCanonical("it nests too deep") from error
    return digest(meant)


def _schema(node: Any, level: int) -> Any:
    if not isinstance(node, dict) or level > _DEEPEST:
        return _value(node)
    return {_name(keyword): _held(keyword, value, level + 1) for keyword, value in node.items()}


def _held(keyword: str, value: Any, level: int) -> Any:
    if keyword in _SETS:
        return _set(value, _value)
    if keyword in _SETS_OF_SCHEMAS:
        return _set(value, lambda each: _schema(each, level))
    if keyword in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {_name(name): _schema(each, level) for name, each in value.items()}
    if keyword in _SETS_BY_NAME and isinstance(value, dict):
        return {
            _name(name): _set(each, _value) if isinstance(each, list) else _schema(each, level)
            for name, each in value.items()
        }
    if keyword in _ONE_OR_MORE:
        return [_schema(each, level) for each in value] if isinstance(value, list) else _schema(value, level)
    return _value(value)


def _set(value: Any, meaning: Callable[[Any], Any]) -> Any:
    return sorted(map(meaning, value), key=canonical) if isinstance(value, list) else _value(value)


def _value(value: Any) -> Any:
    """A value with whole numbers that have no canonical form as text, marked so that no text means the same."""
    if isinstance(value, dict):
        return {_name(name): _value(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_value(each) for each in value]
    if isinstance(value, int | float) and abs(value) > _LARGEST and value == value // 1:
        return {_MARK: str(int(value))}
    return value


def _name(name: str) -> str:
    return _MARK + name if name.startswith(_MARK) else name
