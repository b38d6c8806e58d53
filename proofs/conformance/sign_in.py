"""Someone at a browser, for servers that want a sign-in: agrees to everything, and keeps the token that comes of it.

What the product's pages and tables do is done here in memory; whom to ask, how, and what to believe is the product's.
"""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2

from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret
from deputize.core.errors import SecretsProblem
from deputize.execute.egress import Egress
from deputize.execute.upstreams.oauth.client_registration import OAuthClient
from deputize.execute.upstreams.oauth.flow import OAuthFlow, is_scope_loop, select_scopes
from deputize.execute.upstreams.oauth.metadata import AuthorizationServer
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, parse_challenge

# The one address the suite takes for that of a client's document; nobody can read it there.
_METADATA_URL = "https://conformance-test.local/client-metadata.json"
_CALLBACK_URL = "http://127.0.0.1:7070/console/servers/callback"
_MAX_SIGN_INS = 3


@dataclass
class SignedInUser:
    """`context` is what the suite says someone registered or was given beforehand."""

    url: str
    context: dict[str, Any]
    secret: Secret | None = None
    _scopes: tuple[str, ...] = ()
    _sign_in_count: int = 0
    _client: OAuthClient | None = None
    _egress: Egress = field(init=False)
    _sign_in: OAuthFlow = field(init=False)

    def __post_init__(self) -> None:
        self._egress = Egress(frozenset({str(urlsplit(self.url).hostname)}))
        self._sign_in = OAuthFlow(
            self._egress.request, Clock(), redirect_uri=_CALLBACK_URL, client_metadata_url=_METADATA_URL
        )

    async def obtain_token(self, error: SecretsProblem) -> None:
        """Gets a token that fits what the server said, or raises what stands in the way; not without end."""
        challenge = parse_challenge(error.challenge)
        if self._sign_in_count == _MAX_SIGN_INS or is_scope_loop(challenge, self._scopes):
            raise error
        self._sign_in_count += 1
        server = await self._sign_in.discover_auth_server(self.url, challenge, issuer=self.context.get("issuer"))
        is_user = "client_id" not in self.context or "issuer" in self.context
        self._scopes = select_scopes(server, challenge, self._scopes, offline=is_user)
        self._client = await self._sign_in.resolve_client(
            server,
            client_id=self.context.get("client_id"),
            secret=self.context.get("client_secret") or self.context.get("private_key_pem"),
            registration=self._client,
        )
        self.secret = Secret(await self._request_token(server, challenge, is_user=is_user), name="suite")

    async def _request_token(self, server: AuthorizationServer, challenge: Challenge, *, is_user: bool) -> str:
        assert self._client is not None
        if not is_user:
            return (await self._sign_in.request_client_token(server, self._client, self._scopes)).access
        url, login = self._sign_in.start_authorization(server, self._client, self._scopes)
        async with httpx2.AsyncClient(trust_env=False, timeout=60.0) as browser:
            redirect_url = (await browser.get(url)).headers["location"]
        assert redirect_url.startswith(_CALLBACK_URL)
        return (await self._sign_in.complete_authorization(login, dict(parse_qsl(urlsplit(redirect_url).query)))).access

    async def aclose(self) -> None:
        await self._egress.aclose()
