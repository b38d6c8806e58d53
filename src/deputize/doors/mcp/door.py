"""MCP at `POST /mcp`: requests that stand for themselves (2026-07-28), and the handshake of the versions before.

Plain ASGI, like `rest/hot.py`: reads, asks the gateway, and writes. Nothing is kept between requests that anybody
depends on, so any gateway answers any of them. Above: `doors/asgi.py`. Below: one module per thing that can be asked.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import MethodNotAllowed, PermissionDenied, Problem
from deputize.core.mcp import (
    EVENTS,
    HANDSHAKES,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SERVER_INFO,
    SESSION_HEADER,
    TASKS_EXTENSION,
    VERSIONS,
)
from deputize.core.mcp import JSON as JSON_MEDIA
from deputize.core.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, method_of
from deputize.doors.json_in import read_json
from deputize.doors.mcp.asked import Asked, id_of, is_modern, read_request, session_id
from deputize.doors.mcp.calling import call_tool
from deputize.doors.mcp.faces import RpcError, error_of
from deputize.doors.mcp.listing import TTL_MS, Lists
from deputize.doors.mcp.own_tools import TOOLS
from deputize.doors.mcp.prompts import complete, get_prompt, list_prompts
from deputize.doors.mcp.remembered import Remembered
from deputize.doors.mcp.reply import Reply
from deputize.doors.mcp.resources import list_resources, list_templates, read_resource
from deputize.doors.mcp.tasks import cancel_task, get_task, update_task
from deputize.doors.mcp.turn import Turn
from deputize.doors.wire import (
    ClientGone,
    Header,
    Headers,
    Receive,
    Scope,
    Send,
    answer,
    challenge,
    headers_of,
    hide,
    read_body,
    require_json,
    retry_after,
    trace_id_of,
)
from deputize.lifecycle.gateway import Gateway, bearer
from deputize.lifecycle.wellknown import MCP_PATH

Method = Callable[[Turn], Awaitable[dict[str, Any]]]

INSTRUCTIONS: Final = (
    "Tools here are governed: a call may have to wait for a person or for its turn. Such a call answers with a status, "
    "a call_id and nothing done yet; ask calls_get what became of it instead of calling again. Calls that cannot be "
    "taken back need an idempotency_key."
)
_LOCAL: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_NO_BODY: Final = b""
_CAPABILITIES: Final = {READ_RESOURCE: "resources", GET_PROMPT: "prompts", COMPLETE: "completions"}


class McpDoor:
    """`gateway` raises a Problem while there is none."""

    def __init__(self, gateway: Callable[[], Gateway], closing: asyncio.Event) -> None:
        self._gateway = gateway
        self._closing = closing
        self._lists = Lists(TOOLS)
        self._remembered: Remembered | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent: Any = None
        metadata, modern = None, True
        reply = Reply(receive, send)
        try:
            gateway = self._gateway()
            metadata = metadata_url(gateway)
            headers = headers_of(scope)
            _require_origin(gateway, headers)
            if scope["method"] != "POST":
                raise MethodNotAllowed("MCP is spoken with POST; there is no stream to listen to")
            token = bearer(headers.get(b"authorization"))
            caller = gateway.tokens.cached(token) or await gateway.tokens.verify(token)
            _require_accepted(headers)
            require_json(headers)
            server = gateway.settings.server
            sent = read_json(await read_body(receive, headers, server.max_body_bytes), server.max_depth)
            modern = is_modern(headers, sent)
            asked = read_request(sent, headers, scope["headers"], modern=modern)
            if asked is None:
                reply.close()
                await answer(send, 202, [], _NO_BODY)
                return
            turn = self._turn(gateway, caller, asked, headers, scope["headers"], reply)
            result, more = await self._answered(turn)
            await reply.finish(200, more, orjson.dumps({"jsonrpc": "2.0", "id": asked.id, "result": result}))
        except ClientGone:
            return
        except Exception as error:  # noqa: BLE001 -- the door's edge: a fault of ours is logged here and shown to nobody
            await _refuse(reply, error, sent, trace_id_of(scope), metadata, modern=modern)
        finally:
            reply.close()

    def _turn(
        self, gateway: Gateway, caller: Caller, asked: Asked, headers: Headers, raw: list[Header], reply: Reply
    ) -> Turn:
        if self._remembered is None:
            self._remembered = Remembered(gateway.lifecycle.rooms.clock)
        return Turn(
            gateway=gateway,
            caller=caller,
            asked=asked,
            headers=headers,
            raw=raw,
            reply=reply,
            lists=self._lists,
            remembered=self._remembered,
            closing=self._closing,
        )

    async def _answered(self, turn: Turn) -> tuple[dict[str, Any], list[Header]]:
        asked = turn.asked
        method = (MODERN_METHODS if asked.client.modern else OLDER_METHODS).get(asked.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {asked.method[:64]!r} here")
        if method is not call_tool:
            # Calls are refused on record; whoever asks for anything else with what was revoked is refused here.
            await turn.gateway.caller(turn.headers.get(b"authorization"))
        result = await method(turn)
        if asked.client.modern:
            meta = {**result.get("_meta", {}), SERVER_INFO: _server_info(turn)}
            return {"resultType": "complete", **result, "_meta": meta}, []
        return result, _session_headers(turn) if asked.method == "initialize" else []


def metadata_url(gateway: Gateway) -> str | None:
    """Where a client that was refused learns how to sign in at this door."""
    return None if gateway.metadata_url is None else gateway.metadata_url + MCP_PATH


async def _refuse(
    reply: Reply, error: Exception, sent: Any, trace_id: str, metadata: str | None, *, modern: bool
) -> None:
    headers: list[Header] = []
    if not isinstance(error, RpcError):
        problem = error if isinstance(error, Problem) else hide(error, trace_id)
        if problem.face.http == 401:
            headers.append(challenge(problem.face, metadata))
        if isinstance(problem, MethodNotAllowed):
            headers.append((b"allow", b"POST"))
        if problem.retry_after_ms is not None:
            headers.append(retry_after(problem.retry_after_ms))
        asked_for = error_of(problem, trace_id)
        # What is wrong with the request as a whole keeps its own status in either era.
        status = problem.face.http if sent is None or problem.face.http == 401 else asked_for.http
    else:
        asked_for, status = error, error.http
        if status == 401:
            headers.append((b"www-authenticate", _again(metadata)))
    told = {"jsonrpc": "2.0", "id": id_of(sent), "error": asked_for.to_json()}
    understood = not modern and status != 401 and id_of(sent) is not None and _is_request(sent)
    await reply.finish(200 if understood else status, headers, orjson.dumps(told))


def _is_request(sent: Any) -> bool:
    return isinstance(sent, dict) and sent.get("jsonrpc") == "2.0" and isinstance(sent.get("method"), str)


def _again(metadata: str | None) -> bytes:
    said = 'Bearer realm="deputize", error="invalid_token"'
    return (said if metadata is None else f'{said}, resource_metadata="{metadata}"').encode("ascii", "replace")


def _require_origin(gateway: Gateway, headers: Headers) -> None:
    """A page of somebody else's, opened in a browser that reaches this gateway, must not speak to it."""
    origin = headers.get(b"origin")
    if origin is None:
        return
    settings = gateway.settings
    ours = {urlsplit(each).hostname for each in (settings.identity.public_url, settings.approvals.console_url) if each}
    try:
        host = urlsplit(origin.decode("ascii")).hostname
    except (ValueError, UnicodeDecodeError):
        host = None
    # An origin without a host is a page that hides where it is from; no setting, however written, makes it ours.
    if host is None or host not in ours | _LOCAL:
        raise PermissionDenied("requests from pages of other sites are not answered here")


def _require_accepted(headers: Headers) -> None:
    """An answer is JSON or a stream, as it turns out; a client takes both."""
    told = headers.get(b"accept", b"").decode("latin-1").lower()
    medias = {each.partition(";")[0].strip() for each in told.split(",")}
    if "*/*" in medias or (medias & {JSON_MEDIA, "application/*"} and medias & {EVENTS, "text/*"}):
        return
    raise RpcError(INVALID_REQUEST, f"the header Accept must name {JSON_MEDIA} and {EVENTS}", http=406)


def _server_info(turn: Turn) -> dict[str, str]:
    return {"name": "deputize", "title": "Deputize", "version": turn.gateway.lifecycle.rooms.release}


async def _discover(turn: Turn) -> dict[str, Any]:
    return {
        "supportedVersions": list(VERSIONS),
        "capabilities": {"tools": {}, **await _beside_tools(turn), "extensions": {TASKS_EXTENSION: {}}},
        "instructions": INSTRUCTIONS,
        "ttlMs": 60_000,
        "cacheScope": "private",
    }


async def _beside_tools(turn: Turn) -> dict[str, Any]:
    """What there is for this caller beside tools, as capabilities: none that would lead to nothing."""
    loaded = [found.contract.handler for found, loaded in await turn.gateway.surface.methods(turn.caller) if loaded]
    methods = {method_of(each.driver, each.target) for each in loaded}
    return {capability: {} for method, capability in _CAPABILITIES.items() if method in methods}


async def _list_modern(turn: Turn) -> dict[str, Any]:
    page = await turn.lists.page(turn.gateway, turn.caller, turn.asked.params.get("cursor"), modern=True)
    return {**page, "ttlMs": TTL_MS, "cacheScope": "private"}


async def _list_older(turn: Turn) -> dict[str, Any]:
    return await turn.lists.page(turn.gateway, turn.caller, turn.asked.params.get("cursor"), modern=False)


async def _initialize(turn: Turn) -> dict[str, Any]:
    wanted = turn.asked.params.get("protocolVersion")
    if not isinstance(wanted, str) or not isinstance(turn.asked.params.get("capabilities", {}), dict):
        raise RpcError(INVALID_PARAMS, "initialize names a protocolVersion, and capabilities as an object")
    return {
        "protocolVersion": wanted if wanted in HANDSHAKES else HANDSHAKES[0],
        "capabilities": {"tools": {"listChanged": False}, **await _beside_tools(turn)},
        "serverInfo": _server_info(turn),
        "instructions": INSTRUCTIONS,
    }


def _session_headers(turn: Turn) -> list[Header]:
    abilities = turn.asked.params.get("capabilities") or {}
    fresh = session_id(abilities, turn.gateway.lifecycle.rooms.clock.new_id())
    return [] if fresh is None else [(SESSION_HEADER.encode(), fresh.encode())]


async def _ping(turn: Turn) -> dict[str, Any]:
    return {}


_READS: Final[dict[str, Method]] = {
    "resources/list": list_resources,
    "resources/templates/list": list_templates,
    "prompts/list": list_prompts,
    READ_RESOURCE: read_resource,
    GET_PROMPT: get_prompt,
    COMPLETE: complete,
}
MODERN_METHODS: Final[dict[str, Method]] = {
    **_READS,
    "tools/call": call_tool,
    "tools/list": _list_modern,
    "server/discover": _discover,
    "tasks/get": get_task,
    "tasks/update": update_task,
    "tasks/cancel": cancel_task,
}
OLDER_METHODS: Final[dict[str, Method]] = {
    **_READS,
    "tools/call": call_tool,
    "tools/list": _list_older,
    "initialize": _initialize,
    "ping": _ping,
}
