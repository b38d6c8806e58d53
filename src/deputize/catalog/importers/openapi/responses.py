"""Build the schema of an operation's result: the status, and the body that the document declares for success."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import orjson

from deputize.catalog.importers.openapi.document import (
    DocumentOperation,
    Json,
    OpenApiDocument,
    UnsupportedOperation,
)
from deputize.catalog.importers.openapi.document_schemas import MAX_RESPONSE_SCHEMA_BYTES, SchemaConverter
from deputize.catalog.importers.openapi.parameters import is_json_type
from deputize.catalog.importers.server_schemas import EnforcedSchema, convert_schema
from deputize.catalog.registration_rules import LARGEST_CONTRACT
from deputize.catalog.response_schemas import MissingField, narrow_result_schema
from deputize.catalog.schema_rules import check_schema
from deputize.core.contract.http_request import CREDENTIAL_HEADERS
from deputize.core.value_types import frozen

# Headers that a caller needs to go on: the next page, what was created, its version.
USUAL_HEADERS: Final = ("Location", "Link", "ETag")
_STATUS: Final = re.compile(r"[1-5][0-9]{2}")
_MAX_HEADERS: Final = 30
_MAX_UNENFORCED: Final = 50
_MAX_ERROR_SCHEMA_BYTES: Final = 4_096
_PARTS: Final[Json] = {
    "status": {"type": "integer"},
    "text": {"type": "string"},
    "base64": {"type": "string"},
    "media_type": {"type": "string"},
    "headers": {"type": "object", "additionalProperties": {"type": "string"}},
}


@frozen
class ResultSchema:
    """The schema of a result, what of it is not enforced, and the headers that are part of the result."""

    schema: EnforcedSchema
    headers: tuple[str, ...]


def build_result_schema(
    document: OpenApiDocument,
    operation: DocumentOperation,
    converter: SchemaConverter,
    response_fields: Sequence[str] = (),
) -> ResultSchema:
    """Build the schema from the responses that mean success, with only these fields of the body if any are named."""
    responses = [document.resolve(each) for each in _list_successes(operation)]
    bodies: list[Any] = []
    references: list[str] = []
    is_always_json = bool(responses)
    headers = list(USUAL_HEADERS)
    for response in responses:
        schema = _find_json_schema(response)
        is_always_json = is_always_json and schema is not None
        if schema is not None:
            body_schema, body_references = converter.convert(schema)
            references += body_references
            if body_schema not in bodies:
                bodies.append(body_schema)
        response_headers = response.get("headers") if isinstance(response, dict) else None
        headers += [str(name) for name in response_headers] if isinstance(response_headers, dict) else []
    # A field that is kept may be beyond the nearest definitions.
    limit = LARGEST_CONTRACT if response_fields else MAX_RESPONSE_SCHEMA_BYTES
    definitions, cut_names = converter.collect_nearest_definitions(references, limit)
    body = bodies[0] if len(bodies) == 1 else {"anyOf": bodies} if bodies else {}
    result_schema = {
        **make_result_schema(body, is_always_json=is_always_json),
        **({"$defs": definitions} if definitions else {}),
    }
    if response_fields:
        result_schema = keep_fields(result_schema, response_fields)
    body_result = convert_schema(result_schema, base_path=("output_schema",))
    names = dict.fromkeys(name for name in headers if name.lower() not in CREDENTIAL_HEADERS)
    unenforced_paths = [*(f"/output_schema/$defs/{each}" for each in cut_names), *body_result.unenforced_paths]
    return ResultSchema(
        schema=EnforcedSchema(schema=body_result.schema, unenforced_paths=tuple(unenforced_paths[:_MAX_UNENFORCED])),
        headers=tuple(names)[:_MAX_HEADERS],
    )


def keep_fields(result_schema: Json, response_fields: Sequence[str]) -> Json:
    """Narrow the schema of a result to fields of its body, or raise `UnsupportedOperation` if it lacks one."""
    try:
        return narrow_result_schema(result_schema, response_fields)
    except MissingField as error:
        raise UnsupportedOperation(
            f"response_fields names {str(error)[:200]}, which its response does not have: correct the pointer, or "
            "declare the field"
        ) from None


def build_error_schema(
    document: OpenApiDocument, operation: DocumentOperation, converter: SchemaConverter
) -> Json | None:
    """Build the schema of the operation's errors: the body that the document declares for a status, for that status.

    Errors that cannot be represented are no reason to refuse the operation: they stay untyped.
    """
    bodies: list[tuple[Any, list[Json]]] = []
    references: list[str] = []
    try:
        for condition, response in _list_errors(operation):
            body_schema = _find_json_schema(document.resolve(response))
            if body_schema:
                body, body_references = converter.convert(body_schema)
                references += body_references
                same = next((conditions for known, conditions in bodies if known == body), None)
                if same is None:
                    bodies.append((body, [condition]))
                else:
                    same.append(condition)
        definitions, _ = converter.collect_nearest_definitions(references, _MAX_ERROR_SCHEMA_BYTES)
    except UnsupportedOperation:
        return None
    if not bodies:
        return None
    rules = [
        {
            "if": {"properties": {"status": conditions[0] if len(conditions) == 1 else {"anyOf": conditions}}},
            "then": {"properties": {"body": body}},
        }
        for body, conditions in bodies
    ]
    details = {"type": "object", "properties": {"status": {"type": "integer"}}, "allOf": rules}
    schema = {
        "type": "object",
        "properties": {"message": {"type": "string"}, "details": details},
        "required": ["message"],
        **({"$defs": definitions} if definitions else {}),
    }
    error_schema = convert_schema(schema, base_path=("error_schema",)).schema
    is_too_large = len(orjson.dumps(error_schema)) > MAX_RESPONSE_SCHEMA_BYTES
    return None if is_too_large or any(check_schema("error_schema", error_schema)) else error_schema


def _list_errors(operation: DocumentOperation) -> Iterator[tuple[Json, Any]]:
    """List the declared errors, each with the schema of the statuses that it is for.

    A status has precedence over its range, and both over `default`. The body of a 5xx reaches no caller.
    """
    responses = operation.declaration.get("responses")
    if not isinstance(responses, dict):
        return
    declared = {str(status).upper(): response for status, response in responses.items()}
    exact = [int(status) for status in declared if _STATUS.fullmatch(status)]
    ranges = {f"{number}XX": {"minimum": number * 100, "maximum": number * 100 + 99} for number in (2, 3, 4, 5)}
    for status, response in declared.items():
        if status.startswith("4") and _STATUS.fullmatch(status):
            yield {"const": int(status)}, response
        elif status == "4XX":
            yield _exclude(ranges[status], [each for each in exact if 400 <= each < 500]), response
        elif status == "DEFAULT" and any(each.startswith("2") for each in declared):
            # Without a success of its own, the default describes the success.
            rest = _exclude({}, exact)
            more = [{"not": ranges[each]} for each in ranges if each in declared]
            yield {**rest, "allOf": more} if more else rest, response


def _exclude(schema: Json, statuses: Sequence[int]) -> Json:
    return {**schema, "not": {"enum": sorted(statuses)}} if statuses else schema


def make_result_schema(body: Any, *, is_always_json: bool) -> Json:
    """Make the schema of a result around the schema of a JSON body."""
    return {
        "type": "object",
        "properties": {**_PARTS, "body": body},
        "required": ["status", *(["body"] if is_always_json else [])],
    }


def _list_successes(operation: DocumentOperation) -> list[Any]:
    responses = operation.declaration.get("responses")
    if not isinstance(responses, dict):
        return []
    successes = [each for status, each in responses.items() if str(status).startswith("2")]
    return successes or [each for status, each in responses.items() if status == "default"]


def _find_json_schema(response: Any) -> Any:
    """Find the schema of a JSON response; None if the response is not JSON, or not only."""
    content = response.get("content") if isinstance(response, dict) else None
    if not isinstance(content, dict) or not content:
        return None
    for name, media in content.items():
        if is_json_type(str(name).partition(";")[0].strip().lower()):
            return media.get("schema", {}) if isinstance(media, dict) else {}
    return None
