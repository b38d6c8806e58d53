"""MCP's messages as both eras spell them: what is asked, what an answer says, and what a server may want of us.

Nothing here sends anything. What servers ask back (a question to a person, a model's answer, folders) they ask since
2026-07-28 by ending the call with it, where they are told that somebody can answer. Before, they would ask in the
middle of a call that hangs until somebody does: that is off, no such method exists, and no capability says otherwise.

Above: `http.py` and `stdio.py`, which carry messages. Below: `core/mcp.py`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Final

import orjson

from deputize.core.definition import LONGEST_MESSAGE, Told
from deputize.core.errors import CallerCannotAnswer, Problem, ToolFailed, UpstreamUnavailable
from deputize.core.frozen import frozen
from deputize.core.mcp import (
    CAPABILITY_MISSING,
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    HANDSHAKES,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN,
    OLDEST,
    PARSE_ERROR,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SERVER_INFO,
    VERSION_UNSUPPORTED,
)
from deputize.core.questions import NONE, Ability, Round, capabilities_of

CLIENT: Final = {"name": "deputize", "version": version("deputize")}
ENVELOPE: Final[dict[str, Any]] = {PROTOCOL_VERSION: MODERN, CLIENT_INFO: CLIENT}
# What a server says when it has something else to offer than before.
CHANGED: Final = frozenset(f"notifications/{each}/list_changed" for each in ("tools", "resources", "prompts"))
NEWS: Final = {"toolsListChanged": True, "resourcesListChanged": True, "promptsListChanged": True}
LARGEST_ANSWER: Final = 4_194_304
_LONGEST_INSTRUCTIONS: Final = 65_536
# What a server, or whoever stands before it, says without having looked at what was asked.
_UNREAD: Final = frozenset({PARSE_ERROR, HEADER_MISMATCH, CAPABILITY_MISSING, VERSION_UNSUPPORTED})
_NOT_OFFERED: Final = frozenset({METHOD_NOT_FOUND, INVALID_PARAMS})
# What a server may need whoever calls to be able to do.
_ASKABLE: Final = frozenset({"elicitation", "sampling", "roots"})
# How relays say that they lost the server behind them (-32000, -32001).
RELAYS_LOSS: Final = frozenset({-32000, -32001})


class Refused(Exception):
    """A server's own error to one request, as JSON-RPC carries it."""

    def __init__(self, code: int, message: str, data: Any = None, *, anonymous: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        # It names no request: what was sent was not taken for one.
        self.anonymous = anonymous

    def problem(self, server: str) -> Problem:
        """What the error says of the call. The server's verdict is one; a relay's loss of its server is none."""
        said = f"the server {server} answers: {self.message[:200]} ({self.code})"
        unread = self.code in _UNREAD or (self.anonymous and self.code == INVALID_REQUEST)
        # An error that names no request is no word on this one, unless it says that nothing of it was understood.
        if self.code in RELAYS_LOSS or (self.anonymous and not unread and self.code not in _NOT_OFFERED):
            return UpstreamUnavailable(said)
        needed = _mapping(_mapping(self.data).get("requiredCapabilities"))
        if self.code == CAPABILITY_MISSING and needed and needed.keys() <= _ASKABLE:
            told = {"server": server, "requiredCapabilities": {name: {} for name in sorted(needed)}}
            return CallerCannotAnswer(said, details=told, nothing_happened=unread)
        return ToolFailed(said, details={"server": server, "answered": self._told()}, nothing_happened=unread)

    def _told(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message[:200]}


@dataclass(kw_only=True, slots=True)
class Ask:
    """One request on its way. `sent` turns true when any of it may have reached the server, and back if it did not."""

    method: str
    params: dict[str, Any] = field(default_factory=dict)
    meta: dict[str, Any] = field(default_factory=dict)
    # What the tool's schema wants repeated in headers, by header.
    headers: Mapping[str, str] = field(default_factory=dict)
    secret: str | None = field(default=None, repr=False)
    tell: Callable[[Told], None] | None = None
    # What whoever waits for the answer can be asked back: for this request, and never for a whole session.
    abilities: frozenset[Ability] = NONE
    round: Round | None = field(default=None, repr=False)
    sent: bool = False

    def body(self, number: int, modern: bool) -> bytes:
        meta = self.meta
        if modern:
            meta = {**ENVELOPE, CLIENT_CAPABILITIES: capabilities_of(self.abilities), **meta}
        elif self.round is not None:
            # It would take the call for a new one.
            raise UpstreamUnavailable("the server no longer speaks the protocol it asked in", nothing_happened=True)
        if self.tell is not None:
            meta = {**meta, PROGRESS_TOKEN: number}
        params = {**self.params, **self._answers(), "_meta": meta} if meta else self.params
        return orjson.dumps({"jsonrpc": "2.0", "id": number, "method": self.method, "params": params})

    def _answers(self) -> dict[str, Any]:
        if self.round is None:
            return {}
        state = {} if self.round.state is None else {"requestState": self.round.state}
        return {"inputResponses": self.round.responses, **state}

    def heard(self, method: str, params: Any) -> None:
        """A notification that came with the answer."""
        if method == "notifications/progress" and self.tell is not None and (told := progress(params)) is not None:
            self.tell(told)


@frozen
class Introduction:
    """What a server says of itself before it is asked for anything."""

    protocol: str
    title: str
    version: str
    instructions: str
    has_tools: bool
    tells_changes: bool
    has_resources: bool = False
    has_prompts: bool = False
    completes: bool = False

    @property
    def modern(self) -> bool:
        return self.protocol == MODERN


def initialize() -> dict[str, Any]:
    """The handshake's offer."""
    return {"protocolVersion": HANDSHAKES[0], "capabilities": {}, "clientInfo": CLIENT}


def discovered(result: dict[str, Any]) -> Introduction | None:
    """The introduction of a server of today, or None where it says that it is none."""
    versions = result.get("supportedVersions")
    if not isinstance(versions, list) or MODERN not in versions:
        return None
    return _introduction(MODERN, result, _mapping(_mapping(result.get("_meta")).get(SERVER_INFO)))


def shaken(result: dict[str, Any]) -> Introduction:
    """The introduction at the end of a handshake."""
    protocol = result.get("protocolVersion")
    if protocol not in HANDSHAKES and protocol != OLDEST:
        raise UpstreamUnavailable("the server speaks a version of MCP that is not spoken here", nothing_happened=True)
    return _introduction(str(protocol), result, _mapping(result.get("serverInfo")))


def _introduction(protocol: str, result: dict[str, Any], info: Mapping[str, Any]) -> Introduction:
    able = _mapping(result.get("capabilities"))
    instructions = result.get("instructions") or ""
    if not isinstance(instructions, str) or len(instructions) > _LONGEST_INSTRUCTIONS:
        raise UpstreamUnavailable(
            f"the server's instructions are no text of at most {_LONGEST_INSTRUCTIONS} characters",
            nothing_happened=True,
        )
    return Introduction(
        protocol=protocol,
        title=str(info.get("title") or info.get("name") or "")[:200],
        version=str(info.get("version") or "")[:100],
        instructions=instructions,
        has_tools=isinstance(able.get("tools"), dict),
        tells_changes=any(
            _mapping(able.get(each)).get("listChanged") is True for each in ("tools", "resources", "prompts")
        ),
        has_resources=isinstance(able.get("resources"), dict),
        has_prompts=isinstance(able.get("prompts"), dict),
        completes=isinstance(able.get("completions"), dict),
    )


def only_speaks_others(refused: Refused) -> bool:
    """Whether the server said that it speaks versions, and none of ours."""
    supported = _mapping(refused.data).get("supported")
    if refused.code != VERSION_UNSUPPORTED or not isinstance(supported, list):
        return False
    return not any(each in supported for each in (MODERN, *HANDSHAKES, OLDEST))


def speaks_ours(refused: Refused) -> bool:
    """Whether the server refused the version of today and says all the same that it speaks it: to be asked again."""
    supported = _mapping(refused.data).get("supported")
    return refused.code == VERSION_UNSUPPORTED and isinstance(supported, list) and MODERN in supported


def parsed(data: bytes) -> dict[str, Any]:
    """One message. Batches were taken out of the protocol again; whoever still sends them is not understood."""
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise UpstreamUnavailable("the server does not answer in JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
        raise UpstreamUnavailable("the server does not answer in JSON-RPC")
    return message


def result_of(message: dict[str, Any]) -> dict[str, Any]:
    """What an answer holds, or the error it is."""
    error = message.get("error")
    if isinstance(error, dict):
        code, said = error.get("code"), str(error.get("message") or "no reason given")
        raise Refused(
            code if isinstance(code, int) else INVALID_REQUEST,
            said,
            error.get("data"),
            anonymous=message.get("id") is None,
        )
    result = message.get("result")
    if not isinstance(result, dict):
        raise UpstreamUnavailable("the server answers with neither a result nor an error")
    return result


def answer_to(message: dict[str, Any]) -> bytes | None:
    """What a server that asks something is told; None for what wants no answer."""
    # What is no id is not repeated: it could be of any size and depth.
    if "method" not in message or not isinstance(message.get("id"), str | int):
        return None
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        answer["result"] = {}
    else:
        answer["error"] = {"code": METHOD_NOT_FOUND, "message": "not offered here"}
    return orjson.dumps(answer)


def notification(method: str, params: dict[str, Any] | None = None) -> bytes:
    message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
    if params:
        message["params"] = params
    return orjson.dumps(message)


def canceled(number: int) -> bytes:
    return notification("notifications/cancelled", {"requestId": number, "reason": "nobody waits for it any more"})


def progress(params: Any) -> Told | None:
    """How far a tool says it is, or None for what says nothing."""
    said = _mapping(params)
    done, total, message = _number(said.get("progress")), _number(said.get("total")), said.get("message")
    text = message[:LONGEST_MESSAGE] if isinstance(message, str) else ""
    return None if done is None and not text else Told(done=done, total=total, message=text)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
