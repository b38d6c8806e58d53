"""Send requests with tokens of any claims: what an attacker does who holds some token of a trusted issuer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import jwt
import orjson

from proofs.kit.gateway import AUDIENCE, ISSUER, Issuer
from proofs.kit.http_client import HttpConnection, HttpResponse

_EXCHANGE = {
    "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
    "subject_token_type": "urn:ietf:params:oauth:token-type:access_token",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenHolder:
    """The attacked gateway's URL, and the issuer that signs whatever claims an attempt needs."""

    url: str
    issuer: Issuer

    def sign(self, user: str, *, signer: Issuer | None = None, **claims: Any) -> str:
        """Sign a token of tenant acme; a claim that is None is left out."""
        issuer = signer or self.issuer
        now = issuer.clock.epoch_ms() // 1000
        everything = {
            "iss": ISSUER, "aud": AUDIENCE, "sub": user, "tenant": "acme", "scope": "proof:write", "iat": now,
            "exp": now + 3600, "auth_time": now, "jti": issuer.clock.new_id(), **claims,
        }  # fmt: skip
        kept = {name: value for name, value in everything.items() if value is not None}
        return jwt.encode(kept, issuer.key, algorithm="EdDSA", headers={"kid": "proof"})

    async def send(
        self, method: str, path: str, value: Any = None, *, token: str = "", headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Send JSON, or the bytes as they are."""
        body = value if isinstance(value, bytes) else b"" if value is None else orjson.dumps(value)
        connection = HttpConnection.for_url(self.url, token=token or None)
        try:
            return await connection.send(method, path, headers=headers, body=body)
        finally:
            connection.close()

    async def call(self, token: str, tool: str, arguments: Any, *, key: str | None = None, **fields: Any) -> Any:
        """Call a tool over REST, and return the body of the answer."""
        headers = {"idempotency-key": key or self.issuer.clock.new_id()}
        body = {"tool": tool, "arguments": arguments, **fields}
        return (await self.send("POST", "/v1/calls", body, token=token, headers=headers)).json()

    async def exchange(
        self, token: str, fields: Mapping[str, str], *, headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """Exchange a token for one of an agent."""
        form = urlencode({**_EXCHANGE, "subject_token": token, **fields}).encode()
        kind = {"content-type": "application/x-www-form-urlencoded", **(headers or {})}
        return await self.send("POST", "/oauth/token", form, headers=kind)

    async def delegate(self, token: str, **fields: str) -> str:
        """Exchange a token, where that is part of the attempt and must work."""
        answer = await self.exchange(token, fields)
        if answer.status != 200:
            raise RuntimeError(f"the token was not exchanged: {answer.status} {answer.body[:200]!r}")
        return str(answer.json()["access_token"])
