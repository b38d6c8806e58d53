"""Tokens of this gateway's own at servers (client credentials): kept in memory while they hold, and nowhere else.

Above: `signed_in.py`. Below: `execute/upstreams/signing_in/`; the client's secret comes from the vault for each token.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Final

from deputize.core.clock import Clock
from deputize.core.definition import Secret
from deputize.core.errors import CredentialExpired, UpstreamTimeout
from deputize.core.settings import McpServer
from deputize.execute.upstreams.servers import Upstreams
from deputize.execute.upstreams.signing_in.challenge import Challenge, challenge_of
from deputize.execute.upstreams.signing_in.flow import SigningIn, asks_in_vain, scopes_to_ask
from deputize.execute.upstreams.signing_in.tokens import Tokens
from deputize.govern.vault.port import Vault
from deputize.lifecycle.servers.links import in_vain

_EARLY_SECONDS: Final = 60
# How long a token is used of which nobody said when it ends.
_UNSAID_SECONDS: Final = 300
_KNOCK_SECONDS: Final = 10.0


@dataclass(kw_only=True)
class _Own:
    """What is known of one server; one at a time asks for more."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    tokens: Tokens | None = field(default=None, repr=False)
    ends: float = 0.0
    asked: tuple[str, ...] = ()
    # What the server said when it last refused; None before it was asked.
    challenge: Challenge | None = None


class OwnTokens:
    def __init__(self, upstreams: Upstreams, vault: Vault, clock: Clock, signing_in: SigningIn) -> None:
        self._upstreams = upstreams
        self._vault = vault
        self._clock = clock
        self._signing_in = signing_in
        self._known: dict[tuple[str, str], _Own] = {}

    async def token(self, tenant: str, server: McpServer, seconds: float) -> Secret:
        own = self._known.setdefault((tenant, server.name), _Own())
        try:
            async with asyncio.timeout(seconds), own.lock:
                if own.tokens is None or own.ends <= self._clock.monotonic():
                    own.tokens = await self._got(tenant, server, own, seconds)
                    own.ends = self._clock.monotonic() + self._holds(own.tokens)
                return Secret(own.tokens.access, name="client")
        except TimeoutError as error:
            raise UpstreamTimeout(f"signing in to {server.name} takes too long", nothing_happened=True) from error

    def turned_away(self, tenant: str, server: McpServer, token: str, refused: CredentialExpired) -> None:
        """The server did not take it: the next call asks for another, and for more if the server wants more. Where more
        was asked for already, the one there is stays: asking again would go round in a circle.
        """
        own, challenge = self._known.get((tenant, server.name)), challenge_of(refused.challenge)
        if not refused.unknown and not challenge.wants_more:
            return
        if own is None or own.tokens is None or own.tokens.access != token:
            return
        if asks_in_vain(challenge, own.asked):
            raise in_vain(server, challenge) from refused
        own.tokens, own.challenge = None, challenge

    async def _got(self, tenant: str, server: McpServer, own: _Own, seconds: float) -> Tokens:
        assert server.url is not None
        assert server.secret is not None
        if own.challenge is None:
            header = await self._upstreams.knock(tenant, server.name, min(seconds, _KNOCK_SECONDS))
            own.challenge = challenge_of(header)
        place = await self._signing_in.find(server.url, own.challenge, issuer=server.issuer)
        own.asked = scopes_to_ask(place, own.challenge, own.asked, offline=False)
        secret = await self._vault.fetch(tenant, server.secret, seconds=seconds)
        try:
            client = await self._signing_in.client(
                place, client_id=server.client_id, secret=secret.reveal(), kept=None
            )  # fmt: skip
            return await self._signing_in.as_client(place, client, own.asked)
        finally:
            secret.close()

    def _holds(self, tokens: Tokens) -> float:
        if tokens.expires_at is None:
            return _UNSAID_SECONDS
        return max(tokens.expires_at - self._clock.epoch_ms() / 1000 - _EARLY_SECONDS, 0.0)
