"""Generate definitions with Hypothesis, rewrite them without changing their meaning, and change one value."""

import json
import random
from typing import Any

from hypothesis import strategies as st

_WORDS = st.text(alphabet="abcdefgh_", min_size=1, max_size=6)
_TEXTS = st.text(max_size=20)
_NUMBERS = st.one_of(
    st.integers(min_value=-(2**70), max_value=2**70), st.floats(allow_nan=False, allow_infinity=False, width=32)
)
_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _TEXTS),
    lambda inside: st.one_of(
        st.lists(inside, max_size=3),
        # Schema keywords in places where they are plain data, so that order matters.
        st.dictionaries(st.one_of(_WORDS, st.sampled_from(["required", "enum", "anyOf", "\0"])), inside, max_size=3),
    ),
    max_leaves=6,
)
_LEAVES = st.one_of(
    st.fixed_dictionaries(
        {"type": st.lists(st.sampled_from(["string", "integer", "null"]), unique=True)},
        optional={"description": _TEXTS, "default": _VALUES, "examples": st.lists(_VALUES, max_size=3)},
    ),
    st.fixed_dictionaries({"enum": st.lists(_VALUES, max_size=4)}),
    st.fixed_dictionaries({"type": st.just("number")}, optional={"minimum": _NUMBERS, "maximum": _NUMBERS}),
    st.booleans(),
)


def _object_schemas(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(st.one_of(_WORDS, st.sampled_from(["required", "enum"])), inside, max_size=3),
            "required": st.lists(_WORDS, unique=True, max_size=4),
            "anyOf": st.lists(inside, max_size=3),
            "allOf": st.lists(inside, max_size=2),
            "items": inside,
            "prefixItems": st.lists(inside, max_size=3),
            "dependentRequired": st.dictionaries(_WORDS, st.lists(_WORDS, unique=True), max_size=2),
            "$defs": st.dictionaries(_WORDS, inside, max_size=2),
        },
    )


SCHEMAS = st.recursive(_LEAVES, _object_schemas, max_leaves=12)
DEFINITIONS: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"name": _WORDS, "inputSchema": _object_schemas(SCHEMAS)},
    optional={
        "title": _TEXTS,
        "description": _TEXTS,
        "outputSchema": _object_schemas(SCHEMAS),
        "annotations": st.dictionaries(_WORDS, _VALUES, max_size=3),
        "_meta": st.dictionaries(_WORDS, _VALUES, max_size=2),
    },
)


def rewrite_definition(definition: dict[str, Any], seed: int) -> dict[str, Any]:
    """Rewrite a definition with the same meaning: another order where that is irrelevant, and other JSON formatting."""
    chance = random.Random(seed)
    made = {
        name: _rewrite_schema(value, chance)
        if name in ("inputSchema", "outputSchema")
        else _rewrite_value(value, chance)
        for name, value in definition.items()
    }
    made["_meta"] = {"seen": chance.random()}
    text = json.dumps(
        _shuffle_keys(made, chance), indent=chance.choice((None, 1, 7)), ensure_ascii=chance.random() < 0.5
    )
    read: dict[str, Any] = json.loads(text)
    return read


def _rewrite_schema(node: Any, chance: random.Random) -> Any:
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in ("required", "enum", "type") and isinstance(value, list):
            made[keyword] = _shuffle_list([_rewrite_value(each, chance) for each in value], chance)
        elif keyword in ("anyOf", "allOf"):
            made[keyword] = _shuffle_list([_rewrite_schema(each, chance) for each in value], chance)
        elif keyword in ("properties", "$defs"):
            made[keyword] = _shuffle_keys({name: _rewrite_schema(each, chance) for name, each in value.items()}, chance)
        elif keyword == "dependentRequired":
            made[keyword] = _shuffle_keys({name: _shuffle_list(each, chance) for name, each in value.items()}, chance)
        elif keyword == "prefixItems":
            made[keyword] = [_rewrite_schema(each, chance) for each in value]
        else:
            made[keyword] = _rewrite_schema(value, chance) if keyword == "items" else _rewrite_value(value, chance)
    return _shuffle_keys(made, chance)


def _rewrite_value(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict):
        return _shuffle_keys({name: _rewrite_value(each, chance) for name, each in value.items()}, chance)
    if isinstance(value, list):
        return [_rewrite_value(each, chance) for each in value]
    if type(value) is int and abs(value) < 2**53 and chance.random() < 0.5:
        return float(value)
    return value


def _shuffle_list(members: list[Any], chance: random.Random) -> list[Any]:
    return chance.sample(members, len(members))


def _shuffle_keys(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    return dict(_shuffle_list(list(value.items()), chance))


def change_definition(definition: dict[str, Any], seed: int) -> dict[str, Any]:
    """Change one value of a definition outside `_meta`: a string, number, boolean, member or name."""
    chance = random.Random(seed)
    made: dict[str, Any] = json.loads(json.dumps(definition))
    places: list[tuple[Any, Any]] = [(made, key) for key in made if key != "_meta"]
    for holder, key in places:
        value = holder[key]
        if isinstance(value, dict):
            places += [(value, inside) for inside in value]
        elif isinstance(value, list):
            places += [(value, inside) for inside in range(len(value))]
    holder, key = chance.choice(places)
    holder[key] = _other_value(holder[key], chance)
    return made


def _other_value(value: Any, chance: random.Random) -> Any:
    match value:
        case bool() | None:
            return not value
        case int() | float():
            return value + 1 if abs(value) < 2**50 else value * 2
        case str():
            place = chance.randint(0, len(value))
            return value[:place] + chance.choice(("x", "\u200b", " ", "\U000e0041")) + value[place:]
        case list():
            return value[1:] if value and chance.random() < 0.5 else [*value, "new"]
        case dict() if value and chance.random() < 0.5:
            return {name: each for name, each in value.items() if name != next(iter(value))}
        case _:
            return {**value, "brand new": True}
