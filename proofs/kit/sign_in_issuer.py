"""An issuer that people sign in at, in the proof's own process: tokens to decide with, and browsers that are signed in.

It lets in anyone who says who they are, and is all a gateway needs to be told by; what a provider of the world does
with people in between, `idp` shows.
"""

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

import jwt
import orjson

from deputize.interfaces.console.cookies import SESSION, SIGN_IN
from proofs.kit.gateway import AUDIENCE, ISSUER, Issuer
from proofs.kit.idp.provider import create_browser
from proofs.kit.sandbox import Sandbox

_CONSOLE, _CLIENT = "proof-console", "console"
_SECONDS = 3600
# Its keys are those of the gateway's other issuer.
_SETTINGS = """
[[identity.issuers]]
issuer = "{url}"
audience = "{audience}"
console_audience = "{console}"
jwks_file = "jwks.json"
tenant_claim = "tenant"
tenants = ["*"]
human = true
same_subjects_as = "{people}"

[console]
issuer = "{url}"
client_id = "{client}"

[approvals]
console_url = "{gateway}"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Browser:
    """What a browser keeps, and what the callback of a sign-in that is not finished would be asked with."""

    session: str
    login_cookie: str
    callback_path: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SignInIssuer:
    url: str
    tenant: str
    issuer: Issuer

    @classmethod
    async def start(cls, sandbox: Sandbox, issuer: Issuer, tenant: str) -> Self:
        port = sandbox.pick_free_port()
        instance = cls(url=f"http://127.0.0.1:{port}", tenant=tenant, issuer=issuer)
        server = await asyncio.start_server(instance._handle_connection, "127.0.0.1", port)

        async def close() -> None:
            server.close()

        sandbox.add_cleanup(close)
        return instance

    def render_settings(self, gateway: str) -> str:
        """For the settings of a gateway that people reach under this address."""
        return _SETTINGS.format(
            url=self.url, audience=AUDIENCE, console=_CONSOLE, client=_CLIENT, gateway=gateway, people=ISSUER
        )

    def issue_token(self, name: str, groups: Sequence[str], *, scope: str = "", **extra_claims: Any) -> str:
        """A token to decide with, of someone who signed in just now."""
        return self._sign_token({"aud": _CONSOLE, "sub": name, "groups": list(groups), "scope": scope, **extra_claims})

    async def sign_in(self, gateway: str, name: str) -> Browser:
        """Someone at the console: signed in once, and about to be once more. Their name tells their group."""
        async with create_browser(gateway) as browser:
            for _ in range(2):
                redirect = await browser.get("/console/sign-in")
                query = parse_qs(urlsplit(redirect.headers["location"]).query)
                code = base64.urlsafe_b64encode(orjson.dumps({"sub": name, "nonce": query["nonce"][0]})).decode()
                callback_path = f"/console/callback?code={code}&state={query['state'][0]}"
                if SESSION not in browser.cookies:
                    await browser.get(callback_path)
            return Browser(
                session=browser.cookies[SESSION], login_cookie=browser.cookies[SIGN_IN], callback_path=callback_path
            )

    def _sign_token(self, claims: dict[str, Any]) -> str:
        now = int(time.time())
        timestamps = {"iat": now, "exp": now + _SECONDS, "auth_time": now, "jti": self.issuer.clock.new_id()}
        all_claims = {"iss": self.url, "tenant": self.tenant, **timestamps, **claims}
        return jwt.encode(all_claims, self.issuer.key, algorithm="EdDSA", headers={"kid": "proof"})

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = head.partition("content-length:")[2].split("\r\n")[0].strip()
        body = (await reader.readexactly(int(length or 0))).decode()
        response = orjson.dumps(self._exchange_code(body) if head.startswith("post ") else self._build_metadata())
        lines = ["HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(response)}"]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + response)
        await writer.drain()
        writer.close()

    def _build_metadata(self) -> dict[str, str]:
        endpoints = {"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **endpoints}

    def _exchange_code(self, form: str) -> dict[str, str]:
        """A code says whose it is; one that does not is nobody's."""
        try:
            code_claims = orjson.loads(base64.urlsafe_b64decode(parse_qs(form)["code"][0]))
            claims = {
                "aud": _CLIENT,
                "sub": code_claims["sub"],
                "nonce": code_claims["nonce"],
                "groups": [code_claims["sub"]],
            }
        except (ValueError, KeyError, TypeError):
            return {"error": "invalid_grant"}
        return {"token_type": "Bearer", "id_token": self._sign_token(claims)}
