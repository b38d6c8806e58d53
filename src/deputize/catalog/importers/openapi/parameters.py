"""Convert the parameters and the body of an operation into arguments, and into the request that they become.

What cannot be encoded is not guessed: a required parameter of that kind refuses the operation, an optional one is left
out and listed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from deputize.catalog.importers.openapi.document import (
    DocumentOperation,
    Json,
    OpenApiDocument,
    UnsupportedOperation,
)
from deputize.core.contract.http_request import BODY_ARGUMENT, is_method_override

_ARGUMENT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_PATH_PARAMETER = re.compile(r"\{([^{}/]+)\}")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,120}")
_IDEMPOTENCY_HEADERS: Final = frozenset({"idempotency-key", "x-idempotency-key"})
# Headers that the gateway sets itself, or that OpenAPI says are media elsewhere.
_OWN_HEADERS: Final = frozenset(
    {"accept", "content-type", "authorization", "host", "content-length", "transfer-encoding", "connection", "cookie",
     "accept-encoding", "te", "upgrade", "trailer", "expect", "user-agent", "traceparent", "tracestate"}
)  # fmt: skip
_STYLES: Final = {
    "path": frozenset({"simple"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"}),
    "header": frozenset({"simple"}),
}
_DEFAULT_STYLES: Final = {"path": "simple", "query": "form", "header": "simple"}
_FORM: Final = "application/x-www-form-urlencoded"
_TEXT: Final = "text/plain"
_BINARY: Final = "application/octet-stream"
# What a schema of a binary body may say: nothing that would have to be checked.
_BINARY_KEYWORDS: Final = frozenset(
    {"type", "format", "title", "description", "example", "examples", "contentMediaType", "contentEncoding"}
)
# Media types with a structure that a schema can describe, which only some of them can be checked by.
_STRUCTURED = re.compile(r"text/.*|multipart/.*|.*[/+](?:json|xml|yaml|x-yaml|x-ndjson)")


@dataclass(kw_only=True, slots=True)
class OperationArguments:
    """The arguments of an operation as schemas of the document, and the parts of its request."""

    properties: Json = field(default_factory=dict)
    required_names: list[str] = field(default_factory=list)
    parameters: list[Json] = field(default_factory=list)
    body: str | None = None
    idempotency_header: str | None = None
    # What was left out, in sentences.
    notes: list[str] = field(default_factory=list)


def collect_arguments(document: OpenApiDocument, operation: DocumentOperation) -> OperationArguments:
    """Collect the arguments of an operation, or raise `UnsupportedOperation`."""
    arguments = OperationArguments()
    parameters_by_name = {(each["in"], each["name"]): each for each in _iterate_parameters(document, operation)}
    for parameter in parameters_by_name.values():
        _add_parameter(document, arguments, parameter)
    names_in_path = set(_PATH_PARAMETER.findall(operation.path))
    missing = names_in_path - {each["name"] for each in arguments.parameters if each["place"] == "path"}
    if missing:
        raise UnsupportedOperation(f"its path has {{{min(missing)}}}, which is not among its parameters")
    arguments.parameters = [
        each for each in arguments.parameters if each["place"] != "path" or each["name"] in names_in_path
    ]
    _add_body(document, arguments, operation.declaration)
    return arguments


def _iterate_parameters(document: OpenApiDocument, operation: DocumentOperation) -> Iterator[Json]:
    """Yield the parameters of the path and then of the operation, which replace those of the same name."""
    for holder in (operation.path_item, operation.declaration):
        parameters = holder.get("parameters", [])
        if not isinstance(parameters, list):
            raise UnsupportedOperation("its parameters are not a list")
        for each in parameters:
            parameter = document.resolve(each)
            if not isinstance(parameter, dict) or not isinstance(parameter.get("name"), str):
                raise UnsupportedOperation("a parameter has no name")
            if parameter.get("in") not in ("path", "query", "header", "cookie"):
                raise UnsupportedOperation(f"the parameter {parameter['name'][:80]} has no place")
            yield parameter


def _add_parameter(document: OpenApiDocument, arguments: OperationArguments, parameter: Json) -> None:
    name, place = parameter["name"], parameter["in"]
    is_required = parameter.get("required") is True or place == "path"
    if place == "header" and name.lower() in _IDEMPOTENCY_HEADERS:
        arguments.idempotency_header = name
        return
    if place == "header" and name.lower() in _OWN_HEADERS:
        return  # OpenAPI says that such a parameter is ignored
    reason = _find_unsupported_part(parameter)
    if reason is not None:
        if is_required:
            raise UnsupportedOperation(f"its required parameter {name[:80]} {reason}")
        arguments.notes.append(f"the parameter {name[:80]} is left out: it {reason}")
        return
    style = parameter.get("style", _DEFAULT_STYLES[place])
    schema = document.resolve(parameter.get("schema", {})) if "schema" not in parameter else parameter["schema"]
    argument = _choose_argument(arguments, name, place)
    arguments.properties[argument] = _describe_argument(schema, parameter)
    if is_required:
        arguments.required_names.append(argument)
    arguments.parameters.append(
        {
            "argument": argument,
            "name": name,
            "place": place,
            "style": style,
            "explode": parameter.get("explode", style == "form") is True,
        }
    )


def _find_unsupported_part(parameter: Json) -> str | None:
    """Say what about a parameter cannot be encoded; None if it can be."""
    place, name = parameter["in"], parameter["name"]
    if place == "cookie":
        return "is a cookie, and cookies are not sent"
    if place != "path" and is_method_override(name):
        return "makes another operation of it, which an argument must not"
    if "content" in parameter:
        return "is encoded by a media type inside its place, which is not supported"
    style = parameter.get("style", _DEFAULT_STYLES[place])
    if style not in _STYLES[place]:
        return f"has the style {str(style)[:40]}, which is not supported in a {place}"
    if place == "query" and parameter.get("allowReserved") is True:
        return "is sent with reserved characters as they are, which is not supported"
    if place == "header" and not _HEADER_NAME.fullmatch(name):
        return "is not a valid name of a header"
    if not name or len(name) > 200:
        return "has an empty name or one of more than 200 characters"
    return None


def _choose_argument(arguments: OperationArguments, name: str, place: str) -> str:
    """Choose the name of an argument: the parameter's own, if model APIs accept it and no other has it."""
    safe = name if _ARGUMENT_NAME.fullmatch(name) else _UNSAFE_NAME.sub("_", name).strip("_")[:64] or place
    candidate, number = safe, 1
    if candidate in arguments.properties or candidate == BODY_ARGUMENT:
        candidate = f"{place}_{safe}"[:64]
    while candidate in arguments.properties:
        number += 1
        candidate = f"{place}_{safe}"[:60] + f"_{number}"
    return candidate


def _describe_argument(schema: Any, holder: Json) -> Json:
    """Add the description and the example of a parameter to its schema."""
    part: Json = dict(schema) if isinstance(schema, dict) else {}
    description = holder.get("description")
    if isinstance(description, str) and description.strip() and "$ref" not in part:
        part["description"] = description.strip()[:2000]
    if "$ref" not in part and "example" in holder and "example" not in part:
        part["example"] = holder["example"]
    return part


def _add_body(document: OpenApiDocument, arguments: OperationArguments, declaration: Json) -> None:
    body = document.resolve(declaration.get("requestBody"))
    if not isinstance(body, dict):
        return
    content = body.get("content")
    if not isinstance(content, dict) or not content:
        return
    is_required = body.get("required") is True
    media_type = _choose_media_type(content)
    if media_type is None:
        media_type = _choose_binary_type(document, content)
        if media_type is not None:
            _add_binary_body(arguments, media_type, body)
            return
        types = ", ".join(str(each)[:60] for each in list(content)[:3])
        raise UnsupportedOperation(f"its body is {types}, which is not supported")
    arguments.body = media_type.partition(";")[0].strip()
    media = content[media_type]
    schema = media.get("schema", {}) if isinstance(media, dict) else {}
    if arguments.body == _TEXT:
        schema = {"type": "string"}
    elif arguments.body == _FORM:
        _require_flat_form(document, schema, media)
    arguments.properties[BODY_ARGUMENT] = _describe_argument(schema, {**body, **_find_example(media)})
    if is_required:
        arguments.required_names.append(BODY_ARGUMENT)


def _choose_binary_type(document: OpenApiDocument, content: Json) -> str | None:
    """Choose a media type whose body is bytes, without rules about them; None if there is none."""
    for name, media in content.items():
        media_type = str(name).partition(";")[0].strip().lower()
        schema = document.resolve(media.get("schema", {})) if isinstance(media, dict) else None
        is_binary = (
            isinstance(schema, dict)
            and _BINARY_KEYWORDS.issuperset(schema)
            and (
                schema.get("type", "string") == "string"
                and schema.get("format", "binary") == "binary"
                and "contentEncoding" not in schema
            )
        )
        if is_binary and not _STRUCTURED.fullmatch(media_type):
            media_type = _BINARY if media_type == "*/*" else media_type
            if "*" not in media_type:
                return media_type
    return None


def _add_binary_body(arguments: OperationArguments, media_type: str, body: Json) -> None:
    text = body.get("description")
    description = text.strip()[:1_900] if isinstance(text, str) else ""
    arguments.body = media_type
    arguments.properties[BODY_ARGUMENT] = {
        "type": "string",
        "contentEncoding": "base64",
        "description": f"{description} Bytes as base64, sent as {media_type}.".strip(),
    }
    if body.get("required") is True:
        arguments.required_names.append(BODY_ARGUMENT)


def _choose_media_type(content: Json) -> str | None:
    """Choose JSON, then a form, then text; None if there is none of them."""
    names = {str(name).partition(";")[0].strip().lower(): str(name) for name in content}
    for each, original in names.items():
        if is_json_type(each):
            return original
    return names.get(_FORM, names.get(_TEXT))


def is_json_type(media_type: str) -> bool:
    """Tell whether a media type is JSON."""
    return media_type == "application/json" or (media_type.startswith("application/") and media_type.endswith("+json"))


def _find_example(media: Any) -> Json:
    """Find the example of a body: its own, or the first of several."""
    if not isinstance(media, dict):
        return {}
    if "example" in media:
        return {"example": media["example"]}
    examples = media.get("examples")
    first = next(iter(examples.values()), None) if isinstance(examples, dict) and examples else None
    return {"example": first["value"]} if isinstance(first, dict) and "value" in first else {}


def _require_flat_form(document: OpenApiDocument, schema: Any, media: Json) -> None:
    """Require a form of plain fields: how objects inside a form are written differs between services."""
    if media.get("encoding"):
        raise UnsupportedOperation("its form has an encoding for single fields, which is not supported")
    properties = document.resolve(schema)
    properties = properties.get("properties", {}) if isinstance(properties, dict) else {}
    for name, each in properties.items() if isinstance(properties, dict) else ():
        part = document.resolve(each)
        items = document.resolve(part.get("items")) if isinstance(part, dict) else None
        if any(isinstance(level, dict) and level.get("type") == "object" for level in (part, items)):
            raise UnsupportedOperation(f"its form has the field {str(name)[:80]}, which is an object")
