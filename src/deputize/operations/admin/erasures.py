"""Erase a person: an act of an operator that is recorded without their name."""

from typing import Any, Final
from uuid import UUID

from deputize.acts.act import change_authority, record_refusal
from deputize.acts.erasure import ErasureStart, begin_erasure, continue_erasure, load_erasure
from deputize.core.caller import Caller
from deputize.core.errors import ErasureNotFound, LegalHoldActive
from deputize.core.subject import build_subject, parse_subject, qualify_subject
from deputize.govern.identity.primary_issuers import load_primary_issuer
from deputize.govern.token_authorization import require_admin, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.pseudonyms import Pseudonyms

# The rest is erased in the background.
_REQUEST_SECONDS: Final = 5.0


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

        async def act(connection: Connection) -> ErasureStart:
            names = _list_names(subject, primary_issuer)
            start = await begin_erasure(runtime, connection, keys, caller, subject, names, pseudonym)
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
        try:
            status = await load_erasure(self._runtime, caller.tenant, str(UUID(erasure_id)))
        except ValueError:
            status = None
        if status is None:
            raise ErasureNotFound("there is no erasure of this id")
        return {
            "erasure_id": status.erasure_id,
            "state": "done" if status.ended_at is not None else "in_progress",
            "calls_left": status.calls_left,
            "requested_at": status.requested_at.isoformat(timespec="seconds"),
            "ended_at": None if status.ended_at is None else status.ended_at.isoformat(timespec="seconds"),
        }


def _list_names(subject: str, primary_issuer: str | None) -> tuple[str, ...]:
    """List the names under which the person may have been revoked."""
    issuer, name = parse_subject(subject)
    if issuer is not None or primary_issuer is None:
        return (subject,)
    return name, qualify_subject(primary_issuer, name)
