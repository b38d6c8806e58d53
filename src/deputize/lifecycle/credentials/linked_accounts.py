"""Provide tokens of people's linked accounts for one attempt of a call, and renew them, one renewal at a time.

A token belongs to the person the call is for, also if an agent acts for them, and to the one server it was issued for;
it is checked against the server's current settings. A link that cannot be renewed is broken until its person links
again, and calls are refused before anything is sent.

`operations/servers/account_links.py` creates the links.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import asyncpg
import structlog

from deputize.core.clock import Clock
from deputize.core.contract.tools import Secret
from deputize.core.errors import (
    CredentialExpired,
    LinkedAccountRequired,
    Problem,
    ServerNotFound,
    UpstreamSignInFailed,
    UpstreamTimeout,
)
from deputize.core.settings import LinkedServer
from deputize.core.settings.urls import ACCOUNTS_PAGE_PATH
from deputize.execute.upstreams.oauth.flow import OAuthFlow, is_scope_loop
from deputize.execute.upstreams.oauth.metadata import is_resource_for
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, merge_scopes, parse_challenge
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.credentials.sealed_tokens import LinkedTokens, add_client_secret, open_link, seal_link
from deputize.store.keys import KeySet, TenantKeys
from deputize.store.pool import Store
from deputize.store.queries import load_statements

SQL: Final = load_statements("links")
# A token that expires sooner is renewed before it is used.
_RENEW_BEFORE_SECONDS: Final = 60
# A token that is rejected so soon after its renewal is rejected for another reason than its age.
_FRESH_SECONDS: Final = 60
# Each renewal holds one of the few write connections.
_MAX_RENEWALS: Final = 2
_VAULT_SECONDS: Final = 5.0
log = structlog.get_logger(__name__)


class LinkedAccounts:
    """The linked accounts of all tenants. `servers` are those that need one, by tenant and name; `base_url` is where
    people reach this gateway, if that is known.
    """

    def __init__(
        self,
        store: Store,
        keys: TenantKeys,
        vault: SecretVault,
        clock: Clock,
        oauth_flow: OAuthFlow,
        *,
        servers: Mapping[tuple[str, str], LinkedServer],
        base_url: str | None,
    ) -> None:
        self.oauth_flow = oauth_flow
        self._store = store
        self._keys = keys
        self._vault = vault
        self._clock = clock
        self._servers = servers
        self._base_url = base_url
        self._renewal_slots = asyncio.Semaphore(_MAX_RENEWALS)
        self._tasks: set[asyncio.Task[Secret]] = set()

    def list_servers(self, tenant: str) -> list[LinkedServer]:
        """List the tenant's servers and services that need people's own accounts."""
        return [each for (owner, _), each in self._servers.items() if owner == tenant]

    def get_server(self, tenant: str, name: str) -> LinkedServer:
        """Return the settings of a server or service that needs people's own accounts, or raise `ServerNotFound`."""
        server = self._servers.get((tenant, name))
        if server is None:
            raise ServerNotFound(f"{name[:64]} does not use linked accounts", details={"server": name[:64]})
        return server

    async def get_token(self, tenant: str, server: LinkedServer, user: str, seconds: float) -> Secret:
        """Return the person's own token; raise `LinkedAccountRequired` with the page to link on if there is none."""
        keys = await self.load_keys(tenant)
        async with self._store.read_transaction(tenant) as connection:
            row = await connection.fetchrow(SQL["load_link"], tenant, server.name, user)
        tokens = self._open_usable_link(keys, server, user, row)
        if not self._is_expiring(row, _RENEW_BEFORE_SECONDS):
            return Secret(tokens.access, name="link")
        # In its own task: if the call is canceled, the new tokens must still be stored.
        task = asyncio.get_running_loop().create_task(self._renew_token(keys, server, user))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.shield(task)
        except TimeoutError as error:
            raise UpstreamTimeout("renewing the linked account's token took too long", nothing_happened=True) from error

    async def get_probe_token(
        self, tenant: str, server: LinkedServer, seconds: float, can_act: Callable[[str], bool]
    ) -> tuple[str, Secret]:
        """Return the token for a probe and its user: the newest working link whose user `can_act`."""
        async with self._store.read_transaction(tenant) as connection:
            users = [row["user_name"] for row in await connection.fetch(SQL["list_newest_links"], tenant, server.name)]
        user = next((each for each in users if can_act(each)), None)
        if user is None:
            raise self._link_needed_error(
                server, f"no account at {server.name} is linked, so the gateway cannot probe it"
            )
        return user, await self.get_token(tenant, server, user, seconds)

    async def handle_rejection(
        self, tenant: str, server: LinkedServer, user: str, token: str, error: CredentialExpired
    ) -> None:
        """Handle a token that the server rejected: raise what the person can do, if anything."""
        challenge, link_key = parse_challenge(error.challenge), (tenant, server.name, user)
        if not error.is_unknown and not challenge.is_scope_insufficient:
            return  # the server accepted the token, but does not permit this action
        keys = await self.load_keys(tenant)
        async with self._store.write_transaction() as connection:
            row = await connection.fetchrow(SQL["lock_link"], *link_key)
            if row is None or open_link(keys, server.name, user, row["sealed"]).access != token:
                return  # the link was replaced meanwhile
            if is_scope_loop(challenge, tuple(row["requested_scopes"])):
                raise scopes_refused_error(server, challenge) from error
            if challenge.is_scope_insufficient:
                await connection.execute(
                    SQL["set_missing_scopes"], *link_key, list(merge_scopes(row["missing_scopes"], challenge.scopes))
                )
                problem: Problem = self._link_needed_error(
                    server, f"{server.name} requires more scopes than you allowed", challenge.scopes
                )
            elif self._compute_age(row["renewed_at"]) > _FRESH_SECONDS:
                await connection.execute(SQL["expire_link"], *link_key)
                problem = CredentialExpired(
                    f"{server.name} no longer accepts the token of your linked account",
                    advice="Make the call again: the token is renewed first.",
                    nothing_happened=True,
                )
            else:
                await connection.execute(SQL["mark_link_broken"], *link_key, "refused")
                problem = self._link_needed_error(server, f"{server.name} no longer accepts your linked account")
        raise problem from error

    async def load_keys(self, tenant: str) -> KeySet:
        return await self._keys.get(tenant)

    async def fetch_client_secret(self, tenant: str, server: LinkedServer) -> str | None:
        """Fetch the secret of the client that the operator registered, if it has one."""
        if server.secret is None:
            return None
        secret = await self._vault.fetch(tenant, server.secret, seconds=_VAULT_SECONDS)
        try:
            return secret.reveal()
        finally:
            secret.close()

    async def _renew_token(self, keys: KeySet, server: LinkedServer, user: str) -> Secret:
        """Renew the token under the link's row lock, so that one gateway at a time does it."""
        link_key = (keys.tenant, server.name, user)
        async with self._renewal_slots, self._store.write_transaction() as connection:
            row = await connection.fetchrow(SQL["lock_link"], *link_key)
            tokens = self._open_usable_link(keys, server, user, row)
            if not self._is_expiring(row, _RENEW_BEFORE_SECONDS):
                return Secret(tokens.access, name="link")
            try:
                new_tokens, expires_at = await self._refresh_tokens(keys.tenant, server, tokens)
            except Problem as error:
                if not self._is_expiring(row, 0):
                    return Secret(tokens.access, name="link")
                if not isinstance(error, UpstreamSignInFailed) or not error.is_final:
                    raise
                failure = error
                await connection.execute(SQL["mark_link_broken"], *link_key, "not renewed")
            else:
                await connection.execute(
                    SQL["renew_link"], *link_key, seal_link(keys, server.name, user, new_tokens), expires_at
                )
                return Secret(new_tokens.access, name="link")
        log.warning("link_broken", tenant=keys.tenant, server=server.name, reason=failure.message)
        raise self._link_needed_error(server, f"your linked account at {server.name} could not be renewed") from failure

    async def _refresh_tokens(
        self, tenant: str, server: LinkedServer, tokens: LinkedTokens
    ) -> tuple[LinkedTokens, datetime | None]:
        if tokens.refresh is None:
            raise UpstreamSignInFailed("the link has expired and has no refresh token", is_final=True)
        endpoint, secret = tokens.endpoint, await self.fetch_client_secret(tenant, server)
        response = await self.oauth_flow.refresh_tokens(
            add_client_secret(endpoint, secret) if secret else endpoint, tokens.refresh
        )
        return LinkedTokens(access=response.access, refresh=response.refresh, endpoint=endpoint), to_datetime(
            response.expires_at
        )

    def _open_usable_link(
        self, keys: KeySet, server: LinkedServer, user: str, row: asyncpg.Record | None
    ) -> LinkedTokens:
        if row is None:
            raise self._link_needed_error(server, f"you have not linked your account at {server.name}")
        if row["broken_reason"] is not None:
            raise self._link_needed_error(server, f"your linked account at {server.name} no longer works")
        tokens = open_link(keys, server.name, user, row["sealed"])
        issuer = tokens.endpoint.client.issuer
        if not is_resource_for(tokens.endpoint.resource, server.url or "") or server.issuer not in (None, issuer):
            raise self._link_needed_error(
                server, f"your account was linked before {server.name} moved to another server"
            )
        return tokens

    def _link_needed_error(
        self, server: LinkedServer, reason: str, scopes: tuple[str, ...] = ()
    ) -> LinkedAccountRequired:
        page_url = None if self._base_url is None else self._base_url + ACCOUNTS_PAGE_PATH
        details = {"server": server.name} | ({} if page_url is None else {"url": page_url})
        return LinkedAccountRequired(
            reason,
            details=details | ({"scopes": list(scopes)} if scopes else {}),
            advice=None if page_url is None else f"Open {page_url}, sign in, and link your account at {server.name}.",
        )

    def _is_expiring(self, row: asyncpg.Record | None, seconds: float) -> bool:
        return row is not None and row["expires_at"] is not None and -self._compute_age(row["expires_at"]) <= seconds

    def _compute_age(self, at: datetime) -> float:
        return self._clock.epoch_ms() / 1000 - at.timestamp()


def scopes_refused_error(server: LinkedServer, challenge: Challenge) -> CredentialExpired:
    """Build the error for scopes that the authorization server did not grant: requesting them again would loop."""
    return CredentialExpired(
        f"{server.name} requires scopes that its authorization server did not grant",
        details={"server": server.name, "scopes": list(challenge.scopes)},
        advice="Ask the operator of that server who can get the scopes in details.",
        nothing_happened=True,
    )


def to_datetime(seconds: int | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
