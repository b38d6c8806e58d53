"""Keep what decisions are made from in memory: each tenant's tools, policies, revocations and switches, by epoch.

Snapshots are refreshed by notification and poll, and checked by the commit barrier: a commit that answers with newer
epochs makes the lifecycle refresh here and decide again before anything happens.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from deputize.catalog.registry import ToolRegistry
from deputize.catalog.snapshot import TenantTools
from deputize.catalog.versions import is_in_range
from deputize.core.caller import Caller, Epochs
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.decision import Decision
from deputize.execute.job_processes import JobProcesses
from deputize.govern.identity.revocations import Revocations, TenantRevocations
from deputize.govern.kill_switches import KillSwitches, TenantKillSwitches
from deputize.govern.policy.active_policies import ActivePolicies, TenantPolicy
from deputize.govern.token_authorization import authorize_token
from deputize.store.keys import TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

_SQL = load_statements("epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantAuthority:
    epochs: Epochs
    tools: TenantTools
    revocations: TenantRevocations
    policy: TenantPolicy
    switches: TenantKillSwitches

    def check_token(self, caller: Caller, contract: Contract, *, commit_epochs: Epochs | None = None) -> Decision:
        """Decide what the caller's token alone allows; raise the refusal.

        `commit_epochs` names the epochs to decide as of, where this snapshot may be newer.
        """
        check, until = self.revocations.check, None if commit_epochs is None else commit_epochs.revocation
        decision = authorize_token(
            caller,
            contract,
            epochs=self.epochs,
            check_revoked=check if until is None else partial(check, until=until),
            is_in_range=is_in_range,
        )
        self.switches.check(caller, contract.full_name, until=until)
        return decision


class Authority:
    def __init__(self, store: Store, keys: TenantKeys, policy_jobs: JobProcesses, clock: Clock) -> None:
        self._store = store
        self._keys = keys
        self._registry = ToolRegistry(clock)
        self._revocations = Revocations()
        self._policies = ActivePolicies(policy_jobs.run_job)
        self._switches = KillSwitches()
        self._tenants: dict[str, TenantAuthority] = {}
        self._refresh_locks: dict[str, asyncio.Lock] = {}

    def get_tenant(self, tenant: str) -> TenantAuthority | None:
        return self._tenants.get(tenant)

    def set_unloaded_tools(self, tenant: str, reasons: Mapping[str, str]) -> None:
        """Say to callers why tools of the project's files are not in use, for development."""
        self._registry.set_unloaded_tools(tenant, reasons)

    def set_removed_tools(self, tenant: str, reasons: Mapping[str, str]) -> None:
        """Hide tools that the project's files no longer have, and say to callers why, for development."""
        self._registry.set_removed_tools(tenant, reasons)

    def list_epochs(self) -> dict[str, Epochs]:
        return {tenant: authority.epochs for tenant, authority in self._tenants.items()}

    async def load_tenant(self, tenant: str) -> TenantAuthority:
        return self._tenants.get(tenant) or await self.refresh(tenant, Epochs())

    async def load_tools(self, tenant: str) -> TenantTools:
        return (await self.load_tenant(tenant)).tools

    async def refresh(self, tenant: str, at_least: Epochs) -> TenantAuthority:
        """Return the tenant's authority, no older than `at_least`; concurrent callers share one load."""
        async with self._refresh_locks.setdefault(tenant, asyncio.Lock()):
            current = self._tenants.get(tenant)
            if current is not None and current.epochs.is_at_least(at_least):
                return current
            fresh = await self._load_authority(tenant)
            self._tenants[tenant] = fresh
            return fresh

    async def reload_tenant(self, tenant: str) -> TenantAuthority:
        """Load the newest authority, for a caller who has just changed it."""
        async with self._refresh_locks.setdefault(tenant, asyncio.Lock()):
            fresh = self._tenants[tenant] = await self._load_authority(tenant)
            return fresh

    async def _load_authority(self, tenant: str) -> TenantAuthority:
        keys = await self._keys.get(tenant)
        # One snapshot for everything, or the epochs could belong to other tools than those loaded.
        async with self._store.read_transaction(tenant, repeatable=True) as connection:
            return TenantAuthority(
                epochs=await load_epochs(connection, tenant),
                tools=await self._registry.refresh(connection, tenant),
                revocations=await self._revocations.refresh(connection, tenant),
                policy=await self._policies.refresh(connection, tenant, key=keys.records_key),
                switches=await self._switches.refresh(connection, tenant),
            )


async def load_epochs(connection: Connection, tenant: str) -> Epochs:
    """Load the tenant's epochs as this transaction sees them."""
    row = await connection.fetchrow(_SQL["load_epochs"], tenant)
    return Epochs(registry=row[0], policy=row[1], revocation=row[2]) if row else Epochs()
