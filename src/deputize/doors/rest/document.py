"""The API document: FastAPI's own, the hot route written in, and every refusal as the problem it really is."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from deputize.core.call import MAX_KEY_LENGTH
from deputize.core.contract import Contract
from deputize.core.errors import (
    AuditBackpressure,
    AuditUnavailable,
    Internal,
    Malformed,
    Problem,
    Revoked,
    SubjectUnknown,
    TokenAudience,
    TokenExpired,
    TokenIssuer,
    TokenMalformed,
    TokenMissing,
    TokenSignature,
    Unavailable,
    every_problem,
)
from deputize.doors.rest.approval_models import Approving, BreakingGlass, DecidingMany, Denying
from deputize.doors.rest.call_models import Accepted, CallAsked, Envelope, NeedsInput, Rehearsed, RollbackAsked
from deputize.doors.rest.models import ProblemShown, RevocationAsked, SecretAsked, StateAsked, SwitchAsked
from deputize.doors.rest.policy_models import BacktestAsked, PoliciesAsked
from deputize.doors.rest.server_models import ChangeDecided
from deputize.doors.rest.ticket_models import TicketAnswer
from deputize.doors.wire import PROBLEM_MEDIA

_REFS = "#/components/schemas/{model}"
_WRITTEN_HERE: Sequence[type[BaseModel]] = (
    CallAsked, Envelope, NeedsInput, Rehearsed, Accepted, ProblemShown, StateAsked, RevocationAsked, SecretAsked,
    SwitchAsked, PoliciesAsked, BacktestAsked, TicketAnswer, ChangeDecided, RollbackAsked, Approving, Denying,
    BreakingGlass, DecidingMany, Contract,
)  # fmt: skip
# What any route that knows its caller may answer.
ALWAYS = (
    Malformed, TokenMissing, TokenExpired, TokenSignature, TokenMalformed, TokenAudience, TokenIssuer, Revoked,
    SubjectUnknown, Internal, Unavailable, AuditBackpressure, AuditUnavailable,
)  # fmt: skip
# What only the router itself answers, or a page, and never a route.
OF_THE_ROUTER = frozenset({"no-such-route", "method-not-allowed", "sign-in-failed"})
_RETRY_AFTER = {
    "description": "Seconds to wait before trying again.",
    "schema": {"type": "string", "pattern": "^[0-9]+$"},
}
_TEXT = {"type": "string"}


def problems(*kinds: type[Problem], always: Sequence[type[Problem]] = ALWAYS) -> dict[int | str, dict[str, Any]]:
    """The refusals of a route, by status, each naming the problems it may be."""
    by_status: dict[int, list[type[Problem]]] = defaultdict(list)
    for kind in dict.fromkeys((*kinds, *always)):
        by_status[kind.face.http].append(kind)
    return {status: _refusal(status, by_status[status]) for status in sorted(by_status)}


def _refusal(status: int, kinds: list[type[Problem]]) -> dict[str, Any]:
    said = "; ".join(f"{kind.face.title} (`{kind.face.slug}`)" for kind in kinds)
    response: dict[str, Any] = {
        "description": said,
        "content": {PROBLEM_MEDIA: {"schema": {"$ref": _REFS.format(model="ProblemShown")}}},
    }
    headers: dict[str, Any] = {}
    if any(kind.face.retryable for kind in kinds):
        headers["Retry-After"] = _RETRY_AFTER
    if status == 401:
        headers["WWW-Authenticate"] = {"description": "Bearer.", "schema": _TEXT}
    return {**response, "headers": headers} if headers else response


def body_of(model: str, *, described: str = "") -> dict[str, Any]:
    """`openapi_extra` for a route that reads its body itself."""
    return {
        "requestBody": {
            "required": True,
            "description": described,
            "content": {"application/json": {"schema": {"$ref": _REFS.format(model=model)}}},
        }
    }


def document(app: FastAPI) -> dict[str, Any]:
    """Made once; the routes do not change while the process lives."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    made = get_openapi(
        title=app.title, version=app.version, summary=app.summary, description=app.description, routes=app.routes
    )
    _, ours = models_json_schema([(model, "validation") for model in _WRITTEN_HERE], ref_template=_REFS)
    schemas = made["components"]["schemas"]
    schemas.update(ours["$defs"])
    schemas["Manifest"] = _manifest(schemas.pop("Contract"))
    made["paths"]["/v1/calls"]["post"] = _hot_route()
    made["paths"]["/rpc"] = {"post": _rpc_route()}
    for path in made["paths"].values():
        for operation in path.values():
            # Wrong parameters answer 400 here; the framework's own promise of a 422 would not be kept.
            unkept = operation["responses"].get("422", {}).get("content", {}).get("application/json")
            if unkept is not None:
                del operation["responses"]["422"]
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    app.openapi_schema = made
    return made


def _manifest(contract: dict[str, Any]) -> dict[str, Any]:
    """A contract as it may be sent: some parts may be left out, or said in short."""
    properties = dict(contract["properties"])
    for short in ("timeout", "idempotency"):
        properties[short] = {"anyOf": [properties[short], {"type": ["string", "number"]}]}
    properties["resources"] = {"type": "array"}
    properties["name"] = {"type": "string", "maxLength": 97}
    required = [name for name in contract["required"] if name not in ("namespace", "observability")]
    return {**contract, "properties": properties, "required": required, "title": "Manifest"}


def _hot_route() -> dict[str, Any]:
    everything = [kind for kind in every_problem() if kind.face.slug not in OF_THE_ROUTER]
    return {
        "tags": ["calls"],
        "summary": "Call a tool",
        "description": "Carries one call to its end. The answer is the call's envelope, which the same key gets again, "
        "byte for byte. A call that outlives its request answers 202 instead, and is carried by a worker.",
        "operationId": "post_call",
        "security": [{"bearer": []}],
        "parameters": [
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Makes repeating safe. Needed for tools whose effects cannot be taken back.",
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
        **body_of("CallAsked"),
        "responses": {
            "200": {
                "description": "The call succeeded; its server asks first; or, of a dry run, what it would do.",
                "headers": {
                    "Location": {"description": "Where the call can be looked at.", "schema": _TEXT},
                    "Idempotency-Replayed": {"description": "`true` if this outcome was told before.", "schema": _TEXT},
                    "Deputize-Joined": {
                        "description": "`true` if this is the outcome of a call that was already on its way.",
                        "schema": _TEXT,
                    },
                },
                "content": {"application/json": {"schema": _either("Envelope", "NeedsInput", "Rehearsed")}},
            },
            "202": {
                "description": "The call was taken on and has not ended: look for it at its address.",
                "headers": {
                    "Location": {"description": "Where the call can be looked at.", "schema": _TEXT},
                    "Retry-After": _RETRY_AFTER,
                },
                "content": {"application/json": {"schema": {"$ref": _REFS.format(model="Accepted")}}},
            },
            **{str(status): each for status, each in problems(*everything, always=()).items()},
        },
    }


def _either(*models: str) -> dict[str, Any]:
    return {"anyOf": [{"$ref": _REFS.format(model=each)} for each in models]}


def _rpc_route() -> dict[str, Any]:
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
    answers = {"oneOf": [response, {"type": "array", "items": response}]}
    content = {"application/json": {"schema": answers}}
    refused = "Refused before any request in it was looked at; the body is a JSON-RPC error."
    return {
        "tags": ["calls"],
        "summary": "The same over JSON-RPC 2.0",
        "description": "Methods: calls.create, calls.get, calls.cancel, calls.retry, tools.list, tools.search, "
        "tools.get. A batch is answered in order.",
        "operationId": "post_rpc",
        "security": [{"bearer": []}],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"oneOf": [request, {"type": "array", "items": request}]}}},
        },
        "responses": {
            "200": {"description": "An answer, or an array of them.", "content": content},
            "204": {"description": "Only notifications were sent."},
            **{
                str(status): {"description": refused, "content": content}
                for status in (400, 401, 403, 413, 415, 500, 503)
            },
        },
    }
