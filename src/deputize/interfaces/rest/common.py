"""Share between FastAPI routes: the current gateway and caller, reading a body, and making responses."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Header, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from deputize.core.caller import Caller
from deputize.core.errors import MalformedRequest, Problem
from deputize.interfaces.asgi_http import build_problem_headers, parse_headers, read_body, render_problem, require_json
from deputize.interfaces.json_body import read_json_off_loop
from deputize.operations.gateway import Gateway

M = TypeVar("M", bound=BaseModel)
GetGateway = Callable[[], Gateway]

_MAX_ERRORS = 20
_MAX_BUILT_ERRORS = 500
BEARER_SCHEME = HTTPBearer(
    scheme_name="bearer", bearerFormat="JWT", auto_error=False, description="A token of a trusted issuer."
)


def _get_gateway(request: Request) -> Gateway:
    get_gateway: GetGateway = request.app.state.gateway
    return get_gateway()


async def _get_caller(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER_SCHEME)]
) -> Caller:
    return await _get_gateway(request).authenticate(parse_headers(request.scope).get(b"authorization"))


CurrentGateway = Annotated[Gateway, Depends(_get_gateway)]
CurrentCaller = Annotated[Caller, Depends(_get_caller)]


async def _get_operator(
    caller: CurrentCaller,
    deputize_confirmation: Annotated[
        str | None,
        Header(max_length=64, description="In development: the code that the gateway's terminal shows for this act."),
    ] = None,
) -> Caller:
    return caller if deputize_confirmation is None else replace(caller, confirmation_code=deputize_confirmation)


# The caller of an act that may change authority, with the code that confirms it. The gateway decides if one is needed.
CurrentOperator = Annotated[Caller, Depends(_get_operator)]


async def read_json_body(request: Request, gateway: Gateway, *, max_bytes: int = 0) -> Any:
    """Read a JSON body, more strictly than FastAPI does. `max_bytes` raises the limit of the settings."""
    headers = parse_headers(request.scope)
    require_json(headers)
    server = gateway.settings.server
    limit = max(server.max_body_bytes, max_bytes)
    return await read_json_off_loop(await read_body(request.receive, headers, limit), server.max_depth)


def validate_body(model: type[M], value: Any) -> M:
    """Validate a body against its model, or raise `MalformedRequest`."""
    try:
        return model.model_validate(value, strict=False)
    except ValidationError as error:
        if error.error_count() > _MAX_BUILT_ERRORS:
            # They are built all at once: 19,000 took 0.2 s.
            raise MalformedRequest(f"the body has {error.error_count():,} invalid fields") from None
        raise make_malformed_problem(
            error.errors(include_url=False, include_input=False, include_context=False)
        ) from None


def make_malformed_problem(errors: Any) -> MalformedRequest:
    """Make one problem of all validation errors, each with its path."""
    field_errors = [
        {"path": "/" + "/".join(str(step) for step in error["loc"]), "message": error["msg"]}
        for error in errors[:_MAX_ERRORS]
    ]
    first = field_errors[0] if field_errors else {"path": "/", "message": "cannot be read"}
    return MalformedRequest(f"{first['path']}: {first['message']}", details={"errors": field_errors})


def make_json_response(value: Any, status: int = 200) -> Response:
    """Make a response with a JSON body."""
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


def make_problem_response(
    problem: Problem, trace_id: str, allow: str | None = None, metadata: str | None = None
) -> Response:
    """Make a response of a problem."""
    raw_headers = build_problem_headers(problem.spec, problem.retry_after_ms, metadata)
    headers = {name.decode(): value.decode() for name, value in raw_headers}
    if allow is not None:
        headers["allow"] = allow
    return Response(render_problem(problem, trace_id), status_code=problem.spec.http, headers=headers)


def get_metadata_url(request: Request) -> str | None:
    """Return the URL of the resource metadata; None if it is not known."""
    with contextlib.suppress(Problem):
        return _get_gateway(request).metadata_url
    return None
