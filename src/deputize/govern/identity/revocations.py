"""What has been revoked, as each gateway knows it: one immutable snapshot per tenant, renewed by epoch.

A snapshot may be late; that is allowed, because every batch answers with the epoch it committed under and the
lifecycle refreshes and decides again when its own is older. `lifecycle/command.py` holds the barrier's
exclusive lock around `revoke` and writes the audit entry.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from deputize.core.caller import Caller
from deputize.core.errors import Revoked, Unavailable
from deputize.store.pool import Connection
from deputize.store.queries import load

# A token and a grant take everything with them that was made from them; a subject is revoked as a user and as an agent.
Kind = Literal["token", "grant", "user", "agent", "subject"]
_SQL = load("identity")


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantRevocations:
    """What one tenant has revoked, as of one epoch."""

    epoch: int = 0
    tokens: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    grants: frozenset[str] = frozenset()
    since: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The epoch of each revocation; one without counts from the beginning."""

    def check(self, caller: Caller, *, until: int | None = None) -> None:
        """Raises `Revoked` if the token, a delegation behind it, its user or any agent of its chain was revoked.

        `until` is the epoch a commit answered with: what was revoked after that commit is not held against it.
        """
        if self.tokens and self._any("token", self.tokens, _tokens_of(caller), until):
            raise Revoked("this token, or one it comes from, was revoked", details={"kind": "token"})
        if caller.user in self.users and self._counts("user", caller.user, until):
            raise Revoked("the user of this token was revoked", details={"kind": "user"})
        if caller.grants and self._any("grant", self.grants, caller.grants, until):
            raise Revoked("a delegation this token comes from was revoked", details={"kind": "grant"})
        if caller.agents and self._any("agent", self.agents, caller.agents, until):
            raise Revoked("an agent of this token was revoked", details={"kind": "agent"})
        if self.subjects and self._any("subject", self.subjects, caller.subjects, until):
            raise Revoked("a subject of this token was revoked", details={"kind": "subject"})

    def _any(self, kind: Kind, revoked: frozenset[str], named: Iterable[str], until: int | None) -> bool:
        return any(each in revoked and self._counts(kind, each, until) for each in named)

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
            tokens=before.tokens | _values("token", found),
            subjects=before.subjects | _values("subject", found),
            users=before.users | _values("user", found),
            agents=before.agents | _values("agent", found),
            grants=before.grants | _values("grant", found),
            since={**before.since, **found},
        )
        # Two refreshes may overlap; the one that read earlier must not take back what the other learned.
        current = self._snapshots.get(tenant)
        if current is not None and current.epoch > after.epoch:
            return current
        self._snapshots[tenant] = after
        return after


def _tokens_of(caller: Caller) -> tuple[str, ...]:
    """The ids of its token and of every token that stands behind it; a lent one goes by the id of its grant."""
    return caller.token_id, caller.first_token, *caller.grants


def _values(kind: Kind, found: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(value for each, value in found if each == kind)


async def revoke(connection: Connection, tenant: str, kind: Kind, value: str, *, reason: str = "", by: str) -> int:
    """Inside the caller's transaction; answers the epoch from which no gateway may act on this authority."""
    if kind == "grant":
        value = value.lower()
    epoch: int | None = await connection.fetchval(_SQL["revoke"], tenant, kind, value, reason, by)
    if epoch is None:
        raise Unavailable("this tenant has no epochs yet, so nothing of it can be revoked")
    return epoch
