"""Obtain the gateway's own tokens at servers (client credentials), and keep them in memory only.

The client's secret is fetched from the vault for each token.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret
from deputize.core.errors import CredentialExpired, UpstreamTimeout
from deputize.core.settings import McpServerSettings
from deputize.execute.upstreams.oauth.flow import OAuthFlow, is_scope_loop, select_scopes
from deputize.execute.upstreams.oauth.tokens import Tokens
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, parse_challenge
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.credentials.linked_accounts import scopes_refused_error

_RENEW_BEFORE_SECONDS: Final = 60
# How long a token without a stated lifetime is used.
_DEFAULT_LIFETIME_SECONDS: Final = 300
_CHALLENGE_TIMEOUT_SECONDS: Final = 10.0


@dataclass(kw_only=True)
class _ServerTokens:
    """The tokens of one server; the lock lets one task at a time request more."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: Tokens | None = field(default=None, repr=False)
    expires_at: float = 0.0
    scopes: tuple[str, ...] = ()
    # The server's last challenge; None before the first request.
    challenge: Challenge | None = None


class ClientCredentialTokens:
    def __init__(self, upstreams: UpstreamPool, vault: SecretVault, clock: Clock, oauth_flow: OAuthFlow) -> None:
        self._upstreams = upstreams
        self._vault = vault
        self._clock = clock
        self._oauth_flow = oauth_flow
        self._entries: dict[tuple[str, str], _ServerTokens] = {}

    async def get_token(self, tenant: str, server: McpServerSettings, seconds: float) -> Secret:
        entry = self._entries.setdefault((tenant, server.name), _ServerTokens())
        try:
            async with asyncio.timeout(seconds), entry.lock:
                if entry.tokens is None or entry.expires_at <= self._clock.monotonic():
                    entry.tokens = await self._request_tokens(tenant, server, entry, seconds)
                    entry.expires_at = self._clock.monotonic() + self._compute_lifetime(entry.tokens)
                return Secret(entry.tokens.access, name="client")
        except TimeoutError as error:
            raise UpstreamTimeout(f"signing in to {server.name} took too long", nothing_happened=True) from error

    def handle_rejection(self, tenant: str, server: McpServerSettings, token: str, error: CredentialExpired) -> None:
        """Drop a rejected token, so that the next call requests another, with more scopes if the server requires them.

        A token is kept if its scopes were already requested: requesting them again would loop.
        """
        entry, challenge = self._entries.get((tenant, server.name)), parse_challenge(error.challenge)
        if not error.is_unknown and not challenge.is_scope_insufficient:
            return
        if entry is None or entry.tokens is None or entry.tokens.access != token:
            return
        if is_scope_loop(challenge, entry.scopes):
            raise scopes_refused_error(server, challenge) from error
        entry.tokens, entry.challenge = None, challenge

    async def _request_tokens(
        self, tenant: str, server: McpServerSettings, entry: _ServerTokens, seconds: float
    ) -> Tokens:
        assert server.url is not None
        assert server.secret is not None
        if entry.challenge is None:
            header = await self._upstreams.fetch_challenge(
                tenant, server.name, min(seconds, _CHALLENGE_TIMEOUT_SECONDS)
            )
            entry.challenge = parse_challenge(header)
        server_metadata = await self._oauth_flow.discover_auth_server(server.url, entry.challenge, issuer=server.issuer)
        entry.scopes = select_scopes(server_metadata, entry.challenge, entry.scopes, offline=False)
        secret = await self._vault.fetch(tenant, server.secret, seconds=seconds)
        try:
            client = await self._oauth_flow.resolve_client(
                server_metadata, client_id=server.client_id, secret=secret.reveal(), registration=None
            )  # fmt: skip
            return await self._oauth_flow.request_client_token(server_metadata, client, entry.scopes)
        finally:
            secret.close()

    def _compute_lifetime(self, tokens: Tokens) -> float:
        if tokens.expires_at is None:
            return _DEFAULT_LIFETIME_SECONDS
        return max(tokens.expires_at - self._clock.epoch_ms() / 1000 - _RENEW_BEFORE_SECONDS, 0.0)
