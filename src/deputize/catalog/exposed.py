"""Which arguments a contract lets policies read, under which names and types: its facts.

A top-level property marked `"x-policy": true` is a fact of the same name, `"x-policy": "name"` one under another name.
One name means one type in a whole tenant, because rules are type-checked against all of them together.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from deputize.catalog.schemas import follow, pointer, walk
from deputize.core.contract import Contract, Schema
from deputize.core.sensitive import is_sensitive_name

FactType = Literal["Long", "String", "Bool", "Set<String>"]
# The type a tenant's tools already give a fact, and the tool that does; None when the name is free.
KnownFact = Callable[[str], tuple[FactType, str] | None]

MARK = "x-policy"
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}")
_TYPES: Mapping[str, FactType] = {"integer": "Long", "string": "String", "boolean": "Bool"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One argument that policies may read. A sensitive one is judged by, and never written down."""

    name: str
    argument: str
    type: FactType
    sensitive: bool = False


def no_facts(name: str) -> None:
    """The answer of an empty registry."""


def exposed(contract: Contract) -> tuple[Fact, ...]:
    """The facts of a contract; a mark that means nothing exposes nothing, and admission refuses it."""
    return tuple(facts_in(contract.input_schema))


def facts_in(schema: Schema) -> Iterator[Fact]:
    for argument, part, name in _marked(schema):
        kind = _type_of(schema, part)
        if kind is not None and _NAME.fullmatch(name):
            yield Fact(name=name, argument=argument, type=kind, sensitive=_is_sensitive(schema, argument, name, part))


def facts_of(facts: Iterable[Fact], call_input: Mapping[str, Any]) -> dict[str, Any]:
    """What one call tells policies. An argument that is absent or null is an absent fact."""
    told: dict[str, Any] = {}
    for fact in facts:
        value = call_input.get(fact.argument)
        if value is None:
            continue
        if fact.type == "Long":
            value = int(value)  # 3.0 is an integer to JSON Schema and none to Cedar
        elif fact.type == "Set<String>":
            value = tuple(sorted(set(value)))
        told[fact.name] = value
    return told


def defaults_in(schema: Schema, arguments: Iterable[str]) -> dict[str, Any]:
    """What these arguments are where a call does not give them, as far as the schema says."""
    properties = _properties(schema)
    parts = {name: properties[name] for name in arguments if isinstance(properties.get(name), dict)}
    told = {name: part.get("default", follow(schema, part).get("default")) for name, part in parts.items()}
    return {name: value for name, value in told.items() if value is not None}


def mark_faults(contract: Contract, known: KnownFact = no_facts) -> Iterator[tuple[str, str, str]]:
    """What is wrong with the marks: where, what, and what to do about it."""
    schema = contract.input_schema
    top = {id(part) for part in _properties(schema).values()}
    for path, node in walk(schema):
        if MARK in node and id(node) not in top:
            fix = "mark a property of the input itself, or leave the mark out"
            yield pointer(("input_schema", *path, MARK)), "is not at the top of the input", fix
    named: dict[str, str] = {}
    for argument, part in _properties(schema).items():
        if isinstance(part, dict) and part.get(MARK, False) is not False:
            where = pointer(("input_schema", "properties", argument, MARK))
            for fault, fix in _faults(schema, argument, part, named, known):
                yield where, fault, fix


def _faults(
    schema: Schema, argument: str, part: Schema, named: dict[str, str], known: KnownFact
) -> Iterator[tuple[str, str]]:
    mark = part[MARK]
    name = argument if mark is True else mark
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = f'write true, or a name of letters, digits and _, as in "{MARK}": "amount"'
        yield "is no name that rules can use", fix
        return
    kind = _type_of(schema, part)
    if kind is None:
        yield "is on a value rules cannot read", "mark integers, strings, booleans and lists of strings only"
        return
    first = named.setdefault(name, argument)
    if first != argument:
        yield f"gives {name} the name that {first} has already", "give each fact its own name"
    other = known(name)
    if other is not None and other[0] != kind:
        fix = f'give it a name of its own, as in "{MARK}": "{name}_{kind.partition("<")[0].lower()}"'
        yield f"makes {name} a {kind}, and {other[1]} makes it a {other[0]}", fix


def _marked(schema: Schema) -> Iterator[tuple[str, Schema, str]]:
    for argument, part in _properties(schema).items():
        mark = part.get(MARK) if isinstance(part, dict) else None
        if mark is True or isinstance(mark, str):
            yield argument, part, argument if mark is True else mark


def _type_of(schema: Schema, part: Any) -> FactType | None:
    full = follow(schema, part)
    if not isinstance(full, dict):
        return None
    branches = full.get("anyOf", full.get("oneOf"))
    if isinstance(branches, list) and "type" not in full:
        # An optional argument: one type, or null.
        real = [each for each in (follow(schema, branch) for branch in branches) if each != {"type": "null"}]
        return _type_of(schema, real[0]) if len(real) == 1 else None
    kinds = full.get("type")
    several = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
    if len(several) != 1:
        return None
    if several[0] == "array":
        items = follow(schema, full.get("items"))
        return "Set<String>" if isinstance(items, dict) and items.get("type") == "string" else None
    return _TYPES.get(several[0]) if isinstance(several[0], str) else None


def _is_sensitive(schema: Schema, argument: str, name: str, part: Schema) -> bool:
    if is_sensitive_name(argument) or is_sensitive_name(name):
        return True
    full = follow(schema, part)
    inside = [full, *(follow(schema, node) for _, node in walk(full))]
    return any(node.get("x-sensitivity", "public") != "public" or node.get("writeOnly") is True for node in inside)


def _properties(schema: Schema) -> Mapping[str, Any]:
    found = follow(schema, schema).get("properties")
    return found if isinstance(found, dict) else {}
