"""A real MCP server that requires a token, and the authorization server that issues them.

Codes are worth something once, to the client with the verifier; refresh tokens are replaced whenever they are used, and
one that is used twice ends everything that came from it (RFC 9700). Tokens are for one resource, and the server takes
no others.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

from tests.support.mcp_servers.upstream import Upstream

Answer = tuple[int, Any, dict[str, str]]
_WELL_KNOWN = "/.well-known/oauth-authorization-server/login"


@dataclass
class Grant:
    """What a user agreed to; everything issued for it ends with it."""

    account: str
    scopes: list[str]
    resource: str
    client: str
    valid: bool = True


@dataclass
class ProtectedServer:
    """`account` is who is signed in at the authorization server at the moment. The rest is what it was asked."""

    account: str = "nobody"
    seconds: int = 3600
    rotates: bool = True
    iss: str | None = None
    is_down: bool = False
    # Accounts that may do nothing, and what they are told.
    barred_accounts: set[str] = field(default_factory=set)
    barred_challenge: str = ""
    mcp: Upstream = field(default_factory=Upstream)
    tool_calls: list[tuple[str, str]] = field(default_factory=list)
    seen_tokens: set[str] = field(default_factory=set)
    refresh_count: int = 0
    exchange_count: int = 0
    clients: dict[str, str] = field(default_factory=dict)
    codes: dict[str, tuple[Grant, str, str]] = field(default_factory=dict)
    access: dict[str, tuple[Grant, float]] = field(default_factory=dict)
    refresh: dict[str, tuple[Grant, bool]] = field(default_factory=dict)
    refresh_started: threading.Event = field(default_factory=threading.Event)
    offers_revocation: bool = True
    # The status and error of the next revocations, where they are to fail.
    revocation_failure: tuple[int, str] | None = None
    # The kind and the account of each token that was to be revoked.
    revocations: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.base}/mcp"

    @property
    def issuer(self) -> str:
        return f"{self.base}/login"

    def get(self, path: str, query: dict[str, str]) -> Answer:
        if path == "/.well-known/oauth-protected-resource/mcp":
            return 200, {"resource": self.url, "authorization_servers": [self.issuer]}, {}
        if path == _WELL_KNOWN:
            return 200, self._server_metadata(), {}
        if path == "/login/authorize":
            return self._authorize(query)
        return 404, None, {}

    def _server_metadata(self) -> dict[str, Any]:
        revocation = {"revocation_endpoint": f"{self.issuer}/revoke"} if self.offers_revocation else {}
        return {
            **revocation,
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "code_challenge_methods_supported": ["S256"],
            "scopes_supported": ["orders:read", "orders:write", "offline_access"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "authorization_response_iss_parameter_supported": True,
        }

    def _authorize(self, query: dict[str, str]) -> Answer:
        if query["client_id"] not in self.clients or query["code_challenge_method"] != "S256":
            return 400, {"error": "invalid_request"}, {}
        code, scopes = secrets.token_urlsafe(16), query.get("scope", "").split()
        grant = Grant(account=self.account, scopes=scopes, resource=query["resource"], client=query["client_id"])
        self.codes[code] = (grant, query["code_challenge"], query["redirect_uri"])
        back = {"code": code, "state": query["state"], "iss": self.iss or self.issuer}
        return 302, None, {"location": f"{query['redirect_uri']}?{urlencode(back)}"}

    def post(self, path: str, headers: dict[str, str], body: bytes) -> Answer:
        if path == "/mcp":
            return self._handle_mcp(headers, json.loads(body))
        if self.is_down:
            return 503, None, {}
        if path == "/login/register":
            client, secret = secrets.token_hex(8), secrets.token_hex(16)
            self.clients[client] = secret
            return 201, {**json.loads(body), "client_id": client, "client_secret": secret}, {}
        if path == "/login/token":
            return self._handle_token(headers, dict(parse_qsl(body.decode())))
        if path == "/login/revoke":
            return self._handle_revocation(headers, dict(parse_qsl(body.decode())))
        return 404, None, {}

    def _find_client(self, headers: dict[str, str]) -> str | None:
        client, _, secret = base64.b64decode(headers.get("authorization", "")[6:]).decode().partition(":")
        client = unquote_plus(client)
        return client if client and self.clients.get(client) == unquote_plus(secret) else None

    def _handle_revocation(self, headers: dict[str, str], form: dict[str, str]) -> Answer:
        """RFC 7009: the whole grant ends with its refresh token; an unknown token is no error."""
        client = self._find_client(headers)
        if client is None:
            return 401, {"error": "invalid_client"}, {}
        kind, token = form["token_type_hint"], form["token"]
        grant = (self.refresh if kind == "refresh_token" else self.access).get(token, (None, None))[0]
        if grant is not None:
            self.revocations.append((kind, grant.account))
        if self.revocation_failure is not None:
            return self.revocation_failure[0], {"error": self.revocation_failure[1]}, {}
        if grant is not None and grant.client == client:
            grant.valid = False
        return 200, None, {}

    def _handle_token(self, headers: dict[str, str], form: dict[str, str]) -> Answer:
        client = self._find_client(headers)
        if client is None:
            return 401, {"error": "invalid_client"}, {}
        if form["grant_type"] == "client_credentials":
            scopes = form.get("scope", "").split()
            own = Grant(account=client, scopes=scopes, resource=form["resource"], client=client)
            return 200, self._issue_tokens(own, refreshes=False), {}
        grant = (
            self._redeem_code(client, form)
            if form["grant_type"] == "authorization_code"
            else self._redeem_refresh(form)
        )
        if grant is None or grant.client != client or form.get("resource") != grant.resource:
            return 400, {"error": "invalid_grant"}, {}
        return 200, self._issue_tokens(grant, refreshes="offline_access" in grant.scopes), {}

    def _redeem_code(self, client: str, form: dict[str, str]) -> Grant | None:
        self.exchange_count += 1
        grant, challenge, back = self.codes.pop(form["code"], (None, "", ""))
        digest = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest()).rstrip(b"=").decode()
        return grant if digest == challenge and form["redirect_uri"] == back else None

    def _redeem_refresh(self, form: dict[str, str]) -> Grant | None:
        self.refresh_count += 1
        self.refresh_started.set()
        grant, used = self.refresh.get(form["refresh_token"], (None, True))
        if grant is None or not grant.valid:
            return None
        if used:
            grant.valid = False
            return None
        self.refresh[form["refresh_token"]] = (grant, self.rotates)
        return grant

    def _issue_tokens(self, grant: Grant, *, refreshes: bool) -> dict[str, Any]:
        access, told = secrets.token_urlsafe(24), dict[str, Any]()
        self.access[access] = (grant, time.time() + self.seconds)
        if refreshes:
            told["refresh_token"] = secrets.token_urlsafe(24)
            self.refresh[told["refresh_token"]] = (grant, False)
        return {"access_token": access, "token_type": "bearer", "expires_in": self.seconds, **told}

    def _handle_mcp(self, headers: dict[str, str], request: dict[str, Any]) -> Answer:
        token = headers.get("authorization", "").removeprefix("Bearer ")
        self.seen_tokens.add(token)
        grant, ends = self.access.get(token, (None, 0.0))
        metadata = f'resource_metadata="{self.base}/.well-known/oauth-protected-resource/mcp"'
        if grant is None or not grant.valid or ends < time.time() or grant.resource != self.url:
            return 401, None, {"www-authenticate": f'Bearer {metadata}, scope="orders:read"'}
        named = (request.get("params") or {}).get("name")
        if named == "cancel_order" and "orders:write" not in grant.scopes:
            wants = f'Bearer error="insufficient_scope", scope="orders:write", {metadata}'
            return 403, None, {"www-authenticate": wants}
        if request.get("method") == "tools/call" and grant.account in self.barred_accounts:
            return 403, None, {"www-authenticate": self.barred_challenge} if self.barred_challenge else {}
        if request.get("method") == "tools/call":
            self.tool_calls.append((grant.account, str(named)))
        if "id" not in request:
            return 202, None, {}
        return 200, self.mcp.answer(request), {}


@contextmanager
def run_protected_server() -> Iterator[ProtectedServer]:
    server = ProtectedServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place = urlsplit(self.path)
            self._send(*server.get(place.path, dict(parse_qsl(place.query))))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            self._send(*server.post(self.path, {name.lower(): value for name, value in self.headers.items()}, body))

        def _send(self, status: int, value: Any, headers: dict[str, str]) -> None:
            body = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            for name, said in headers.items():
                self.send_header(name, said)
            if body:
                self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    listening.daemon_threads = True
    server.port = listening.server_address[1]
    threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
