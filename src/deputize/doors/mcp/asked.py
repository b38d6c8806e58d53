"""A request as it came in over HTTP: read, held against its headers, and told from a notification.

Since 2026-07-28 a request says in its `_meta` which version it speaks and what its client can do, and repeats in
headers what a proxy may route by; what differs is refused. Before, a handshake told the version and the client's
abilities; nothing of it is kept here: a client that can open addresses is given a session id that says so.

Above: `door.py`. Below: nothing but the words of `core/mcp.py`.
"""

import base64
import binascii
import re
from typing import Any, Final

from deputize.core.frozen import frozen
from deputize.core.mcp import (
    CLIENT_CAPABILITIES,
    HANDSHAKES,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_HEADER,
    MODERN,
    NAME_HEADER,
    PROGRESS_TOKEN,
    PROTOCOL_VERSION,
    SESSION_HEADER,
    TASKS_EXTENSION,
    VERSION_HEADER,
    VERSION_UNSUPPORTED,
    VERSIONS,
)
from deputize.core.questions import NONE, Ability, abilities_in
from deputize.doors.mcp.faces import RpcError
from deputize.doors.wire import Header, Headers

_VERSION, _METHOD, _NAME = VERSION_HEADER.encode(), METHOD_HEADER.encode(), NAME_HEADER.encode()
_ROUTING: Final = (_VERSION, _METHOD, _NAME)
# Which parameter of a method is repeated in the header for names.
_NAMED_BY: Final = {
    "tools/call": "name",
    "prompts/get": "name",
    "resources/read": "uri",
    "tasks/get": "taskId",
    "tasks/update": "taskId",
    "tasks/cancel": "taskId",
}
_ENCODED = re.compile(r"^=\?base64\?(.*)\?=$")
_ASSUMED: Final = "2025-03-26"
_LONGEST_TOKEN: Final = 1024
# What a session id of ours says of its client: nothing is remembered here.
_OPENS_ADDRESSES: Final = "url."


@frozen
class Client:
    """What the client that asks can do, by its own word. `opens` says that it can have a person open an address, and
    `abilities` what it can be asked by ending a call with it, as is done since 2026-07-28.
    """

    version: str
    tasks: bool = False
    opens: bool = False
    abilities: frozenset[Ability] = NONE

    @property
    def modern(self) -> bool:
        return self.version == MODERN


@frozen
class Asked:
    """One request; `id` is None for a notification, which nobody answers."""

    id: str | int | None
    method: str
    params: dict[str, Any]
    meta: dict[str, Any]
    client: Client

    @property
    def progress_token(self) -> str | int | None:
        """None where none was given, or one that nobody could mean: it is repeated with all the news there is."""
        token = self.meta.get(PROGRESS_TOKEN)
        fits = len(token) <= _LONGEST_TOKEN if isinstance(token, str) else type(token) is int
        return token if fits else None


def is_modern(headers: Headers, sent: Any) -> bool:
    """Which era a request belongs to. One that names no version in its headers is of the older, unless its body says
    otherwise; then it is refused for the header it lacks.
    """
    told = headers.get(_VERSION)
    if told is None:
        params = sent.get("params") if isinstance(sent, dict) else None
        meta = params.get("_meta") if isinstance(params, dict) else None
        return isinstance(meta, dict) and PROTOCOL_VERSION in meta
    return told.strip().decode("latin-1") not in HANDSHAKES


def id_of(sent: Any) -> str | int | None:
    """Whatever can be told of the id of a request that cannot be read."""
    value = sent.get("id") if isinstance(sent, dict) else None
    return value if isinstance(value, str) or type(value) is int else None


def read_request(sent: Any, headers: Headers, raw: list[Header], *, modern: bool) -> Asked | None:
    """What is asked; None for what is not answered: a notification, or in the older era an answer to us."""
    if not isinstance(sent, dict):
        raise RpcError(INVALID_REQUEST, "the body must be a single JSON-RPC request or notification, as an object")
    if sent.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc must be "2.0"')
    method = sent.get("method")
    if not isinstance(method, str):
        if not modern and "id" in sent and ("result" in sent or "error" in sent):
            return None
        raise RpcError(INVALID_REQUEST, "method must be the name of one")
    params = sent.get("params")
    if params is None:
        params = {}
    if not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "params must be an object")
    if "id" not in sent:
        if modern:
            _require_served(_text(headers, _VERSION))
        return None
    if id_of(sent) is None:
        raise RpcError(INVALID_REQUEST, "id must be text or a whole number")
    return (_modern if modern else _older)(sent["id"], method, params, headers, raw)


def _modern(identity: str | int, method: str, params: dict[str, Any], headers: Headers, raw: list[Header]) -> Asked:
    names = [name for name, _ in raw]
    for each in _ROUTING:
        if names.count(each) > 1:
            raise RpcError(HEADER_MISMATCH, f"the header {each.decode()} was sent more than once")
    meta = params.get("_meta")
    if not isinstance(meta, dict):
        raise RpcError(
            INVALID_PARAMS, f"params._meta must be an object with {PROTOCOL_VERSION} and {CLIENT_CAPABILITIES}"
        )
    missing = [each for each in (PROTOCOL_VERSION, CLIENT_CAPABILITIES) if each not in meta]
    if missing:
        raise RpcError(INVALID_PARAMS, f"params._meta lacks {' and '.join(missing)}")
    version = _text(headers, _VERSION)
    if version is None or version != meta[PROTOCOL_VERSION]:
        raise RpcError(HEADER_MISMATCH, f"the header {VERSION_HEADER} does not name the version that _meta names")
    if _text(headers, _METHOD) != method:
        raise RpcError(HEADER_MISMATCH, f"the header {METHOD_HEADER} does not name the method of the request")
    _require_name(method, params, headers)
    _require_served(version)
    abilities = meta[CLIENT_CAPABILITIES]
    if not isinstance(abilities, dict):
        raise RpcError(INVALID_PARAMS, f"{CLIENT_CAPABILITIES} must be an object")
    client = Client(
        version=version,
        tasks=_has(abilities, "extensions", TASKS_EXTENSION),
        opens=opens(abilities),
        abilities=abilities_in(abilities),
    )
    return Asked(id=identity, method=method, params=params, meta=meta, client=client)


def _older(identity: str | int, method: str, params: dict[str, Any], headers: Headers, raw: list[Header]) -> Asked:
    meta = params.get("_meta")
    session = headers.get(SESSION_HEADER.encode(), b"").decode("latin-1")
    client = Client(version=_text(headers, _VERSION) or _ASSUMED, opens=session.startswith(_OPENS_ADDRESSES))
    return Asked(id=identity, method=method, params=params, meta=meta if isinstance(meta, dict) else {}, client=client)


def session_id(abilities: dict[str, Any], fresh: str) -> str | None:
    """What a client of the older era shows with every request, where there is something to remember about it."""
    return f"{_OPENS_ADDRESSES}{fresh}" if opens(abilities) else None


def opens(abilities: dict[str, Any]) -> bool:
    """Whether a client can ask its user to open an address."""
    return _has(abilities, "elicitation", "url")


def decoded(value: str | None) -> str | None:
    """A header's value as it was meant. One that claims to be encoded and is not is like none at all."""
    match = None if value is None else _ENCODED.match(value)
    if match is None:
        return value
    try:
        meant = base64.b64decode(match[1], validate=True)
        return meant.decode() if base64.b64encode(meant).decode() == match[1] else None
    except (binascii.Error, UnicodeDecodeError):
        return None


def named_in(method: str, params: dict[str, Any]) -> str | None:
    """What the header for names repeats."""
    value = params.get(_NAMED_BY.get(method, ""))
    return value if isinstance(value, str) else None


def _require_name(method: str, params: dict[str, Any], headers: Headers) -> None:
    name = named_in(method, params)
    if name is not None and decoded(_text(headers, _NAME)) != name:
        raise RpcError(HEADER_MISMATCH, f"the header {NAME_HEADER} does not repeat {_NAMED_BY[method]} of the request")


def _require_served(version: str | None) -> None:
    if version != MODERN:
        told = {"supported": list(VERSIONS), "requested": version or ""}
        raise RpcError(
            VERSION_UNSUPPORTED, f"version {(version or '')[:32]!r} of the protocol is not served here", told
        )


def _text(headers: Headers, name: bytes) -> str | None:
    value = headers.get(name)
    return None if value is None else value.decode("latin-1").strip()


def _has(abilities: dict[str, Any], *path: str) -> bool:
    node: Any = abilities
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return isinstance(node, dict)
