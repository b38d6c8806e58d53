"""Sign in with the browser: authorization code with PKCE, sent back to this machine's loopback address (RFC 8252)."""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.client.sign_in.issuer_client import (
    IssuerEndpoints,
    build_audience_fields,
    post_form,
    require_tls,
)

_PATH = "/callback"
_SIGN_IN_SECONDS = 300.0
_PAGE = (
    b"<!doctype html><meta charset=utf-8><title>Deputize</title><p>You can close this page and go back to the terminal."
)


def sign_in_with_browser(
    endpoints: IssuerEndpoints,
    client_id: str,
    audience: str,
    scopes: Sequence[str],
    *,
    prompt: str,
    show_url: Callable[[str], None],
) -> dict[str, Any]:
    """Wait for a person to sign in at the URL that `show_url` shows; return the issuer's token response."""
    if not endpoints.authorization:
        raise ConfigError(f"{endpoints.issuer} has no sign-in page for programs: use deputize login --device.")
    # The issuer names this address, and a browser opens files and programs too.
    require_tls(endpoints.authorization)
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with _CallbackServer() as server:
        query = {
            "client_id": client_id,
            "response_type": "code",
            "redirect_uri": server.url,
            "scope": " ".join(scopes),
            "state": state,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            **({"prompt": prompt} if prompt else {}),
            **build_audience_fields(audience),
        }
        separator = "&" if urlsplit(endpoints.authorization).query else "?"
        show_url(f"{endpoints.authorization}{separator}{urlencode(query)}")
        answer = server.wait_for_answer(state)
        code = _read_code(answer, endpoints)
        return post_form(
            endpoints.token,
            {
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": server.url,
                "client_id": client_id,
                "code_verifier": verifier,
                **build_audience_fields(audience),
            },
        )


def _read_code(answer: dict[str, str], endpoints: IssuerEndpoints) -> str:
    # RFC 9207: a code of another issuer must not be sent to this one.
    if (endpoints.has_iss_parameter or "iss" in answer) and answer.get("iss") != endpoints.issuer:
        raise ConfigError(f"The answer came from {answer.get('iss')}, not from {endpoints.issuer}: nothing was stored.")
    if "code" not in answer:
        reason = answer.get("error_description") or answer.get("error") or "no code was sent"
        raise ConfigError(f"{endpoints.issuer} did not sign you in ({reason}): try again with deputize login.")
    return answer["code"]


class _CallbackServer:
    """Listens on a free port of this machine for the one redirect that carries our state."""

    def __init__(self) -> None:
        self._answers: list[dict[str, str]] = []
        self._state = ""
        callback_server = self

        class CallbackHandler(BaseHTTPRequestHandler):
            timeout = 10

            def do_GET(self) -> None:
                is_ours = callback_server._take(self.path)
                self.send_response(200 if is_ours else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(_PAGE if is_ours else b"")

            def log_message(self, *_: object) -> None:
                """Print nothing: the request line holds the code."""

        self._server = HTTPServer(("127.0.0.1", 0), CallbackHandler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}{_PATH}"

    def __enter__(self) -> "_CallbackServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()

    def wait_for_answer(self, state: str) -> dict[str, str]:
        """Serve until the redirect with this state arrives; other requests are answered with 404."""
        self._state = state
        ends_at = time.monotonic() + _SIGN_IN_SECONDS
        while not self._answers:
            self._server.timeout = ends_at - time.monotonic()
            if self._server.timeout <= 0:
                raise ConfigError("No one signed in within five minutes: run deputize login again.")
            self._server.handle_request()
        return self._answers[0]

    def _take(self, target: str) -> bool:
        parts = urlsplit(target)
        answer = {name: values[0] for name, values in parse_qs(parts.query).items()}
        is_ours = parts.path == _PATH and hmac.compare_digest(answer.get("state", "").encode(), self._state.encode())
        if is_ours:
            self._answers.append(answer)
        return is_ours
