"""A system that tools act upon, as any other would be: it trusts tokens of the gateway's own issuers and keys it knows.

It verifies what it is shown against the keys the gateway publishes, and writes down everything it receives: into
`received.jsonl` whatever is no credential, into `shown.jsonl` the credential, and whose it was.
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import httpx2
import jwt
import orjson

from proofs.kit.asgi_server import Receive, Scope, Send, read_body, send_json, serve_app

REQUESTS_FILE, CREDENTIALS_FILE = "received.jsonl", "shown.jsonl"
_CREDENTIALS = ("authorization", "x-api-key")
_ALGORITHMS = ["EdDSA", "ES256", "RS256"]


class UpstreamApp:
    def __init__(self, folder: Path, trusted_url: str, audience: str) -> None:
        self._requests_file = (folder / REQUESTS_FILE).open("ab", buffering=0)
        self._credentials_file = (folder / CREDENTIALS_FILE).open("ab", buffering=0)
        self._trusted_url = trusted_url
        self._audience = audience
        self._keys: dict[tuple[str, str], jwt.PyJWK] = {}
        self._jwks_lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        credentials = {name: headers.pop(name) for name in _CREDENTIALS if name in headers}
        body = (await read_body(receive)).decode("latin-1")
        call = headers.get("x-call", "")
        line = {"method": scope["method"], "path": scope["raw_path"].decode("latin-1"), "call": call}
        line |= {"query": scope["query_string"].decode("latin-1"), "headers": headers, "body": body}
        self._requests_file.write(orjson.dumps(line) + b"\n")
        identity = await self._verify_token(credentials.get("authorization", ""))
        record = {"call": call, "path": scope["path"], "shown": credentials, "who": identity}
        self._credentials_file.write(orjson.dumps(record) + b"\n")
        is_refused = "authorization" in credentials and "refused" in identity
        await send_json(send, 401 if is_refused else 200, orjson.dumps(identity))

    async def _verify_token(self, authorization: str) -> dict[str, Any]:
        """What the token says, if one of the gateway's issuers said it, to us."""
        if not authorization:
            return {}
        token = authorization.partition(" ")[2]
        try:
            issuer = str(jwt.decode(token, options={"verify_signature": False}).get("iss"))
            if not issuer.startswith(f"{self._trusted_url}/t/"):
                return {"refused": f"the issuer {issuer} is not trusted"}
            key = await self._fetch_key(issuer, jwt.get_unverified_header(token).get("kid", ""))
            decode_options: Any = {"require": ["exp", "iat", "sub", "jti", "aud"]}
            return dict(
                jwt.decode(token, key, _ALGORITHMS, audience=self._audience, issuer=issuer, options=decode_options)
            )
        except (jwt.PyJWTError, httpx2.HTTPError, KeyError, ValueError) as error:
            return {"refused": f"{type(error).__name__}: {error}"[:300]}

    async def _fetch_key(self, issuer: str, kid: str) -> jwt.PyJWK:
        async with self._jwks_lock:
            if (issuer, kid) not in self._keys:
                async with httpx2.AsyncClient(trust_env=False, timeout=5.0) as client:
                    # RFC 8414: an issuer's own path comes behind the well-known one.
                    issuer_path = issuer.removeprefix(self._trusted_url)
                    metadata_url = f"{self._trusted_url}/.well-known/oauth-authorization-server{issuer_path}"
                    metadata = (await client.get(metadata_url)).raise_for_status().json()
                    jwks = (await client.get(metadata["jwks_uri"])).raise_for_status().json()
                self._keys |= {(issuer, each["kid"]): jwt.PyJWK(each) for each in jwks["keys"]}
        return self._keys[issuer, kid]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--trust", required=True)
    parser.add_argument("--audience", required=True)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    serve_app(UpstreamApp(options.folder, options.trust, options.audience), options.port)
