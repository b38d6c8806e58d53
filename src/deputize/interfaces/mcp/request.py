"""Parse an MCP request and compare it with its HTTP headers.

Since 2026-07-28, a request names its protocol version and the client's capabilities in `_meta`, and repeats in headers
what a proxy may route by; a mismatch is refused. In earlier versions, a handshake exchanged these. Nothing of it is
stored: the session id itself says whether the client can open URLs.
"""

import base64
import binascii
import re
from typing import Any, Final

from deputize.core.mcp.constants import (
    CLIENT_CAPABILITIES,
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_HEADER,
    MODERN_VERSION,
    NAME_HEADER,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION_KEY,
    SESSION_HEADER,
    SUPPORTED_VERSIONS,
    TASKS_EXTENSION,
    VERSION_HEADER,
    VERSION_UNSUPPORTED,
)
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, parse_client_capabilities
from deputize.core.value_types import frozen
from deputize.interfaces.asgi_http import Header, Headers
from deputize.interfaces.mcp.errors import RpcError

_VERSION, _METHOD, _NAME = VERSION_HEADER.encode(), METHOD_HEADER.encode(), NAME_HEADER.encode()
_ROUTING: Final = (_VERSION, _METHOD, _NAME)
# The parameter of each method that the name header repeats.
_NAME_PARAMS: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_BASE64_VALUE = re.compile(r"^=\?base64\?(.*)\?=$")
_DEFAULT_VERSION: Final = "2025-03-26"
_MAX_TOKEN_LENGTH: Final = 1024
# The session ids of clients that can open URLs begin with this, since sessions are not stored.
_URL_SESSION_PREFIX: Final = "url."


@frozen
class McpClient:
    """The client's declared capabilities: `capabilities` are the input requests that it can answer since 2026-07-28."""

    version: str
    supports_tasks: bool = False
    can_open_urls: bool = False
    capabilities: frozenset[ClientCapability] = NO_CAPABILITIES

    @property
    def is_modern(self) -> bool:
        return self.version == MODERN_VERSION


@frozen
class McpRequest:
    """One request. `id` is None for a notification, which has no response."""

    id: str | int | None
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    client: McpClient

    @property
    def progress_token(self) -> str | int | None:
        """The progress token; None if there is none or it is not valid, since every notification repeats it."""
        token = self.meta.get(PROGRESS_TOKEN)
        is_valid = len(token) <= _MAX_TOKEN_LENGTH if isinstance(token, str) else type(token) is int
        return token if is_valid else None


def is_modern(headers: Headers, body: Any) -> bool:
    """Tell whether a request is of protocol version 2026-07-28 or later.

    A request without a version header counts as earlier, unless its body names a version; then it is refused for the
    missing header.
    """
    version = headers.get(_VERSION)
    if version is None:
        params = body.get("params") if isinstance(body, dict) else None
        meta = params.get("_meta") if isinstance(params, dict) else None
        return isinstance(meta, dict) and PROTOCOL_VERSION_KEY in meta
    return version.strip().decode("latin-1") not in HANDSHAKE_VERSIONS


def parse_request_id(body: Any) -> str | int | None:
    """Return the id of a request that may be invalid, if it has a valid one."""
    value = body.get("id") if isinstance(body, dict) else None
    return value if isinstance(value, str) or type(value) is int else None


def read_request(body: Any, headers: Headers, raw_headers: list[Header], *, modern: bool) -> McpRequest | None:
    """Parse a request; None if it has no response: a notification, or a client's response in earlier versions."""
    if not isinstance(body, dict):
        raise RpcError(INVALID_REQUEST, "the body must be a single JSON-RPC request or notification, as an object")
    if body.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0"')
    method = body.get("method")
    if not isinstance(method, str):
        if not modern and "id" in body and ("result" in body or "error" in body):
            return None
        raise RpcError(INVALID_REQUEST, "method must be the name of a method")
    params = body.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "params must be an object")
    if "id" not in body:
        if modern:
            _require_supported_version(_read_header(headers, _VERSION))
        return None
    if parse_request_id(body) is None:
        raise RpcError(INVALID_REQUEST, "id must be text or a whole number")
    return (_parse_modern if modern else _parse_legacy)(body["id"], method, params, headers, raw_headers)


def _parse_modern(
    request_id: str | int, method: str, params: dict[str, Any], headers: Headers, raw_headers: list[Header]
) -> McpRequest:
    names = [name for name, _ in raw_headers]
    for each in _ROUTING:
        if names.count(each) > 1:
            raise RpcError(HEADER_MISMATCH, f"the header {each.decode()} was sent more than once")
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        raise RpcError(
            INVALID_PARAMS, f"params._meta must be an object with {PROTOCOL_VERSION_KEY} and {CLIENT_CAPABILITIES}"
        )
    missing = [each for each in (PROTOCOL_VERSION_KEY, CLIENT_CAPABILITIES) if each not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    version = _read_header(headers, _VERSION)
    if version is None or version != meta[PROTOCOL_VERSION_KEY]:
        raise RpcError(HEADER_MISMATCH, f"the header {VERSION_HEADER} does not name the version that _meta names")
    if _read_header(headers, _METHOD) != method:
        raise RpcError(HEADER_MISMATCH, f"the header {METHOD_HEADER} does not name the method of the request")
    _require_name_header(method, params, headers)
    _require_supported_version(version)
    capabilities = meta[CLIENT_CAPABILITIES]
    if not isinstance(capabilities, dict):
        raise RpcError(INVALID_PARAMS, f"{CLIENT_CAPABILITIES} must be an object")
    client = McpClient(
        version=version,
        supports_tasks=_has_capability(capabilities, "extensions", TASKS_EXTENSION),
        can_open_urls=has_url_elicitation(capabilities),
        capabilities=parse_client_capabilities(capabilities),
    )
    return McpRequest(id=request_id, method=method, params=params, meta=meta, client=client)


def _parse_legacy(
    request_id: str | int, method: str, params: dict[str, Any], headers: Headers, raw_headers: list[Header]
) -> McpRequest:
    meta = params.get("_meta")
    session = headers.get(SESSION_HEADER.encode(), b"").decode("latin-1")
    client = McpClient(
        version=_read_header(headers, _VERSION) or _DEFAULT_VERSION,
        can_open_urls=session.startswith(_URL_SESSION_PREFIX),
    )
    return McpRequest(
        id=request_id, method=method, params=params, meta=meta if isinstance(meta, dict) else {}, client=client
    )


def build_session_id(capabilities: dict[str, Any], new_id: str) -> str | None:
    """Build the session id of a client that can open URLs; None for any other, which needs no session."""
    return f"{_URL_SESSION_PREFIX}{new_id}" if has_url_elicitation(capabilities) else None


def has_url_elicitation(capabilities: dict[str, Any]) -> bool:
    """Tell whether a client can ask its user to open a URL."""
    return _has_capability(capabilities, "elicitation", "url")


def decode_header(value: str | None) -> str | None:
    """Decode a header's value; None if it claims to be base64 and is not."""
    match = None if value is None else _BASE64_VALUE.match(value)
    if match is None:
        return value
    try:
        data = base64.b64decode(match[1], validate=True)
        return data.decode() if base64.b64encode(data).decode() == match[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def find_routing_name(method: str, params: dict[str, Any]) -> str | None:
    """Find the name that the name header repeats."""
    value = params.get(_NAME_PARAMS.get(method, ""))
    return value if isinstance(value, str) else None


def _require_name_header(method: str, params: dict[str, Any], headers: Headers) -> None:
    name = find_routing_name(method, params)
    if name is not None and decode_header(_read_header(headers, _NAME)) != name:
        raise RpcError(
            HEADER_MISMATCH, f"the header {NAME_HEADER} does not repeat {_NAME_PARAMS[method]} of the request"
        )


def _require_supported_version(version: str | None) -> None:
    if version != MODERN_VERSION:
        data = {"supported": list(SUPPORTED_VERSIONS), "requested": version or ""}
        raise RpcError(VERSION_UNSUPPORTED, f"protocol version {(version or '')[:32]!r} is not supported", data)


def _read_header(headers: Headers, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1").strip()


def _has_capability(capabilities: dict[str, Any], *path: str) -> bool:
    node: Any = capabilities
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return isinstance(node, dict)


def parse_input_responses(request: McpRequest) -> dict[str, Any]:
    """Read the client's answers, by the names of the questions."""
    responses = request.params.get("inputResponses", {})
    if not isinstance(responses, dict) or not all(isinstance(each, dict) for each in responses.values()):
        raise RpcError(INVALID_PARAMS, "inputResponses must be an object with one object per answer")
    return responses
