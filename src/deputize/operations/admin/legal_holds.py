"""Place, list and remove legal holds: what they cover is neither erased nor deleted by retention."""

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import asyncpg

from deputize.acts.act import change_authority
from deputize.core.caller import Caller
from deputize.core.errors import HoldNotFound, MalformedRequest, Unavailable
from deputize.core.subject import build_subject
from deputize.core.value_types import frozen
from deputize.govern.identity.primary_issuers import load_primary_issuer
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.pseudonyms import Pseudonyms
from deputize.store.queries import load_statements

# Each deletion looks at all of them.
_MAX_HOLDS: Final = 200
_LAST_ID: Final = UUID(int=(1 << 128) - 1)
_SQL = load_statements("holds")


@frozen
class HoldRequest:
    """What a hold covers: a person, a call, or what happened in a period, which may have no end yet."""

    reason: str
    user: str | None = None
    issuer: str | None = None
    call_id: UUID | None = None
    from_at: datetime | None = None
    to_at: datetime | None = None

    @property
    def kind(self) -> str:
        """The kind of the hold: subject, call or period."""
        return "subject" if self.user is not None else "call" if self.call_id is not None else "period"


class LegalHolds:
    def __init__(self, runtime: Runtime, pseudonyms: Pseudonyms) -> None:
        self._runtime = runtime
        self._pseudonyms = pseudonyms

    async def place_hold(self, caller: Caller, request: HoldRequest) -> dict[str, Any]:
        """Place a hold. Once this returns, nothing that it covers is erased or deleted.

        The audit entry has the pseudonym of a person, and no reason: entries cannot be erased.
        """
        require_full_admin(caller)
        _check_request(request)
        runtime, tenant, hold_id = self._runtime, caller.tenant, self._runtime.clock.new_id()
        subject, pseudonym = await self._identify(tenant, request)

        async def act(connection: Connection) -> None:
            await _lock_deletions(connection)
            if await connection.fetchval(_SQL["count_holds"], tenant) >= _MAX_HOLDS:
                raise MalformedRequest(f"this tenant has {_MAX_HOLDS} legal holds already; remove one first")
            if request.call_id and not await connection.fetchval(_SQL["has_call"], tenant, request.call_id):
                raise MalformedRequest("there is no call of this id", details={"field": "call_id"})
            await connection.execute(
                _SQL["insert_hold"],
                tenant,
                hold_id,
                request.kind,
                subject,
                pseudonym,
                request.call_id,
                request.from_at,
                request.to_at,
                *_get_id_range(request),
                request.reason,
                caller.user,
            )

        recorded_subject = f"hold={hold_id} {_describe_scope(request, pseudonym)}"
        await change_authority(
            runtime, caller, "place_hold", hold_id, act, is_tightening=True, recorded_subject=recorded_subject
        )
        return next(each for each in await self.list_holds(caller) if each["hold_id"] == hold_id)

    async def list_holds(self, caller: Caller) -> list[dict[str, Any]]:
        """List the tenant's holds, newest first."""
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_holds"], caller.tenant)
        return [_describe_hold(row) for row in rows]

    async def remove_hold(self, caller: Caller, hold_id: str) -> None:
        """Remove a hold: what it covered may be erased, and deleted when its time is over. An operator confirms it."""
        require_full_admin(caller)
        try:
            known_id = str(UUID(hold_id))
        except ValueError:
            raise HoldNotFound("there is no legal hold of this id") from None

        async def act(connection: Connection) -> None:
            if await connection.fetchval(_SQL["delete_hold"], caller.tenant, known_id) is None:
                raise HoldNotFound("there is no legal hold of this id")

        await change_authority(self._runtime, caller, "remove_hold", known_id, act, recorded_subject=f"hold={known_id}")

    async def _identify(self, tenant: str, request: HoldRequest) -> tuple[str | None, str | None]:
        """Find how the person is stored, and their pseudonym in audit entries."""
        if request.user is None:
            return None, None
        subject = request.user
        if request.issuer is not None:
            async with self._runtime.store.write_transaction() as connection:
                primary_issuer = await load_primary_issuer(connection, tenant)
            subject = build_subject(request.issuer, request.user, primary_issuer)
        (pseudonym,) = await self._pseudonyms.get_or_create(self._runtime.store, tenant, (subject,))
        return subject, pseudonym


async def _lock_deletions(connection: Connection) -> None:
    """Wait until what is being deleted is, but not for long: calls of the tenant wait too."""
    await connection.execute(_SQL["limit_wait"])
    try:
        await connection.execute(_SQL["lock_to_place"])
    except asyncpg.LockNotAvailableError:
        raise Unavailable(
            "data is being deleted at this moment, so the hold was not placed",
            retry_after_ms=5000,
            nothing_happened=True,
        ) from None


def _check_request(request: HoldRequest) -> None:
    chosen_count = sum(each is not None for each in (request.user, request.call_id, request.from_at))
    if chosen_count != 1:
        raise MalformedRequest("a legal hold names one of user, call_id and from", details={"field": "user"})
    if request.issuer is not None and request.user is None:
        raise MalformedRequest("only a user has an issuer", details={"field": "issuer"})
    if request.to_at is not None and (request.from_at is None or request.to_at <= request.from_at):
        raise MalformedRequest("a period ends after it begins: give from, and a later to", details={"field": "to"})


def _get_id_range(request: HoldRequest) -> tuple[UUID | None, UUID | None]:
    if request.from_at is None:
        return None, None
    return _build_first_id(request.from_at), _LAST_ID if request.to_at is None else _build_first_id(request.to_at)


def _build_first_id(moment: datetime) -> UUID:
    milliseconds = int(moment.timestamp() * 1000)
    return UUID(int=max(0, min(milliseconds, (1 << 48) - 1)) << 80)


def _describe_scope(request: HoldRequest, pseudonym: str | None) -> str:
    if pseudonym is not None:
        return f"user={pseudonym}"
    if request.call_id is not None:
        return f"call={request.call_id}"
    return f"from={_format_time(request.from_at)} to={_format_time(request.to_at) or 'open'}"


def _describe_hold(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "hold_id": str(row["id"]),
        "kind": row["kind"],
        "user": row["subject"],
        "call_id": None if row["call_id"] is None else str(row["call_id"]),
        "from": _format_time(row["from_at"]),
        "to": _format_time(row["to_at"]),
        "reason": row["reason"],
        "placed_by": row["placed_by"],
        "placed_at": _format_time(row["placed_at"]),
    }


def _format_time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat(timespec="milliseconds")
