"""Serve MCP at `POST /mcp`: stateless requests (2026-07-28), and the handshake of earlier versions.

Plain ASGI, like `rest/calls/post_call.py`. No client depends on state kept between requests, so any gateway can answer
any request. Each method has its own module.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import MethodNotAllowed, PermissionDenied, Problem
from deputize.core.json_values import run_for_value
from deputize.core.mcp.constants import (
    HANDSHAKE_VERSIONS,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NEGOTIATION,
    SERVER_INFO,
    SESSION_HEADER,
    SSE_MEDIA_TYPE,
    SUPPORTED_VERSIONS,
    TASKS_EXTENSION,
)
from deputize.core.mcp.constants import JSON_MEDIA_TYPE as JSON_MEDIA
from deputize.core.mcp.servers import COMPLETE, GET_PROMPT, READ_RESOURCE
from deputize.core.settings.urls import MCP_PATH
from deputize.interfaces.asgi_http import (
    ClientDisconnect,
    Header,
    Headers,
    Receive,
    Scope,
    Send,
    hide_internal_error,
    make_challenge_header,
    make_retry_after_header,
    parse_headers,
    read_body,
    read_trace_id,
    require_json,
    send_response,
)
from deputize.interfaces.json_body import read_json_off_loop
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError, build_error
from deputize.interfaces.mcp.reads.prompts import complete_argument, get_prompt, list_prompts
from deputize.interfaces.mcp.reads.resources import list_resources, list_templates, read_resource
from deputize.interfaces.mcp.recent_calls import RecentCalls
from deputize.interfaces.mcp.request import McpRequest, build_session_id, is_modern, parse_request_id, read_request
from deputize.interfaces.mcp.response import McpResponse
from deputize.interfaces.mcp.tasks import cancel_task, get_task, update_task
from deputize.interfaces.mcp.tools.builtin_tools import BUILTIN_DEFINITIONS
from deputize.interfaces.mcp.tools.negotiation import negotiate_version
from deputize.interfaces.mcp.tools.tools_call import call_tool
from deputize.interfaces.mcp.tools.tools_list import TTL_MS, ToolLists
from deputize.operations.gateway import Gateway

McpMethod = Callable[[McpContext], Awaitable[dict[str, Any]]]

INSTRUCTIONS: Final = (
    "Tools here are governed: a call may have to wait for approval or in a queue. It then returns a status and a "
    "call_id before anything is done; poll calls_get with the call_id instead of calling again. Irreversible calls "
    "need an idempotency_key."
)
_LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_BODY: Final = b""
_CAPABILITIES: Final = {READ_RESOURCE: "resources", GET_PROMPT: "prompts", COMPLETE: "completions"}


class McpEndpoint:
    """The ASGI application. `get_gateway` raises a Problem while no gateway is open."""

    def __init__(self, get_gateway: Callable[[], Gateway], shutdown_event: asyncio.Event) -> None:
        self._get_gateway = get_gateway
        self._shutdown_event = shutdown_event
        self._tool_lists = ToolLists(BUILTIN_DEFINITIONS)
        self._recent_calls: RecentCalls | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body: Any = None
        metadata, modern = None, True
        response = McpResponse(receive, send)
        try:
            gateway = self._get_gateway()
            metadata = build_metadata_url(gateway)
            headers = parse_headers(scope)
            _require_own_origin(gateway, headers)
            if scope["method"] != "POST":
                raise MethodNotAllowed("MCP requests are sent with POST; this server has no stream to listen to")
            caller = await gateway.authenticate_for_call(headers.get(b"authorization"))
            _require_accept_header(headers)
            require_json(headers)
            server = gateway.settings.server
            body = await read_json_off_loop(await read_body(receive, headers, server.max_body_bytes), server.max_depth)
            modern = is_modern(headers, body)
            request = read_request(body, headers, scope["headers"], modern=modern)
            if request is None:
                response.close()
                await send_response(send, 202, [], _NO_BODY)
                return
            context = self._build_context(gateway, caller, request, headers, scope["headers"], response)
            result, extra_headers = await self._dispatch_request(context)
            message = {"jsonrpc": "2.0", "id": request.id, "result": result}
            reply = await run_for_value(result, orjson.dumps, message)
            await response.finish(200, extra_headers, reply)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 -- the outermost handler: logs an unexpected error and hides it
            await _send_error(response, error, body, read_trace_id(scope), metadata, modern=modern)
        finally:
            response.close()

    def _build_context(
        self,
        gateway: Gateway,
        caller: Caller,
        request: McpRequest,
        headers: Headers,
        raw_headers: list[Header],
        response: McpResponse,
    ) -> McpContext:
        if self._recent_calls is None:
            self._recent_calls = RecentCalls(gateway.clock)
        return McpContext(
            gateway=gateway,
            caller=caller,
            request=request,
            headers=headers,
            raw_headers=raw_headers,
            response=response,
            tool_lists=self._tool_lists,
            recent_calls=self._recent_calls,
            shutdown_event=self._shutdown_event,
        )

    async def _dispatch_request(self, context: McpContext) -> tuple[dict[str, Any], list[Header]]:
        request = context.request
        method = (MODERN_METHODS if request.client.is_modern else LEGACY_METHODS).get(request.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {request.method[:64]!r}")
        if method is not call_tool:
            # A call of a revoked caller is refused and audited by the lifecycle; anything else is refused here.
            await context.gateway.authenticate(context.headers.get(b"authorization"))
        result = await method(context)
        if request.client.is_modern:
            meta = {**result.get("_meta", {}), SERVER_INFO: _build_server_info(context)}
            return {"resultType": "complete", **result, "_meta": meta}, []
        return result, _build_session_headers(context) if request.method == "initialize" else []


def build_metadata_url(gateway: Gateway) -> str | None:
    """Build the URL of the resource metadata of `/mcp` (RFC 9728), for clients that have no valid token."""
    return None if gateway.metadata_url is None else gateway.metadata_url + MCP_PATH


async def _send_error(
    response: McpResponse, error: Exception, body: Any, trace_id: str, metadata: str | None, *, modern: bool
) -> None:
    headers: list[Header] = []
    if not isinstance(error, RpcError):
        problem = error if isinstance(error, Problem) else hide_internal_error(error, trace_id)
        if problem.spec.http == 401:
            headers.append(make_challenge_header(problem.spec, metadata))
        if isinstance(problem, MethodNotAllowed):
            headers.append((b"allow", b"POST"))
        if problem.retry_after_ms is not None:
            headers.append(make_retry_after_header(problem.retry_after_ms))
        rpc_error = build_error(problem, trace_id)
        # A problem of the HTTP request as a whole has its own status in every protocol version.
        status = problem.spec.http if body is None or problem.spec.http == 401 else rpc_error.http
    else:
        rpc_error, status = error, error.http
        if status == 401:
            headers.append((b"www-authenticate", _build_challenge(metadata)))
    error_body = {"jsonrpc": "2.0", "id": parse_request_id(body), "error": rpc_error.to_json()}
    is_legacy_answer = not modern and status != 401 and parse_request_id(body) is not None and _is_request(body)
    await response.finish(200 if is_legacy_answer else status, headers, orjson.dumps(error_body))


def _is_request(body: Any) -> bool:
    return isinstance(body, dict) and body.get("jsonrpc") == "2.0" and isinstance(body.get("method"), str)


def _build_challenge(metadata: str | None) -> bytes:
    header = 'Bearer realm="deputize", error="invalid_token"'
    return (header if metadata is None else f'{header}, resource_metadata="{metadata}"').encode("ascii", "replace")


def _require_own_origin(gateway: Gateway, headers: Headers) -> None:
    """Refuse requests from pages of other sites, against DNS rebinding."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    settings = gateway.settings
    own_hosts = {
        urlsplit(each).hostname for each in (settings.identity.public_url, settings.approvals.console_url) if each
    }
    try:
        host = urlsplit(origin.decode("ascii")).hostname
    except (ValueError, UnicodeDecodeError):
        host = None
    # An origin without a host hides where the page is from, so no setting can make it ours.
    if host is None or host not in own_hosts | _LOCAL_HOSTS:
        raise PermissionDenied("requests from pages of other sites are refused")


def _require_accept_header(headers: Headers) -> None:
    """Require that the client accepts both JSON and an event stream, since either may be the response."""
    accept = headers.get(b"accept", b"").decode("latin-1").lower()
    media_types = {each.partition(";")[0].strip() for each in accept.split(",")}
    if "*/*" in media_types or (
        media_types & {JSON_MEDIA, "application/*"} and media_types & {SSE_MEDIA_TYPE, "text/*"}
    ):
        return
    raise RpcError(INVALID_REQUEST, f"the header Accept must name {JSON_MEDIA} and {SSE_MEDIA_TYPE}", http=406)


def _build_server_info(context: McpContext) -> dict[str, str]:
    return {"name": "deputize", "title": "Deputize", "version": context.gateway.release}


async def _discover(context: McpContext) -> dict[str, Any]:
    return {
        "supportedVersions": list(SUPPORTED_VERSIONS),
        "capabilities": {
            "tools": {},
            **await _list_capabilities(context),
            "extensions": {TASKS_EXTENSION: {}, NEGOTIATION: {}},
        },
        "instructions": INSTRUCTIONS,
        "ttlMs": 60_000,
        "cacheScope": "private",
    }


async def _list_capabilities(context: McpContext) -> dict[str, Any]:
    """List the capabilities beside tools for which this caller can use a server."""
    server_methods = await context.gateway.surface.list_server_methods(context.caller)
    methods = {each.method for each in server_methods if each.is_loaded}
    return {capability: {} for method, capability in _CAPABILITIES.items() if method in methods}


async def _list_tools_modern(context: McpContext) -> dict[str, Any]:
    page = await context.tool_lists.get_page(
        context.gateway, context.caller, context.request.params.get("cursor"), modern=True
    )
    return {**page, "ttlMs": TTL_MS, "cacheScope": "private"}


async def _list_tools_legacy(context: McpContext) -> dict[str, Any]:
    return await context.tool_lists.get_page(
        context.gateway, context.caller, context.request.params.get("cursor"), modern=False
    )


async def _initialize(context: McpContext) -> dict[str, Any]:
    version = context.request.params.get("protocolVersion")
    if not isinstance(version, str) or not isinstance(context.request.params.get("capabilities", {}), dict):
        raise RpcError(INVALID_PARAMS, "initialize needs a protocolVersion, and capabilities as an object")
    return {
        "protocolVersion": version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0],
        "capabilities": {"tools": {"listChanged": False}, **await _list_capabilities(context)},
        "serverInfo": _build_server_info(context),
        "instructions": INSTRUCTIONS,
    }


def _build_session_headers(context: McpContext) -> list[Header]:
    capabilities = context.request.params.get("capabilities") or {}
    new_session = build_session_id(capabilities, context.gateway.clock.new_id())
    return [] if new_session is None else [(SESSION_HEADER.encode(), new_session.encode())]


async def _ping(context: McpContext) -> dict[str, Any]:
    return {}


_READ_METHODS: Final[dict[str, McpMethod]] = {
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "prompts/list": list_prompts,
    READ_RESOURCE: read_resource,
    GET_PROMPT: get_prompt,
    COMPLETE: complete_argument,
    NEGOTIATION: negotiate_version,
}
MODERN_METHODS: Final[dict[str, McpMethod]] = {
    **_READ_METHODS,
    "tools/call": call_tool,
    "tools/list": _list_tools_modern,
    "server/discover": _discover,
    "tasks/get": get_task,
    "tasks/update": update_task,
    "tasks/cancel": cancel_task,
}
LEGACY_METHODS: Final[dict[str, McpMethod]] = {
    **_READ_METHODS,
    "tools/call": call_tool,
    "tools/list": _list_tools_legacy,
    "initialize": _initialize,
    "ping": _ping,
}
