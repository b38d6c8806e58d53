"""Every door of a running gateway, as composed: what its API document lists, the methods inside its JSON-RPC and its
MCP, and the console's pages.

A door is one request with a place for a token; `answers` says whether it let the token in. Above:
`proofs.confused_deputy`. Below: the document, `pages`, and `wire`.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from deputize.core.mcp import CLIENT_CAPABILITIES, HANDSHAKES, MODERN, PROTOCOL_VERSION, TASKS_EXTENSION
from deputize.doors.asgi import build
from deputize.doors.console.app import console_app
from deputize.doors.console.cookies import SESSION
from deputize.doors.console.render import STYLE_NAME
from deputize.doors.jsonrpc import METHODS
from deputize.doors.mcp.door import MODERN_METHODS, OLDER_METHODS
from deputize.doors.mcp.own_tools import OWN
from deputize.lifecycle.console import CALLBACK
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.wellknown import MCP_PATH
from proofs.deputy.answers import is_refused, lets_in, shows, slug_of
from proofs.kit.bad_tokens import Bad
from proofs.kit.wire import Answer, Line

_OPEN_PREFIXES = ("/healthz", "/readyz", "/docs", "/openapi.json", "/.well-known/", "/t/")
# The way in, and what makes pages legible; the codes of a terminal are taken in development only.
_OPEN_PAGES = frozenset({
    "/console", f"/console/{STYLE_NAME}", "/console/sign-in", CALLBACK, "/console/tickets/{ticket_id}/code",
})  # fmt: skip
_ONE_APPROVAL = "/v1/approvals/{"
# Where a token for the console is good.
DECIDING = frozenset({
    "GET /v1/approvals", "GET /v1/approvals/{ticket_id}", "POST /v1/approvals/batch",
    *(f"POST /v1/approvals/{{ticket_id}}/{word}" for word in ("approve", "deny", "break-glass")),
})  # fmt: skip
FORM = "application/x-www-form-urlencoded"
_TOKEN_FIELDS = ("subject_token", "actor_token")
_AT_ONCE = 8
_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """One request. The token goes into the Authorization header, into the field of a form, or into a cookie."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    token_field: str = ""
    cookie: str = ""
    about_call: bool = False

    @property
    def sent(self) -> bytes:
        return urlencode(self.form).encode() if self.form else self.body

    async def ask_oddly(self, line: Line, carrier: str, token: str) -> Answer:
        """The token where no door may look for it."""
        headers, query = carriers(token)[carrier]
        path = f"{self.path}{'&' if '?' in self.path else '?'}{query}" if query else self.path
        return await line.send(self.method, path, headers={**self.headers, **headers}, body=self.sent)

    async def ask(self, line: Line, token: str) -> Answer:
        if self.token_field:
            body = urlencode({**self.form, self.token_field: token}).encode("latin-1")
            return await line.send(self.method, self.path, headers={**self.headers, "content-type": FORM}, body=body)
        shown = {"cookie": f"{self.cookie}={token}"} if self.cookie else {"authorization": f"Bearer {token}"}
        return await line.send(self.method, self.path, headers={**self.headers, **shown}, body=self.sent)


@dataclass(kw_only=True, slots=True)
class Tried:
    """What came of trying tokens at doors."""

    tries: int = 0
    accepted: int = 0
    broken: int = 0
    effects: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        if len(self.samples) < 12:
            self.samples.append(text)


def carriers(token: str) -> dict[str, tuple[dict[str, str], str]]:
    """Headers and query strings that carry a good token as no client should."""
    basic = base64.b64encode(f"bearer:{token}".encode()).decode()
    return {
        "the query": ({}, urlencode({"access_token": token})),
        "the query, as token": ({}, urlencode({"token": token, "authorization": f"Bearer {token}"})),
        "a cookie": ({"cookie": f"access_token={token}; authorization=Bearer {token}"}, ""),
        "basic": ({"authorization": f"Basic {basic}"}, ""),
        "no scheme": ({"authorization": token}, ""),
        "another scheme": ({"authorization": f"Token {token}"}, ""),
        "DPoP": ({"authorization": f"DPoP {token}"}, ""),
        "a proxy's header": ({"proxy-authorization": f"Bearer {token}"}, ""),
        "forwarded headers": ({"x-forwarded-access-token": token, "x-auth-token": token}, ""),
        "an original header": ({"x-original-authorization": f"Bearer {token}"}, ""),
        "a user's header": ({"x-forwarded-user": "admin", "x-remote-user": "admin", "x-tenant": "acme"}, ""),
    }  # fmt: skip


class Doors:
    """`known` fills in what paths need, `bodies` is what is sent: about things that are really there. A door of which
    neither says enough breaks the proof off, for knocking there would show nothing. `pages` are no part of a document.
    """

    def __init__(
        self, document: Mapping[str, Any], known: Mapping[str, str], bodies: Mapping[str, Any], pages: Sequence[Door]
    ) -> None:
        self._document = document
        self._known = known
        self._bodies = bodies
        self.unguarded: list[str] = []
        """Routes that ask for no caller and are not among those that may do so."""
        self.all: list[Door] = [*self._listed(), *_mcp(bodies), *pages]
        listed = {f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs}
        listed |= {page.name for page in pages}
        self.unguarded += sorted(f"{each}, which no document lists" for each in _mounted() - listed)

    def _listed(self) -> Iterable[Door]:
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                name = f"{method.upper()} {path}"
                content = operation.get("requestBody", {}).get("content", {})
                if FORM in content:
                    yield from self._forms(name, method, path)
                elif path == "/rpc":
                    yield from self._methods(self._bodies)
                elif operation.get("security"):
                    yield self._route(path, method, operation, self._known)
                elif not path.startswith(_OPEN_PREFIXES):
                    self.unguarded.append(name)

    def about(self, call_id: str) -> list[Door]:
        """Every request that names a call, made about this one; a ticket may be named by its call."""
        known, params = {**self._known}, {}
        for path, operations in self._document["paths"].items():
            for method in operations:
                known |= {f"{method.upper()} {path} {name}": call_id for name in ("call_id", "ticket_id")}
        for method, sent in self._bodies.items():
            if method.startswith("rpc ") and "call_id" in sent:
                params[method] = {**sent, "call_id": call_id}
        return [
            *(
                self._route(path, method, operation, known)
                for path, operations in self._document["paths"].items()
                for method, operation in operations.items()
                if "{call_id}" in path or path.startswith(_ONE_APPROVAL)
            ),
            *self._methods(params),
            *(each for each in _mcp(self._bodies, call_id) if each.about_call),
        ]

    def _route(self, path: str, method: str, operation: Mapping[str, Any], known: Mapping[str, str]) -> Door:
        name, queries = f"{method.upper()} {path}", {}
        for parameter in operation.get("parameters", ()):
            called = parameter["name"]
            if parameter["in"] == "path":
                value = known.get(f"{name} {called}") or _told(known, called, name)
                path = path.replace(f"{{{called}}}", quote(value, safe=""))
            elif parameter["in"] == "query" and parameter.get("required"):
                queries[called] = known.get(f"{name} {called}") or _told(known, called, name)
        body = orjson.dumps(_told(self._bodies, name, "a body")) if "requestBody" in operation else b""
        query = f"?{urlencode(queries)}" if queries else ""
        return Door(name=name, method=method.upper(), path=path + query, body=body)

    def _methods(self, bodies: Mapping[str, Any]) -> Iterable[Door]:
        for method in METHODS if bodies is self._bodies else (each.removeprefix("rpc ") for each in bodies):
            params = _told(bodies, f"rpc {method}", "its params")
            body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            yield Door(name=f"POST /rpc {method}", method="POST", path="/rpc", body=body)

    def _forms(self, name: str, method: str, path: str) -> Iterable[Door]:
        for token_field in _TOKEN_FIELDS:
            form = self._bodies.get(f"{name} {token_field}", {})
            yield Door(
                name=f"{name} {token_field}", method=method.upper(), path=path, form=form, token_field=token_field
            )


def _mcp(bodies: Mapping[str, Any], call_id: str = "") -> Iterable[Door]:
    """Every method of both eras at the MCP door, and the tools that are the door's own."""
    call = {"call_id": call_id or _told(bodies, "rpc calls.get", "a call")["call_id"]}
    asked = _told(bodies, "rpc calls.create", "its params")
    params: dict[str, tuple[dict[str, Any], bool]] = {
        "tools/call": ({"name": asked["tool"], "arguments": asked["arguments"]}, False),
        **{method: ({"taskId": call["call_id"]}, True) for method in MODERN_METHODS if method.startswith("tasks/")},
        "initialize": ({"protocolVersion": HANDSHAKES[0], "capabilities": {}}, False),
    }
    own = [("tools/call", ({"name": name, "arguments": call}, True)) for name in OWN]
    for modern, methods in ((True, MODERN_METHODS), (False, OLDER_METHODS)):
        for method, (sent, about_call) in [*((each, params.get(each, ({}, False))) for each in methods), *own]:
            yield _mcp_door(method, sent, modern=modern, about_call=about_call)


def _mcp_door(method: str, params: dict[str, Any], *, modern: bool, about_call: bool) -> Door:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": HANDSHAKES[0]}
    name = str(params.get("name") or params.get("taskId") or "")
    if modern:
        abilities: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
        params = {**params, "_meta": {PROTOCOL_VERSION: MODERN, CLIENT_CAPABILITIES: abilities}}
        headers |= {"mcp-protocol-version": MODERN, "mcp-method": method, **({"mcp-name": name} if name else {})}
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    called = f"POST /mcp {method} {name if method == 'tools/call' else ''} {headers['mcp-protocol-version']}"
    return Door(name=called, method="POST", path=MCP_PATH, body=body, headers=headers, about_call=about_call)


def _told(known: Mapping[str, Any], what: str, where: str) -> Any:
    if what not in known:
        raise RuntimeError(f"{what} ({where}) is a door that the proof does not know how to knock at")
    return known[what]


def _mounted() -> set[str]:
    """What the program really serves, whatever its document says, but for what is open to anyone."""
    waiting: list[Any] = [*build(_never).rest.routes, *console_app(_not_there).routes]
    found = set()
    while waiting:
        route = waiting.pop()
        if hasattr(route, "original_router"):
            waiting += route.original_router.routes
        elif not route.path.startswith(_OPEN_PREFIXES) and route.path not in _OPEN_PAGES:
            found |= {f"{method} {route.path}" for method in (route.methods or {"ANY"}) - {"HEAD"}}
    return found


def _never() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


def _not_there() -> Gateway:
    raise RuntimeError("this composition is only looked at")


async def try_all(url: str, pairs: Sequence[tuple[Door, Bad]], tried: Tried, *, marks: Sequence[str] = ()) -> None:
    """Each bad token at its door; `marks` are words that only the tenant's own callers may be told."""
    waiting = iter(pairs)

    async def one_after_another() -> None:
        line = Line.to(url)
        for door, bad in waiting:
            try:
                async with asyncio.timeout(_SECONDS):
                    answer = await door.ask(line, bad.token)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                line.close()
                tried.broken += 1
                tried.note(f"no answer ({type(error).__name__}): {bad.label} at {door.name}")
                continue
            _judge(tried, door, bad, answer, marks)
        line.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(one_after_another())


async def try_misplaced(url: str, doors: Sequence[Door], token: str, session: str, tried: Tried) -> None:
    """A good token, at every door that takes one as a bearer's, everywhere but where it belongs; and a browser's
    session, which belongs to pages.
    """
    line = Line.to(url)
    for door in doors:
        if door.token_field or door.cookie:
            continue
        for carrier in carriers(token):
            bad = Bad(label=f"misplaced: {carrier}", token="")
            _judge(tried, door, bad, await door.ask_oddly(line, carrier, token), ())
        bad = Bad(label="misplaced: a browser's session", token="")
        _judge(tried, door, bad, await replace(door, cookie=SESSION).ask(line, session), ())
    line.close()


async def opened(
    url: str, doors: Sequence[Door], token: str, special: Mapping[str, str], marks: Sequence[str]
) -> list[str]:
    """The positive control: the doors that do not take a good token. `special` names another one where needed."""
    line = Line.to(url)
    shut = []
    for door in doors:
        answer = await door.ask(line, special.get(door.name, token))
        if not lets_in(answer, marks):
            shut.append(f"{door.name}: {answer.status} {answer.body[:200]!r}")
    line.close()
    return shut


def _judge(tried: Tried, door: Door, bad: Bad, answer: Answer, marks: Sequence[str]) -> None:
    tried.tries += 1
    tried.refusals[slug_of(answer)] += 1
    let_in = shows(answer, marks) if bad.elsewhere else not is_refused(answer)
    if let_in:
        tried.accepted += 1
        tried.note(f"accepted: {bad.label} at {door.name}: {answer.status} {answer.body[:200]!r}")
    elif answer.status >= 500:
        tried.broken += 1
        tried.note(f"server error: {bad.label} at {door.name}: {answer.status}")
