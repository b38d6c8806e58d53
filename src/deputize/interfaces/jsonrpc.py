"""Serve calls and tools over JSON-RPC 2.0 at `POST /rpc`.

A call's envelope is the `result`; a failed call's whole envelope is the `data` of an error. A problem of the HTTP
request as a whole (its token, size or form) has its HTTP status; a problem of one request in it answers 200.
"""

from collections.abc import Awaitable, Callable
from itertools import groupby
from typing import Any

import orjson

from deputize.core.call import CallRequest
from deputize.core.call_batch import MAX_BATCH_SIZE, BatchedCall, CallBatch
from deputize.core.caller import Caller
from deputize.core.errors import MalformedRequest, MethodNotAllowed, NoSuchRoute, Problem
from deputize.core.outcome import Outcome, build_problem_fields
from deputize.interfaces.asgi_http import (
    JSON,
    ClientDisconnect,
    Header,
    Receive,
    Scope,
    Send,
    build_problem_headers,
    hide_internal_error,
    parse_headers,
    read_body,
    read_trace_id,
    require_json,
    send_response,
)
from deputize.interfaces.call_request import (
    MAX_TOOL_LENGTH,
    MAX_VERSION_LENGTH,
    parse_call_request,
    parse_idempotency_key,
)
from deputize.interfaces.json_body import read_json_off_loop
from deputize.interfaces.negotiation_request import parse_negotiation
from deputize.interfaces.rest.calls.post_call import build_outcome_headers
from deputize.operations.gateway import Gateway, ToolSelection

INVALID_PARAMS = -32602
_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_OUTCOME_HEADERS = frozenset(
    {b"idempotency-replayed", b"deputize-joined", b"retry-after", b"deprecation", b"sunset", b"link"}
)
_ALLOW_HEADER: Header = (b"allow", b"POST")

Params = dict[str, Any]
Method = Callable[[Gateway, Caller, Params], Awaitable[Any]]


class JsonRpc:
    """The ASGI application. `get_gateway` raises a Problem while no gateway is open."""

    def __init__(self, get_gateway: Callable[[], Gateway]) -> None:
        self._get_gateway = get_gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace_id, metadata = read_trace_id(scope), None
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed("JSON-RPC requests are sent with POST")
            gateway = self._get_gateway()
            metadata = gateway.metadata_url
            headers = parse_headers(scope)
            caller = await gateway.authenticate(headers.get(b"authorization"))
            require_json(headers)
            server = gateway.settings.server
            body = await read_body(receive, headers, server.max_body_bytes)
            payload = await read_json_off_loop(body, server.max_depth)
            extra_headers, reply = await self._handle_payload(_RpcHandler(gateway, caller, trace_id), payload)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 -- the outermost handler: logs an unexpected error and hides it
            problem = error if isinstance(error, Problem) else hide_internal_error(error, trace_id)
            await _send_http_error(send, problem, trace_id, metadata)
            return
        if reply is None:
            await send_response(send, 204, [], b"")
        else:
            await send_response(send, 200, [JSON, *extra_headers], orjson.dumps(reply))

    async def _handle_payload(self, handler: "_RpcHandler", payload: Any) -> tuple[list[Header], Any]:
        if not isinstance(payload, list):
            response = await handler.handle_request(payload)
            return handler.headers, response
        if not 0 < len(payload) <= MAX_BATCH_SIZE:
            return [], _make_error_response(
                None, MalformedRequest(f"a batch holds 1 to {MAX_BATCH_SIZE} requests"), handler.trace_id
            )
        replies: list[dict[str, Any] | None] = []
        # One after the other, but for calls that follow each other: those run side by side where that is safe.
        for is_create, requests in groupby(payload, _is_create):
            if is_create:
                replies += await handler.create_calls(list(requests))
            else:
                replies += [await handler.handle_request(each) for each in requests]
        return [], [each for each in replies if each is not None] or None


class _RpcHandler:
    """The handler of one HTTP request, which holds one or more JSON-RPC requests of one caller."""

    def __init__(self, gateway: Gateway, caller: Caller, trace_id: str) -> None:
        self._gateway = gateway
        self._caller = caller
        self.trace_id = trace_id
        self.headers: list[Header] = []

    async def handle_request(self, request: Any) -> dict[str, Any] | None:
        """Handle one request and return its response; None for a notification."""
        reason = _find_request_error(request)
        if reason is not None:
            return _make_error_response(_extract_id(request), MalformedRequest(reason), self.trace_id)
        response = await self._dispatch_request(request)
        return response if "id" in request else None

    async def create_calls(self, requests: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
        """Create several calls and return their responses in their order, whatever becomes of each."""
        responses: dict[int, dict[str, Any]] = {}
        calls: dict[int, BatchedCall] = {}
        for index, request in enumerate(requests):
            try:
                calls[index] = BatchedCall(request=_parse_call(_get_params(request)))
            except MalformedRequest as problem:
                response = _make_error_response(request.get("id"), problem, self.trace_id, code=INVALID_PARAMS)
                responses[index] = response
        if calls:
            batch = CallBatch(calls=list(calls.values()), on_failure="ignore")
            results = await self._gateway.run_calls(self._caller, batch)
            for index, result in zip(calls, results, strict=True):
                request_id = requests[index].get("id")
                responses[index] = (
                    _render_outcome(request_id, result)
                    if isinstance(result, Outcome)
                    else _make_error_response(request_id, hide_internal_error(result, self.trace_id), self.trace_id)
                )
        return [responses[index] if "id" in request else None for index, request in enumerate(requests)]

    async def _dispatch_request(self, request: dict[str, Any]) -> dict[str, Any]:
        request_id = request.get("id")
        method = METHODS.get(request["method"])
        if method is None:
            method_names = ", ".join(METHODS)
            unknown = NoSuchRoute(f"there is no method {request['method'][:64]!r}; there are {method_names}")
            return _make_error_response(request_id, unknown, self.trace_id)
        try:
            result = await method(self._gateway, self._caller, _get_params(request))
        except MalformedRequest as problem:
            return _make_error_response(request_id, problem, self.trace_id, code=INVALID_PARAMS)
        except Problem as problem:
            return _make_error_response(request_id, problem, self.trace_id)
        except Exception as error:  # noqa: BLE001 -- the other requests of the batch are still answered
            return _make_error_response(request_id, hide_internal_error(error, self.trace_id), self.trace_id)
        if isinstance(result, Outcome):
            self.headers = [each for each in build_outcome_headers(result) if each[0] in _OUTCOME_HEADERS]
            return _render_outcome(request_id, result)
        return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _find_request_error(request: Any) -> str | None:
    if not isinstance(request, dict):
        return "a request is a JSON object"
    if request.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if not isinstance(request.get("method"), str):
        return "method must be the name of a method"
    if not request.keys() <= _MEMBERS:
        return f"a request has no member {min(request.keys() - _MEMBERS)[:64]!r}"
    if not _is_valid_id(request.get("id")):
        return "id must be text or a number"
    return None


def _is_create(request: Any) -> bool:
    return _find_request_error(request) is None and METHODS.get(request["method"]) is _create_call


def _get_params(request: dict[str, Any]) -> Params:
    params = request.get("params", {})
    if not isinstance(params, dict):
        raise MalformedRequest("params must be an object with each parameter by name")
    return params


def _is_valid_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _extract_id(request: Any) -> Any:
    """Return the id of an invalid request, if it has a valid one."""
    value = request.get("id") if isinstance(request, dict) else None
    return value if _is_valid_id(value) else None


def make_error_object(problem: Problem, trace_id: str, *, code: int | None = None) -> dict[str, Any]:
    """Make the JSON-RPC error of a problem; `data` is the problem as REST shows it."""
    return {
        "code": problem.spec.jsonrpc_code if code is None else code,
        "message": problem.message,
        "data": build_problem_fields(problem, trace_id=trace_id),
    }


def _make_error_response(
    request_id: Any, problem: Problem, trace_id: str, *, code: int | None = None
) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request_id, "error": make_error_object(problem, trace_id, code=code)}


def _render_outcome(request_id: Any, outcome: Outcome) -> dict[str, Any]:
    """Render an outcome with its envelope's bytes unchanged."""
    envelope = orjson.Fragment(outcome.body)
    if outcome.spec is None:
        return {"jsonrpc": "2.0", "id": request_id, "result": envelope}
    message = outcome.envelope.fields["detail"]
    error = {"code": outcome.spec.jsonrpc_code, "message": message, "data": envelope}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


async def _send_http_error(send: Send, problem: Problem, trace_id: str, metadata: str | None) -> None:
    status = problem.spec.http
    _, *headers = build_problem_headers(problem.spec, problem.retry_after_ms, metadata)
    if isinstance(problem, MethodNotAllowed):
        headers.append(_ALLOW_HEADER)
    await send_response(send, status, [JSON, *headers], orjson.dumps(_make_error_response(None, problem, trace_id)))


async def _create_call(gateway: Gateway, caller: Caller, params: Params) -> Outcome:
    return await gateway.run_call(caller, _parse_call(params))


def _parse_call(params: Params) -> CallRequest:
    fields = dict(params)
    key, traceparent = fields.pop("idempotency_key", None), fields.pop("traceparent", None)
    if traceparent is not None and not isinstance(traceparent, str):
        raise MalformedRequest("traceparent must be text")
    return parse_call_request(fields, key=None if key is None else parse_idempotency_key(key), traceparent=traceparent)


async def _get_call(gateway: Gateway, caller: Caller, params: Params) -> Any:
    call_id = _validate_params(params, {"call_id": (str, 64)}, required_name="call_id")["call_id"]
    return orjson.Fragment((await gateway.calls.show_call(caller, call_id)).envelope.body)


async def _cancel_call(gateway: Gateway, caller: Caller, params: Params) -> Any:
    call_id = _validate_params(params, {"call_id": (str, 64)}, required_name="call_id")["call_id"]
    return await gateway.cancellations.cancel_call(caller, call_id)


async def _retry_call(gateway: Gateway, caller: Caller, params: Params) -> Outcome:
    call_id = _validate_params(params, {"call_id": (str, 64)}, required_name="call_id")["call_id"]
    return await gateway.retry_call(caller, call_id)


async def _list_tools(gateway: Gateway, caller: Caller, params: Params) -> Any:
    values = _validate_params(params, {"after": (str, MAX_TOOL_LENGTH), "limit": (int, 500)})
    listing = await gateway.surface.list_tools(caller, after=values.get("after", ""), limit=values.get("limit", 100))
    return {"tools": listing.tools, "next_after": listing.next_after}


async def _show_surface(gateway: Gateway, caller: Caller, params: Params) -> Any:
    values = _validate_params(params, {"after": (str, MAX_TOOL_LENGTH), "limit": (int, 500)})
    after, limit = values.get("after", ""), values.get("limit", 100)
    return await gateway.surface.list_availability(caller, ToolSelection(), after=after, limit=limit)


async def _search_tools(gateway: Gateway, caller: Caller, params: Params) -> Any:
    values = _validate_params(params, {"q": (str, 400), "limit": (int, 50)}, required_name="q")
    return await gateway.surface.search_tools(caller, values["q"], limit=values.get("limit", 10))


async def _get_tool(gateway: Gateway, caller: Caller, params: Params) -> Any:
    values = _validate_params(
        params, {"name": (str, MAX_TOOL_LENGTH), "version": (str, MAX_VERSION_LENGTH)}, required_name="name"
    )
    return await gateway.surface.show_tool(caller, values["name"], values.get("version", "latest"))


async def _negotiate_version(gateway: Gateway, caller: Caller, params: Params) -> Any:
    fields = dict(params)
    name = _validate_params({"name": fields.pop("name", None)}, {"name": (str, MAX_TOOL_LENGTH)})["name"]
    body = parse_negotiation(fields)
    return await gateway.negotiations.negotiate_version(caller, name, body.version, body.build_expectation())


def _validate_params(
    params: Params, limits: dict[str, tuple[type, int]], *, required_name: str | None = None
) -> Params:
    """Check params against their limits: a text's length, or a number from 1 to a maximum."""
    for name, value in params.items():
        if name not in limits:
            raise MalformedRequest(f"there is no parameter {name[:64]!r}; there are {', '.join(limits)}")
        kind, maximum = limits[name]
        size = len(value) if kind is str and isinstance(value, str) else value
        if type(value) is not kind or not isinstance(size, int) or not 0 < size <= maximum:
            shape = f"text of 1 to {maximum} characters" if kind is str else f"a whole number from 1 to {maximum}"
            raise MalformedRequest(f"{name} must be {shape}", details={"field": name})
    if required_name is not None and required_name not in params:
        raise MalformedRequest(f"{required_name} is missing", details={"field": required_name})
    return params


METHODS: dict[str, Method] = {
    "calls.create": _create_call,
    "calls.get": _get_call,
    "calls.cancel": _cancel_call,
    "calls.retry": _retry_call,
    "tools.list": _list_tools,
    "tools.search": _search_tools,
    "surface.get": _show_surface,
    "tools.get": _get_tool,
    "tools.negotiate": _negotiate_version,
}
