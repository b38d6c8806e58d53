"""An identity provider of the test's own on this machine: discovery, sign-in page, device flow, refresh, revocation.

It also answers as the gateway that names it. What it was sent is kept, and what it answers next can be set.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit
from urllib.request import urlopen

CLIENT_ID = "deputize-cli"


@dataclass(kw_only=True)
class ScriptedIssuer:
    url: str = ""
    audience: str = "https://gateway.example"
    token_seconds: int = 3600
    forms: list[dict[str, str]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    revoked_tokens: list[str] = field(default_factory=list)
    # What the gateway's metadata says beside its name.
    metadata: dict[str, Any] = field(default_factory=dict)
    _challenges: dict[str, str] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        return {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/auth",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "revocation_endpoint": f"{self.url}/revoke",
            "scopes_supported": ["openid", "offline_access"],
            "authorization_response_iss_parameter_supported": True,
        }

    def describe_gateway(self) -> dict[str, Any]:
        offer = {
            "issuer": self.url,
            "client_id": CLIENT_ID,
            "audience": self.audience,
            "console_audience": "urn:decide",
        }
        return {
            "resource": self.url, "scopes_supported": ["notes:write"], "deputize_login": [offer], **self.metadata
        }  # fmt: skip

    def authorize(self, query: dict[str, str]) -> str:
        """Sign the person in at once, and return where the browser is sent."""
        code = f"code-{len(self._challenges)}"
        self._challenges[code] = query["code_challenge"]
        self.forms.append(query)
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state'], 'iss': self.url})}"

    def answer_form(self, path: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.forms.append(form)
        if path == "/revoke":
            self.revoked_tokens.append(form["token"])
            return 200, {}
        if path == "/device":
            return 200, {
                "device_code": "d", "user_code": "WDJB-MJHT", "verification_uri": f"{self.url}/code", "interval": 1
            }  # fmt: skip
        if self.refusals:
            return 400, {"error": self.refusals.pop(0), "error_description": "as scripted"}
        if form["grant_type"] == "authorization_code":
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != self._challenges.pop(form["code"], None):
                return 400, {"error": "invalid_grant"}
        return 200, {
            "access_token": self.make_token(), "refresh_token": f"refresh-{len(self.forms)}",
            "expires_in": self.token_seconds, "scope": "openid notes:write",
        }  # fmt: skip

    def make_token(self) -> str:
        claims = {"iss": self.url, "sub": "ana", "aud": self.audience, "exp": int(time.time()) + self.token_seconds}
        part = base64.urlsafe_b64encode(json.dumps({**claims, "scope": "notes:write"}).encode()).rstrip(b"=").decode()
        return f"e30.{part}.{len(self.forms)}"


@contextmanager
def run_scripted_issuer() -> Iterator[ScriptedIssuer]:
    issuer = ScriptedIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/auth":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", issuer.authorize(query))
                self.end_headers()
                return
            documents = {
                "/.well-known/openid-configuration": issuer.describe(),
                "/.well-known/oauth-protected-resource": issuer.describe_gateway(),
            }
            self._answer(200 if parts.path in documents else 404, documents.get(parts.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            self._answer(*issuer.answer_form(self.path, form))

        def _answer(self, status: int, document: dict[str, Any]) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def open_page(url: str) -> None:
    """A browser: follows the redirects, in a thread of its own, since the listener answers only then."""
    threading.Thread(target=lambda: urlopen(url).read()).start()
