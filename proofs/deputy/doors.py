"""Every door of a running gateway, as composed: what its API document lists, and the methods inside its JSON-RPC.

A door is one request with a place for a token. What a refusal looks like is judged by the problem in the answer, not
by its status: an answer that complains about anything but the token has let the token in. Above:
`proofs.confused_deputy`. Below: the document, and `wire`.
"""

import asyncio
import base64
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import orjson

from deputize.core.errors import (
    ExchangeRefused,
    GrantEnded,
    Problem,
    Revoked,
    SubjectUnknown,
    TokenAudience,
    TokenExpired,
    TokenIssuer,
    TokenMalformed,
    TokenMissing,
    TokenSignature,
)
from deputize.doors.asgi import build
from deputize.doors.jsonrpc import METHODS
from deputize.lifecycle.gateway import Gateway
from proofs.kit.bad_tokens import Bad
from proofs.kit.wire import Answer, Line

_ABOUT_TOKENS: tuple[type[Problem], ...] = (
    TokenMissing, TokenExpired, TokenSignature, TokenMalformed, TokenAudience, TokenIssuer, Revoked, GrantEnded,
    SubjectUnknown, ExchangeRefused,
)  # fmt: skip
_REFUSALS = frozenset(kind.face.slug for kind in _ABOUT_TOKENS)
# RFC 6749 and RFC 8693: what the token endpoint says of a token it does not take.
_OAUTH_REFUSALS = frozenset({"invalid_request", "invalid_grant", "invalid_client", "invalid_token", "access_denied"})
_OPEN_PREFIXES = ("/healthz", "/readyz", "/docs", "/openapi.json", "/.well-known/", "/t/")
# What the HTTP server itself says to bytes that are no request, before anything of ours is asked.
_NOT_HTTP = (400, b"Invalid HTTP request received.")
_FORM = "application/x-www-form-urlencoded"
_TOKEN_FIELDS = ("subject_token", "actor_token")
_AT_ONCE = 8
_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Door:
    """One request. The token goes into the Authorization header, or into the field of a form."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    token_field: str = ""

    async def ask_oddly(self, line: Line, carrier: str, token: str) -> Answer:
        """The token where no door may look for it."""
        headers, query = carriers(token)[carrier]
        path = f"{self.path}{'&' if '?' in self.path else '?'}{query}" if query else self.path
        return await line.send(self.method, path, headers={**self.headers, **headers}, body=self.body)

    async def ask(self, line: Line, token: str) -> Answer:
        if self.token_field:
            body = urlencode({**self.form, self.token_field: token}).encode("latin-1")
            return await line.send(self.method, self.path, headers={**self.headers, "content-type": _FORM}, body=body)
        headers = {**self.headers, "authorization": f"Bearer {token}"}
        return await line.send(self.method, self.path, headers=headers, body=self.body)


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


def is_refused(answer: Answer) -> bool:
    """Whether the answer says that this token opens nothing here."""
    if (answer.status, answer.body) == _NOT_HTTP:
        return True
    return answer.status in (200, 400, 401, 403) and slug_of(answer) in _REFUSALS | _OAUTH_REFUSALS


def slug_of(answer: Answer) -> str:
    """The problem in an answer of any door; empty if it holds none."""
    try:
        said = answer.json()
    except orjson.JSONDecodeError:
        return ""
    error = said.get("error") if isinstance(said, dict) else None
    if isinstance(error, str):
        return error
    if isinstance(error, dict) and isinstance(error.get("data"), dict):
        error = error["data"].get("error")
    return str(error.get("slug", "")) if isinstance(error, dict) else ""


def shows(answer: Answer, marks: Iterable[str]) -> bool:
    """Whether an answer that is no problem tells of something that belongs to the tenant."""
    return not slug_of(answer) and any(mark.encode() in answer.body for mark in marks)


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
    """`known` fills in what paths and bodies need: names of things that are really there."""

    def __init__(self, document: Mapping[str, Any], known: Mapping[str, str], bodies: Mapping[str, Any]) -> None:
        self._document = document
        self._known = known
        self._bodies = bodies
        self.unguarded: list[str] = []
        """Routes that ask for no caller and are not among those that may do so."""
        self.all: list[Door] = list(self._listed())
        listed = {f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs}
        self.unguarded += sorted(f"{each}, which no document lists" for each in _mounted() - listed)

    def _listed(self) -> Iterable[Door]:
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                name = f"{method.upper()} {path}"
                content = operation.get("requestBody", {}).get("content", {})
                if _FORM in content:
                    yield from self._forms(name, method, path)
                elif path == "/rpc":
                    yield from self._methods(path)
                elif operation.get("security"):
                    yield self._route(name, method, path, operation)
                elif not path.startswith(_OPEN_PREFIXES):
                    self.unguarded.append(name)

    def _route(self, name: str, method: str, path: str, operation: Mapping[str, Any]) -> Door:
        queries = {}
        for parameter in operation.get("parameters", ()):
            value = self._known.get(f"{name} {parameter['name']}") or self._known.get(parameter["name"], "x")
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
            elif parameter["in"] == "query" and parameter.get("required"):
                queries[parameter["name"]] = value
        body = b""
        if "requestBody" in operation:
            body = orjson.dumps(self._bodies.get(name, {}))
        query = f"?{urlencode(queries)}" if queries else ""
        return Door(name=name, method=method.upper(), path=path + query, body=body)

    def _methods(self, path: str) -> Iterable[Door]:
        for method in METHODS:
            params = self._bodies.get(f"rpc {method}", {})
            body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            yield Door(name=f"POST {path} {method}", method="POST", path=path, body=body)

    def _forms(self, name: str, method: str, path: str) -> Iterable[Door]:
        for token_field in _TOKEN_FIELDS:
            form = self._bodies.get(f"{name} {token_field}", {})
            yield Door(
                name=f"{name} {token_field}", method=method.upper(), path=path, form=form, token_field=token_field
            )


def _mounted() -> set[str]:
    """What the program really serves, whatever its document says, but for what is open to anyone."""
    waiting: list[Any] = list(build(_never).rest.routes)
    found = set()
    while waiting:
        route = waiting.pop()
        if hasattr(route, "original_router"):
            waiting += route.original_router.routes
        elif not route.path.startswith(_OPEN_PREFIXES):
            found |= {f"{method} {route.path}" for method in (route.methods or {"ANY"}) - {"HEAD"}}
    return found


def _never() -> AbstractAsyncContextManager[Gateway]:
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


async def try_misplaced(url: str, doors: Sequence[Door], token: str, tried: Tried) -> None:
    """A good token, at every door, everywhere but where it belongs."""
    line = Line.to(url)
    for door in doors:
        for carrier in carriers(token) if not door.token_field else ():
            bad = Bad(label=f"misplaced: {carrier}", token="")
            _judge(tried, door, bad, await door.ask_oddly(line, carrier, token), ())
    line.close()


async def opened(url: str, doors: Sequence[Door], token: str, special: Mapping[str, str]) -> list[str]:
    """The positive control: the doors that do not take a good token. `special` names another one where needed."""
    line = Line.to(url)
    shut = []
    for door in doors:
        answer = await door.ask(line, special.get(door.name, token))
        if is_refused(answer) or answer.status in (401, 403) or answer.status >= 500:
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
