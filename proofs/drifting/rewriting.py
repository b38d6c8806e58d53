"""The same declarations, written otherwise: members, sets and tools in another order, JSON spelt in another way."""

import json
import random
from typing import Any

_SETS = frozenset({"required", "enum", "type", "anyOf", "allOf", "oneOf"})
_BY_NAME = frozenset({"properties", "$defs", "definitions"})


def rewritten(tools: list[dict[str, Any]], chance: random.Random) -> str:
    """The text of a list of the same tools."""
    return written([_tool(each, chance) for each in _mixed(tools, chance)], chance)


def written(value: Any, chance: random.Random) -> str:
    """JSON with space, escapes and numbers as some other library might write them."""
    match value:
        case dict():
            members = (f"{_text(key, chance)}{_space(chance)}:{written(each, chance)}" for key, each in value.items())
            return _space(chance) + "{" + ",".join(members) + _space(chance) + "}"
        case list():
            return "[" + ",".join(written(each, chance) for each in value) + _space(chance) + "]"
        case str():
            return _space(chance) + _text(value, chance)
        case bool() | None:
            return json.dumps(value)
        case int() if abs(value) < 2**53 and chance.random() < 0.5:
            return _space(chance) + chance.choice((f"{value}.0", f"{value}e0", f"{value}.0E+0"))
        case _:
            return json.dumps(value)


def _text(text: str, chance: random.Random) -> str:
    shown = json.dumps(text, ensure_ascii=chance.random() < 0.5)
    return shown.replace("/", "\\/") if chance.random() < 0.3 else shown


def _space(chance: random.Random) -> str:
    return chance.choice(("", "", " ", "\n  ", "\t", "\r\n"))


def _tool(said: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    made = {
        name: _schema(value, chance) if name.endswith("Schema") else _shuffled(value, chance)
        for name, value in said.items()
    }
    made["_meta"] = {"example.org/rank": chance.random(), "example.org/seen": [chance.random()]}
    if chance.random() < 0.5:
        del made["_meta"]
    return _order(made, chance)


def _schema(node: Any, chance: random.Random) -> Any:
    if not isinstance(node, dict):
        return node
    made: dict[str, Any] = {}
    for keyword, value in node.items():
        if keyword in _SETS and isinstance(value, list):
            made[keyword] = _mixed([_schema(each, chance) for each in value], chance)
        elif keyword in _BY_NAME:
            made[keyword] = _order({name: _schema(each, chance) for name, each in value.items()}, chance)
        elif keyword == "dependencies":
            made[keyword] = {name: _mixed(each, chance) for name, each in value.items()}
        elif keyword == "items" and isinstance(value, list):
            made[keyword] = [_schema(each, chance) for each in value]
        else:
            made[keyword] = _schema(value, chance)
    return _order(made, chance)


def _shuffled(value: Any, chance: random.Random) -> Any:
    return _order(value, chance) if isinstance(value, dict) else value


def _order(value: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    return dict(_mixed(list(value.items()), chance))


def _mixed(members: list[Any], chance: random.Random) -> list[Any]:
    return chance.sample(members, len(members))
