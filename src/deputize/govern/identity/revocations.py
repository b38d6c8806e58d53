"""Hold the revocations: one immutable snapshot per tenant, refreshed by epoch.

A snapshot may be outdated, because every batch returns the epoch it committed under, and the lifecycle refreshes and
decides again if its own is older. `operations/admin/commands.py` holds the barrier's exclusive lock around `revoke` and
writes the audit entry.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from deputize.core.caller import Caller
from deputize.core.errors import AuthorityRevoked, Unavailable
from deputize.core.subject import AGENT_PREFIX, parse_subject, qualify_subject
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

# Revoking a token or a grant includes all that was derived from it; a subject is both a user and an agent.
RevocationKind = Literal["token", "grant", "user", "agent", "subject"]
_SQL = load_statements("identity")
_DIGEST_PREFIX: Final = "sha256="
# Agents choose their names: comparing one with so many others takes a tenth of a second, in a thread.
_MAX_NAMES: Final = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SubjectCheck:
    """Whether a subject was ever seen, and names that are like it.

    None for a token, of which no list is kept, and where there are too many names to look through.
    """

    is_known: bool | None
    similar_names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantRevocations:
    """One tenant's revocations as of one epoch."""

    epoch: int = 0
    tokens: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()
    users: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    grants: frozenset[str] = frozenset()
    since: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """The epoch of each revocation; without one it counts from the beginning."""
    primary_issuer: str | None = None
    """The issuer of the users that are stored by their bare names."""
    has_digests: bool = False
    """Whether a revoked user was erased: their revocation is stored by a digest of their name."""

    def check(self, caller: Caller, *, until: int | None = None) -> None:
        """Raise `AuthorityRevoked` if the token, a delegation behind it, its user or an agent of its chain was revoked.

        `until` is the epoch that a commit returned: later revocations do not count for that commit.
        """
        if self.tokens and self._is_any_revoked("token", self.tokens, _list_token_ids(caller), until):
            raise AuthorityRevoked("this token, or one it was derived from, was revoked", details={"kind": "token"})
        if self.users and self._is_any_revoked("user", self.users, self._list_names(caller), until):
            raise AuthorityRevoked("the user of this token was revoked", details={"kind": "user"})
        if caller.grants and self._is_any_revoked("grant", self.grants, caller.grants, until):
            raise AuthorityRevoked("a delegation behind this token was revoked", details={"kind": "grant"})
        if self.agents and self._is_any_revoked("agent", self.agents, self._list_agents(caller), until):
            raise AuthorityRevoked("an agent of this token was revoked", details={"kind": "agent"})
        if self.subjects and self._is_any_revoked(
            "subject", self.subjects, (*self._list_names(caller), *caller.agents), until
        ):
            raise AuthorityRevoked("a subject of this token was revoked", details={"kind": "subject"})

    def _list_names(self, caller: Caller) -> tuple[str, ...]:
        """List the names that revoke a user: the bare name, which means it in every issuer, and the qualified one."""
        issuer, name = parse_subject(caller.user)
        names: tuple[str, ...] = (name,)
        if issuer is not None:
            names = name, caller.user
        elif self.primary_issuer is not None:
            names = name, qualify_subject(self.primary_issuer, name)
        return (*names, *(digest_name(caller.tenant, each) for each in names)) if self.has_digests else names

    def _list_agents(self, caller: Caller) -> tuple[str, ...]:
        """List the agents of a token. One that an agent got for itself names it as the user, unlike a person who
        signed in.

        Whether the user of a delegated token is a person is not in the token, so the name of a revoked agent ends it
        too.
        """
        return caller.agents if caller.human else (*self._list_names(caller), *caller.agents)

    def _is_any_revoked(
        self, kind: RevocationKind, revocations: frozenset[str], values: Iterable[str], until: int | None
    ) -> bool:
        return any(each in revocations and self._is_effective(kind, each, until) for each in values)

    def _is_effective(self, kind: RevocationKind, value: str, until: int | None) -> bool:
        return until is None or self.since.get((kind, value), 0) <= until


class Revocations:
    """The revocation snapshots of all tenants in this process."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantRevocations] = {}

    def get_snapshot(self, tenant: str) -> TenantRevocations | None:
        return self._snapshots.get(tenant)

    def check(self, caller: Caller) -> int:
        """Check a caller and return the snapshot's epoch. Refuse a tenant whose revocations were never loaded."""
        snapshot = self._snapshots.get(caller.tenant)
        if snapshot is None:
            raise Unavailable("the revocations of this tenant are not loaded yet")
        snapshot.check(caller)
        return snapshot.epoch

    async def refresh(self, connection: Connection, tenant: str) -> TenantRevocations:
        """Load the revocations since the last refresh. A tenant without an epoch row is at epoch 0."""
        before = self._snapshots.get(tenant, TenantRevocations())
        rows = await connection.fetch(_SQL["list_revocations_since"], tenant, before.epoch)
        new_revocations = {(row["kind"], row["value"]): row["changed_epoch"] for row in rows if row["kind"] is not None}
        after = TenantRevocations(
            epoch=rows[0]["epoch"] if rows else 0,
            tokens=before.tokens | _select_values("token", new_revocations),
            subjects=before.subjects | _select_values("subject", new_revocations),
            users=before.users | _select_values("user", new_revocations),
            agents=before.agents | _select_values("agent", new_revocations),
            grants=before.grants | _select_values("grant", new_revocations),
            since={**before.since, **new_revocations},
            primary_issuer=rows[0]["primary_issuer"] if rows else None,
            has_digests=before.has_digests or any(value.startswith(_DIGEST_PREFIX) for _, value in new_revocations),
        )
        # Two refreshes may overlap; the one that read earlier must not replace the newer snapshot.
        current = self._snapshots.get(tenant)
        if current is not None and current.epoch > after.epoch:
            return current
        self._snapshots[tenant] = after
        return after


def digest_name(tenant: str, name: str) -> str:
    """Compute what a revocation is stored by once the person it is about was erased."""
    return _DIGEST_PREFIX + hashlib.sha256(f"{tenant} {name}".encode()).hexdigest()


def _list_token_ids(caller: Caller) -> tuple[str, ...]:
    """List the ids of the caller's token and all tokens behind it; a delegated token has the id of its grant."""
    return caller.token_id, caller.first_token, *caller.grants


def _select_values(kind: RevocationKind, revocations: Iterable[tuple[str, str]]) -> frozenset[str]:
    return frozenset(value for each, value in revocations if each == kind)


async def revoke(
    connection: Connection, tenant: str, kind: RevocationKind, value: str, *, reason: str = "", by: str
) -> int:
    """Revoke inside the caller's transaction, and return the epoch from which no gateway accepts this authority."""
    if kind == "grant":
        value = value.lower()
    epoch: int | None = await connection.fetchval(_SQL["insert_revocation"], tenant, kind, value, reason, by)
    if epoch is None:
        raise Unavailable("this tenant is not initialised yet (it has no epochs), so nothing can be revoked")
    return epoch


async def check_subject(connection: Connection, tenant: str, kind: RevocationKind, value: str) -> SubjectCheck:
    """Check whether a user, an agent or a grant is known: they made a call, or a grant names them."""
    if kind == "token":
        return SubjectCheck(is_known=None)
    if kind == "grant":
        return SubjectCheck(is_known=await connection.fetchval(_SQL["has_grant"], tenant, value.lower()))
    names: set[str] = set()
    is_complete = True
    # An agent that got a token for itself is its user.
    for is_agent in (False,) if kind == "user" else (False, True):
        rows = await connection.fetch(_SQL["list_subject_names"], tenant, AGENT_PREFIX, is_agent, _MAX_NAMES)
        names.update(row["name"].removeprefix(AGENT_PREFIX) for row in rows)
        is_complete = is_complete and len(rows) < _MAX_NAMES
    # A bare name means that of every issuer.
    bare_name = parse_subject(value)[1]
    is_known = value in names or any(parse_subject(name)[1] == bare_name for name in names)
    if is_known:
        return SubjectCheck(is_known=True)
    similar_names = await asyncio.to_thread(difflib.get_close_matches, value, names, n=3)
    return SubjectCheck(is_known=False if is_complete else None, similar_names=tuple(similar_names))


async def list_revocations(
    connection: Connection, tenant: str, *, before: int | None = None, limit: int
) -> list[dict[str, Any]]:
    """List what a tenant revoked, newest first, below an epoch."""
    rows = await connection.fetch(_SQL["list_revocations"], tenant, before, limit)
    return [{**row, "revoked_at": row["revoked_at"].isoformat(timespec="seconds")} for row in map(dict, rows)]


async def count_ended_grants(connection: Connection, tenant: str, kind: RevocationKind, value: str) -> int:
    """Count the grants that a revocation of a user, an agent or a grant would end: active ones, before it is made."""
    ended_count: int = await connection.fetchval(_SQL["count_ended_grants"], tenant, kind, value)
    return ended_count
