"""What decisions are made from: each tenant's tools, policies, revocations and switches, as of known epochs, in memory.

Snapshots are refreshed by notification and poll, and checked by the commit barrier: a commit that answers with newer
epochs makes the lifecycle refresh here and decide again before anything happens.
"""

import asyncio
from dataclasses import dataclass

from deputize.catalog.registry import Registry
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Epochs
from deputize.govern.identity.revocations import Revocations, TenantRevocations
from deputize.govern.policy.force import Policies, TenantPolicy
from deputize.govern.switches import Switches, TenantSwitches
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store
from deputize.store.queries import load

_SQL = load("epochs")


@dataclass(frozen=True, kw_only=True, slots=True)
class TenantAuthority:
    epochs: Epochs
    tools: TenantTools
    revocations: TenantRevocations
    policy: TenantPolicy
    switches: TenantSwitches


class Authority:
    def __init__(self, store: Store, keys: TenantKeys) -> None:
        self._store = store
        self._keys = keys
        self._registry = Registry()
        self._revocations = Revocations()
        self._policies = Policies()
        self._switches = Switches()
        self._tenants: dict[str, TenantAuthority] = {}
        self._refreshing: dict[str, asyncio.Lock] = {}

    def known(self, tenant: str) -> TenantAuthority | None:
        return self._tenants.get(tenant)

    def known_epochs(self) -> dict[str, Epochs]:
        return {tenant: authority.epochs for tenant, authority in self._tenants.items()}

    async def of(self, tenant: str) -> TenantAuthority:
        return self._tenants.get(tenant) or await self.refresh(tenant, Epochs())

    async def refresh(self, tenant: str, at_least: Epochs) -> TenantAuthority:
        """The tenant's authority, no older than `at_least`; callers at once share one look."""
        async with self._refreshing.setdefault(tenant, asyncio.Lock()):
            current = self._tenants.get(tenant)
            if current is not None and current.epochs.covers(at_least):
                return current
            fresh = await self._read(tenant)
            self._tenants[tenant] = fresh
            return fresh

    async def look_again(self, tenant: str) -> TenantAuthority:
        """Whatever is newest now: for who has just changed something and wants to see it."""
        async with self._refreshing.setdefault(tenant, asyncio.Lock()):
            fresh = self._tenants[tenant] = await self._read(tenant)
            return fresh

    async def _read(self, tenant: str) -> TenantAuthority:
        keys = self._keys.ready(tenant) or await self._keys.load(self._store, tenant)
        # One snapshot for all of it, or an epoch could vouch for tools it does not belong to.
        async with self._store.reading(tenant, repeatable=True) as connection:
            row = await connection.fetchrow(_SQL["epochs_of_tenant"], tenant)
            epochs = Epochs(registry=row[0], policy=row[1], revocation=row[2]) if row else Epochs()
            return TenantAuthority(
                epochs=epochs,
                tools=await self._registry.refresh(connection, tenant),
                revocations=await self._revocations.refresh(connection, tenant),
                policy=await self._policies.refresh(connection, tenant, key=keys.records),
                switches=await self._switches.refresh(connection, tenant),
            )
