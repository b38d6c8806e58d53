"""Kill switches: a tenant, an agent or a tool that somebody turned off, as each gateway knows it.

Like revocations, a snapshot per tenant, renewed by epoch and held against every commit by the barrier; unlike them, a
switch can be turned on again. `lifecycle/command.py` turns them, under the barrier, and writes the audit entry.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import SwitchedOff, Unavailable
from deputize.store.pool import Connection
from deputize.store.queries import load

Kind = Literal["tenant", "agent", "tool"]
_SQL = load("switches")


@dataclass(frozen=True, kw_only=True, slots=True)
class Switch:
    """What was turned off, by whom, when and why; `on_epoch` if it was turned on again since."""

    kind: Kind
    value: str
    off_epoch: int
    on_epoch: int | None
    reason: str
    by: str
    since: str

    def is_off(self, epoch: int | None) -> bool:
        """Now, or as of an epoch."""
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
class TenantSwitches:
    """What one tenant has turned off, as of one epoch. Of one thing there may be several: it was off more than once."""

    epoch: int = 0
    switches: Mapping[tuple[Kind, str], tuple[Switch, ...]] = field(default_factory=dict)

    def check(self, caller: Caller, tool: str, *, until: int | None = None) -> None:
        """Raises `SwitchedOff` if the tenant, the tool, or any agent of the caller's chain is off.

        `until` is the epoch a commit answered with: what was turned off after that commit is not held against it, and
        what was turned on after it does not help.
        """
        if not self.switches:
            return
        self._require_on("tenant", caller.tenant, until)
        self._require_on("tool", tool, until)
        self.check_agents(caller, until=until)

    def check_agents(self, caller: Caller, *, until: int | None = None) -> None:
        """An agent that is off turns nothing on again, itself least of all."""
        if self.switches:
            for agent in caller.agents:
                self._require_on("agent", agent, until)

    def off(self) -> list[Switch]:
        """What is off now, in order of its name."""
        return [
            switch for _, switches in sorted(self.switches.items()) for switch in switches if switch.on_epoch is None
        ]

    def _require_on(self, kind: Kind, value: str, until: int | None) -> None:
        for switch in self.switches.get((kind, value), ()):
            if switch.is_off(until):
                why = f": {switch.reason}" if switch.reason else ""
                raise SwitchedOff(
                    f"{switch.by} switched off the {kind} {value}{why}",
                    details={**switch.to_json(), "rule": f"switch:{kind}"},
                    nothing_happened=True,
                )


class Switches:
    """Every tenant's snapshot in this process."""

    def __init__(self) -> None:
        self._snapshots: dict[str, TenantSwitches] = {}

    async def refresh(self, connection: Connection, tenant: str) -> TenantSwitches:
        before = self._snapshots.get(tenant)
        rows = await connection.fetch(_SQL["switches_since"], tenant, -1 if before is None else before.epoch)
        epoch = rows[0]["epoch"] if rows else 0
        # Two refreshes may overlap; the one that read earlier must not take back what the other learned.
        current = self._snapshots.get(tenant)
        if current is not None and current.epoch >= epoch:
            return current
        found: dict[tuple[Kind, str], tuple[Switch, ...]] = {}
        for row in rows:
            if row["kind"] is not None:
                place = (row["kind"], row["value"])
                found[place] = (*found.get(place, ()), _switch(row))
        after = self._snapshots[tenant] = TenantSwitches(epoch=epoch, switches=found)
        return after


def _switch(row: asyncpg.Record) -> Switch:
    return Switch(
        kind=row["kind"],
        value=row["value"],
        off_epoch=row["off_epoch"],
        on_epoch=row["on_epoch"],
        reason=row["reason"],
        by=row["turned_by"],
        since=row["turned_at"].isoformat(timespec="seconds"),
    )


async def turn(
    connection: Connection, tenant: str, kind: Kind, value: str, *, off: bool, reason: str = "", by: str
) -> int:
    """Inside the caller's transaction; answers the epoch from which it holds on every gateway."""
    if off:
        epoch: int | None = await connection.fetchval(_SQL["switch_off"], tenant, kind, value, reason, by)
    else:
        epoch = await connection.fetchval(_SQL["switch_on"], tenant, kind, value)
    if epoch is None:
        raise Unavailable("this tenant has no epochs yet, so nothing of it can be switched")
    return epoch
