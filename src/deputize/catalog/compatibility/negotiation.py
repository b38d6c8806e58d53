"""Negotiate a version of a tool: compare what an agent expects with what each offered version has.

A version matches in full if it has every expected part, partially if only optional parts are missing, and not at all
if a required part is missing. What cannot be shown to be offered counts as missing.

An agent's input schema describes what it sends: it sends no argument that the schema does not list, and may leave out
those that it does not require. Its output schema describes what it reads: it ignores fields that the schema does not
list, and can do without those that it does not require.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from deputize.catalog.compatibility.breaks import BreakView, Path, SchemaBreak
from deputize.catalog.compatibility.schema_changes import find_breaks
from deputize.catalog.schemas import resolve_refs
from deputize.core.contract.contract import Effects, Schema
from deputize.core.contract.expectation import AgentExpectation, ExpectedSide

# Keywords beside which a schema's own properties are not all that a value can have.
_OPEN_KEYWORDS: Final = frozenset(
    {"additionalProperties", "unevaluatedProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "if",
     "dependentSchemas"}
)  # fmt: skip
_EACH_ITEM: Final = "*"
_RANK: Final = {effects: rank for rank, effects in enumerate(Effects)}
_MAX_PARTS: Final = 50


class Match(StrEnum):
    """How well a version offers what an agent expects."""

    FULL = "FULL"
    PARTIAL = "PARTIAL"
    INCOMPATIBLE = "INCOMPATIBLE"


@dataclass(frozen=True, kw_only=True, slots=True)
class MissingPart:
    """An expected part that a version does not offer: where it is expected, whether it is required, and why."""

    path: str
    is_required: bool
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "required": self.is_required, "reason": self.reason}


def judge_match(missing_parts: Sequence[MissingPart]) -> Match:
    """Judge a version by the parts that it does not offer."""
    if not missing_parts:
        return Match.FULL
    return Match.INCOMPATIBLE if any(each.is_required for each in missing_parts) else Match.PARTIAL


def list_missing_parts(
    expectation: AgentExpectation, *, input_schema: Schema, output_schema: Schema, effects: Effects
) -> list[MissingPart]:
    """List the expected parts that a version does not offer, required ones first."""
    parts: dict[str, MissingPart] = {}
    for each in (
        *_check_effects(expectation, effects),
        *(() if expectation.input is None else _check_input(expectation.input, input_schema)),
        *(() if expectation.output is None else _check_output(expectation.output, output_schema)),
    ):
        if each.path not in parts or (each.is_required and not parts[each.path].is_required):
            parts[each.path] = each
    return sorted(parts.values(), key=lambda part: not part.is_required)[:_MAX_PARTS]


def _check_effects(expectation: AgentExpectation, effects: Effects) -> Iterator[MissingPart]:
    if expectation.effects is not None and _RANK[effects] > _RANK[expectation.effects]:
        reason = f"is {effects}, and you accept at most {expectation.effects}"
        yield MissingPart(path="/effects", is_required=True, reason=reason)


def _check_input(side: ExpectedSide, offered_schema: Schema) -> Iterator[MissingPart]:
    if side.schema is not None:
        sent_schema = _close_objects({"type": "object", **side.schema})
        yield from _check_sent(sent_schema, offered_schema)
    fields = dict.fromkeys(side.fields, True) | dict.fromkeys(side.optional_fields, False)
    for pointer, is_required in fields.items():
        if not _is_declared(offered_schema, _split_pointer(pointer)):
            yield MissingPart(path="/input" + pointer, is_required=is_required, reason="is not accepted")
    if fields:
        yield from _check_demands(offered_schema, offered_schema, [_split_pointer(each) for each in fields], "/input")


def _check_sent(sent_schema: Schema, offered_schema: Schema) -> Iterator[MissingPart]:
    """Check that the tool accepts all that the agent sends; where not, whether leaving out optional arguments helps."""
    breaks = find_breaks(sent_schema, offered_schema)
    optional_names = _find_optional_names(sent_schema, breaks)
    if optional_names:
        properties = {**sent_schema["properties"], **dict.fromkeys(optional_names, False)}
        required_breaks = find_breaks({**sent_schema, "properties": properties}, offered_schema)
        yield from _describe_breaks("/input", required_breaks, BreakView.SENDS, is_required=True)
        breaks = [each for each in breaks if each.path[1:2] and each.path[1] in optional_names]
    yield from _describe_breaks("/input", breaks, BreakView.SENDS, is_required=not optional_names)


def _check_output(side: ExpectedSide, offered_schema: Schema) -> Iterator[MissingPart]:
    if side.schema is not None:
        yield from _check_read(side.schema, offered_schema)
    for pointer in side.fields:
        breaks = find_breaks(offered_schema, _build_presence_schema(_split_pointer(pointer)))
        reason = "is not always in the result"
        if not _is_declared(offered_schema, _split_pointer(pointer)):
            reason = "is not in the result"
        if breaks or reason == "is not in the result":
            yield MissingPart(path="/output" + pointer, is_required=True, reason=reason)
    for pointer in side.optional_fields:
        if not _is_declared(offered_schema, _split_pointer(pointer)):
            yield MissingPart(path="/output" + pointer, is_required=False, reason="is not in the result")


def _check_read(read_schema: Schema, offered_schema: Schema) -> Iterator[MissingPart]:
    """Check that every result is what the agent can read; where not, whether ignoring optional fields helps."""
    listed_properties = read_schema.get("properties")
    for name in listed_properties if isinstance(listed_properties, dict) else ():
        if name not in _list_required(read_schema) and not _is_declared(offered_schema, (name,)):
            path = "/output" + format_data_pointer(("properties", name))
            yield MissingPart(path=path, is_required=False, reason="is not in the result")
    breaks = find_breaks(offered_schema, read_schema)
    optional_names = _find_optional_names(read_schema, breaks)
    if optional_names:
        properties = {**read_schema["properties"], **dict.fromkeys(optional_names, True)}
        required_breaks = find_breaks(offered_schema, {**read_schema, "properties": properties})
        yield from _describe_breaks("/output", required_breaks, BreakView.READS, is_required=True)
        breaks = [each for each in breaks if each.path[1:2] and each.path[1] in optional_names]
    yield from _describe_breaks("/output", breaks, BreakView.READS, is_required=not optional_names)


def _find_optional_names(schema: Schema, breaks: Sequence[SchemaBreak]) -> set[str]:
    """Find the optional properties of an agent's schema at which breaks are."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return set()
    names = {str(each.path[1]) for each in breaks if len(each.path) > 1 and each.path[0] == "properties"}
    return {name for name in names if name in properties and name not in _list_required(schema)}


def _list_required(schema: Schema) -> Sequence[Any]:
    required_names = schema.get("required")
    return required_names if isinstance(required_names, list) else ()


def _describe_breaks(
    side: str, breaks: Sequence[SchemaBreak], view: BreakView, *, is_required: bool
) -> Iterator[MissingPart]:
    for each in breaks:
        yield MissingPart(
            path=side + format_data_pointer(each.path), is_required=is_required, reason=each.explain(view)
        )


def format_data_pointer(path: Path) -> str:
    """Format the place of a value from the place of its schema; up to the first keyword that is not about its parts."""
    pointer, steps = "", iter(path)
    for keyword in steps:
        name = next(steps, None) if keyword == "properties" else _EACH_ITEM if keyword == "items" else None
        if name is None:
            break
        pointer += "/" + str(name).replace("~", "~0").replace("/", "~1")
    return pointer


def _split_pointer(pointer: str) -> tuple[str, ...]:
    return tuple(each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:])


def _close_objects(schema: Any) -> Any:
    """Exclude arguments that the agent's schema does not list, where it lists them itself."""
    if not isinstance(schema, dict):
        return schema
    properties, items = schema.get("properties"), schema.get("items")
    closed_schema = dict(schema)
    if isinstance(properties, dict):
        closed_schema["properties"] = {name: _close_objects(each) for name, each in properties.items()}
        if _OPEN_KEYWORDS.isdisjoint(schema):
            closed_schema["additionalProperties"] = False
    if isinstance(items, dict):
        closed_schema["items"] = _close_objects(items)
    return closed_schema


def _is_declared(root: Schema, steps: Sequence[str]) -> bool:
    """Tell whether a schema names the field, so that it is more than tolerated."""
    node: Any = root
    for step in steps:
        node = resolve_refs(root, node)
        if not isinstance(node, dict):
            return False
        properties = node.get("properties")
        if isinstance(properties, dict) and step in properties:
            node = properties[step]
        elif step == _EACH_ITEM and "items" in node:
            node = node["items"]
        else:
            return False
        if node is False:
            return False
    return True


def _build_presence_schema(steps: Sequence[str]) -> Schema:
    """Build the schema of the values that have a field."""
    schema: Schema = {}
    for step in reversed(steps):
        if step == _EACH_ITEM:
            schema = {"type": "array", "items": schema}
        else:
            schema = {"type": "object", "properties": {step: schema}, "required": [step]}
    return schema


def _check_demands(root: Schema, node: Any, fields: Sequence[Sequence[str]], path: str) -> Iterator[MissingPart]:
    """Check that the agent sends every argument that the tool requires, and of objects that it sends in parts, too."""
    node = resolve_refs(root, node)
    if not isinstance(node, dict):
        return
    children: dict[str, list[Sequence[str]]] = {}
    for steps in fields:
        if steps:
            children.setdefault(steps[0], []).append(steps[1:])
    if not children:
        return
    for name in _list_required(node):
        if name not in children:
            where = path + format_data_pointer(("properties", name))
            yield MissingPart(path=where, is_required=True, reason="is required, and you do not send it")
    properties = node.get("properties")
    for name, rest in children.items():
        child = properties.get(name) if isinstance(properties, dict) else None
        child = node.get("items") if child is None and name == _EACH_ITEM else child
        yield from _check_demands(root, child, rest, f"{path}/{name}")
