"""Build and parse MCP's JSON-RPC messages for all supported protocol versions; nothing here sends them.

Since 2026-07-28 a server that needs input (elicitation, sampling, roots) ends the call with `input_required`, if the
client has the capability. Earlier versions send requests in the middle of a call, which then waits for the answer. That
is not supported: no such capability is declared, and such requests get "method not found".
"""

import asyncio
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import orjson

from deputize.core.contract.tools import MAX_MESSAGE_LENGTH, ToolProgress
from deputize.core.errors import (
    ClientCapabilityMissing,
    Problem,
    ResourceLimitExceeded,
    ToolFailed,
    UpstreamUnavailable,
)
from deputize.core.json_values import (
    MAX_ANSWER_VALUES,
    count_values_in,
    has_more_values,
    has_too_many_values,
    is_large_document,
)
from deputize.core.mcp.constants import (
    CAPABILITY_MISSING,
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    OLDEST_VERSION,
    PARSE_ERROR,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION_KEY,
    SERVER_INFO,
    VERSION_UNSUPPORTED,
)
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, InputRound, build_client_capabilities
from deputize.core.sensitive.known_paths import KnownPaths
from deputize.core.sensitive.text import redact_error_text
from deputize.core.value_types import frozen

CLIENT: Final = {"name": "deputize", "version": version("deputize")}
ENVELOPE: Final[dict[str, Any]] = {PROTOCOL_VERSION_KEY: MODERN_VERSION, CLIENT_INFO: CLIENT}
# The notifications that a server's lists have changed.
LIST_CHANGED_METHODS: Final = frozenset(
    f"notifications/{each}/list_changed" for each in ("tools", "resources", "prompts")
)
LIST_CHANGED_FILTER: Final = {"toolsListChanged": True, "resourcesListChanged": True, "promptsListChanged": True}
LARGEST_ANSWER: Final = 4_194_304
_MAX_INSTRUCTIONS_LENGTH: Final = 65_536
_MAX_MESSAGE_LENGTH: Final = 2_000
# Errors that a server or a proxy returns before it processes the request.
_UNREAD_CODES: Final = frozenset({PARSE_ERROR, HEADER_MISMATCH, CAPABILITY_MISSING, VERSION_UNSUPPORTED})
_NOT_OFFERED_CODES: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
# Client capabilities that a server may require.
_INPUT_CAPABILITIES: Final = frozenset({"elicitation", "sampling", "roots"})
# Errors of relays that lost the server behind them (-32000, -32001).
RELAY_ERROR_CODES: Final = frozenset({-32000, -32001})


class UpstreamRpcError(Exception):
    """A JSON-RPC error that a server returned for a request."""

    def __init__(
        self,
        code: int,
        message: str,
        data: Any = None,
        *,
        anonymous: bool = False,
        known_paths: KnownPaths | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        # The text reaches callers, surfaces and logs.
        searched_text = message[:_MAX_MESSAGE_LENGTH]
        self.message = redact_error_text(searched_text, known_paths)
        self.is_redacted = self.message != searched_text
        self.data = data
        # The error has no request id, so the server did not recognize the request.
        self.anonymous = anonymous

    def to_problem(self, server: str, *, is_sent: bool = True, known_paths: KnownPaths | None = None) -> Problem:
        """Convert the error to a Problem: a tool failure, or unavailable if a relay lost the server."""
        if known_paths is not None:
            error = UpstreamRpcError(self.code, str(self), self.data, anonymous=self.anonymous, known_paths=known_paths)
            return error.to_problem(server, is_sent=is_sent).replace(known_paths=known_paths)
        message = f"the server {server} returned an error: {self.message[:200]} ({self.code})"
        is_unread = self.code in _UNREAD_CODES or (self.anonymous and self.code == INVALID_REQUEST)
        # An error without a request id says nothing about this request, unless it means that it was not understood.
        if self.code in RELAY_ERROR_CODES or (self.anonymous and not is_unread and self.code not in _NOT_OFFERED_CODES):
            return UpstreamUnavailable(message, nothing_happened=not is_sent)
        capabilities = _as_mapping(_as_mapping(self.data).get("requiredCapabilities"))
        if self.code == CAPABILITY_MISSING and capabilities and capabilities.keys() <= _INPUT_CAPABILITIES:
            details = {"server": server, "requiredCapabilities": {name: {} for name in sorted(capabilities)}}
            return ClientCapabilityMissing(message, details=details, nothing_happened=is_unread or not is_sent)
        return ToolFailed(
            message,
            details={"server": server, "answered": self._summarize_error()},
            nothing_happened=is_unread or not is_sent,
        )

    def _summarize_error(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message[:200]}


@dataclass(kw_only=True, slots=True)
class UpstreamRequest:
    """A request to a server. `is_sent` is true if any of it may have reached the server."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    # Arguments that the tool's schema wants in headers, by header.
    headers: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = field(default=None, repr=False)
    on_progress: Callable[[ToolProgress], None] | None = None
    # The capabilities of the client behind this request; they hold for this request only, never for a session.
    client_capabilities: frozenset[ClientCapability] = NO_CAPABILITIES
    input_round: InputRound | None = field(default=None, repr=False)
    is_sent: bool = False

    def encode_body(self, number: int, is_modern: bool) -> bytes:
        """Encode the request as JSON-RPC with this id."""
        meta = self.meta
        if is_modern:
            meta = {**ENVELOPE, CLIENT_CAPABILITIES: build_client_capabilities(self.client_capabilities), **meta}
        elif self.input_round is not None:
            # An older protocol version has no input responses: the server would start a new call.
            raise UpstreamUnavailable(
                "the server no longer supports the protocol version in which it requested input", nothing_happened=True
            )
        if self.on_progress is not None:
            meta = {**meta, PROGRESS_TOKEN: number}
        params = {**self.params, **self._build_input_responses(), "_meta": meta} if meta else self.params
        return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": self.method, "params": params})

    def _build_input_responses(self) -> dict[str, Any]:
        if self.input_round is None:
            return {}
        state = {} if self.input_round.request_state is None else {"requestState": self.input_round.request_state}
        return {"inputResponses": self.input_round.responses, **state}

    def handle_notification(self, method: str, params: Any) -> None:
        """Handle a notification for this request: report progress."""
        if (
            method == "notifications/progress"
            and self.on_progress is not None
            and (progress := parse_progress(params)) is not None
        ):
            self.on_progress(progress)


@frozen
class ServerInfo:
    """A server's name, version, instructions and capabilities."""

    protocol: str
    title: str
    version: str
    instructions: str
    has_tools: bool
    announces_changes: bool
    has_resources: bool = False
    has_prompts: bool = False
    has_completions: bool = False

    @property
    def is_modern(self) -> bool:
        return self.protocol == MODERN_VERSION


def build_initialize_params() -> dict[str, Any]:
    """Build the parameters of `initialize`."""
    return {"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}, "clientInfo": CLIENT}


def parse_discover_result(result: dict[str, Any]) -> ServerInfo | None:
    """Parse the result of `server/discover`; None if the server does not support the modern version."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN_VERSION not in versions:
        return None
    return _build_server_info(MODERN_VERSION, result, _as_mapping(_as_mapping(result.get("_meta")).get(SERVER_INFO)))


def parse_initialize_result(result: dict[str, Any]) -> ServerInfo:
    """Parse the result of `initialize`; raise if the protocol version is not supported."""
    protocol = result.get("protocolVersion")
    if protocol not in HANDSHAKE_VERSIONS and protocol != OLDEST_VERSION:
        raise UpstreamUnavailable(
            "the server uses an MCP protocol version that this gateway does not support", nothing_happened=True
        )
    return _build_server_info(str(protocol), result, _as_mapping(result.get("serverInfo")))


def _build_server_info(protocol: str, result: dict[str, Any], info: Mapping[str, Any]) -> ServerInfo:
    capabilities = _as_mapping(result.get("capabilities"))
    instructions = result.get("instructions") or ""
    if not isinstance(instructions, str) or len(instructions) > _MAX_INSTRUCTIONS_LENGTH:
        raise UpstreamUnavailable(
            f"the server's instructions are not a string of at most {_MAX_INSTRUCTIONS_LENGTH} characters",
            nothing_happened=True,
        )
    return ServerInfo(
        protocol=protocol,
        title=str(info.get("title") or info.get("name") or "")[:200],
        version=str(info.get("version") or "")[:100],
        instructions=instructions,
        has_tools=isinstance(capabilities.get("tools"), dict),
        announces_changes=any(
            _as_mapping(capabilities.get(each)).get("listChanged") is True for each in ("tools", "resources", "prompts")
        ),
        has_resources=isinstance(capabilities.get("resources"), dict),
        has_prompts=isinstance(capabilities.get("prompts"), dict),
        has_completions=isinstance(capabilities.get("completions"), dict),
    )


def has_no_common_version(error: UpstreamRpcError) -> bool:
    """Tell whether the error lists the server's protocol versions and none is supported here."""
    versions = _as_mapping(error.data).get("supported")
    if error.code != VERSION_UNSUPPORTED or not isinstance(versions, list):
        return False
    return not any(each in versions for each in (MODERN_VERSION, *HANDSHAKE_VERSIONS, OLDEST_VERSION))


def has_modern_version(error: UpstreamRpcError) -> bool:
    """Tell whether the server rejected the modern version but lists it as supported, so that a retry may work."""
    versions = _as_mapping(error.data).get("supported")
    return error.code == VERSION_UNSUPPORTED and isinstance(versions, list) and MODERN_VERSION in versions


async def parse_message_off_loop(data: bytes) -> dict[str, Any]:
    """Parse a message as `parse_message` does, and a large one in a thread."""
    return await asyncio.to_thread(parse_message, data) if is_large_document(data) else parse_message(data)


def parse_message(data: bytes) -> dict[str, Any]:
    """Parse one JSON-RPC message. Batches, which the protocol no longer has, are rejected."""
    # Parsing cannot be interrupted, and takes 70 ns for each value.
    if has_too_many_values(data, MAX_ANSWER_VALUES):
        raise _build_limit_error()
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable("the server sent a message that is not JSON") from error
    if count_values_in(data) > MAX_ANSWER_VALUES and has_more_values(message, MAX_ANSWER_VALUES):
        raise _build_limit_error()
    if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
        raise UpstreamUnavailable("the server sent a message that is not JSON-RPC")
    return message


def _build_limit_error() -> ResourceLimitExceeded:
    return ResourceLimitExceeded(f"the server's answer has more than {MAX_ANSWER_VALUES:,} values")


def extract_result(message: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a response, or raise its error as `UpstreamRpcError`."""
    error = message.get("error")
    if isinstance(error, dict):
        code, reason = error.get("code"), str(error.get("message") or "no reason given")
        raise UpstreamRpcError(
            code if isinstance(code, int) else INVALID_REQUEST,
            reason,
            error.get("data"),
            anonymous=message.get("id") is None,
        )
    result = message.get("result")
    if not isinstance(result, dict):
        raise UpstreamUnavailable("the server sent a response with neither a result nor an error")
    return result


def build_reply(message: dict[str, Any]) -> bytes | None:
    """Build the reply to a server's request; None if the message needs none."""
    # An invalid id is not echoed, because it could have any size and depth.
    if "method" not in message or not isinstance(message.get("id"), str | int):
        return None
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return orjson.dumps(answer)


def build_notification(method: str, params: dict[str, Any] | None = None) -> bytes:
    """Build a notification."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return orjson.dumps(message)


def build_cancel_notification(number: int) -> bytes:
    """Build the notification that a request is canceled."""
    return build_notification(
        "notifications/cancelled", {"requestId": number, "reason": "the caller no longer waits for the result"}
    )


def parse_progress(params: Any) -> ToolProgress | None:
    """Parse a progress notification; None if it has neither a number nor a message."""
    fields = _as_mapping(params)
    current, total, message = (
        _parse_number(fields.get("progress")),
        _parse_number(fields.get("total")),
        fields.get("message"),
    )
    text = message[:MAX_MESSAGE_LENGTH] if isinstance(message, str) else ""
    return None if current is None and not text else ToolProgress(current=current, total=total, message=text)


def _parse_number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
