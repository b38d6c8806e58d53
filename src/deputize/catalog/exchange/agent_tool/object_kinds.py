"""Name the objects of Agent Tool 0.2.0, and check documents against our JSON Schemas of them.

The schemas are in `schemas/`. They demand what the standard requires and allow unknown fields, as it asks for.
"""

from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Final

import jsonschema_rs
import orjson

from deputize.catalog.schema_rules import Reason
from deputize.catalog.schemas import MAX_DEPTH, Validator, format_pointer, iterate_errors, measure_depth
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.contract.contract import Schema

SCHEMA_VERSION: Final = "0.2.0"
_MAX_DEPTH: Final = 2 * MAX_DEPTH
_MAX_PROBLEMS: Final = 20
_URN: Final = f"urn:deputize:agent-tool:{SCHEMA_VERSION}:"


class ObjectKind(StrEnum):
    """An object of the standard."""

    TOOL_DECLARATION = "tool_declaration"
    TOOL_INTERFACE = "tool_interface"
    TOOL_SURFACE = "tool_surface"
    TOOL_NAMESPACE = "tool_namespace"
    TOOL_INPUT_CONTRACT = "tool_input_contract"
    TOOL_OUTPUT_CONTRACT = "tool_output_contract"
    TOOL_EXECUTION_PROFILE = "tool_execution_profile"
    TOOL_PERMISSION_PROFILE = "tool_permission_profile"
    TOOL_PERMISSION_DECISION = "tool_permission_decision"
    TOOL_HOOK = "tool_hook"
    TOOL_INVOCATION = "tool_invocation"
    TOOL_SCHEDULER_POLICY = "tool_scheduler_policy"
    DEFERRED_TOOL_REF = "deferred_tool_ref"
    TOOL_PROGRESS = "tool_progress"
    TOOL_RESULT = "tool_result"
    TOOL_RESULT_PERSISTENCE = "tool_result_persistence"
    TOOL_ERROR = "tool_error"
    TOOL_EVENT = "tool_event"
    TOOL_EXTERNAL_MAPPING = "tool_external_mapping"


@cache
def load_object_schema(kind: ObjectKind) -> Schema:
    """Load the JSON Schema of an object."""
    schema: Schema = orjson.loads(files(__package__).joinpath(f"schemas/{kind}.json").read_bytes())
    return schema


@cache
def _compile_validator(kind: ObjectKind) -> Validator:
    registry = jsonschema_rs.Registry([(f"{_URN}{each}", load_object_schema(each)) for each in ObjectKind])
    return Validator(
        load_object_schema(kind),
        registry=registry,
        offline=True,
        validate_formats=True,
        mask="the value",
        pattern_options=jsonschema_rs.RegexOptions(),
    )


def find_object_problems(kind: ObjectKind, document: Any) -> list[Reason]:
    """List what is invalid in an object, each with its path and without its value."""
    if measure_depth(document) > _MAX_DEPTH:
        return [_make_reason(kind, "", f"is nested deeper than {_MAX_DEPTH} levels", "flatten it")]
    try:
        canonicalize({"": document})
    except NotCanonical:
        fix = "use integers below 2^53, and text without lone surrogates"
        return [_make_reason(kind, "", "contains a value that JSON cannot represent exactly", fix)]
    problems = []
    for error in iterate_errors(_compile_validator(kind), document):
        path = format_pointer(tuple(error.instance_path))
        problems.append(_make_reason(kind, path, error.message, f"see the schema of {kind}"))
        if len(problems) == _MAX_PROBLEMS:
            break
    return problems


def _make_reason(kind: ObjectKind, path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct="declaration", path=f"/{kind}{path}", reason=reason, fix=fix)
