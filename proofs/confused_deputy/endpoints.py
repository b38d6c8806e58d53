"""Every interface of a running gateway, as composed: what its API document lists, the methods inside its JSON-RPC and
its MCP, and the console's pages.

A interface is one request with a place for a token; `answers` says whether it let the token in.
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

from deputize.core.mcp.constants import (
    CLIENT_CAPABILITIES,
    HANDSHAKE_VERSIONS,
    MODERN_VERSION,
    PROTOCOL_VERSION_KEY,
    TASKS_EXTENSION,
)
from deputize.core.settings.urls import (
    AGENTS_PAGE_PATH,
    APPROVALS_PAGE_PATH,
    AUDIT_PAGE_PATH,
    CALLS_PAGE_PATH,
    CONSOLE_PATH,
    MCP_PATH,
    SIGN_IN_CALLBACK_PATH,
    SIGN_IN_LINK_PATH,
    SIGN_IN_PATH,
)
from deputize.interfaces.asgi import build_api
from deputize.interfaces.console.app import build_console_app
from deputize.interfaces.console.cookies import SESSION
from deputize.interfaces.console.pages import LIVE_PATH
from deputize.interfaces.console.render import SCRIPT_PATH, STYLESHEET_PATH
from deputize.interfaces.jsonrpc import METHODS
from deputize.interfaces.mcp.endpoint import LEGACY_METHODS, MODERN_METHODS
from deputize.interfaces.mcp.tools.builtin_tools import BUILTIN_TOOLS
from deputize.operations.gateway import Gateway
from proofs.confused_deputy.bad_tokens import BadToken
from proofs.confused_deputy.refusals import cut_at_mark, has_tenant_mark, is_accepted, is_refused, read_slug
from proofs.confused_deputy.testbed import TENANT
from proofs.kit.http_client import HttpConnection, HttpResponse

_OPEN_PREFIXES = ("/healthz", "/readyz", "/docs", "/openapi.json", "/.well-known/", "/t/")
# The way in, and what makes pages legible; links and codes of a terminal are taken in development only.
_OPEN_PAGES = frozenset({
    "/", f"{CONSOLE_PATH}/", SCRIPT_PATH, STYLESHEET_PATH, SIGN_IN_PATH, SIGN_IN_CALLBACK_PATH, SIGN_IN_LINK_PATH,
    f"{APPROVALS_PAGE_PATH}/{{approval_id}}/code",
})  # fmt: skip
_ONE_APPROVAL = "/v1/approvals/{"
# Where a token for the console is good.
APPROVAL_ENDPOINTS = frozenset({
    "GET /v1/approvals", "GET /v1/approvals/{approval_id}", "POST /v1/approvals/batch",
    *(f"POST /v1/approvals/{{approval_id}}/{word}" for word in ("approve", "deny", "break-glass")),
})  # fmt: skip
FORM = "application/x-www-form-urlencoded"
_TOKEN_FIELDS = ("subject_token", "actor_token")
_CONCURRENCY = 8
_SECONDS = 30.0


# Whoever may follow the audit, or the calls on a page, follows it until the token ends.
_ENDLESS_PATHS = ("/v1/audit/tail", LIVE_PATH)
# What a caller asked for is quoted there, also the name of a tool of others.
_QUOTING_PATHS = ("/v1/audit", "/v1/observations", "/v1/agents", AUDIT_PAGE_PATH, CALLS_PAGE_PATH, AGENTS_PAGE_PATH)


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEndpoint:
    """One request. The token goes into the Authorization header, into the field of a form, or into a cookie."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    form: Mapping[str, str] = field(default_factory=dict)
    token_field: str = ""
    cookie: str = ""
    is_about_call: bool = False

    @property
    def request_body(self) -> bytes:
        return urlencode(self.form).encode() if self.form else self.body

    async def send_misplaced(self, http: HttpConnection, carrier: str, token: str) -> HttpResponse:
        """The token where no interface may look for it."""
        headers, query = build_carriers(token)[carrier]
        path = f"{self.path}{'&' if '?' in self.path else '?'}{query}" if query else self.path
        return await http.send(self.method, path, headers={**self.headers, **headers}, body=self.request_body)

    async def send_token(self, http: HttpConnection, token: str) -> HttpResponse:
        if self.token_field:
            body = urlencode({**self.form, self.token_field: token}).encode("latin-1")
            return await http.send(self.method, self.path, headers={**self.headers, "content-type": FORM}, body=body)
        credential_headers = (
            {"cookie": f"{self.cookie}={token}"} if self.cookie else {"authorization": f"Bearer {token}"}
        )
        return await http.send(
            self.method,
            self.path,
            headers={**self.headers, **credential_headers},
            body=self.request_body,
            is_endless=self.path.startswith(_ENDLESS_PATHS),
        )


@dataclass(kw_only=True, slots=True)
class TryResult:
    """What came of trying tokens at interfaces."""

    try_count: int = 0
    accepted_count: int = 0
    broken_count: int = 0
    effect_count: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)

    def add_sample(self, text: str) -> None:
        if len(self.samples) < 12:
            self.samples.append(text)


def build_carriers(token: str) -> dict[str, tuple[dict[str, str], str]]:
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


class EndpointCatalog:
    """`known` fills in what paths need, `bodies` is what is sent: about things that are really there. A interface of
    which neither says enough breaks the proof off, for knocking there would show nothing. `pages` are no part of a
    document.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        values: Mapping[str, str],
        bodies: Mapping[str, Any],
        pages: Sequence[TokenEndpoint],
    ) -> None:
        self._document = document
        self._values = values
        self._bodies = bodies
        self.unguarded_routes: list[str] = []
        """Routes that ask for no caller and are not among those that may do so."""
        self.all: list[TokenEndpoint] = [*self._list_documented(), *_list_mcp_endpoints(bodies), *pages]
        documented_routes = {f"{verb.upper()} {path}" for path, verbs in document["paths"].items() for verb in verbs}
        documented_routes |= {page.name for page in pages}
        self.unguarded_routes += sorted(
            f"{each}, which no document lists" for each in _list_mounted_routes() - documented_routes
        )

    def _list_documented(self) -> Iterable[TokenEndpoint]:
        for path, operations in self._document["paths"].items():
            for method, operation in operations.items():
                name = f"{method.upper()} {path}"
                content = operation.get("requestBody", {}).get("content", {})
                if FORM in content:
                    yield from self._list_forms(name, method, path)
                elif path == "/rpc":
                    yield from self._list_rpc_methods(self._bodies)
                elif operation.get("security"):
                    yield self._build_endpoint(path, method, operation, self._values)
                elif not path.startswith(_OPEN_PREFIXES):
                    self.unguarded_routes.append(name)

    def list_about_call(self, call_id: str) -> list[TokenEndpoint]:
        """Every request that names a call, made about this one; an approval request may be named by its call."""
        values, params = {**self._values}, {}
        for path, operations in self._document["paths"].items():
            for method in operations:
                values |= {f"{method.upper()} {path} {name}": call_id for name in ("call_id", "approval_id")}
        for method, rpc_params in self._bodies.items():
            if method.startswith("rpc ") and "call_id" in rpc_params:
                params[method] = {**rpc_params, "call_id": call_id}
        return [
            *(
                self._build_endpoint(path, method, operation, values)
                for path, operations in self._document["paths"].items()
                for method, operation in operations.items()
                if "{call_id}" in path or path.startswith(_ONE_APPROVAL)
            ),
            *self._list_rpc_methods(params),
            *(each for each in _list_mcp_endpoints(self._bodies, call_id) if each.is_about_call),
        ]

    def _build_endpoint(
        self, path: str, method: str, operation: Mapping[str, Any], values: Mapping[str, str]
    ) -> TokenEndpoint:
        name, queries = f"{method.upper()} {path}", {}
        for parameter in operation.get("parameters", ()):
            parameter_name = parameter["name"]
            if parameter["in"] == "path":
                value = values.get(f"{name} {parameter_name}") or _require_value(values, parameter_name, name)
                path = path.replace(f"{{{parameter_name}}}", quote(value, safe=""))
            elif parameter["in"] == "query" and parameter.get("required"):
                queries[parameter_name] = values.get(f"{name} {parameter_name}") or _require_value(
                    values, parameter_name, name
                )
        body = orjson.dumps(_require_value(self._bodies, name, "a body")) if "requestBody" in operation else b""
        query = f"?{urlencode(queries)}" if queries else ""
        return TokenEndpoint(name=name, method=method.upper(), path=path + query, body=body)

    def _list_rpc_methods(self, bodies: Mapping[str, Any]) -> Iterable[TokenEndpoint]:
        for method in METHODS if bodies is self._bodies else (each.removeprefix("rpc ") for each in bodies):
            params = _require_value(bodies, f"rpc {method}", "its params")
            body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
            yield TokenEndpoint(name=f"POST /rpc {method}", method="POST", path="/rpc", body=body)

    def _list_forms(self, name: str, method: str, path: str) -> Iterable[TokenEndpoint]:
        for token_field in _TOKEN_FIELDS:
            form = self._bodies.get(f"{name} {token_field}", {})
            yield TokenEndpoint(
                name=f"{name} {token_field}", method=method.upper(), path=path, form=form, token_field=token_field
            )


def _list_mcp_endpoints(bodies: Mapping[str, Any], call_id: str = "") -> Iterable[TokenEndpoint]:
    """Every method of both eras at the MCP interface, and the tools that are the door's own."""
    call = {"call_id": call_id or _require_value(bodies, "rpc calls.get", "a call")["call_id"]}
    call_request = _require_value(bodies, "rpc calls.create", "its params")
    params: dict[str, tuple[dict[str, Any], bool]] = {
        "tools/call": ({"name": call_request["tool"], "arguments": call_request["arguments"]}, False),
        **{method: ({"taskId": call["call_id"]}, True) for method in MODERN_METHODS if method.startswith("tasks/")},
        "initialize": ({"protocolVersion": HANDSHAKE_VERSIONS[0], "capabilities": {}}, False),
    }
    batch = {"calls": [{name: call_request[name] for name in ("tool", "arguments")}]}
    builtin_calls = [
        ("tools/call", ({"name": name, "arguments": batch if name == "calls_batch" else call}, name != "calls_batch"))
        for name in BUILTIN_TOOLS
    ]
    for modern, methods in ((True, MODERN_METHODS), (False, LEGACY_METHODS)):
        for method, (method_params, about_call) in [
            *((each, params.get(each, ({}, False))) for each in methods),
            *builtin_calls,
        ]:
            yield _build_mcp_endpoint(method, method_params, modern=modern, about_call=about_call)


def _build_mcp_endpoint(method: str, params: dict[str, Any], *, modern: bool, about_call: bool) -> TokenEndpoint:
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": HANDSHAKE_VERSIONS[0]}
    name = str(params.get("name") or params.get("taskId") or "")
    if modern:
        abilities: dict[str, Any] = {"extensions": {TASKS_EXTENSION: {}}}
        params = {**params, "_meta": {PROTOCOL_VERSION_KEY: MODERN_VERSION, CLIENT_CAPABILITIES: abilities}}
        headers |= {
            "mcp-protocol-version": MODERN_VERSION,
            "mcp-method": method,
            **({"mcp-name": name} if name else {}),
        }
    body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    endpoint_name = f"POST /mcp {method} {name if method == 'tools/call' else ''} {headers['mcp-protocol-version']}"
    return TokenEndpoint(
        name=endpoint_name, method="POST", path=MCP_PATH, body=body, headers=headers, is_about_call=about_call
    )


def _require_value(values: Mapping[str, Any], what: str, where: str) -> Any:
    if what not in values:
        raise RuntimeError(f"{what} ({where}) is a door that the proof does not know how to knock at")
    return values[what]


def _list_mounted_routes() -> set[str]:
    """What the program really serves, whatever its document says, but for what is open to anyone."""
    pending: list[Any] = [
        *build_api(_refuse_to_open).rest.routes,
        *build_console_app(_refuse_to_get, asyncio.Event()).routes,
    ]
    routes = set()
    while pending:
        route = pending.pop()
        if hasattr(route, "original_router"):
            pending += route.original_router.routes
        elif not route.path.startswith(_OPEN_PREFIXES) and route.path not in _OPEN_PAGES:
            routes |= {f"{method} {route.path_format}" for method in (route.methods or {"ANY"}) - {"HEAD"}}
    return routes


def _refuse_to_open() -> AbstractAsyncContextManager[Gateway]:
    raise RuntimeError("this composition is only looked at")


def _refuse_to_get() -> Gateway:
    raise RuntimeError("this composition is only looked at")


async def try_all(
    url: str, pairs: Sequence[tuple[TokenEndpoint, BadToken]], result: TryResult, *, marks: Sequence[str] = ()
) -> None:
    """Each bad token at its interface; `marks` are words that only the tenant's own callers may be told."""
    pending = iter(pairs)

    async def run_lane() -> None:
        http = HttpConnection.for_url(url)
        for endpoint, bad in pending:
            try:
                async with asyncio.timeout(_SECONDS):
                    answer = await endpoint.send_token(http, bad.token)
            except (OSError, EOFError, TimeoutError, ValueError) as error:
                http.close()
                result.broken_count += 1
                result.add_sample(f"no answer ({type(error).__name__}): {bad.label} at {endpoint.name}")
                continue
            record_answer(result, endpoint, bad, answer, marks)
        http.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(_CONCURRENCY):
            group.create_task(run_lane())


async def try_misplaced(
    url: str, endpoints: Sequence[TokenEndpoint], token: str, session: str, result: TryResult
) -> None:
    """A good token, at every interface that takes one as a bearer's, everywhere but where it belongs; and a browser's
    session, which belongs to pages.
    """
    http = HttpConnection.for_url(url)
    for endpoint in endpoints:
        if endpoint.token_field or endpoint.cookie:
            continue
        for carrier in build_carriers(token):
            bad = BadToken(label=f"misplaced: {carrier}", token="")
            record_answer(result, endpoint, bad, await endpoint.send_misplaced(http, carrier, token), ())
        bad = BadToken(label="misplaced: a browser's session", token="")
        record_answer(result, endpoint, bad, await replace(endpoint, cookie=SESSION).send_token(http, session), ())
    http.close()


async def find_shut_endpoints(
    url: str, endpoints: Sequence[TokenEndpoint], token: str, special_tokens: Mapping[str, str], marks: Sequence[str]
) -> list[str]:
    """The positive control: the interfaces that do not take a good token. `special` names another one where needed."""
    http = HttpConnection.for_url(url)
    failures = []
    for endpoint in endpoints:
        answer = await endpoint.send_token(http, special_tokens.get(endpoint.name, token))
        if not is_accepted(answer, marks):
            failures.append(f"{endpoint.name}: {answer.status} {answer.body[:200]!r}")
    http.close()
    return failures


def record_answer(
    result: TryResult, endpoint: TokenEndpoint, bad: BadToken, answer: HttpResponse, marks: Sequence[str]
) -> None:
    result.try_count += 1
    result.refusals[read_slug(answer)] += 1
    if endpoint.path.startswith(_QUOTING_PATHS):
        # What must not be there is what the tenant's own agents did.
        marks = [f'"tenant":"{TENANT}"', "agent-0"]
    is_let_in_here = has_tenant_mark(answer, marks) if bad.is_foreign else not is_refused(answer)
    if is_let_in_here:
        result.accepted_count += 1
        result.add_sample(f"accepted: {bad.label} at {endpoint.name}: {answer.status} {cut_at_mark(answer, marks)!r}")
    elif answer.status >= 500:
        result.broken_count += 1
        result.add_sample(f"server error: {bad.label} at {endpoint.name}: {answer.status}")
