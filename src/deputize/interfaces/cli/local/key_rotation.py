"""Rotate keys in the database of the settings, without a gateway: only the operator has the master key's file."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from deputize.core.caller import operator_caller
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.evidence.audit_entries import TimestampFormatter, encode_act
from deputize.evidence.tenant_log.log_keys import list_log_keys, rotate_log_key
from deputize.govern.identity.signing_keys import list_signing_keys, rotate_signing_key
from deputize.interfaces.cli.local import database
from deputize.store.key_rotation import (
    count_keys_by_master,
    list_tenant_keys,
    list_tenants,
    rewrap_batch,
    rotate_tenant_key,
)
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Connection, Store
from deputize.store.pseudonyms import Pseudonyms
from deputize.store.queries import load_statements
from deputize.store.resealing import count_old_values, reseal_batch

_RUNS = load_statements("runs")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyStore:
    """The database with the keys that open it, for one command."""

    settings: Settings
    store: Store
    master: MasterKey
    accepted_masters: tuple[MasterKey, ...]
    keys: TenantKeys
    clock: Clock

    async def rotate_signing_keys(self, tenants: Sequence[str]) -> list[dict[str, Any]]:
        """Give each tenant a new signing key; return their ids."""
        rotations = []
        for tenant in await self._choose_tenants(tenants):
            keys = await self.keys.load(tenant)
            async with self.store.write_transaction() as connection:
                kid = await rotate_signing_key(connection, keys, self.clock)
                await self._record_act(connection, tenant, "rotate_key:signing", kid)
            rotations.append({"tenant": tenant, "kid": kid})
        return rotations

    async def rotate_log_keys(self, tenants: Sequence[str]) -> list[dict[str, Any]]:
        """Give each tenant's log a new key; return the public halves."""
        rotations = []
        for tenant in await self._choose_tenants(tenants):
            keys = await self.keys.load(tenant)
            async with self.store.write_transaction() as connection:
                verifier_key = await rotate_log_key(connection, keys, self.clock)
                await self._record_act(connection, tenant, "rotate_key:log", verifier_key)
            rotations.append({"tenant": tenant, "verifier_key": verifier_key})
        return rotations

    async def rotate_tenant_keys(self, tenants: Sequence[str]) -> list[dict[str, Any]]:
        """Give each tenant a new data key; return their versions."""
        rotations = []
        for tenant in await self._choose_tenants(tenants):
            await self.keys.load(tenant)
            async with self.store.write_transaction() as connection:
                version = await rotate_tenant_key(connection, tenant, self.master, self.clock)
                await self._record_act(connection, tenant, "rotate_key:tenant", str(version))
            rotations.append({"tenant": tenant, "version": version})
        return rotations

    async def reseal_values(self, tenants: Sequence[str], report: Callable[[int], None]) -> list[dict[str, Any]]:
        """Encrypt what is kept without end with each tenant's newest active key; return what was done and is left.

        Each tenant's audit log records the version of the key and the number of values.
        """
        reseals = []
        for tenant in await self._choose_tenants(tenants):
            keys, reseal_count = await self.keys.load(tenant), 0
            while batch_count := await reseal_batch(self.store, keys):
                reseal_count += batch_count
                report(reseal_count)
            if reseal_count:
                async with self.store.write_transaction() as connection:
                    subject = f"{keys.newest_version} {reseal_count}"
                    await self._record_act(connection, tenant, "reseal:tenant", subject)
            left = await count_old_values(self.store, keys)
            reseals.append({"tenant": tenant, "version": keys.newest_version, "resealed": reseal_count, "left": left})
        return reseals

    async def rewrap_keys(self, report: Callable[[int], None]) -> int:
        """Wrap all data keys with the current master key, batch by batch; report the count after each.

        Each tenant's audit log records the version of the data key and the id of the master key.
        """
        rewrap_count = 0

        async def record_rewrap(connection: Connection, tenant: str, version: int) -> None:
            await self._record_act(connection, tenant, "rotate_key:master", f"{version} {self.master.id}")

        while batch_count := await rewrap_batch(self.store, self.keys, self.master, self.clock, record=record_rewrap):
            rewrap_count += batch_count
            report(rewrap_count)
        return rewrap_count

    async def describe_keys(self) -> dict[str, Any]:
        """Describe all keys: which master key wraps how many, each tenant's newest, and the keys that sign."""
        async with self.store.write_transaction() as connection:
            counts = await count_keys_by_master(connection)
            return {
                "master": {
                    "id": self.master.id,
                    "wrapped_keys": counts.get(self.master.id, 0),
                    "keys_to_rewrap": sum(count for id, count in counts.items() if id != self.master.id),
                    "accepted": [
                        {"id": each.id, "wrapped_keys": counts.get(each.id, 0)} for each in self.accepted_masters
                    ],
                },
                "tenants": await list_tenant_keys(connection),
                "signing": await list_signing_keys(connection, self.settings.identity.max_grant_seconds),
                "logs": await list_log_keys(connection),
            }

    async def _choose_tenants(self, tenants: Sequence[str]) -> Sequence[str]:
        """Return these tenants, or all if none is named; a name that does not exist would become a new tenant."""
        async with self.store.write_transaction() as connection:
            every_tenant = await list_tenants(connection)
        missing = next((each for each in tenants if each not in every_tenant), None)
        if missing is not None:
            raise ConfigError(f"There is no tenant {missing}: deputize keys status lists the tenants.")
        return tenants or every_tenant

    async def _record_act(self, connection: Connection, tenant: str, command: str, subject: str) -> None:
        operator = operator_caller(tenant)
        pseudonyms = await Pseudonyms(self.clock).get_or_create(self.store, tenant, operator.subjects)
        operator, entry_id = replace(operator, pseudonyms=pseudonyms), self.clock.new_id()
        time = TimestampFormatter(self.clock).now()
        body = encode_act(operator, id=entry_id, time=time, command=command, subject=subject)
        await connection.execute(_RUNS["insert_audit_entry"], tenant, entry_id, None, body, None)


def run_with_keys(settings: Settings, act: Callable[[KeyStore], Awaitable[T]]) -> T:
    """Open the database and its keys, run a command, and explain what goes wrong."""
    dsn = database.require_dsn(settings)
    master = MasterKey.read(settings.keys.master_file)
    accepted_masters = tuple(MasterKey.read(file) for file in settings.keys.accepted_master_files)

    async def open_and_act(dsn: str) -> T:
        clock = Clock()
        store = await Store.open(dsn, read_connections=2)
        try:
            keys = TenantKeys(store, master, clock, accepted_masters=accepted_masters)
            return await act(
                KeyStore(
                    settings=settings,
                    store=store,
                    master=master,
                    accepted_masters=accepted_masters,
                    keys=keys,
                    clock=clock,
                )
            )
        finally:
            await store.close()

    try:
        return asyncio.run(open_and_act(dsn))
    except Problem as problem:
        raise ConfigError(f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}") from problem
    except database.CONNECTION_ERRORS as error:
        raise database.explain_error(error, dsn) from error
