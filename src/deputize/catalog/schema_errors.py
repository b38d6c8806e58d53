"""Describe what is invalid in a document: where, what is expected, and never the value.

Asking whether a document is valid takes linear time. Listing its errors does not: each alternative that fails is
described with all errors inside of it, so that a recursive schema doubles them at every level of the document. They are
listed here only if that is certainly quick; `validation_job.py` has the others listed in another process.
"""

from typing import Any, Final

import jsonschema_rs

from deputize.catalog.coercion import get_json_type
from deputize.catalog.policy_facts import PATH_FORM, PATH_PATTERN, TEXT_OR_PATH_PATTERN
from deputize.catalog.schema_cost import SchemaCost
from deputize.catalog.schemas import Validator, format_pointer, iterate_errors, resolve_refs
from deputize.core.contract.contract import Schema
from deputize.core.json_values import is_large_value

MOST_ERRORS: Final = 20
# Describing one error takes up to 100 µs, and copies the value that it is about.
_MAX_LISTED_EVALUATIONS: Final = 500
_MAX_LISTED_LENGTH: Final = 16_384
_MAX_NAME_LENGTH: Final = 64
_MAX_SHOWN_PATTERN: Final = 100
_MAX_SHOWN_DESCRIPTION: Final = 300
# Instead of a list that would take too long.
UNLISTED_ERROR: Final = {"path": "", "message": "does not match the schema", "rule": "schema"}

Kind = jsonschema_rs.ValidationErrorKind


def is_quick_to_list(cost: SchemaCost, value: Any) -> bool:
    """Tell whether the errors of a document can be listed on the event loop."""
    most_values = _MAX_LISTED_EVALUATIONS // max(cost.evaluations + cost.comparisons // 2, 1)
    return not cost.is_recursive and not is_large_value(value, most_values=most_values, most_length=_MAX_LISTED_LENGTH)


def find_errors(validator: Validator, value: Any, schema: Schema, cost: SchemaCost) -> list[dict[str, Any]]:
    """List what is invalid in a document; one error about the whole of it if the list would take long."""
    if validator.is_valid(value):
        return []
    return list_errors(validator, value, schema) if is_quick_to_list(cost, value) else [UNLISTED_ERROR]


def list_errors(validator: Validator, value: Any, schema: Schema) -> list[dict[str, Any]]:
    """List the errors of an invalid document, however long that takes."""
    errors: list[dict[str, Any]] = []
    for error in iterate_errors(validator, value):
        errors.extend(_describe_error(error, schema))
        if len(errors) >= MOST_ERRORS:
            break
    return sorted(errors[:MOST_ERRORS], key=lambda entry: str(entry["path"]))


def _describe_error(error: jsonschema_rs.ValidationError, schema: Schema) -> list[dict[str, Any]]:
    """Describe a validation error as one entry per field to correct, each with the field's path."""
    path = tuple(error.instance_path)
    match error.kind:
        case Kind.Required(property=name):
            return [{"path": format_pointer((*path, str(name))), "message": "is required", "rule": "required"}]
        case Kind.AdditionalProperties(unexpected=names):
            property_names = _list_property_names(schema, path)
            return [
                {
                    "path": format_pointer((*path, name[:_MAX_NAME_LENGTH])),
                    "message": "is not an argument of this tool",
                    "rule": "additionalProperties",
                    **({"known": property_names} if property_names else {}),
                }
                for name in names
            ]
        case Kind.Type(types=types):
            expected_types = " or ".join(types)
            actual_type = get_json_type(error.instance)
            message = f"must be {_add_article(expected_types)}; got {_add_article(actual_type)}"
            return [{"path": format_pointer(path), "message": message, "rule": "type", "expected": expected_types}]
        case Kind.Enum(options=options):
            return [
                {"path": format_pointer(path), "message": "must be one of the values in `expected`", "rule": "enum",
                 "expected": options}
            ]  # fmt: skip
        case Kind.Pattern(pattern=pattern) if pattern in (PATH_PATTERN, TEXT_OR_PATH_PATTERN):
            # What the operator of this gateway demands of a path that policies read.
            message = f"must be {PATH_FORM}"
            return [{"path": format_pointer(path), "message": message, "rule": "path"}]
        case Kind.Pattern(pattern=pattern):
            # Models and people know what to do by what it is for; a long expression says nothing to either.
            description = str(_find_node(schema, path).get("description", ""))[:_MAX_SHOWN_DESCRIPTION]
            is_shown = len(pattern) <= _MAX_SHOWN_PATTERN
            expected = f"must match {pattern}" if is_shown else "does not have the form that this needs"
            message = f"{expected}: {description}" if description else expected
            return [{"path": format_pointer(path), "message": message, "rule": "pattern"}]
        case Kind.Format(format=name):
            return [
                {
                    "path": format_pointer(path),
                    "message": f"must be a valid {name}",
                    "rule": "format",
                    "expected": name,
                }
            ]
        case _:
            return [{"path": format_pointer(path), "message": error.message, "rule": error.kind.name}]


def _add_article(word: str) -> str:
    return word if word == "null" else f"{'an' if word[0] in 'aeio' else 'a'} {word}"


def _list_property_names(schema: Schema, path: tuple[str | int, ...]) -> list[str]:
    """List the known property names at a path, so that an unknown one can be corrected."""
    return sorted(_find_node(schema, path).get("properties", {}))[:MOST_ERRORS]


def _find_node(schema: Schema, path: tuple[str | int, ...]) -> dict[str, Any]:
    """Find the schema of a value by its path; empty if the path leads through a combination of schemas."""
    node = resolve_refs(schema, schema)
    for step in path:
        inside = node.get("items") if isinstance(step, int) else node.get("properties", {}).get(step)
        node = resolve_refs(schema, inside)
        if not isinstance(node, dict):
            return {}
    return node if isinstance(node, dict) else {}
