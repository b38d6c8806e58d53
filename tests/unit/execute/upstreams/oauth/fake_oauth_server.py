"""Serve OAuth documents and endpoints in memory, and record the requests."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson

from deputize.core.errors import UpstreamUnavailable

SERVER = "https://mcp.example/v1/mcp"
ISSUER = "https://login.example"
RESOURCE = "https://mcp.example/.well-known/oauth-protected-resource/v1/mcp"
METADATA = f"{ISSUER}/.well-known/oauth-authorization-server"
Endpoint = Callable[[dict[str, Any], Mapping[str, str]], tuple[int, Any]]


class FakeOAuthServer:
    def __init__(self) -> None:
        self.documents: dict[str, Any] = {
            RESOURCE: {"resource": SERVER, "authorization_servers": [ISSUER]},
            METADATA: make_metadata(),
        }
        self.endpoints: dict[str, Endpoint] = {}
        self.read: list[str] = []
        self.requests: list[tuple[str, dict[str, Any], Mapping[str, str]]] = []

    async def __call__(
        self, method: str, url: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        headers = headers or {}
        if method == "GET":
            self.read.append(url)
            return (200, orjson.dumps(self.documents[url])) if url in self.documents else (404, b"")
        if url not in self.endpoints:
            raise UpstreamUnavailable("nobody is there")
        assert body is not None
        form = dict(parse_qsl(body.decode())) if "urlencoded" in headers["content-type"] else orjson.loads(body)
        self.requests.append((url, form, headers))
        status, said = self.endpoints[url](form, headers)
        return status, orjson.dumps(said)


def make_metadata(**more: Any) -> dict[str, Any]:
    told = {
        "issuer": ISSUER,
        "authorization_endpoint": f"{ISSUER}/authorize",
        "token_endpoint": f"{ISSUER}/token",
        "registration_endpoint": f"{ISSUER}/register",
        "code_challenge_methods_supported": ["S256"],
        "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post", "none"],
    }
    return {name: value for name, value in (told | more).items() if value is not None}


def token_endpoint(**fields: Any) -> Endpoint:
    told = {"access_token": "access-token-1", "token_type": "Bearer"} | fields
    return lambda form, headers: (200, told)
