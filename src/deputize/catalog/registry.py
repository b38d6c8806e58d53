"""The keeper of snapshots, and the statements that change the registry.

`lifecycle/command.py` calls `register` and `set_state` inside its own transaction, under the tenant's
exclusive barrier lock and beside the audit entry. Whoever watches for changes calls `refresh`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeAlias

import asyncpg

from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.core.canonical import canonical
from deputize.core.contract import Contract, LifecycleState
from deputize.core.errors import (
    Internal,
    Malformed,
    ToolNotFound,
    ToolRetired,
    VersionConflict,
    VersionNotFound,
)
from deputize.store import queries
from deputize.store.pool import Connection

Source: TypeAlias = "Connection | asyncpg.Pool[asyncpg.Record]"

_S = LifecycleState
SQL = queries.load("registry")

# Where a version may go from each state of its life. Retirement is for good; what was seen is no draft again.
FOLLOWS: Mapping[LifecycleState, frozenset[LifecycleState]] = {
    _S.DRAFT: frozenset(_S) - {_S.DRAFT, _S.DEPRECATED},
    _S.AVAILABLE: frozenset(_S) - {_S.DRAFT, _S.AVAILABLE},
    _S.DISABLED: frozenset(_S) - {_S.DRAFT, _S.DISABLED},
    _S.REQUIRES_SETUP: frozenset(_S) - {_S.DRAFT, _S.REQUIRES_SETUP},
    _S.DEFERRED: frozenset(_S) - {_S.DRAFT, _S.DEFERRED},
    _S.DEPRECATED: frozenset({_S.AVAILABLE, _S.DISABLED, _S.RETIRED}),
    _S.RETIRED: frozenset(),
}


class Registry:
    """One snapshot per tenant, replaced whole: a call that took one keeps it to its end."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantTools] = {}

    def snapshot(self, tenant: str) -> TenantTools:
        """What is known now; empty at epoch 0 for a tenant never refreshed."""
        found = self._snapshots.get(tenant)
        return TenantTools(tenant=tenant) if found is None else found

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self._snapshots)

    async def refresh(self, source: Source, tenant: str) -> TenantTools:
        """Read what changed since the snapshot and replace it. Of two at once, the newer epoch stays."""
        known = self.snapshot(tenant)
        rows = await source.fetch(SQL["versions_since"], tenant, known.epoch)
        epoch = rows[0]["epoch"] if rows else 0
        if epoch < known.epoch:  # the database was restored to an earlier day: nothing known can be trusted
            self._snapshots.pop(tenant, None)
            return await self.refresh(source, tenant)
        fresh = known.changed(epoch, _entries(known, (row for row in rows if row["name"] is not None)))
        if self.snapshot(tenant).epoch <= epoch:
            self._snapshots[tenant] = fresh
        return self._snapshots[tenant]


def _entries(known: TenantTools, rows: Iterable[asyncpg.Record]) -> dict[str, ToolEntry]:
    """The changed tools, each with its unchanged versions carried over."""
    changed: dict[str, dict[str, ToolVersion]] = {}
    for row in rows:
        name, version, state = row["name"], row["version"], LifecycleState(row["state"])
        here = changed.get(name)
        if here is None:
            old = known.tools.get(name)
            here = changed[name] = dict(old.by_version) if old else {}
        before = here.get(version)
        if before is not None and before.digest == row["digest"]:
            here[version] = before.moved_to(state, changed=row["changed_epoch"], before=row["before_epoch"])
        else:
            here[version] = ToolVersion(
                version=version, digest=row["digest"], raw=row["contract"], state=state,
                changed=row["changed_epoch"], before=row["before_epoch"],
            )  # fmt: skip
    return {name: ToolEntry.of(name, each) for name, each in changed.items()}


async def register(
    connection: Connection,
    tenant: str,
    contract: Contract,
    *,
    by: str,
    state: LifecycleState = LifecycleState.AVAILABLE,
) -> Literal["created", "unchanged"]:
    """Add a version. The same again is no change; the same number with another content is a conflict."""
    name, version = contract.full_name, contract.version
    row = await connection.fetchrow(SQL["version_for_update"], tenant, name, version)
    if row is not None:
        if row["digest"] == contract.digest or _reads_alike(row["contract"], contract):
            return "unchanged"
        raise VersionConflict(
            f"{name} {version} is registered with another content",
            details={
                "tool": name,
                "version": version,
                "registered": row["digest"],
                "offered": contract.digest,
            },
        )
    raw = canonical(contract.model_dump(mode="json"))
    epoch = await _raise_epoch(connection, tenant)
    await connection.execute(SQL["register_tool"], tenant, name, contract.outward_name)
    await connection.execute(
        SQL["register_version"], tenant, name, version, contract.digest, raw, state.value, by, epoch
    )
    return "created"


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A contract as it is kept. Writing it takes a moment, so many are written before any lock is taken."""

    contract: Contract
    digest: str
    raw: bytes

    @classmethod
    def of(cls, contract: Contract) -> Self:
        return cls(contract=contract, digest=contract.digest, raw=canonical(contract.model_dump(mode="json")))


async def register_many(connection: Connection, tenant: str, written: Sequence[Written], *, by: str) -> None:
    """New versions of any number of tools under one epoch: whoever sees one of them sees them all. Whoever asks has
    made sure, under the barrier, that none of these versions is there.
    """
    if not written:
        return
    epoch = await _raise_epoch(connection, tenant)
    await connection.executemany(
        SQL["register_tool"], [(tenant, each.contract.full_name, each.contract.outward_name) for each in written]
    )
    await connection.executemany(
        SQL["register_version"],
        [
            (
                tenant, each.contract.full_name, each.contract.version, each.digest, each.raw,
                LifecycleState.AVAILABLE.value, by, epoch,
            )
            for each in written
        ],
    )  # fmt: skip


def _reads_alike(raw: bytes, contract: Contract) -> bool:
    """Whether an older release registered this very declaration, before contracts had fields it leaves out."""
    try:
        return Contract.model_validate_json(raw).digest == contract.digest
    except ValueError:
        return False


async def set_state(
    connection: Connection, tenant: str, name: str, version: str, state: LifecycleState
) -> Literal["changed", "unchanged"]:
    """Move a version along the drawn transitions."""
    row = await connection.fetchrow(SQL["version_for_update"], tenant, name, version)
    if row is None:
        raise await _missing(connection, tenant, name, version)
    before = LifecycleState(row["state"])
    if before is state:
        return "unchanged"
    if state not in FOLLOWS[before]:
        details = {"tool": name, "version": version, "state": before.value, "asked": state.value}
        if before is _S.RETIRED:
            raise ToolRetired(
                f"{name} {version} was retired, which is for good; register a new version", details=details
            )
        raise Malformed(f"{name} {version} is {before} and cannot become {state}", details=details)
    epoch = await _raise_epoch(connection, tenant)
    await connection.execute(SQL["set_version_state"], tenant, name, version, state.value, epoch)
    return "changed"


async def _missing(connection: Connection, tenant: str, name: str, version: str) -> ToolNotFound | VersionNotFound:
    rows = await connection.fetch(SQL["versions_of"], tenant, name)
    if not rows:
        return ToolNotFound(f"there is no tool {name}", details={"tool": name})
    known = [row["version"] for row in rows]
    return VersionNotFound(f"{name} has no version {version}", details={"tool": name, "versions": known})


async def _raise_epoch(connection: Connection, tenant: str) -> int:
    epoch = await connection.fetchval(SQL["raise_registry_epoch"], tenant)
    if epoch is None:
        raise Internal(f"the tenant {tenant} was never made; make it before registering tools for it")
    return int(epoch)
