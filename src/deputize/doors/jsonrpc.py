"""JSON-RPC 2.0 at `POST /rpc`: the same calls and tools, for clients that speak it.

A call's envelope is the `result`; a failed call's whole envelope is the `data` of an error. What concerns the HTTP
request as a whole (its token, its size, its form) keeps its HTTP status; what concerns one request in it answers 200.
Above: `doors/asgi.py`. Below: `asking.py` and `lifecycle/gateway.py`, as for every door.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import Malformed, MethodNotAllowed, NoSuchRoute, Problem
from deputize.core.outcome import Outcome, problem_fields
from deputize.doors.asking import MAX_TOOL_LENGTH, MAX_VERSION_LENGTH, call_request, idempotency_key
from deputize.doors.json_in import read_json
from deputize.doors.rest.hot import outcome_headers
from deputize.doors.wire import (
    JSON,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    answer,
    headers_of,
    hide,
    problem_headers,
    read_body,
    require_json,
    trace_id_of,
)
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.standing import Selection

MOST_IN_BATCH = 50
INVALID_PARAMS = -32602
_MEMBERS = frozenset({"jsonrpc", "id", "method", "params"})
_SAID_BY_HEADERS = frozenset({b"idempotency-replayed", b"deputize-joined", b"retry-after"})
_ALLOW: Header = (b"allow", b"POST")

Params = dict[str, Any]
Method = Callable[[Gateway, Caller, Params], Awaitable[Any]]


class JsonRpc:
    """`gateway` raises a Problem while there is none."""

    def __init__(self, gateway: Callable[[], Gateway]) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        trace_id, metadata = trace_id_of(scope), None
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed("JSON-RPC is spoken with POST")
            gateway = self._gateway()
            metadata = gateway.metadata_url
            headers = headers_of(scope)
            caller = await gateway.caller(headers.get(b"authorization"))
            require_json(headers)
            server = gateway.settings.server
            sent = read_json(await read_body(receive, headers, server.max_body_bytes), server.max_depth)
            more, replied = await self._reply(_Turn(gateway, caller, trace_id), sent)
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 -- the door's edge: a fault of ours is logged here and shown to nobody
            problem = error if isinstance(error, Problem) else hide(error, trace_id)
            await _refuse(send, problem, trace_id, metadata)
            return
        if replied is None:
            await answer(send, 204, [], b"")
        else:
            await answer(send, 200, [JSON, *more], orjson.dumps(replied))

    async def _reply(self, turn: "_Turn", sent: Any) -> tuple[list[Header], Any]:
        if not isinstance(sent, list):
            replied = await turn.one(sent)
            return turn.headers, replied
        if not 0 < len(sent) <= MOST_IN_BATCH:
            return [], _error(None, Malformed(f"a batch holds 1 to {MOST_IN_BATCH} requests"), turn.trace_id)
        # One after the other: whoever wants several at once sends several.
        replies = [reply for each in sent if (reply := await turn.one(each)) is not None]
        return [], replies or None


class _Turn:
    """One HTTP request by one caller, with one or more requests in it."""

    def __init__(self, gateway: Gateway, caller: Caller, trace_id: str) -> None:
        self._gateway = gateway
        self._caller = caller
        self.trace_id = trace_id
        self.headers: list[Header] = []

    async def one(self, request: Any) -> dict[str, Any] | None:
        """The reply to one request; None to a notification, whatever became of it."""
        wrong = _wrong_with(request)
        if wrong is not None:
            return _error(_id_of(request), Malformed(wrong), self.trace_id)
        replied = await self._answered(request)
        return replied if "id" in request else None

    async def _answered(self, request: dict[str, Any]) -> dict[str, Any]:
        identity = request.get("id")
        method = METHODS.get(request["method"])
        if method is None:
            known = ", ".join(METHODS)
            unknown = NoSuchRoute(f"there is no method {request['method'][:64]!r}; there are {known}")
            return _error(identity, unknown, self.trace_id)
        params = request.get("params", {})
        try:
            if not isinstance(params, dict):
                raise Malformed("params are given by name, as an object")
            result = await method(self._gateway, self._caller, params)
        except Malformed as problem:
            return _error(identity, problem, self.trace_id, code=INVALID_PARAMS)
        except Problem as problem:
            return _error(identity, problem, self.trace_id)
        except Exception as error:  # noqa: BLE001 -- its neighbours in the batch are answered all the same
            return _error(identity, hide(error, self.trace_id), self.trace_id)
        if isinstance(result, Outcome):
            self.headers = [each for each in outcome_headers(result) if each[0] in _SAID_BY_HEADERS]
            return _ended(identity, result)
        return {"jsonrpc": "2.0", "id": identity, "result": result}


def _wrong_with(request: Any) -> str | None:
    if not isinstance(request, dict):
        return "a request is a JSON object"
    if request.get("jsonrpc") != "2.0":
        return 'jsonrpc must be "2.0"'
    if not isinstance(request.get("method"), str):
        return "method must be the name of one"
    if not request.keys() <= _MEMBERS:
        return f"a request has no member {min(request.keys() - _MEMBERS)[:64]!r}"
    if not _may_be_id(request.get("id")):
        return "id must be text or a number"
    return None


def _may_be_id(value: Any) -> bool:
    return value is None or (isinstance(value, str | int | float) and not isinstance(value, bool))


def _id_of(request: Any) -> Any:
    """Whatever can be told of the id of a request that cannot be read."""
    value = request.get("id") if isinstance(request, dict) else None
    return value if _may_be_id(value) else None


def error_object(problem: Problem, trace_id: str, *, code: int | None = None) -> dict[str, Any]:
    """Any problem as JSON-RPC says it; `data` is the same problem every other door shows."""
    return {
        "code": problem.face.jsonrpc_code if code is None else code,
        "message": problem.message,
        "data": problem_fields(problem, trace_id=trace_id),
    }


def _error(identity: Any, problem: Problem, trace_id: str, *, code: int | None = None) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": identity, "error": error_object(problem, trace_id, code=code)}


def _ended(identity: Any, outcome: Outcome) -> dict[str, Any]:
    """The envelope goes out in its own bytes, here too."""
    envelope = orjson.Fragment(outcome.body)
    if outcome.face is None:
        return {"jsonrpc": "2.0", "id": identity, "result": envelope}
    message = orjson.loads(outcome.body)["detail"]
    error = {"code": outcome.face.jsonrpc_code, "message": message, "data": envelope}
    return {"jsonrpc": "2.0", "id": identity, "error": error}


async def _refuse(send: Send, problem: Problem, trace_id: str, metadata: str | None) -> None:
    status = problem.face.http
    _, *rest = problem_headers(problem.face, problem.retry_after_ms, metadata)
    if isinstance(problem, MethodNotAllowed):
        rest.append(_ALLOW)
    await answer(send, status, [JSON, *rest], orjson.dumps(_error(None, problem, trace_id)))


async def _create(gateway: Gateway, caller: Caller, params: Params) -> Outcome:
    fields = dict(params)
    key, parent = fields.pop("idempotency_key", None), fields.pop("traceparent", None)
    if parent is not None and not isinstance(parent, str):
        raise Malformed("traceparent must be text")
    request = call_request(fields, key=None if key is None else idempotency_key(key), traceparent=parent)
    return await gateway.lifecycle.run(caller, request)


async def _get_call(gateway: Gateway, caller: Caller, params: Params) -> Any:
    call_id = _take(params, {"call_id": (str, 64)}, required="call_id")["call_id"]
    return orjson.Fragment((await gateway.calls.show(caller, call_id)).body)


async def _cancel(gateway: Gateway, caller: Caller, params: Params) -> Any:
    call_id = _take(params, {"call_id": (str, 64)}, required="call_id")["call_id"]
    return await gateway.cancellations.cancel(caller, call_id)


async def _retry(gateway: Gateway, caller: Caller, params: Params) -> Outcome:
    call_id = _take(params, {"call_id": (str, 64)}, required="call_id")["call_id"]
    return await gateway.lifecycle.retry(caller, call_id)


async def _list_tools(gateway: Gateway, caller: Caller, params: Params) -> Any:
    taken = _take(params, {"after": (str, MAX_TOOL_LENGTH), "limit": (int, 500)})
    listing = await gateway.surface.page(caller, after=taken.get("after", ""), limit=taken.get("limit", 100))
    return {"tools": listing.tools, "next_after": listing.next_after}


async def _show_surface(gateway: Gateway, caller: Caller, params: Params) -> Any:
    taken = _take(params, {"after": (str, MAX_TOOL_LENGTH), "limit": (int, 500)})
    after, limit = taken.get("after", ""), taken.get("limit", 100)
    return await gateway.surface.standings(caller, Selection(), after=after, limit=limit)


async def _search_tools(gateway: Gateway, caller: Caller, params: Params) -> Any:
    taken = _take(params, {"q": (str, 400), "limit": (int, 50)}, required="q")
    return await gateway.surface.search(caller, taken["q"], limit=taken.get("limit", 10))


async def _get_tool(gateway: Gateway, caller: Caller, params: Params) -> Any:
    taken = _take(params, {"name": (str, MAX_TOOL_LENGTH), "version": (str, MAX_VERSION_LENGTH)}, required="name")
    return await gateway.surface.show(caller, taken["name"], taken.get("version", "latest"))


def _take(params: Params, allowed: dict[str, tuple[type, int]], *, required: str | None = None) -> Params:
    """The params as allowed: text up to a length, numbers from 1 to a most."""
    for name, value in params.items():
        if name not in allowed:
            raise Malformed(f"there is no parameter {name[:64]!r}; there are {', '.join(allowed)}")
        kind, most = allowed[name]
        size = len(value) if kind is str and isinstance(value, str) else value
        if type(value) is not kind or not isinstance(size, int) or not 0 < size <= most:
            shape = f"text of 1 to {most} characters" if kind is str else f"a whole number from 1 to {most}"
            raise Malformed(f"{name} must be {shape}", details={"field": name})
    if required is not None and required not in params:
        raise Malformed(f"{required} is missing", details={"field": required})
    return params


METHODS: dict[str, Method] = {
    "calls.create": _create,
    "calls.get": _get_call,
    "calls.cancel": _cancel,
    "calls.retry": _retry,
    "tools.list": _list_tools,
    "tools.search": _search_tools,
    "surface.get": _show_surface,
    "tools.get": _get_tool,
}
