"""The same declarations, written otherwise: members, sets and tools in another order, JSON spelt in another way."""

import json
import random
from typing import Any

_SET_KEYWORDS = frozenset({"required", "enum", "type", "anyOf", "allOf", "oneOf"})
_NAME_MAPS = frozenset({"properties", "$defs", "definitions"})


def rewrite_tools(tools: list[dict[str, Any]], rng: random.Random) -> str:
    """The text of a list of the same tools."""
    return render_json([_rewrite_tool(each, rng) for each in _shuffle_items(tools, rng)], rng)


def render_json(value: Any, rng: random.Random) -> str:
    """JSON with space, escapes and numbers as some other library might write them."""
    match value:
        case dict():
            members = (
                f"{_render_text(key, rng)}{_pick_space(rng)}:{render_json(each, rng)}" for key, each in value.items()
            )
            return _pick_space(rng) + "{" + ",".join(members) + _pick_space(rng) + "}"
        case list():
            return "[" + ",".join(render_json(each, rng) for each in value) + _pick_space(rng) + "]"
        case str():
            return _pick_space(rng) + _render_text(value, rng)
        case bool() | None:
            return json.dumps(value)
        case int() if abs(value) < 2**53 and rng.random() < 0.5:
            return _pick_space(rng) + rng.choice((f"{value}.0", f"{value}e0", f"{value}.0E+0"))
        case _:
            return json.dumps(value)


def _render_text(text: str, rng: random.Random) -> str:
    json_text = json.dumps(text, ensure_ascii=rng.random() < 0.5)
    return json_text.replace("/", "\\/") if rng.random() < 0.3 else json_text


def _pick_space(rng: random.Random) -> str:
    return rng.choice(("", "", " ", "\n  ", "\t", "\r\n"))


def _rewrite_tool(definition: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    rewritten_tool = {
        name: _rewrite_schema(value, rng) if name.endswith("Schema") else _shuffle_mapping(value, rng)
        for name, value in definition.items()
    }
    rewritten_tool["_meta"] = {"example.org/rank": rng.random(), "example.org/seen": [rng.random()]}
    if rng.random() < 0.5:
        del rewritten_tool["_meta"]
    return _shuffle_members(rewritten_tool, rng)


def _rewrite_schema(node: Any, rng: random.Random) -> Any:
    if not isinstance(node, dict):
        return node
    rewritten_schema: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in _SET_KEYWORDS and isinstance(value, list):
            rewritten_schema[keyword] = _shuffle_items([_rewrite_schema(each, rng) for each in value], rng)
        elif keyword in _NAME_MAPS:
            rewritten_schema[keyword] = _shuffle_members(
                {name: _rewrite_schema(each, rng) for name, each in value.items()}, rng
            )
        elif keyword == "dependencies":
            rewritten_schema[keyword] = {name: _shuffle_items(each, rng) for name, each in value.items()}
        elif keyword == "items" and isinstance(value, list):
            rewritten_schema[keyword] = [_rewrite_schema(each, rng) for each in value]
        else:
            rewritten_schema[keyword] = _rewrite_schema(value, rng)
    return _shuffle_members(rewritten_schema, rng)


def _shuffle_mapping(value: Any, rng: random.Random) -> Any:
    return _shuffle_members(value, rng) if isinstance(value, dict) else value


def _shuffle_members(value: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    return dict(_shuffle_items(list(value.items()), rng))


def _shuffle_items(members: list[Any], rng: random.Random) -> list[Any]:
    return rng.sample(members, len(members))
