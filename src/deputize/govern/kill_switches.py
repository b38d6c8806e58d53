"""Hold the kill switches: tenants, agents and tools that an administrator turned off.

One snapshot per tenant, refreshed by epoch and checked against every commit under the barrier, like revocations; unlike
a revocation, a switch can be turned on again. `operations/admin/commands.py` sets switches and writes the audit entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import DisabledByKillSwitch, Unavailable
from deputize.core.subject import parse_subject
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

SwitchKind = Literal["tenant", "agent", "tool"]
_SQL = load_statements("switches")


@dataclass(frozen=True, kw_only=True, slots=True)
class KillSwitch:
    """One kill switch: what is off, since when, by whom and why; `on_epoch` if it was turned on again."""

    kind: SwitchKind
    value: str
    off_epoch: int
    on_epoch: int | None
    reason: str
    by: str
    since: str

    def is_off(self, epoch: int | None) -> bool:
        """Tell whether it is off, now or as of an epoch."""
        if epoch is None:
            return self.on_epoch is None
        return self.off_epoch <= epoch and (self.on_epoch is None or self.on_epoch > epoch)

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "value": self.value,
            "reason": self.reason,
            "by": self.by,
            "since": self.since,
            "epoch": self.off_epoch,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantKillSwitches:
    """One tenant's switches as of one epoch. A target has several if it was turned off more than once."""

    epoch: int = 0
    switches: Mapping[tuple[SwitchKind, str], tuple[KillSwitch, ...]] = field(default_factory=dict)

    def check(self, caller: Caller, tool: str, *, until: int | None = None) -> None:
        """Raise `DisabledByKillSwitch` if the tenant, the tool or any agent of the caller's chain is off.

        `until` is the epoch that a commit returned: later changes of a switch do not count for that commit.
        """
        if not self.switches:
            return
        self._require_on("tenant", caller.tenant, until)
        self._require_on("tool", tool, until)
        self.check_agents(caller, until=until)

    def check_agents(self, caller: Caller, *, until: int | None = None) -> None:
        """Raise `DisabledByKillSwitch` if an agent of the caller is off, so that it cannot turn itself on again."""
        if self.switches:
            for agent in _list_agents(caller):
                self._require_on("agent", agent, until)

    def find_off(self, kind: SwitchKind, value: str) -> KillSwitch | None:
        """Find the switch of a target that is off; None if it is on."""
        return next((each for each in self.switches.get((kind, value), ()) if each.on_epoch is None), None)

    def _require_on(self, kind: SwitchKind, value: str, until: int | None) -> None:
        for switch in self.switches.get((kind, value), ()):
            if switch.is_off(until):
                reason = f": {switch.reason}" if switch.reason else ""
                raise DisabledByKillSwitch(
                    f"{switch.by} turned off the {kind} {value}{reason}",
                    details={**switch.to_json(), "rule": f"switch:{kind}"},
                    nothing_happened=True,
                )


class KillSwitches:
    """The kill switch snapshots of all tenants in this process."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantKillSwitches] = {}

    async def refresh(self, connection: Connection, tenant: str) -> TenantKillSwitches:
        """Load a tenant's switches if their epoch changed."""
        before = self._snapshots.get(tenant)
        rows = await connection.fetch(_SQL["list_switches_since"], tenant, -1 if before is None else before.epoch)
        epoch = rows[0]["epoch"] if rows else 0
        # Two refreshes may overlap; the one that read earlier must not replace the newer snapshot.
        current = self._snapshots.get(tenant)
        if current is not None and current.epoch >= epoch:
            return current
        switches: dict[tuple[SwitchKind, str], tuple[KillSwitch, ...]] = {}
        for row in rows:
            if row["kind"] is not None:
                key = (row["kind"], row["value"])
                switches[key] = (*switches.get(key, ()), _build_switch(row))
        after = self._snapshots[tenant] = TenantKillSwitches(epoch=epoch, switches=switches)
        return after


async def load_switches(connection: Connection, tenant: str) -> list[KillSwitch]:
    """Load the switches that are off, in order of kind and name, as they are stored now."""
    rows = await connection.fetch(_SQL["list_switches_since"], tenant, -1)
    switches = [_build_switch(row) for row in rows if row["kind"] is not None and row["on_epoch"] is None]
    return sorted(switches, key=lambda each: (each.kind, each.value))


def _list_agents(caller: Caller) -> tuple[str, ...]:
    """List the agents of a token. One that an agent got for itself names it as the user."""
    if caller.human:
        return caller.agents
    return (parse_subject(caller.user)[1], caller.user, *caller.agents)


def _build_switch(row: asyncpg.Record) -> KillSwitch:
    return KillSwitch(
        kind=row["kind"],
        value=row["value"],
        off_epoch=row["off_epoch"],
        on_epoch=row["on_epoch"],
        reason=row["reason"],
        by=row["turned_by"],
        since=row["turned_at"].isoformat(timespec="seconds"),
    )


async def set_switch(
    connection: Connection, tenant: str, kind: SwitchKind, value: str, *, turn_off: bool, reason: str = "", by: str
) -> int:
    """Set a switch inside the caller's transaction, and return the epoch from which every gateway applies it."""
    if turn_off:
        epoch: int | None = await connection.fetchval(_SQL["turn_off_switch"], tenant, kind, value, reason, by)
    else:
        epoch = await connection.fetchval(_SQL["turn_on_switch"], tenant, kind, value)
    if epoch is None:
        raise Unavailable("this tenant is not initialised yet (it has no epochs), so its switches cannot be changed")
    return epoch
