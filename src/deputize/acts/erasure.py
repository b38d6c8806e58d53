"""Erase what is stored about a person, so that audit entries stay verifiable while nothing leads from them to the name.

An erasure begins in one commit: the salt of the person's pseudonym is deleted, their delegations are revoked, and their
linked accounts are deleted and their tokens stored for revocation. The rest is erased in batches, each a transaction of
its own, by any process: one that dies leaves the next batch to another. Calls that are open are erased when they end.
A legal hold forbids to begin, and stops what has begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import asyncpg
import structlog

from deputize.acts.account_revocations import delete_link
from deputize.acts.act import change_authority, record_refusal
from deputize.core.caller import Caller
from deputize.core.errors import ErasureNotFound, LegalHoldActive
from deputize.core.subject import build_subject, parse_subject, qualify_subject
from deputize.core.value_types import frozen
from deputize.govern.identity.primary_issuers import load_primary_issuer
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.pseudonyms import Pseudonyms
from deputize.store.queries import load_statements

BatchResult = Literal["more", "waiting", "done"]
# Other processes keep pseudonyms and callers in memory for less than this.
GRACE_SECONDS: Final = 90
# The rest is erased in the background.
_REQUEST_SECONDS: Final = 5.0
_BATCH_ROWS: Final = 500
_MAX_OPEN: Final = 20
_REASON: Final = "the person who delegated it was erased"
_SQL = load_statements("erasures")
_HOLDS = load_statements("holds")
log = structlog.get_logger(__name__)


@frozen
class _ErasureStart:
    """What the commit that began an erasure ended at once."""

    erasure_id: str
    revoked_grants: int
    unlinked_servers: tuple[str, ...]


@dataclass(slots=True)
class ErasureCursor:
    """The erasure that was continued last: those that wait for holds or open calls keep no later one waiting."""

    requested_at: datetime | None = None
    erasure_id: UUID | None = None


class Erasures:
    """Begins erasures and tells how far they are."""

    def __init__(self, runtime: Runtime, pseudonyms: Pseudonyms) -> None:
        self._runtime = runtime
        self._pseudonyms = pseudonyms

    async def erase_user(self, caller: Caller, name: str, *, issuer: str | None = None) -> dict[str, Any]:
        """Erase a user of the caller's tenant: the one of the primary issuer, unless `issuer` names another.

        An operator confirms the name; the audit entry has the pseudonym, which leads to the name no more.
        """
        require_full_admin(caller)
        runtime, tenant = self._runtime, caller.tenant
        async with runtime.store.write_transaction() as connection:
            primary_issuer = await load_primary_issuer(connection, tenant)
        subject = name if issuer is None else build_subject(issuer, name, primary_issuer)
        keys = await runtime.linked_accounts.load_keys(tenant)
        (pseudonym,) = await self._pseudonyms.get_or_create(runtime.store, tenant, (subject,))

        async def act(connection: Connection) -> _ErasureStart:
            names = _list_names(subject, primary_issuer)
            start = await _begin_erasure(runtime, connection, keys, caller, subject, names, pseudonym)
            await self._pseudonyms.erase(connection, tenant, subject)
            return start

        try:
            start = await change_authority(runtime, caller, "erase_user", subject, act, recorded_subject=pseudonym)
        except LegalHoldActive as problem:
            await record_refusal(runtime, caller, "erase_user", pseudonym, problem)
            raise
        await continue_erasure(runtime, tenant, start.erasure_id, seconds=_REQUEST_SECONDS)
        return {
            **await self.describe_erasure(caller, start.erasure_id),
            "revoked_grants": start.revoked_grants,
            "unlinked_servers": list(start.unlinked_servers),
        }

    async def describe_erasure(self, caller: Caller, erasure_id: str) -> dict[str, Any]:
        """Tell how far an erasure is. It is found by its id only: once it has ended, no name is left."""
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        not_found = ErasureNotFound("there is no erasure of this id")
        try:
            erasure_uuid = UUID(erasure_id)
        except ValueError:
            raise not_found from None
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["load_erasure"], caller.tenant, erasure_uuid)
        if row is None:
            raise not_found
        return {
            "erasure_id": str(row["id"]),
            "state": "done" if row["ended_at"] is not None else "in_progress",
            "calls_left": row["calls_left"],
            "requested_at": row["requested_at"].isoformat(timespec="seconds"),
            "ended_at": None if row["ended_at"] is None else row["ended_at"].isoformat(timespec="seconds"),
        }


async def _begin_erasure(
    runtime: Runtime,
    connection: Connection,
    keys: KeySet,
    caller: Caller,
    subject: str,
    names: Sequence[str],
    pseudonym: str,
) -> _ErasureStart:
    """Begin an erasure inside the administrator's transaction, which also deletes the salt of the pseudonym.

    Raise `LegalHoldActive` if a legal hold covers the person, a call of theirs, or a period in which they acted.
    """
    tenant, erasure_id = caller.tenant, runtime.clock.new_id()
    hold = await connection.fetchrow(_HOLDS["find_blocking_hold"], tenant, subject, list(names), pseudonym)
    if hold is not None:
        raise LegalHoldActive(
            f"the legal hold {hold['id']} of {hold['placed_at']:%Y-%m-%d} covers data of this person",
            details={
                "hold_id": str(hold["id"]),
                "kind": hold["kind"],
                "reason": hold["reason"],
                "placed_by": hold["placed_by"],
            },
            nothing_happened=True,
        )
    revoked_count = await connection.fetchval(_SQL["revoke_grants_of_user"], tenant, subject, _REASON, caller.user)
    rows = await connection.fetch(_SQL["list_linked_servers"], tenant, subject)
    for row in rows:
        await delete_link(runtime, connection, keys, row["server"], subject)
    await connection.execute(_SQL["delete_sign_ins"], tenant, subject)
    await connection.execute(_SQL["insert_erasure"], tenant, erasure_id, subject, list(names), pseudonym)
    return _ErasureStart(
        erasure_id=erasure_id,
        revoked_grants=revoked_count,
        unlinked_servers=tuple(row["server"] for row in rows),
    )


def _list_names(subject: str, primary_issuer: str | None) -> tuple[str, ...]:
    """List the names under which the person may have been revoked."""
    issuer, name = parse_subject(subject)
    if issuer is not None or primary_issuer is None:
        return (subject,)
    return name, qualify_subject(primary_issuer, name)


async def continue_erasure(
    runtime: Runtime, tenant: str, erasure_id: str, *, seconds: float, grace_seconds: int = GRACE_SECONDS
) -> BatchResult:
    """Erase batch after batch, until it is done, has to wait, or the time is over."""
    ends_at = runtime.clock.monotonic() + seconds
    result: BatchResult = "more"
    while result == "more" and runtime.clock.monotonic() < ends_at:
        async with runtime.store.write_transaction() as connection:
            result = await connection.fetchval(_SQL["continue_erasure"], tenant, erasure_id, _BATCH_ROWS, grace_seconds)
    return result


async def continue_open_erasures(
    runtime: Runtime, *, seconds: float, grace_seconds: int = GRACE_SECONDS, cursor: ErasureCursor | None = None
) -> int:
    """Continue some erasures that have not ended, each for a while; return how many.

    They are those that follow the cursor, which is moved, or the oldest. One that fails holds up no other: the last of
    such errors is raised at the end.
    """
    cursor = cursor or ErasureCursor()
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(_SQL["list_open_erasures"], _MAX_OPEN, cursor.requested_at, cursor.erasure_id)
    if rows:
        cursor.requested_at, cursor.erasure_id = rows[-1]["requested_at"], rows[-1]["id"]
    last_error: asyncpg.PostgresError | None = None
    for row in rows:
        try:
            await continue_erasure(runtime, row["tenant"], str(row["id"]), seconds=seconds, grace_seconds=grace_seconds)
        except asyncpg.PostgresError as error:
            # Without the detail of the error, which may name the person.
            log.warning("erasure_failed", tenant=row["tenant"], erasure_id=str(row["id"]), reason=repr(error))
            last_error = error
    if last_error is not None:
        raise last_error
    return len(rows)
