"""Link people's accounts at servers: send them to the authorization server, and complete the sign-in when they return.

A pending sign-in belongs to the person who started it and can be completed once: it is deleted before the code is
redeemed, so an interruption leaves nothing behind and the person starts again.

`lifecycle/credentials/linked_accounts.py` stores the tokens.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from deputize.acts.account_revocations import (
    RevocationState,
    delete_link,
    revoke_tokens,
    store_replaced_tokens,
)
from deputize.acts.act import commit_act
from deputize.core.caller import Caller
from deputize.core.errors import MalformedRequest, PermissionDenied, ServerNotFound, UpstreamSignInFailed
from deputize.core.settings import LinkedServer, ServiceSettings
from deputize.execute.upstreams.oauth.client_registration import OAuthClient
from deputize.execute.upstreams.oauth.flow import PendingAuthorization, select_scopes
from deputize.execute.upstreams.oauth.metadata import AuthorizationServer
from deputize.execute.upstreams.oauth.www_authenticate import Challenge, merge_scopes, parse_challenge
from deputize.lifecycle.credentials.linked_accounts import SQL, to_datetime
from deputize.lifecycle.credentials.sealed_tokens import (
    LinkedTokens,
    add_client_secret,
    open_client,
    open_sign_in,
    seal_client,
    seal_link,
    seal_sign_in,
    strip_client_secret,
)
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.monitor import ServerMonitor
from deputize.store.pool import Connection

# Enough time to find a phone and a security key; after that, the person starts again.
SIGN_IN_SECONDS: Final = 600
_CHALLENGE_TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRedirect:
    """Where a person who links their account is sent."""

    server: str
    url: str
    host: str
    scopes: tuple[str, ...]


class AccountLinks:
    def __init__(self, runtime: Runtime, monitor: ServerMonitor) -> None:
        self._runtime = runtime
        self._monitor = monitor

    async def list_accounts(self, caller: Caller) -> list[dict[str, Any]]:
        """List the servers that need this person's own account, and the state of each link; nobody else has any."""
        if not _is_person(caller):
            return []
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = {
                row["server"]: row
                for row in await connection.fetch(SQL["list_links_of_user"], caller.tenant, caller.user)
            }
        servers = sorted(self._runtime.linked_accounts.list_servers(caller.tenant), key=lambda each: each.name)
        return [_describe_account(each, rows.get(each.name)) for each in servers]

    async def begin_link(self, caller: Caller, name: str) -> LinkRedirect:
        """Start a sign-in and return where to send the person; nothing is linked yet."""
        _require_person(caller)
        links = self._runtime.linked_accounts
        server = links.get_server(caller.tenant, name)
        assert server.url is not None
        challenge = await self._find_challenge(caller.tenant, server)
        server_metadata = await links.oauth_flow.discover_auth_server(server.url, challenge, issuer=server.issuer)
        client = await self._get_client(caller.tenant, server, server_metadata)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(SQL["load_link"], caller.tenant, name, caller.user)
        previous_scopes = (
            () if row is None else merge_scopes(tuple(row["requested_scopes"]), tuple(row["missing_scopes"]))
        )
        scopes = select_scopes(server_metadata, challenge, previous_scopes, offline=True)
        url, sign_in = links.oauth_flow.start_authorization(server_metadata, client, scopes)
        await self._store_sign_in(caller, server, sign_in)
        return LinkRedirect(server=name, url=url, host=urlsplit(url).netloc, scopes=scopes)

    async def finish_link(self, caller: Caller, answer: Mapping[str, str]) -> str:
        """Complete a sign-in and return the server that is linked now.

        If the account was linked before, the tokens of then are revoked at their server, in the background.
        """
        _require_person(caller)
        name, sign_in = await self._take_sign_in(caller, answer.get("state", ""))
        links = self._runtime.linked_accounts
        server = links.get_server(caller.tenant, name)
        keys = await links.load_keys(caller.tenant)
        try:
            tokens = await links.oauth_flow.complete_authorization(
                await self._add_client_secret(caller.tenant, server, sign_in), answer
            )
        except UpstreamSignInFailed as error:
            if error.is_final and server.client_id is None:
                # The server may have forgotten our registration: the next sign-in registers anew.
                await self._delete_client(caller.tenant, name, sign_in.issuer)
            raise
        linked_tokens = LinkedTokens(access=tokens.access, refresh=tokens.refresh, endpoint=sign_in.endpoint)
        ciphertext, expires_at = seal_link(keys, name, caller.user, linked_tokens), to_datetime(tokens.expires_at)

        async def store_link(connection: Connection) -> None:
            await store_replaced_tokens(self._runtime, connection, keys, name, caller.user, linked_tokens)
            await connection.execute(
                SQL["upsert_link"], caller.tenant, name, caller.user, ciphertext, list(sign_in.scopes), expires_at
            )  # fmt: skip

        await commit_act(self._runtime, caller, "link_server", name, store_link, ())
        self._monitor.request_probe(caller.tenant, name)
        return name

    async def unlink(self, caller: Caller, name: str) -> RevocationState:
        """Delete the link, so that no call of this person reaches the server, and revoke its tokens there.

        The link is gone whatever becomes of the revocation; what fails is attempted again in the background.
        """
        _require_person(caller)
        keys = await self._runtime.linked_accounts.load_keys(caller.tenant)

        async def delete_account(connection: Connection) -> str | None:
            await connection.execute(SQL["delete_sign_in"], caller.tenant, name, caller.user)
            is_linked, revocation_id = await delete_link(self._runtime, connection, keys, name, caller.user)
            if not is_linked:
                raise ServerNotFound(f"your account at {name[:64]} is not linked", details={"server": name[:64]})
            return revocation_id

        revocation_id = await commit_act(self._runtime, caller, "unlink_server", name, delete_account, ())
        return "given_up" if revocation_id is None else await revoke_tokens(self._runtime, caller.tenant, revocation_id)

    async def _find_challenge(self, tenant: str, server: LinkedServer) -> Challenge:
        """Find out which scopes to ask for: a server says it, and for a service its settings do."""
        if isinstance(server, ServiceSettings):
            return Challenge(scopes=server.link_scopes)
        return parse_challenge(
            await self._runtime.upstreams.fetch_challenge(tenant, server.name, _CHALLENGE_TIMEOUT_SECONDS)
        )

    async def _get_client(self, tenant: str, server: LinkedServer, server_metadata: AuthorizationServer) -> OAuthClient:
        """Return the gateway's OAuth client at the server; a new registration is stored before it is used."""
        links, store = self._runtime.linked_accounts, self._runtime.store
        keys, flow = await links.load_keys(tenant), links.oauth_flow
        async with store.read_transaction(tenant) as connection:
            stored_ciphertext = await connection.fetchval(
                SQL["load_client"], tenant, server.name, server_metadata.issuer
            )
        stored_client = (
            None if stored_ciphertext is None else open_client(keys, server.name, flow.redirect_uri, stored_ciphertext)
        )
        secret = await links.fetch_client_secret(tenant, server)
        client = await flow.resolve_client(
            server_metadata, client_id=server.client_id, secret=secret, registration=stored_client
        )
        if client is not stored_client and client.id not in (server.client_id, flow.client_metadata_url):
            ciphertext = seal_client(keys, server.name, flow.redirect_uri, client)
            async with store.write_transaction() as connection:
                await connection.execute(SQL["upsert_client"], tenant, server.name, server_metadata.issuer, ciphertext)
        return client

    async def _store_sign_in(self, caller: Caller, server: LinkedServer, sign_in: PendingAuthorization) -> None:
        if server.client_id is not None:
            sign_in = _replace_client_secret(sign_in, secret=None)
        keys = await self._runtime.linked_accounts.load_keys(caller.tenant)
        ciphertext = seal_sign_in(keys, server.name, caller.user, sign_in)
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(
                SQL["upsert_sign_in"], caller.tenant, server.name, caller.user, _hash_state(sign_in.state), ciphertext
            )

    async def _take_sign_in(self, caller: Caller, state: str) -> tuple[str, PendingAuthorization]:
        async with self._runtime.store.write_transaction() as connection:
            row = await connection.fetchrow(
                SQL["take_sign_in"], caller.tenant, caller.user, _hash_state(state), float(SIGN_IN_SECONDS)
            )
        if row is None or not row["in_time"]:
            raise MalformedRequest(
                "this sign-in was not started by you, took too long, or is already completed",
                advice="Start again on the accounts page of the console.",
            )
        keys = await self._runtime.linked_accounts.load_keys(caller.tenant)
        return row["server"], open_sign_in(keys, row["server"], caller.user, row["sealed"])

    async def _add_client_secret(
        self, tenant: str, server: LinkedServer, sign_in: PendingAuthorization
    ) -> PendingAuthorization:
        secret = await self._runtime.linked_accounts.fetch_client_secret(tenant, server)
        return sign_in if secret is None else _replace_client_secret(sign_in, secret=secret)

    async def _delete_client(self, tenant: str, server: str, issuer: str) -> None:
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(SQL["delete_client"], tenant, server, issuer)


def _replace_client_secret(sign_in: PendingAuthorization, *, secret: str | None) -> PendingAuthorization:
    endpoint = strip_client_secret(sign_in.endpoint) if secret is None else add_client_secret(sign_in.endpoint, secret)
    return replace(sign_in, endpoint=endpoint)


def _is_person(caller: Caller) -> bool:
    return caller.console and not caller.agents


def _require_person(caller: Caller) -> None:
    """Require a signed-in person: people link only their own account, and agents none."""
    if not _is_person(caller):
        raise PermissionDenied(
            "only a person who is signed in to the console can link their own account", details={"rule": "own-account"}
        )


def _describe_account(server: LinkedServer, row: asyncpg.Record | None) -> dict[str, Any]:
    state = "not linked" if row is None else "broken" if row["broken_reason"] is not None else "linked"
    return {
        "name": server.name,
        "address": server.url,
        "state": "wants more" if state == "linked" and row is not None and row["missing_scopes"] else state,
        "linked_at": None if row is None else row["linked_at"],
        "wanted": [] if row is None else list(row["missing_scopes"]),
    }


def _hash_state(state: str) -> bytes:
    return hashlib.sha256(state.encode()).digest()
