"""Tokens of people's own accounts at servers: had for one attempt of a call, renewed in time, one renewal at a time.

A token is for the person the call is for, whoever acts for them, and for the one server it was made for: nobody chooses
it, and what the settings say of the server since is held against it. A link that cannot be renewed is broken until its
person links again, and calls are refused before anything is sent.

Above: `signed_in.py`, and `linking.py`, which makes links. Below: `boxes.py`, `execute/upstreams/signing_in/`.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import asyncpg
import structlog

from deputize.core.clock import Clock
from deputize.core.definition import Secret
from deputize.core.errors import CredentialExpired, LinkNeeded, Problem, UpstreamSignInFailed, UpstreamTimeout
from deputize.core.settings import McpServer
from deputize.execute.upstreams.signing_in.challenge import Challenge, challenge_of, together
from deputize.execute.upstreams.signing_in.flow import SigningIn, asks_in_vain
from deputize.execute.upstreams.signing_in.places import covers
from deputize.govern.vault.port import Vault
from deputize.lifecycle.servers.boxes import Kept, open_link, seal_link, with_secret
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Store
from deputize.store.queries import load

SQL: Final = load("links")
PAGE: Final = "/console/servers"
BACK: Final = f"{PAGE}/callback"
# A token that ends sooner is renewed before it is lent.
_EARLY_SECONDS: Final = 60
# A token that was refused so soon after it was renewed is refused for another reason than its age.
_FRESH_SECONDS: Final = 60
# Each holds one of the few connections that write.
_RENEWED_AT_ONCE: Final = 2
_VAULT_SECONDS: Final = 5.0
log = structlog.get_logger(__name__)


class Links:
    """`base` is where people reach this gateway, if that is known."""

    def __init__(
        self, store: Store, keys: TenantKeys, vault: Vault, clock: Clock, signing_in: SigningIn, *, base: str | None
    ) -> None:
        self.signing_in = signing_in
        self._store = store
        self._keys = keys
        self._vault = vault
        self._clock = clock
        self._base = base
        self._renewing = asyncio.Semaphore(_RENEWED_AT_ONCE)
        self._tasks: set[asyncio.Task[Secret]] = set()

    async def token(self, tenant: str, server: McpServer, user: str, seconds: float) -> Secret:
        """The person's own token, or `LinkNeeded` with the page where they get one."""
        keys = await self.keys(tenant)
        async with self._store.reading(tenant) as connection:
            row = await connection.fetchrow(SQL["link"], tenant, server.name, user)
        kept = self._usable(keys, server, user, row)
        if not self._ends_within(row, _EARLY_SECONDS):
            return Secret(kept.access, name="link")
        # Not with the call that wanted it: what the server gave out in exchange for the old one must be kept.
        task = asyncio.get_running_loop().create_task(self._renewed(keys, server, user))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise UpstreamTimeout("renewing the link takes too long", nothing_happened=True) from error

    async def anybodys(
        self, tenant: str, server: McpServer, seconds: float, may: Callable[[str], bool]
    ) -> tuple[str, Secret]:
        """What a look at the server carries: the newest link that works, and whose it is. `may` says who still may do
        anything here.
        """
        async with self._store.reading(tenant) as connection:
            users = [row["user_name"] for row in await connection.fetch(SQL["newest_links"], tenant, server.name)]
        user = next((each for each in users if may(each)), None)
        if user is None:
            raise self._needed(server, f"nobody has linked an account at {server.name}, so nobody can look at it")
        return user, await self.token(tenant, server, user, seconds)

    async def turned_away(
        self, tenant: str, server: McpServer, user: str, token: str, refused: CredentialExpired
    ) -> None:
        """The server did not take the token: raises what there is to do about it, if there is anything."""
        challenge, of = challenge_of(refused.challenge), (tenant, server.name, user)
        if not refused.unknown and not challenge.wants_more:
            return  # whose it is was known, and is not let do this
        keys = await self.keys(tenant)
        async with self._store.writing() as connection:
            row = await connection.fetchrow(SQL["lock_link"], *of)
            if row is None or open_link(keys, server.name, user, row["sealed"]).access != token:
                return  # it is another link by now
            if asks_in_vain(challenge, tuple(row["asked"])):
                raise in_vain(server, challenge) from refused
            if challenge.wants_more:
                await connection.execute(SQL["want_more"], *of, list(together(row["wanted"], challenge.scopes)))
                problem: Problem = self._needed(server, f"{server.name} wants you to allow more", challenge.scopes)
            elif self._seconds_since(row["renewed_at"]) > _FRESH_SECONDS:
                await connection.execute(SQL["let_link_end"], *of)
                problem = CredentialExpired(
                    f"{server.name} does not take the token of your link any more",
                    advice="Make the call again: the link is renewed first.",
                    nothing_happened=True,
                )
            else:
                await connection.execute(SQL["break_link"], *of, "refused")
                problem = self._needed(server, f"{server.name} does not take your link any more")
        raise problem from refused

    async def keys(self, tenant: str) -> KeySet:
        return self._keys.ready(tenant) or await self._keys.load(self._store, tenant)

    async def secret_of(self, tenant: str, server: McpServer) -> str | None:
        """Of the client that the operator registered, if it has one."""
        if server.secret is None:
            return None
        secret = await self._vault.fetch(tenant, server.secret, seconds=_VAULT_SECONDS)
        try:
            return secret.reveal()
        finally:
            secret.close()

    async def _renewed(self, keys: KeySet, server: McpServer, user: str) -> Secret:
        """Under the link's own lock, on whichever gateway."""
        of = (keys.tenant, server.name, user)
        async with self._renewing, self._store.writing() as connection:
            row = await connection.fetchrow(SQL["lock_link"], *of)
            kept = self._usable(keys, server, user, row)
            if not self._ends_within(row, _EARLY_SECONDS):
                return Secret(kept.access, name="link")
            try:
                fresh, ends = await self._asked(keys.tenant, server, kept)
            except Problem as refused:
                if not self._ends_within(row, 0):
                    return Secret(kept.access, name="link")
                if not isinstance(refused, UpstreamSignInFailed) or not refused.final:
                    raise
                broken = refused
                await connection.execute(SQL["break_link"], *of, "not renewed")
            else:
                await connection.execute(SQL["renew_link"], *of, seal_link(keys, server.name, user, fresh), ends)
                return Secret(fresh.access, name="link")
        log.warning("link_broken", tenant=keys.tenant, server=server.name, reason=broken.message)
        raise self._needed(server, f"your link with {server.name} could not be renewed") from broken

    async def _asked(self, tenant: str, server: McpServer, kept: Kept) -> tuple[Kept, datetime | None]:
        if kept.refresh is None:
            ended = UpstreamSignInFailed("the link has ended, and there is nothing to renew it with")
            ended.final = True
            raise ended
        endpoint, secret = kept.endpoint, await self.secret_of(tenant, server)
        got = await self.signing_in.refresh(with_secret(endpoint, secret) if secret else endpoint, kept.refresh)
        return Kept(access=got.access, refresh=got.refresh, endpoint=endpoint), moment(got.expires_at)

    def _usable(self, keys: KeySet, server: McpServer, user: str, row: asyncpg.Record | None) -> Kept:
        if row is None:
            raise self._needed(server, f"you have not linked your account at {server.name}")
        if row["broken"] is not None:
            raise self._needed(server, f"your link with {server.name} does not work any more")
        kept = open_link(keys, server.name, user, row["sealed"])
        issuer = kept.endpoint.client.issuer
        if not covers(kept.endpoint.resource, server.url or "") or server.issuer not in (None, issuer):
            raise self._needed(server, f"your link was made for another server than {server.name} is now")
        return kept

    def _needed(self, server: McpServer, why: str, scopes: tuple[str, ...] = ()) -> LinkNeeded:
        where = None if self._base is None else self._base + PAGE
        details = {"server": server.name} | ({} if where is None else {"url": where})
        return LinkNeeded(
            why,
            details=details | ({"scopes": list(scopes)} if scopes else {}),
            advice=None if where is None else f"Open {where}, sign in, and link your account at {server.name}.",
        )

    def _ends_within(self, row: asyncpg.Record | None, seconds: float) -> bool:
        return row is not None and row["expires_at"] is not None and -self._seconds_since(row["expires_at"]) <= seconds

    def _seconds_since(self, at: datetime) -> float:
        return self._clock.epoch_ms() / 1000 - at.timestamp()


def in_vain(server: McpServer, challenge: Challenge) -> CredentialExpired:
    """Asking once more would go round in a circle."""
    return CredentialExpired(
        f"{server.name} wants more to be allowed than its authorization server gave when asked for it",
        details={"server": server.name, "scopes": list(challenge.scopes)},
        advice="Ask whoever runs that server who may have what details name.",
        nothing_happened=True,
    )


def moment(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
