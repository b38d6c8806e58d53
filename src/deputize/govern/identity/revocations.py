"""What has been revoked, as each gateway knows it: one immutable snapshot per tenant, renewed by epoch.

A snapshot may be late; that is allowed, because every batch answers with the epoch it committed under and the
lifecycle refreshes and decides again when its own is older. `lifecycle/command.py` holds the barrier's
exclusive lock around `revoke` and writes the audit entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from deputize.core.caller import Caller
from deputize.core.errors import Revoked, Unavailable
from deputize.store.pool import Connection
from deputize.store.queries import load

Kind = Literal["token", "subject"]
_SQL = load("identity")


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantRevocations:
    """What one tenant has revoked, as of one epoch."""

    epoch: int = 0
    tokens: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    since: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The epoch of each revocation; one without counts from the beginning."""

    def check(self, caller: Caller, *, until: int | None = None) -> None:
        """Raises `Revoked` if the token, its user or any agent of its chain was revoked.

        `until` is the epoch a commit answered with: what was revoked after that commit is not held against it.
        """
        if caller.token_id in self.tokens and self._counts("token", caller.token_id, until):
            raise Revoked("this token was revoked", details={"kind": "token"})
        if self.subjects.isdisjoint(caller.subjects):
            return
        if any(each in self.subjects and self._counts("subject", each, until) for each in caller.subjects):
            raise Revoked("a subject of this token was revoked", details={"kind": "subject"})

    def _counts(self, kind: Kind, value: str, until: int | None) -> bool:
        return until is None or self.since.get((kind, value), 0) <= until


class Revocations:
    """Every tenant's snapshot in this process."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantRevocations] = {}

    def known(self, tenant: str) -> TenantRevocations | None:
        return self._snapshots.get(tenant)

    def check(self, caller: Caller) -> int:
        """The epoch the caller was found free at. A tenant whose revocations were never read is refused."""
        snapshot = self._snapshots.get(caller.tenant)
        if snapshot is None:
            raise Unavailable("the revocations of this tenant are not loaded yet")
        snapshot.check(caller)
        return snapshot.epoch

    async def refresh(self, connection: Connection, tenant: str) -> TenantRevocations:
        """Reads what was revoked since this process last looked; a tenant without an epoch row is at 0."""
        before = self._snapshots.get(tenant, TenantRevocations())
        rows = await connection.fetch(_SQL["revocations_since"], tenant, before.epoch)
        found = {(row["kind"], row["value"]): row["changed_epoch"] for row in rows if row["kind"] is not None}
        after = TenantRevocations(
            epoch=rows[0]["epoch"] if rows else 0,
            tokens=before.tokens.union(value for kind, value in found if kind == "token"),
            subjects=before.subjects.union(value for kind, value in found if kind == "subject"),
            since={**before.since, **found},
        )
        # Two refreshes may overlap; the one that read earlier must not take back what the other learned.
        current = self._snapshots.get(tenant)
        if current is not None and current.epoch > after.epoch:
            return current
        self._snapshots[tenant] = after
        return after


async def revoke(connection: Connection, tenant: str, kind: Kind, value: str, *, reason: str = "", by: str) -> int:
    """Inside the caller's transaction; answers the epoch from which no gateway may act on this authority."""
    epoch: int | None = await connection.fetchval(_SQL["revoke"], tenant, kind, value, reason, by)
    if epoch is None:
        raise Unavailable("this tenant has no epochs yet, so nothing of it can be revoked")
    return epoch
