"""Narrow the schema of a result to the fields of the response that are kept."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.catalog.schemas import resolve_refs, walk_schema
from deputize.core.contract.contract import Schema
from deputize.core.contract.response_fields import EACH_ITEM, FieldTree, build_field_tree

_MAX_BRANCHES: Final = 100
# Parts of a result that only answers without JSON have.
_OTHER_BODIES: Final = frozenset({"text", "base64", "media_type"})


class MissingField(ValueError):
    """The schema does not declare a field that is to be kept; the message is its pointer."""


def narrow_result_schema(schema: Schema, pointers: Iterable[str]) -> Schema:
    """Return the schema of a result with only these fields of its body, or raise `MissingField`."""
    properties = {name: part for name, part in _get_map(schema, "properties").items() if name not in _OTHER_BODIES}
    body = _narrow(schema, properties.get("body", {}), build_field_tree(pointers), "")
    narrow_schema = {**schema, "properties": {**properties, "body": body}}
    definitions = _collect_definitions(narrow_schema)
    narrow_schema.pop("$defs", None)
    return {**narrow_schema, **({"$defs": definitions} if definitions else {})}


@dataclass(kw_only=True, slots=True)
class _Branches:
    """The schemas that apply to one value, together or as alternatives, and what they say about null."""

    schemas: list[Schema] = field(default_factory=list)
    is_nullable: bool = False
    has_alternatives: bool = False


def _narrow(root: Schema, node: Any, tree: FieldTree | None, pointer: str) -> Any:
    if tree is None:
        return node
    branches = _Branches()
    _collect_branches(root, node, branches)
    if EACH_ITEM in tree and len(tree) > 1:
        raise MissingField(f"{pointer}/{next(name for name in tree if name != EACH_ITEM)}")
    parts = {step: _narrow_step(root, branches.schemas, step, part, f"{pointer}/{step}") for step, part in tree.items()}
    kind = "array" if EACH_ITEM in tree else "object"
    narrow_schema: Schema = {"type": [kind, "null"] if branches.is_nullable else kind}
    if kind == "array":
        return {**narrow_schema, "items": parts[EACH_ITEM]}
    required_names = {name for each in branches.schemas for name in _get_list(each, "required") if name in parts}
    return {
        **narrow_schema,
        "properties": parts,
        "additionalProperties": False,
        **({"required": sorted(required_names)} if required_names and not branches.has_alternatives else {}),
    }


def _narrow_step(root: Schema, schemas: list[Schema], step: str, tree: FieldTree | None, pointer: str) -> Any:
    """Narrow what the schemas say about one field; those of alternatives that have it are alternatives again."""
    children = [each["items"] for each in schemas if "items" in each] if step == EACH_ITEM else []
    if step != EACH_ITEM:
        children = [each["properties"][step] for each in schemas if step in _get_map(each, "properties")]
    results: list[Any] = []
    missing: MissingField | None = None
    for each in children:
        try:
            result = _narrow(root, each, tree, pointer)
        except MissingField as error:
            missing = error
            continue
        results += [] if result in results else [result]
    if not results:
        raise missing or MissingField(pointer)
    return results[0] if len(results) == 1 else {"anyOf": results}


def _collect_branches(root: Schema, node: Any, branches: _Branches) -> None:
    full = resolve_refs(root, node)
    if not isinstance(full, dict) or len(branches.schemas) >= _MAX_BRANCHES:
        return
    kinds = full.get("type")
    if kinds == "null":
        branches.is_nullable = True
        return
    branches.is_nullable = branches.is_nullable or (isinstance(kinds, list) and "null" in kinds)
    branches.schemas.append(full)
    for each in _get_list(full, "allOf"):
        _collect_branches(root, each, branches)
    for keyword in ("anyOf", "oneOf"):
        alternatives = [each for each in _get_list(full, keyword) if each != {"type": "null"}]
        branches.has_alternatives = branches.has_alternatives or len(alternatives) > 1
        for each in _get_list(full, keyword):
            _collect_branches(root, each, branches)


def _get_list(schema: Schema, keyword: str) -> list[Any]:
    value = schema.get(keyword)
    return value if isinstance(value, list) else []


def _get_map(schema: Schema, keyword: str) -> dict[str, Any]:
    value = schema.get(keyword)
    return value if isinstance(value, dict) else {}


def _collect_definitions(schema: Schema) -> Schema:
    """Collect the definitions that the schema still reaches."""
    all_definitions = _get_map(schema, "$defs")
    definitions: Schema = {}
    names = list(_iterate_references({key: part for key, part in schema.items() if key != "$defs"}))
    while names:
        name = names.pop()
        if name in all_definitions and name not in definitions:
            definitions[name] = all_definitions[name]
            names += _iterate_references(all_definitions[name])
    return definitions


def _iterate_references(schema: Any) -> Iterator[str]:
    for _, node in walk_schema(schema):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/$defs/"):
            yield reference.removeprefix("#/$defs/").partition("/")[0].replace("~1", "/").replace("~0", "~")
