"""Deprecate versions of tools: announce the end of one, tell who still calls it, and take the announcement back."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final

import structlog

from deputize.acts.act import change_authority
from deputize.catalog import registry
from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.catalog.versions import parse_version
from deputize.core.caller import Caller
from deputize.core.contract.contract import LifecycleState
from deputize.core.contract.deprecation import GRACE, QUIET_TIME, REPORT_TIME, DeprecationNotice, format_time
from deputize.core.contract.names import to_full_name
from deputize.core.errors import MalformedRequest, VersionInUse, VersionNotFound
from deputize.govern.approvals.confirmation_codes import DocumentChange
from deputize.govern.token_authorization import is_tool_visible, require_admin_scope, require_full_admin
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("deprecations")
_MAX_CALLERS: Final = 1000
log = structlog.get_logger(__name__)
_AGENT_SEPARATOR: Final = "\x1f"


@dataclass(frozen=True, kw_only=True, slots=True)
class DeprecationRequest:
    """What an administrator announces; what they leave out is taken from the contract, or is the default."""

    removal_at: datetime | None = None
    successor: str | None = None
    migration_guide: str | None = None

    @property
    def content(self) -> str:
        """What an operator confirms besides the version."""
        return f"{format_time(self.removal_at)} {self.successor} {self.migration_guide}"


class Deprecations:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def deprecate_version(
        self, caller: Caller, name: str, version: str, request: DeprecationRequest
    ) -> DeprecationNotice:
        """Deprecate a version, or replace the notice of one. Calls go on until the removal date, with a warning."""
        require_full_admin(caller)
        runtime, full_name = self._runtime, to_full_name(name)
        notice = DeprecationNotice()

        async def prepare(authority: TenantAuthority) -> None:
            nonlocal notice
            notice = build_notice(authority.tools, full_name, version, request, runtime.clock.now())

        async def act(connection: Connection) -> None:
            await registry.deprecate_version(connection, caller.tenant, full_name, version, notice)

        await change_authority(
            runtime,
            caller,
            "deprecate",
            f"{full_name}@{version}",
            act,
            prepare=prepare,
            content=request.content,
            list_changes=lambda: _list_changes(f"{full_name}@{version}", notice),
        )
        return notice

    async def roll_back(self, caller: Caller, name: str, version: str) -> None:
        """Take a deprecation back: the version is available again, also after its removal date."""
        require_full_admin(caller)
        full_name = to_full_name(name)

        async def prepare(authority: TenantAuthority) -> None:
            tool_version = find_version(authority.tools, full_name, version)
            if tool_version.state is not LifecycleState.DEPRECATED:
                raise MalformedRequest(
                    f"{full_name} {version} is {tool_version.state}; only a deprecation can be taken back",
                    details={"tool": full_name, "version": version, "state": tool_version.state},
                )

        async def act(connection: Connection) -> None:
            await registry.set_version_state(connection, caller.tenant, full_name, version, LifecycleState.AVAILABLE)

        await change_authority(
            self._runtime, caller, "rollback_deprecation", f"{full_name}@{version}", act, prepare=prepare
        )

    async def report_usage(self, caller: Caller, name: str, version: str) -> dict[str, Any]:
        """Report who called a deprecated version in the last seven days, and when it can be retired."""
        require_admin_scope(caller)
        runtime = self._runtime
        authority = await runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        full_name, now = to_full_name(name), runtime.clock.now()
        authority.tools.get_entry(full_name, visible=partial(is_tool_visible, caller))
        tool_version = find_version(authority.tools, full_name, version)
        await runtime.deprecated_uses.store_uses(runtime.store)
        async with runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_callers"], caller.tenant, full_name, version, now - REPORT_TIME, _MAX_CALLERS
            )
            last_use = await connection.fetchval(_SQL["load_last_use"], caller.tenant, full_name, version)
        notice = tool_version.deprecation
        return {
            "name": full_name,
            "version": version,
            "state": tool_version.state,
            "deprecation": None if notice is None else notice.to_json(),
            "since": format_time(now - REPORT_TIME),
            "calls": sum(row["calls"] for row in rows),
            "callers": [
                {
                    "user": row["caller_user"],
                    "agents": row["caller_agent"].split(_AGENT_SEPARATOR) if row["caller_agent"] else [],
                    "calls": row["calls"],
                    "last_used_at": format_time(row["last_used_at"]),
                }
                for row in rows
            ],
            "last_used_at": format_time(last_use),
            "retirable_at": format_time(now if last_use is None else max(now, last_use + QUIET_TIME)),
        }


async def require_quiet(runtime: Runtime, connection: Connection, tenant: str, version: ToolVersion) -> None:
    """Refuse to retire a deprecated version that was used in the last 24 hours."""
    if version.deprecation is None:
        return
    name, now = version.contract.full_name, runtime.clock.now()
    rows = await connection.fetch(_SQL["list_callers"], tenant, name, version.version, now - QUIET_TIME, _MAX_CALLERS)
    if not rows:
        return
    last_use = rows[0]["last_used_at"]
    log.warning("deprecation_removal_blocked", tenant=tenant, tool=name, version=version.version, callers=len(rows))
    raise VersionInUse(
        f"{name} {version.version} was last used at {format_time(last_use)}, and {len(rows)} "
        f"{'caller' if len(rows) == 1 else 'callers'} used it in the last 24 hours",
        details={
            "tool": name,
            "version": version.version,
            "last_used_at": format_time(last_use),
            "callers": len(rows),
            "retirable_at": format_time(last_use + QUIET_TIME),
        },
        nothing_happened=True,
    )


def find_version(tools: TenantTools, name: str, version: str) -> ToolVersion:
    """Find a version in whatever state, by its exact number."""
    entry = tools.get_entry(name)
    tool_version = entry.by_version.get(version)
    if tool_version is None:
        version_numbers = [each.version for each in entry.versions]
        raise VersionNotFound(f"{name} has no version {version}", details={"tool": name, "versions": version_numbers})
    return tool_version


def build_notice(
    tools: TenantTools, name: str, version: str, request: DeprecationRequest, now: datetime
) -> DeprecationNotice:
    """Build the notice: as requested, else as the contract declares, else 90 days and the newest other version."""
    tool_version = find_version(tools, name, version)
    declared_notice = DeprecationNotice.from_contract(tool_version.contract.life)
    removal_at = request.removal_at or declared_notice.removal_at or now + GRACE
    if removal_at <= now:
        if request.removal_at is not None:
            raise MalformedRequest(
                f"the removal date {format_time(removal_at)} has passed; name a later one, or retire the version",
                details={"field": "removal_date"},
            )
        removal_at = now + GRACE
    if request.successor is not None:
        _require_successor(tools, name, version, request.successor)
    successor = request.successor or declared_notice.successor or _find_successor(tools.get_entry(name), version)
    # Replacing a notice does not begin the deprecation anew.
    first_notice = tool_version.deprecation
    return DeprecationNotice(
        deprecated_at=(first_notice.deprecated_at if first_notice is not None else None) or now,
        removal_at=removal_at.replace(microsecond=0),
        successor=successor,
        migration_guide=request.migration_guide or declared_notice.migration_guide,
    )


def _require_successor(tools: TenantTools, name: str, version: str, successor: str) -> None:
    """Require that a successor can be called, and is not what is deprecated."""
    other_name, _, other_version = successor.partition("@")
    entry = tools.get_entry(other_name)
    other = entry.by_version.get(other_version) if other_version else entry.latest
    if other is None or not entry.is_callable(other) or (entry.name, other.version) == (name, version):
        raise MalformedRequest(
            f"the successor {successor} is not another version that can be called; name a tool, or NAME@VERSION",
            details={"field": "successor", "versions": entry.callable_versions},
        )


def _find_successor(entry: ToolEntry, version: str) -> str | None:
    """Find the best higher version of the same tool that is not deprecated itself."""
    candidates: Sequence[ToolVersion] = [
        each
        for each in entry.rank_versions("*")
        if each.deprecation is None and parse_version(each.version) > parse_version(version)
    ]
    return f"{entry.name}@{candidates[0].version}" if candidates else None


def _list_changes(subject: str, notice: DeprecationNotice) -> tuple[DocumentChange, ...]:
    text = "\n".join(f"{key}: {value}" for key, value in notice.to_json().items())
    return (DocumentChange(name=subject, old=None, new=text),)
