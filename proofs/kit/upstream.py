"""A system that tools act upon, as any other would be: it trusts tokens of the gateway's own issuers and keys it knows.

It verifies what it is shown against the keys the gateway publishes, and writes down everything it receives: into
`received.jsonl` whatever is no credential, into `shown.jsonl` the credential, and whose it was. Above: `companions`.
Below: `serving`.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import httpx2
import jwt
import orjson

from proofs.kit.serving import Receive, Scope, Send, answer, read_body, serve

RECEIVED, SHOWN = "received.jsonl", "shown.jsonl"
_CREDENTIALS = ("authorization", "x-api-key")
_ALGORITHMS = ["EdDSA", "ES256", "RS256"]


class Upstream:
    def __init__(self, folder: Path, trust: str, audience: str) -> None:
        self._received = (folder / RECEIVED).open("ab", buffering=0)
        self._shown = (folder / SHOWN).open("ab", buffering=0)
        self._trust = trust
        self._audience = audience
        self._keys: dict[tuple[str, str], jwt.PyJWK] = {}
        self._looking = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        shown = {name: headers.pop(name) for name in _CREDENTIALS if name in headers}
        body = (await read_body(receive)).decode("latin-1")
        call = headers.get("x-call", "")
        line = {"method": scope["method"], "path": scope["raw_path"].decode("latin-1"), "call": call}
        line |= {"query": scope["query_string"].decode("latin-1"), "headers": headers, "body": body}
        self._received.write(orjson.dumps(line) + b"\n")
        who = await self._who(shown.get("authorization", ""))
        known = {"call": call, "path": scope["path"], "shown": shown, "who": who}
        self._shown.write(orjson.dumps(known) + b"\n")
        refused = "authorization" in shown and "refused" in who
        await answer(send, 401 if refused else 200, orjson.dumps(who))

    async def _who(self, authorization: str) -> dict[str, Any]:
        """What the token says, if one of the gateway's issuers said it, to us."""
        if not authorization:
            return {}
        token = authorization.partition(" ")[2]
        try:
            issuer = str(jwt.decode(token, options={"verify_signature": False}).get("iss"))
            if not issuer.startswith(f"{self._trust}/t/"):
                return {"refused": f"the issuer {issuer} is not trusted"}
            key = await self._key(issuer, jwt.get_unverified_header(token).get("kid", ""))
            wanted: Any = {"require": ["exp", "iat", "sub", "jti", "aud"]}
            return dict(jwt.decode(token, key, _ALGORITHMS, audience=self._audience, issuer=issuer, options=wanted))
        except (jwt.PyJWTError, httpx2.HTTPError, KeyError, ValueError) as error:
            return {"refused": f"{type(error).__name__}: {error}"[:300]}

    async def _key(self, issuer: str, kid: str) -> jwt.PyJWK:
        async with self._looking:
            if (issuer, kid) not in self._keys:
                async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
                    # RFC 8414: an issuer's own path comes behind the well-known one.
                    place = f"{self._trust}/.well-known/oauth-authorization-server{issuer.removeprefix(self._trust)}"
                    about = (await client.get(place)).raise_for_status().json()
                    found = (await client.get(about["jwks_uri"])).raise_for_status().json()
                self._keys |= {(issuer, each["kid"]): jwt.PyJWK(each) for each in found["keys"]}
        return self._keys[issuer, kid]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--trust", required=True)
    parser.add_argument("--audience", required=True)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    serve(Upstream(given.folder, given.trust, given.audience), given.port)
