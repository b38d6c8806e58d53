"""Build the OpenAPI document: FastAPI's own, with `POST /v1/calls`, `/rpc` and every route's problems added."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from deputize.core.call import MAX_KEY_LENGTH
from deputize.core.contract.contract import Contract
from deputize.core.errors import (
    AuditUnavailable,
    AuthorityRevoked,
    InternalError,
    MalformedRequest,
    Problem,
    TokenAudienceMismatch,
    TokenExpired,
    TokenIssuerUntrusted,
    TokenMalformed,
    TokenMissing,
    TokenSignatureInvalid,
    Unavailable,
    list_problem_types,
)
from deputize.interfaces.asgi_http import PROBLEM_MEDIA
from deputize.interfaces.rest.calls.call_models import (
    AcceptedCallModel,
    CallBody,
    DryRunModel,
    EnvelopeModel,
    InputRequiredModel,
)
from deputize.interfaces.rest.models import ProblemModel

_BUILD_LOCK = threading.Lock()
_REF_TEMPLATE = "#/components/schemas/{model}"
# The shapes that the framework does not find by itself; describe_body adds those of bodies.
_SHAPES: set[type[BaseModel]] = {
    AcceptedCallModel, CallBody, Contract, DryRunModel, EnvelopeModel, InputRequiredModel, ProblemModel,
}  # fmt: skip
# The problems of every route that authenticates its caller.
COMMON_PROBLEMS = (
    MalformedRequest,
    TokenMissing,
    TokenExpired,
    TokenSignatureInvalid,
    TokenMalformed,
    TokenAudienceMismatch,
    TokenIssuerUntrusted,
    AuthorityRevoked,
    InternalError,
    Unavailable,
    AuditUnavailable,
)
# The problems that only the router or the console returns, never a route.
ROUTER_SLUGS = frozenset({"no-such-route", "method-not-allowed", "sign-in-failed"})
_RETRY_AFTER = {
    "description": "Seconds to wait before trying again.",
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
}
_TEXT = {"type": "string"}


def describe_problems(
    *kinds: type[Problem], common: Sequence[type[Problem]] = COMMON_PROBLEMS
) -> dict[int | str, dict[str, Any]]:
    """Describe the problems of a route, by status."""
    by_status: dict[int, list[type[Problem]]] = defaultdict(list)
    for kind in dict.fromkeys((*kinds, *common)):
        by_status[kind.spec.http].append(kind)
    return {status: _describe_problem_response(status, by_status[status]) for status in sorted(by_status)}


def _describe_problem_response(status: int, kinds: list[type[Problem]]) -> dict[str, Any]:
    description = "; ".join(f"{kind.spec.title} (`{kind.spec.slug}`)" for kind in kinds)
    response: dict[str, Any] = {
        "description": description,
        "content": {PROBLEM_MEDIA: {"schema": {"$ref": _REF_TEMPLATE.format(model="ProblemModel")}}},
    }
    headers: dict[str, Any] = {}
    if any(kind.spec.retryable for kind in kinds):
        headers["Retry-After"] = _RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = {"description": "Bearer.", "schema": _TEXT}
    return {**response, "headers": headers} if headers else response


def describe_body(model: type[BaseModel], *, name: str = "", description: str = "") -> dict[str, Any]:
    """Build the `openapi_extra` of a route that reads its body itself, whose shape may have a name of its own."""
    _SHAPES.add(model)
    return {
        "requestBody": {
            "required": True,
            "description": description,
            "content": {"application/json": {"schema": {"$ref": _REF_TEMPLATE.format(model=name or model.__name__)}}},
        }
    }


def build_openapi(app: FastAPI) -> dict[str, Any]:
    """Build the document once, in whichever thread asks first; routes do not change while the process runs."""
    with _BUILD_LOCK:
        if app.openapi_schema is None:
            app.openapi_schema = _build_document(app)
        return app.openapi_schema


def _build_document(app: FastAPI) -> dict[str, Any]:
    openapi: dict[str, Any] = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    _, extra_schemas = models_json_schema(
        [(model, "validation") for model in sorted(_SHAPES, key=lambda each: each.__name__)], ref_template=_REF_TEMPLATE
    )
    schemas = openapi["components"]["schemas"]
    schemas.update(extra_schemas["$defs"])
    schemas["Manifest"] = _describe_manifest(schemas.pop("Contract"))
    openapi["paths"]["/v1/calls"]["post"] = _describe_post_call()
    openapi["paths"]["/rpc"] = {"post": _describe_post_rpc()}
    # Relative to the document, wherever the gateway is.
    openapi["servers"] = [{"url": "/"}]
    for path in openapi["paths"].values():
        for operation in path.values():
            # Said of every route, also of those that need no token.
            operation.setdefault("security", [])
            # Wrong parameters answer 400 here, not the 422 that the framework documents.
            validation_response = operation["responses"].get("422", {}).get("content", {}).get("application/json")
            if validation_response is not None:
                del operation["responses"]["422"]
    for schema_name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(schema_name, None)
    return openapi


def _describe_manifest(contract: dict[str, Any]) -> dict[str, Any]:
    """Describe a contract as it may be sent: with optional parts, and short forms of some."""
    properties = dict(contract["properties"])
    for field in ("timeout", "idempotency"):
        properties[field] = {"anyOf": [properties[field], {"type": ["string", "number"]}]}
    properties["resources"] = {"type": "array"}
    properties["name"] = {"type": "string", "maxLength": 97}
    required_names = [name for name in contract["required"] if name not in ("namespace", "observability")]
    return {**contract, "properties": properties, "required": required_names, "title": "Manifest"}


def _describe_post_call() -> dict[str, Any]:
    kinds = [kind for kind in list_problem_types() if kind.spec.slug not in ROUTER_SLUGS]
    return {
        "tags": ["calls"],
        "summary": "Call a tool",
        "description": "Run a tool and return the call's envelope. Repeating the call with its key returns the same "
        "envelope, byte for byte. A call that outlives its request returns 202 and is executed by a worker.",
        "operationId": "post_call",
        "security": [{"bearer": []}],
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Makes repeating the call safe. Required for irreversible tools.",
                "schema": {"type": "string", "pattern": f"^[\\x21-\\x7e]{{1,{MAX_KEY_LENGTH}}}$"},
            },
            {
                "name": "traceparent",
                "in": "header",
                "required": False,
                "description": "W3C trace context; the call becomes part of the trace.",
                "schema": _TEXT,
            },
        ],
        **describe_body(CallBody),
        "responses": {
            "200": {
                "description": "The call succeeded; its server requires input; or the preview of a dry run.",
                "headers": {
                    "Location": {"description": "The URL of the call.", "schema": _TEXT},
                    "Idempotency-Replayed": {
                        "description": "`true` if this is the stored outcome of an earlier call.",
                        "schema": _TEXT,
                    },
                    "Deputize-Joined": {
                        "description": "`true` if this is the outcome of a call that was already running.",
                        "schema": _TEXT,
                    },
                },
                "content": {
                    "application/json": {
                        "schema": _describe_any_of("EnvelopeModel", "InputRequiredModel", "DryRunModel")
                    }
                },
            },
            "202": {
                "description": "The call was accepted and has not ended: poll it at its URL.",
                "headers": {
                    "Location": {"description": "The URL of the call.", "schema": _TEXT},
                    "Retry-After": _RETRY_AFTER,
                },
                "content": {"application/json": {"schema": {"$ref": _REF_TEMPLATE.format(model="AcceptedCallModel")}}},
            },
            **{str(status): each for status, each in describe_problems(*kinds, common=()).items()},
        },
    }


def _describe_any_of(*models: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": _REF_TEMPLATE.format(model=each)} for each in models]}


def _describe_post_rpc() -> dict[str, Any]:
    request = {
        "type": "object",
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number", "null"]},
            "method": {"type": "string"},
            "params": {"type": "object"},
        },
        "required": ["jsonrpc", "method"],
    }
    response = {
        "type": "object",
        "properties": {
            "jsonrpc": {"const": "2.0"},
            "id": {"type": ["string", "number", "null"]},
            "result": {},
            "error": {
                "type": "object",
                "properties": {"code": {"type": "integer"}, "message": _TEXT, "data": {"type": "object"}},
                "required": ["code", "message"],
            },
        },
        "required": ["jsonrpc", "id"],
    }
    replies = {"oneOf": [response, {"type": "array", "items": response}]}
    content = {"application/json": {"schema": replies}}
    error_description = "Refused as a whole; the body is a JSON-RPC error."
    return {
        "tags": ["calls"],
        "summary": "Call methods over JSON-RPC 2.0",
        "description": "Methods: calls.create, calls.get, calls.cancel, calls.retry, tools.list, tools.search, "
        "surface.get, tools.get, tools.negotiate. A batch is answered in order; calls that follow each other in it run "
        "side by side where they cannot change the same resources.",
        "operationId": "post_rpc",
        "security": [{"bearer": []}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": [request, {"type": "array", "items": request}]}}},
        },
        "responses": {
            "200": {"description": "A response, or an array of responses.", "content": content},
            "204": {"description": "Only notifications were sent."},
            **{
                str(status): {"description": error_description, "content": content}
                for status in (400, 401, 403, 413, 415, 500, 503)
            },
        },
    }
