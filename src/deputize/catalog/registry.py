"""Keep each tenant's tools in memory as a snapshot, and change the registry in the database.

`operations/admin/commands.py` calls `register_contract` and `set_version_state` inside its own transaction, under the
tenant's exclusive barrier lock and together with the audit entry. `refresh` then loads the change.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import asyncpg

from deputize.catalog.builtin_contracts import list_companions
from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.core.canonical import canonicalize
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.contract.serialized_contract import SerializedContract
from deputize.core.errors import (
    InternalError,
    MalformedRequest,
    ToolNotFound,
    ToolRetired,
    VersionConflict,
    VersionNotFound,
)
from deputize.store import queries
from deputize.store.pool import Connection

QuerySource: TypeAlias = "Connection | asyncpg.Pool[asyncpg.Record]"

_S = LifecycleState
SQL = queries.load_statements("registry")

# The states a version may move to. Retirement is final; a version that was callable never becomes a draft again.
ALLOWED_TRANSITIONS: Mapping[LifecycleState, frozenset[LifecycleState]] = {
    _S.DRAFT: frozenset(_S) - {_S.DRAFT, _S.DEPRECATED},
    _S.AVAILABLE: frozenset(_S) - {_S.DRAFT, _S.AVAILABLE},
    _S.DISABLED: frozenset(_S) - {_S.DRAFT, _S.DISABLED},
    _S.REQUIRES_SETUP: frozenset(_S) - {_S.DRAFT, _S.REQUIRES_SETUP},
    _S.DEFERRED: frozenset(_S) - {_S.DRAFT, _S.DEFERRED},
    _S.DEPRECATED: frozenset({_S.AVAILABLE, _S.DISABLED, _S.RETIRED}),
    _S.RETIRED: frozenset(),
}


class ToolRegistry:
    """One immutable snapshot per tenant. A call keeps the snapshot it began with; a refresh replaces it whole."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()
        self._snapshots: dict[str, TenantTools] = {}
        self._unloaded_tools: dict[str, dict[str, str]] = {}
        self._removed_tools: dict[str, dict[str, str]] = {}

    def set_unloaded_tools(self, tenant: str, reasons: Mapping[str, str]) -> None:
        """Say in every snapshot of a tenant why tools of its files are not in use, for development."""
        unloaded_tools = self._unloaded_tools.setdefault(tenant, {})
        unloaded_tools.clear()
        unloaded_tools.update(reasons)

    def set_removed_tools(self, tenant: str, reasons: Mapping[str, str]) -> None:
        """Hide tools that the files of a tenant no longer have in every snapshot, and say why, for development."""
        removed_tools = self._removed_tools.setdefault(tenant, {})
        removed_tools.clear()
        removed_tools.update(reasons)

    def get_snapshot(self, tenant: str) -> TenantTools:
        """Return the tenant's current snapshot; an empty one at epoch 0 if it was never refreshed."""
        snapshot = self._snapshots.get(tenant)
        if snapshot is None:
            return TenantTools(
                tenant=tenant,
                unloaded_tools=self._unloaded_tools.setdefault(tenant, {}),
                removed_tools=self._removed_tools.setdefault(tenant, {}),
            )
        return snapshot

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(self._snapshots)

    async def refresh(self, source: QuerySource, tenant: str) -> TenantTools:
        """Load the changes since the snapshot and replace it. Of two concurrent refreshes the newer epoch wins."""
        snapshot = self.get_snapshot(tenant)
        rows = await source.fetch(SQL["list_versions_since"], tenant, snapshot.epoch)
        epoch = rows[0]["epoch"] if rows else 0
        if epoch < snapshot.epoch:  # the database was restored from a backup, so the snapshot cannot be trusted
            self._snapshots.pop(tenant, None)
            return await self.refresh(source, tenant)
        changed_rows = (row for row in rows if row["name"] is not None)
        fresh = snapshot.replace_entries(epoch, _merge_rows(snapshot, changed_rows, self._clock))
        if self.get_snapshot(tenant).epoch <= epoch:
            self._snapshots[tenant] = fresh
        return self._snapshots[tenant]


def _merge_rows(snapshot: TenantTools, rows: Iterable[asyncpg.Record], clock: Clock) -> dict[str, ToolEntry]:
    """Build the entries of the changed tools, reusing the versions that did not change."""
    versions_by_tool: dict[str, dict[str, ToolVersion]] = {}
    for row in rows:
        name, version, state = row["name"], row["version"], LifecycleState(row["state"])
        versions = versions_by_tool.get(name)
        if versions is None:
            old = snapshot.tools.get(name)
            versions = versions_by_tool[name] = dict(old.by_version) if old else {}
        before, notice = versions.get(version), _read_notice(row)
        if before is not None and before.digest == row["digest"]:
            versions[version] = before.copy_with_state(
                state, changed_epoch=row["changed_epoch"], previous_epoch=row["before_epoch"], notice=notice
            )
        else:
            versions[version] = ToolVersion(
                version=version, digest=row["digest"], raw=row["contract"], state=state,
                changed_epoch=row["changed_epoch"], previous_epoch=row["before_epoch"], notice=notice,
            )  # fmt: skip
    return {name: ToolEntry.from_versions(name, each, clock) for name, each in versions_by_tool.items()}


def _read_notice(row: asyncpg.Record) -> DeprecationNotice | None:
    if row["deprecated_at"] is None:
        return None
    return DeprecationNotice(
        deprecated_at=row["deprecated_at"],
        removal_at=row["removal_at"],
        successor=row["successor"],
        migration_guide=row["migration_guide"],
    )


async def register_contract(
    connection: Connection,
    tenant: str,
    contract: Contract,
    *,
    by: str,
    state: LifecycleState = LifecycleState.AVAILABLE,
) -> Literal["created", "unchanged"]:
    """Register a version. Registering it again changes nothing; other content under its number is a conflict."""
    name, version = contract.full_name, contract.version
    row = await connection.fetchrow(SQL["lock_version"], tenant, name, version)
    if row is not None:
        if row["digest"] == contract.digest or _is_same_contract(row["contract"], contract):
            return "unchanged"
        raise VersionConflict(
            f"{name} {version} is already registered with different content",
            details={
                "tool": name,
                "version": version,
                "registered": row["digest"],
                "offered": contract.digest,
            },
        )
    for companion in list_companions(contract):
        await register_contract(connection, tenant, companion, by=by)
    raw = canonicalize(contract.model_dump(mode="json"))
    epoch = await _increment_epoch(connection, tenant)
    await connection.execute(SQL["register_tool"], tenant, name, contract.outward_name)
    await connection.execute(
        SQL["register_version"], tenant, name, version, contract.digest, raw, state.value, by, epoch
    )
    return "created"


async def replace_contract(
    connection: Connection, tenant: str, contract: Contract, *, by: str
) -> Literal["created", "unchanged"]:
    """Register a version, in place of other content under its number: for development, where nothing is released."""
    try:
        return await register_contract(connection, tenant, contract, by=by)
    except VersionConflict:
        for companion in list_companions(contract):
            await register_contract(connection, tenant, companion, by=by)
        raw = canonicalize(contract.model_dump(mode="json"))
        epoch = await _increment_epoch(connection, tenant)
        await connection.execute(
            SQL["replace_version"], tenant, contract.full_name, contract.version, contract.digest, raw, by, epoch
        )
        return "created"


async def register_contracts(
    connection: Connection, tenant: str, contracts: Sequence[SerializedContract], *, by: str
) -> None:
    """Register new versions of any number of tools under one epoch, so that they become visible together.

    The caller has checked, under the barrier, that none of these versions exists.
    """
    if not contracts:
        return
    for companion in list_companions(*(each.contract for each in contracts)):
        await register_contract(connection, tenant, companion, by=by)
    epoch = await _increment_epoch(connection, tenant)
    await connection.executemany(
        SQL["register_tool"], [(tenant, each.contract.full_name, each.contract.outward_name) for each in contracts]
    )
    await connection.executemany(
        SQL["register_version"],
        [
            (
                tenant, each.contract.full_name, each.contract.version, each.digest, each.raw,
                LifecycleState.AVAILABLE.value, by, epoch,
            )
            for each in contracts
        ],
    )  # fmt: skip


def _is_same_contract(raw: bytes, contract: Contract) -> bool:
    """Tell whether an older release registered this declaration, before contracts had their newest fields."""
    try:
        return Contract.model_validate_json(raw).digest == contract.digest
    except ValueError:
        return False


async def set_version_state(
    connection: Connection, tenant: str, name: str, version: str, state: LifecycleState
) -> Literal["changed", "unchanged"]:
    """Move a version to another lifecycle state, if `ALLOWED_TRANSITIONS` has the transition."""
    row = await connection.fetchrow(SQL["lock_version"], tenant, name, version)
    if row is None:
        raise await _build_missing_error(connection, tenant, name, version)
    before = LifecycleState(row["state"])
    if before is state:
        return "unchanged"
    if state not in ALLOWED_TRANSITIONS[before]:
        details = {"tool": name, "version": version, "state": before.value, "asked": state.value}
        if before is _S.RETIRED:
            raise ToolRetired(f"{name} {version} is retired, which is final; register a new version", details=details)
        raise MalformedRequest(f"{name} {version} is {before} and cannot become {state}", details=details)
    epoch = await _increment_epoch(connection, tenant)
    await connection.execute(SQL["set_version_state"], tenant, name, version, state.value, epoch)
    return "changed"


async def deprecate_version(
    connection: Connection, tenant: str, name: str, version: str, notice: DeprecationNotice
) -> None:
    """Deprecate a version, or replace the notice of a deprecated one."""
    row = await connection.fetchrow(SQL["lock_version"], tenant, name, version)
    if row is None or LifecycleState(row["state"]) is not _S.DEPRECATED:
        await set_version_state(connection, tenant, name, version, _S.DEPRECATED)
    epoch = await _increment_epoch(connection, tenant)
    await connection.execute(
        SQL["set_notice"],
        tenant,
        name,
        version,
        notice.deprecated_at,
        notice.removal_at,
        notice.successor,
        notice.migration_guide,
        epoch,
    )


async def _build_missing_error(
    connection: Connection, tenant: str, name: str, version: str
) -> ToolNotFound | VersionNotFound:
    rows = await connection.fetch(SQL["list_versions_of_tool"], tenant, name)
    if not rows:
        return ToolNotFound(f"there is no tool {name}", details={"tool": name})
    version_numbers = [row["version"] for row in rows]
    return VersionNotFound(f"{name} has no version {version}", details={"tool": name, "versions": version_numbers})


async def _increment_epoch(connection: Connection, tenant: str) -> int:
    epoch = await connection.fetchval(SQL["raise_registry_epoch"], tenant)
    if epoch is None:
        raise InternalError(f"the tenant {tenant} does not exist; create it before registering tools for it")
    return int(epoch)
