"""An issuer that people sign in at, in the proof's own process: tokens to decide with, and browsers that are signed in.

It lets in whoever says who they are, and is all a gateway needs to be told by; what a provider of the world does with
people in between, `idp` shows. Above: proofs. Below: the kit's issuer, whose key signs.
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

from deputize.doors.console.cookies import BEGUN, SESSION
from proofs.kit.gateway import AUDIENCE, Issuer
from proofs.kit.idp.provider import new_browser
from proofs.kit.world import World

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
human = true

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
    begun: str
    back: str


@dataclass(frozen=True, kw_only=True, slots=True)
class People:
    url: str
    tenant: str
    signs: Issuer

    @classmethod
    async def open(cls, world: World, signs: Issuer, tenant: str) -> Self:
        port = world.free_port()
        made = cls(url=f"http://127.0.0.1:{port}", tenant=tenant, signs=signs)
        server = await asyncio.start_server(made._answer, "127.0.0.1", port)

        async def close() -> None:
            server.close()

        world.at_end(close)
        return made

    def settings(self, gateway: str) -> str:
        """For the settings of a gateway that people reach under this address."""
        return _SETTINGS.format(url=self.url, audience=AUDIENCE, console=_CONSOLE, client=_CLIENT, gateway=gateway)

    def person(self, name: str, groups: Sequence[str], *, scope: str = "", **more: Any) -> str:
        """A token to decide with, of somebody who signed in just now."""
        return self._signed({"aud": _CONSOLE, "sub": name, "groups": list(groups), "scope": scope, **more})

    async def sign_in(self, gateway: str, name: str) -> Browser:
        """Somebody at the console: signed in once, and about to be once more. Their name tells their group."""
        async with new_browser(gateway) as browser:
            for _ in range(2):
                begun = await browser.get("/console/sign-in")
                asked = parse_qs(urlsplit(begun.headers["location"]).query)
                code = base64.urlsafe_b64encode(orjson.dumps({"sub": name, "nonce": asked["nonce"][0]})).decode()
                back = f"/console/callback?code={code}&state={asked['state'][0]}"
                if SESSION not in browser.cookies:
                    await browser.get(back)
            return Browser(session=browser.cookies[SESSION], begun=browser.cookies[BEGUN], back=back)

    def _signed(self, claims: dict[str, Any]) -> str:
        now = int(time.time())
        dated = {"iat": now, "exp": now + _SECONDS, "auth_time": now, "jti": self.signs.clock.new_id()}
        whole = {"iss": self.url, "tenant": self.tenant, **dated, **claims}
        return jwt.encode(whole, self.signs.key, algorithm="EdDSA", headers={"kid": "proof"})

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = head.partition("content-length:")[2].split("\r\n")[0].strip()
        body = (await reader.readexactly(int(length or 0))).decode()
        said = orjson.dumps(self._exchanged(body) if head.startswith("post ") else self._document())
        lines = ["HTTP/1.1 200 OK", "content-type: application/json", f"content-length: {len(said)}"]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode() + said)
        await writer.drain()
        writer.close()

    def _document(self) -> dict[str, str]:
        endpoints = {"authorization_endpoint": f"{self.url}/auth", "token_endpoint": f"{self.url}/token"}
        return {"issuer": self.url, "jwks_uri": f"{self.url}/keys", **endpoints}

    def _exchanged(self, form: str) -> dict[str, str]:
        """A code says whose it is; one that does not is nobody's."""
        try:
            told = orjson.loads(base64.urlsafe_b64decode(parse_qs(form)["code"][0]))
            claims = {"aud": _CLIENT, "sub": told["sub"], "nonce": told["nonce"], "groups": [told["sub"]]}
        except (ValueError, KeyError, TypeError):
            return {"error": "invalid_grant"}
        return {"token_type": "Bearer", "id_token": self._signed(claims)}
