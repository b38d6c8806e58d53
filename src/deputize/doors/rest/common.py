"""What the cool routes share: who is asking, what they sent, and how an answer or a problem leaves."""

import contextlib
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import orjson
from fastapi import Depends, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ValidationError

from deputize.core.caller import Caller
from deputize.core.errors import Malformed, Problem
from deputize.doors.json_in import read_json
from deputize.doors.wire import headers_of, problem_body, problem_headers, read_body, require_json
from deputize.lifecycle.gateway import Gateway

M = TypeVar("M", bound=BaseModel)
Current = Callable[[], Gateway]

_MOST_ERRORS = 20
SCHEME = HTTPBearer(
    scheme_name="bearer", bearerFormat="JWT", auto_error=False, description="A token of an issuer this gateway trusts."
)


def _gateway(request: Request) -> Gateway:
    current: Current = request.app.state.gateway
    return current()


async def _caller(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(SCHEME)]) -> Caller:
    return await _gateway(request).caller(headers_of(request.scope).get(b"authorization"))


CurrentGateway = Annotated[Gateway, Depends(_gateway)]
CurrentCaller = Annotated[Caller, Depends(_caller)]


async def json_body(request: Request, gateway: Gateway, *, most: int = 0) -> Any:
    """The body under the same rules as on the hot route; the framework's own is laxer. `most` raises the limit."""
    headers = headers_of(request.scope)
    require_json(headers)
    server = gateway.settings.server
    limit = max(server.max_body_bytes, most)
    return read_json(await read_body(request.receive, headers, limit), server.max_depth)


def checked(model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value, strict=False)
    except ValidationError as error:
        raise malformed(error.errors(include_url=False, include_input=False, include_context=False)) from None


def malformed(errors: Any) -> Malformed:
    """Every wrong field at once, each with its place."""
    shown = [{"path": "/" + "/".join(str(step) for step in error["loc"]), "message": error["msg"]} for error in errors][
        :_MOST_ERRORS
    ]
    first = shown[0] if shown else {"path": "/", "message": "cannot be read"}
    return Malformed(f"{first['path']}: {first['message']}", details={"errors": shown})


def reply(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status_code=status, media_type="application/json")


def problem_reply(problem: Problem, trace_id: str, allow: str | None = None, metadata: str | None = None) -> Response:
    told = problem_headers(problem.face, problem.retry_after_ms, metadata)
    headers = {name.decode(): value.decode() for name, value in told}
    if allow is not None:
        headers["allow"] = allow
    return Response(problem_body(problem, trace_id), status_code=problem.face.http, headers=headers)


def metadata_url(request: Request) -> str | None:
    with contextlib.suppress(Problem):
        return _gateway(request).metadata_url
    return None
