"""Rotating keys leaves an entry in the audit log of each tenant, in the commit that rotates."""

import asyncio
import os
from pathlib import Path

import orjson
import pytest
from pydantic import SecretStr

from deputize.core.clock import Clock
from deputize.core.settings import DatabaseSettings, KeySettings, Settings
from deputize.interfaces.cli.local.key_rotation import run_with_keys
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store


def _write_master_key(path: Path) -> Path:
    path.write_bytes(os.urandom(KEY_BYTES))
    path.chmod(0o600)
    return path


async def _create_tenants(dsn: str, master_file: Path) -> None:
    store = await Store.open(dsn, read_connections=1)
    for tenant in ("acme", "beta"):
        await TenantKeys(store, MasterKey.read(master_file), Clock()).load(tenant)
    await store.close()


async def _load_entries(dsn: str) -> list[tuple[str, str, str]]:
    store = await Store.open(dsn, read_connections=1)
    async with store.writers.acquire() as connection:
        await connection.execute("reset role")
        rows = await connection.fetch("select tenant, entry from deputize.audit_entries order by tenant, id")
    await store.close()
    bodies = [(row["tenant"], orjson.loads(row["entry"])) for row in rows]
    return [(tenant, body["command"], body["subject"]) for tenant, body in bodies]


@pytest.mark.requirement("GOV-5")
def test_rotating_the_master_key_is_recorded_for_each_tenant_once(fresh_database: str, tmp_path: Path) -> None:
    old, new = _write_master_key(tmp_path / "old.key"), _write_master_key(tmp_path / "new.key")
    asyncio.run(_create_tenants(fresh_database, old))
    settings = Settings(
        database=DatabaseSettings(url=SecretStr(fresh_database)),
        keys=KeySettings(master_file=new, accepted_master_files=(old,)),
    )
    counts: list[int] = []
    assert run_with_keys(settings, lambda keys: keys.rewrap_keys(counts.append)) == 2
    assert run_with_keys(settings, lambda keys: keys.rewrap_keys(counts.append)) == 0
    master_id = MasterKey.read(new).id
    assert asyncio.run(_load_entries(fresh_database)) == [
        ("acme", "rotate_key:master", f"1 {master_id}"),
        ("beta", "rotate_key:master", f"1 {master_id}"),
    ]
