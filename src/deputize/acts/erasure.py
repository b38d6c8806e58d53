"""Erase what is stored about a person, so that audit entries stay verifiable while nothing leads from them to the name.

An erasure begins in one commit: the salt of the person's pseudonym is deleted, their delegations are revoked, and their
linked accounts are deleted and their tokens stored for revocation. The rest is erased in batches, each a transaction of
its own, by any process: one that dies leaves the next batch to another. Calls that are open are erased when they end.
A legal hold forbids to begin, and stops what has begun.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import asyncpg
import structlog

from deputize.acts.account_revocations import delete_link
from deputize.core.caller import Caller
from deputize.core.errors import LegalHoldActive
from deputize.core.value_types import frozen
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

BatchResult = Literal["more", "waiting", "done"]
# Other processes keep pseudonyms and callers in memory for less than this.
GRACE_SECONDS: Final = 90
_BATCH_ROWS: Final = 500
_MAX_OPEN: Final = 20
_REASON: Final = "the person who delegated it was erased"
_SQL = load_statements("erasures")
_HOLDS = load_statements("holds")
log = structlog.get_logger(__name__)


@frozen
class ErasureStart:
    """What the commit that began an erasure ended at once."""

    erasure_id: str
    revoked_grants: int
    unlinked_servers: tuple[str, ...]


@frozen
class ErasureStatus:
    erasure_id: str
    requested_at: datetime
    ended_at: datetime | None
    # Calls of the person that are not erased yet, because they are open or their turn has not come.
    calls_left: int


@dataclass(slots=True)
class ErasureCursor:
    """The erasure that was continued last: those that wait for holds or open calls keep no later one waiting."""

    requested_at: datetime | None = None
    erasure_id: UUID | None = None


async def begin_erasure(
    runtime: Runtime,
    connection: Connection,
    keys: KeySet,
    caller: Caller,
    subject: str,
    names: Sequence[str],
    pseudonym: str,
) -> ErasureStart:
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
    return ErasureStart(
        erasure_id=erasure_id,
        revoked_grants=revoked_count,
        unlinked_servers=tuple(row["server"] for row in rows),
    )


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


async def load_erasure(runtime: Runtime, tenant: str, erasure_id: str) -> ErasureStatus | None:
    async with runtime.store.read_transaction(tenant) as connection:
        row = await connection.fetchrow(_SQL["load_erasure"], tenant, erasure_id)
    return None if row is None else ErasureStatus(
        erasure_id=str(row["id"]),
        requested_at=row["requested_at"],
        ended_at=row["ended_at"],
        calls_left=row["calls_left"],
    )  # fmt: skip
