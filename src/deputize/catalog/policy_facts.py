"""Read which arguments of a contract policies may use, and under which names and types: its facts.

A top-level property marked `"x-policy": true` is a fact of the same name, `"x-policy": "name"` one under another name.
So is a marked property of the argument `body`, which holds the arguments of most requests of HTTP services.
A fact name has one type in the whole tenant, because policies are type-checked against all facts together.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from deputize.catalog.schemas import format_pointer, get_properties, resolve_refs, walk_schema
from deputize.core.contract.contract import Contract, Schema
from deputize.core.contract.http_request import BODY_ARGUMENT
from deputize.core.sensitive.names import is_sensitive_name

FactType = Literal["Long", "String", "Bool", "Set<String>"]
# Return the type a fact has in the tenant and a tool that declares it; None if the name is free.
FactLookup = Callable[[str], tuple[FactType, str] | None]

POLICY_KEYWORD = "x-policy"
# A path in its one normal form: absolute, no empty, `.` or `..` segment, no backslash and no control character.
_SEGMENT = (
    r"(?:[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*"
    r"|\.[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*"
    r"|\.\.[^/\\\x00-\x1f\x7f]+)"
)
_NORMAL_PATH = f"/(?:{_SEGMENT}(?:/{_SEGMENT})*)?"
PATH_PATTERN: Final = f"^{_NORMAL_PATH}$"
TEXT_OR_PATH_PATTERN: Final = rf"^(?:[^/\\\x00-\x1f\x7f]*|{_NORMAL_PATH})$"
PATH_FORM: Final = "an absolute path without . or .. segments, //, a trailing slash, backslashes or control characters"
_NAME = re.compile(r"(?!__)[A-Za-z_][A-Za-z0-9_]{0,63}")
_TYPES: Mapping[str, FactType] = {"integer": "Long", "string": "String", "boolean": "Bool"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyFact:
    """An argument that policies may read, or a member of one. The value of a sensitive one is never recorded."""

    name: str
    argument: str
    type: FactType
    is_sensitive: bool = False
    member: str | None = None


def find_no_fact(name: str) -> None:
    """Return None for every name, as an empty registry does."""


def list_facts(contract: Contract) -> tuple[PolicyFact, ...]:
    """List the facts of a contract. An invalid mark exposes nothing here; admission rejects it."""
    return tuple(iter_facts(contract.input_schema))


def iter_facts(schema: Schema) -> Iterator[PolicyFact]:
    """Yield the facts that an input schema marks."""
    for properties, is_body in ((get_properties(schema), False), (_get_body_properties(schema), True)):
        for argument, part, name in _iter_policy_properties(properties):
            kind = resolve_fact_type(schema, part)
            if kind is not None and _NAME.fullmatch(name):
                yield PolicyFact(
                    name=name,
                    argument=BODY_ARGUMENT if is_body else argument,
                    type=kind,
                    is_sensitive=_is_sensitive(schema, argument, name, part),
                    member=argument if is_body else None,
                )


def read_fact_values(facts: Iterable[PolicyFact], call_input: Mapping[str, Any]) -> dict[str, Any]:
    """Read the facts of one call by name. An argument that is absent or null is an absent fact."""
    values: dict[str, Any] = {}
    for fact in facts:
        value = call_input.get(fact.argument)
        if fact.member is not None:
            value = value.get(fact.member) if isinstance(value, dict) else None
        if value is None:
            continue
        if fact.type == "Long":
            value = int(value)  # 3.0 is an integer in JSON Schema but not in Cedar
        elif fact.type == "Set<String>":
            value = tuple(sorted(set(value)))
        values[fact.name] = value
    return values


def read_defaults(schema: Schema, arguments: Iterable[str]) -> dict[str, Any]:
    """Read the defaults that the schema declares for these arguments."""
    properties = get_properties(schema)
    parts = {name: properties[name] for name in arguments if isinstance(properties.get(name), dict)}
    defaults = {name: part.get("default", resolve_refs(schema, part).get("default")) for name, part in parts.items()}
    return {name: value for name, value in defaults.items() if value is not None}


def find_mark_faults(contract: Contract, find_fact: FactLookup = find_no_fact) -> Iterator[tuple[str, str, str]]:
    """Yield each invalid mark as its path, the fault and the fix."""
    schema = contract.input_schema
    markable = {id(part) for part in (*get_properties(schema).values(), *_get_body_properties(schema).values())}
    for path, node in walk_schema(schema):
        if POLICY_KEYWORD in node and id(node) not in markable:
            fix = "mark a top-level property, or remove the mark"
            yield format_pointer(("input_schema", *path, POLICY_KEYWORD)), "is not on a top-level property", fix
    argument_by_name: dict[str, tuple[str, ...]] = {}
    places: list[tuple[tuple[str, ...], Any]] = [
        (("properties", name), part) for name, part in get_properties(schema).items()
    ]
    places += [
        (("properties", BODY_ARGUMENT, "properties", name), part) for name, part in _get_body_properties(schema).items()
    ]
    for path, part in places:
        if isinstance(part, dict) and part.get(POLICY_KEYWORD, False) is not False:
            where = format_pointer(("input_schema", *path, POLICY_KEYWORD))
            for fault, fix in _check_mark(schema, path, part, argument_by_name, find_fact):
                yield where, fault, fix


def _check_mark(
    schema: Schema,
    path: tuple[str, ...],
    part: Schema,
    argument_by_name: dict[str, tuple[str, ...]],
    find_fact: FactLookup,
) -> Iterator[tuple[str, str]]:
    mark = part[POLICY_KEYWORD]
    name = path[-1] if mark is True else mark
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        fix = f'write true, or a name of letters, digits and _, as in "{POLICY_KEYWORD}": "amount"'
        yield "is not a name that policies can use", fix
        return
    kind = resolve_fact_type(schema, part)
    if kind is None:
        fix = "mark only integers, strings, booleans and lists of strings"
        yield "is on a property of a type that policies cannot read", fix
        return
    first = argument_by_name.setdefault(name, path)
    if first != path:
        yield f"uses the fact name {name}, which {first[-1]} already has", "give each fact its own name"
    other = find_fact(name)
    if other is not None and other[0] != kind:
        fix = f'use another name, as in "{POLICY_KEYWORD}": "{name}_{kind.partition("<")[0].lower()}"'
        yield f"declares the fact {name} as {kind}, but {other[1]} declares it as {other[0]}", fix


def _get_body_properties(schema: Schema) -> Mapping[str, Any]:
    """Return the properties of the argument `body` that stand beside it: those of a shared definition have no marks."""
    body = get_properties(schema).get(BODY_ARGUMENT)
    properties = body.get("properties") if isinstance(body, dict) else None
    return properties if isinstance(properties, dict) else {}


def _iter_policy_properties(properties: Mapping[str, Any]) -> Iterator[tuple[str, Schema, str]]:
    for argument, part in properties.items():
        mark = part.get(POLICY_KEYWORD) if isinstance(part, dict) else None
        if mark is True or isinstance(mark, str):
            yield argument, part, argument if mark is True else mark


def resolve_fact_type(schema: Schema, part: Any) -> FactType | None:
    """Resolve the type that a property has in policies; None if they cannot read it."""
    full = resolve_refs(schema, part)
    if not isinstance(full, dict):
        return None
    branches = full.get("anyOf", full.get("oneOf"))
    if isinstance(branches, list) and "type" not in full:
        # An optional argument has one type or null.
        real = [each for each in (resolve_refs(schema, branch) for branch in branches) if each != {"type": "null"}]
        return resolve_fact_type(schema, real[0]) if len(real) == 1 else None
    kinds = full.get("type")
    type_names = [kind for kind in kinds if kind != "null"] if isinstance(kinds, list) else [kinds]
    if len(type_names) != 1:
        return None
    if type_names[0] == "array":
        items = resolve_refs(schema, full.get("items"))
        return "Set<String>" if isinstance(items, dict) and items.get("type") == "string" else None
    return _TYPES.get(type_names[0]) if isinstance(type_names[0], str) else None


def _is_sensitive(schema: Schema, argument: str, name: str, part: Schema) -> bool:
    if is_sensitive_name(argument) or is_sensitive_name(name):
        return True
    full = resolve_refs(schema, part)
    inside = [full, *(resolve_refs(schema, node) for _, node in walk_schema(full))]
    return any(node.get("x-sensitivity", "public") != "public" or node.get("writeOnly") is True for node in inside)
