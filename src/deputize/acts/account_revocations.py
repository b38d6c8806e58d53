"""Revoke the tokens of deleted and replaced links at their authorization servers (RFC 7009), or give up in the end.

The commit that deletes or replaces a link stores its tokens for revocation, so that a process that dies leaves them to
another. A revocation is postponed before it is attempted, and attempts may repeat: revoking twice does no harm. It
names no person, and whether it succeeds does not matter to the link, which is gone.
"""

import asyncio
from dataclasses import replace
from typing import Final, Literal

import asyncpg
import structlog

from deputize.acts.act import record_act
from deputize.core.caller import Caller
from deputize.core.errors import Problem, ServerNotFound, UnsealFailed, UpstreamSignInFailed
from deputize.lifecycle.credentials.linked_accounts import SQL
from deputize.lifecycle.credentials.sealed_tokens import (
    LinkedTokens,
    add_client_secret,
    open_link,
    open_revocation,
    seal_revocation,
)
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection

# What became of the tokens: revoked, kept by a server that revokes none, or to be tried again.
RevocationState = Literal["revoked", "not_offered", "pending", "given_up"]
_ATTEMPT_SECONDS: Final = 10.0
# About two days; see `take_revocation` for the pauses.
_MAX_ATTEMPTS: Final = 12
_BATCH_ROWS: Final = 10
log = structlog.get_logger(__name__)


async def delete_link(
    runtime: Runtime, connection: Connection, keys: KeySet, server: str, user: str
) -> tuple[bool, str | None]:
    """Delete a link inside a transaction and store its tokens for revocation.

    Returns whether there was a link, and the id of the revocation: None if its tokens can no longer be decrypted.
    """
    row = await connection.fetchrow(SQL["delete_link"], keys.tenant, server, user)
    if row is None:
        return False, None
    tokens = _open_old_link(keys, server, user, row["sealed"])
    return True, None if tokens is None else await _store_revocation(runtime, connection, keys, server, tokens)


async def store_replaced_tokens(
    runtime: Runtime, connection: Connection, keys: KeySet, server: str, user: str, new_tokens: LinkedTokens
) -> None:
    """Store the tokens of a link for revocation, inside the transaction that replaces them.

    A token that the server issued once more is in use, and must not be revoked.
    """
    row = await connection.fetchrow(SQL["lock_link"], keys.tenant, server, user)
    tokens = None if row is None else _open_old_link(keys, server, user, row["sealed"])
    if tokens is None or tokens.access == new_tokens.access:
        return
    if tokens.refresh == new_tokens.refresh:
        tokens = replace(tokens, refresh=None)
    await _store_revocation(runtime, connection, keys, server, tokens)


def _open_old_link(keys: KeySet, server: str, user: str, ciphertext: bytes) -> LinkedTokens | None:
    try:
        return open_link(keys, server, user, ciphertext)
    except (UnsealFailed, ValueError):
        log.warning("link_tokens_not_revoked", tenant=keys.tenant, server=server, reason="they cannot be decrypted")
        return None


async def _store_revocation(
    runtime: Runtime, connection: Connection, keys: KeySet, server: str, tokens: LinkedTokens
) -> str:
    revocation_id = runtime.clock.new_id()
    ciphertext = seal_revocation(keys, revocation_id, tokens)
    await connection.execute(SQL["insert_revocation"], keys.tenant, revocation_id, server, ciphertext)
    return revocation_id


async def revoke_tokens(runtime: Runtime, tenant: str, revocation_id: str) -> RevocationState:
    """Attempt a revocation that was just committed; what fails is attempted again in the background."""
    async with runtime.store.write_transaction() as connection:
        row = await connection.fetchrow(SQL["take_revocation"], tenant, revocation_id)
    return "pending" if row is None else await _attempt_revocation(runtime, row)


async def revoke_due_tokens(runtime: Runtime) -> int:
    """Attempt the revocations that are due, which processes share by skipping locked rows; return how many."""
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(SQL["take_due_revocations"], _BATCH_ROWS)
    await asyncio.gather(*(_attempt_revocation(runtime, row) for row in rows))
    return len(rows)


async def _attempt_revocation(runtime: Runtime, row: asyncpg.Record) -> RevocationState:
    state: RevocationState
    try:
        async with asyncio.timeout(_ATTEMPT_SECONDS):
            is_offered = await _revoke_at_issuer(runtime, row)
        state, reason = "revoked" if is_offered else "not_offered", ""
    except (Problem, TimeoutError, ValueError) as error:
        is_final = isinstance(error, UnsealFailed) or (isinstance(error, UpstreamSignInFailed) and error.is_final)
        state = "given_up" if is_final or row["attempts"] >= _MAX_ATTEMPTS else "pending"
        reason = error.message if isinstance(error, Problem) else type(error).__name__
    if state in ("pending", "given_up"):
        log.warning("link_tokens_not_revoked", tenant=row["tenant"], server=row["server"], state=state, reason=reason)
    if state != "pending":
        await _record_end(runtime, row, state)
    return state


async def _revoke_at_issuer(runtime: Runtime, row: asyncpg.Record) -> bool:
    keys = await runtime.linked_accounts.load_keys(row["tenant"])
    tokens = open_revocation(keys, str(row["id"]), row["sealed"])
    client = (await _complete_client(runtime, row, tokens)).endpoint.client
    return await runtime.linked_accounts.oauth_flow.revoke_tokens(client, access=tokens.access, refresh=tokens.refresh)


async def _complete_client(runtime: Runtime, row: asyncpg.Record, tokens: LinkedTokens) -> LinkedTokens:
    """Add the secret of a client that the operator registered, if the settings still name the same issuer and client:
    a secret is shown to no other issuer.
    """
    client = tokens.endpoint.client
    try:
        server = runtime.linked_accounts.get_server(row["tenant"], row["server"])
    except ServerNotFound:
        return tokens
    if server.issuer != client.issuer or server.client_id != client.id:
        return tokens
    secret = await runtime.linked_accounts.fetch_client_secret(row["tenant"], server)
    endpoint = tokens.endpoint if secret is None else add_client_secret(tokens.endpoint, secret)
    return LinkedTokens(access=tokens.access, refresh=tokens.refresh, endpoint=endpoint)


async def _record_end(runtime: Runtime, row: asyncpg.Record, state: RevocationState) -> None:
    """Delete the tokens and record what became of them, once. The entry names no caller: it may be about anyone."""
    async with runtime.store.write_transaction() as connection:
        if await connection.fetchval(SQL["delete_revocation"], row["tenant"], row["id"]) is not None:
            caller = Caller(tenant=row["tenant"], user="")
            await record_act(runtime, connection, caller, f"revoke_link_tokens:{state}", row["server"])
