"""Rotate data keys and the master key on a real PostgreSQL, with gateways that have loaded the old ones."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable, UnsealFailed
from deputize.evidence.tenant_log import log_keys
from deputize.govern.identity import signing_keys
from deputize.govern.vault import local
from deputize.lifecycle.credentials import sealed_tokens
from deputize.store import migrate
from deputize.store.key_rotation import count_keys_by_master, list_tenant_keys, rewrap_batch, rotate_tenant_key
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.resealing import SEAL_PURPOSES, count_old_values, reseal_batch
from tests.support.gateway_lab import wait_until

pytestmark = pytest.mark.requirement("GOV-6")
OLD, NEW = MasterKey(material=b"\x05" * KEY_BYTES), MasterKey(material=b"\x06" * KEY_BYTES)
CALL = "0190a000-0000-7000-8000-000000000001"
# Wraps one key for each line that it reads, and says so after the commit; the test kills it in the next one.
_REWRAP = """
import asyncio, sys
from deputize.core.clock import Clock
from deputize.store.key_rotation import rewrap_batch
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store

async def main() -> None:
    store, clock = await Store.open(sys.argv[1], read_connections=1), Clock()
    old, new = (MasterKey(material=bytes([number]) * 32) for number in (5, 6))
    keys = TenantKeys(store, new, clock, accepted_masters=[old])
    while sys.stdin.readline() and await rewrap_batch(store, keys, new, clock, limit=1):
        print("wrapped", flush=True)

asyncio.run(main())
"""


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    yield opened
    await opened.close()


async def _rotate(store: Store, tenant: str = "acme") -> int:
    async with store.write_transaction() as connection:
        return await rotate_tenant_key(connection, tenant, OLD, Clock())


async def _activate(store: Store) -> None:
    """Let the overlap pass, as an owner of the database could."""
    async with store.writers.acquire() as connection:
        await connection.execute("reset role")
        await connection.execute("update deputize.tenant_keys set active_from = now() - interval '1 second'")


async def test_a_new_key_is_known_to_every_gateway_before_one_encrypts_with_it(store: Store) -> None:
    first, second = (TenantKeys(store, OLD, Clock()) for _ in range(2))
    before = (await first.load("acme")).seal(CALL, "input", b"before")
    await second.load("acme")
    assert await _rotate(store) == 2

    for gateway in (first, second):
        await gateway.refresh_rotated()
        keys = gateway.find("acme")
        assert keys is not None
        assert keys.newest_version == 1
    await _activate(store)
    await first.refresh_rotated()

    sealing, opening = first.find("acme"), second.find("acme")
    assert sealing is not None
    assert opening is not None
    assert (sealing.newest_version, opening.newest_version) == (2, 1)
    assert opening.unseal(CALL, "input", sealing.seal(CALL, "input", b"after")) == b"after"
    assert sealing.unseal(CALL, "input", before) == b"before"
    assert sealing.fingerprint_key == opening.fingerprint_key


async def test_a_rotation_that_is_repeated_before_it_is_active_adds_no_second_key(store: Store) -> None:
    with pytest.raises(Unavailable):
        await _rotate(store)
    await TenantKeys(store, OLD, Clock()).load("acme")
    assert list(await asyncio.gather(_rotate(store), _rotate(store))) == [2, 2]
    async with store.write_transaction() as connection:
        assert [(each["version"], each["state"]) for each in await list_tenant_keys(connection)] == [(2, "pending")]
    await _activate(store)
    assert await _rotate(store) == 3


async def test_gateways_accept_both_master_keys_while_one_replaces_the_other(store: Store) -> None:
    old_only = await TenantKeys(store, OLD, Clock()).load("acme")
    both = TenantKeys(store, NEW, Clock(), accepted_masters=[OLD])
    assert (await both.load("acme")).fingerprint_key == old_only.fingerprint_key
    await both.load("made-with-the-new-one")
    # One that has not been told yet to use the new master key accepts it already.
    await TenantKeys(store, OLD, Clock(), accepted_masters=[NEW]).load("made-with-the-new-one")
    with pytest.raises(UnsealFailed):
        await TenantKeys(store, NEW, Clock()).load("acme")

    assert await rewrap_batch(store, both, NEW, Clock()) == 1
    assert await rewrap_batch(store, both, NEW, Clock()) == 0

    assert (await TenantKeys(store, NEW, Clock()).load("acme")).fingerprint_key == old_only.fingerprint_key
    with pytest.raises(UnsealFailed):
        await TenantKeys(store, OLD, Clock()).load("acme")


async def test_a_key_that_no_known_master_key_opens_is_left_as_it_is(store: Store) -> None:
    await TenantKeys(store, OLD, Clock()).load("acme")
    with pytest.raises(UnsealFailed):
        await rewrap_batch(store, TenantKeys(store, NEW, Clock()), NEW, Clock())
    await TenantKeys(store, OLD, Clock()).load("acme")


async def test_a_rewrapping_that_is_killed_is_finished_by_starting_it_again(
    store: Store, fresh_database: str, tmp_path: Path
) -> None:
    tenants = [f"tenant-{number}" for number in range(30)]
    gateway = TenantKeys(store, OLD, Clock())
    fingerprints = {tenant: (await gateway.load(tenant)).fingerprint_key for tenant in tenants}
    script = tmp_path / "rewrap.py"
    script.write_text(_REWRAP)

    for stop_after in (1, 5):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(script), fresh_database, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(stop_after):
            process.stdin.write(b"\n")
            assert await asyncio.wait_for(process.stdout.readline(), 60) == b"wrapped\n"
        process.stdin.write(b"\n")
        process.kill()
        await process.wait()

    async def has_rolled_back() -> bool:
        async with store.write_transaction() as connection:
            sql = (
                "select count(*) from pg_locks l join pg_class c on c.oid = l.relation where c.relname = 'tenant_keys'"
            )
            return bool(await connection.fetchval(f"{sql} and l.pid <> pg_backend_pid()") == 0)

    await wait_until(has_rolled_back)
    async with store.write_transaction() as connection:
        counts = await count_keys_by_master(connection)
    assert counts.keys() == {OLD.id, NEW.id}
    assert counts[NEW.id] >= 6
    both = TenantKeys(store, NEW, Clock(), accepted_masters=[OLD])
    for tenant in tenants:
        assert (await both.load(tenant)).fingerprint_key == fingerprints[tenant]

    while await rewrap_batch(store, both, NEW, Clock(), limit=7):
        pass

    new_only = TenantKeys(store, NEW, Clock())
    for tenant in tenants:
        assert (await new_only.load(tenant)).fingerprint_key == fingerprints[tenant]
    async with store.write_transaction() as connection:
        assert await count_keys_by_master(connection) == {NEW.id: len(tenants)}


_INSERT_VALUES = {
    "secrets": "insert into deputize.secrets (tenant, name, sealed, updated_by) values ($1, $2, $3, 'ana')",
    "server_links": "insert into deputize.server_links (tenant, server, user_name, sealed, requested_scopes) "
    "values ($1, split_part($2, ' ', 1), split_part($2, ' ', 2), $3, '{}')",
    "server_clients": "insert into deputize.server_clients (tenant, server, issuer, sealed) "
    "values ($1, $2, 'https://idp.example', $3)",
    "signing_keys": "insert into deputize.signing_keys (tenant, kid, sealed, public_jwk, retired_at) "
    "values ($1, $2, $3, '', now())",
    "log_keys": "insert into deputize.log_keys (tenant, key_id, verifier_key, sealed, signs_until) "
    "values ($1, $2, '', $3, now())",
}
_LOAD_VALUES = {
    "secrets": "select name, sealed from deputize.secrets where tenant = $1",
    "server_links": "select server || ' ' || user_name, sealed from deputize.server_links where tenant = $1",
    "server_clients": "select server, sealed from deputize.server_clients where tenant = $1",
    "signing_keys": "select kid, sealed from deputize.signing_keys where tenant = $1",
    "log_keys": "select key_id, sealed from deputize.log_keys where tenant = $1",
}


async def _store_values(store: Store, tenant: str, count: int) -> None:
    keys = await TenantKeys(store, OLD, Clock()).load(tenant)
    async with store.write_transaction() as connection:
        for table, purpose in SEAL_PURPOSES.items():
            for number in range(count):
                name = f"orders{number} ana" if table == "server_links" else f"orders{number}"
                ciphertext = keys.seal(name, purpose, f"{tenant} {table} {number}".encode())
                await connection.execute(_INSERT_VALUES[table], tenant, name, ciphertext)


async def _open_values(store: Store, tenant: str) -> tuple[set[int], list[str]]:
    """Return the versions that encrypt a tenant's values, and the values."""
    keys, versions, values = await TenantKeys(store, OLD, Clock()).load(tenant), set[int](), list[str]()
    async with store.write_transaction() as connection:
        for table, purpose in SEAL_PURPOSES.items():
            for name, ciphertext in await connection.fetch(_LOAD_VALUES[table], tenant):
                versions.add(int.from_bytes(ciphertext[2:6], "big"))
                values.append(keys.unseal(name, purpose, ciphertext).decode())
    return versions, sorted(values)


async def test_what_is_kept_without_end_is_encrypted_again_and_goes_on_after_a_kill(store: Store) -> None:
    for tenant in ("acme", "other"):
        await _store_values(store, tenant, 5)
    before = await _open_values(store, "acme")
    assert before[0] == {1}
    await _rotate(store)
    pending = await TenantKeys(store, OLD, Clock()).load("acme")
    assert await reseal_batch(store, pending) == 0, "a key that not every gateway has must not encrypt"
    await _activate(store)

    # One batch and no more, as if the process was killed after it.
    keys = await TenantKeys(store, OLD, Clock()).load("acme")
    assert await reseal_batch(store, keys, limit=2) == 2 * len(SEAL_PURPOSES)
    assert (await _open_values(store, "acme"))[0] == {1, 2}
    assert await count_old_values(store, keys) == 3 * len(SEAL_PURPOSES)
    again = await TenantKeys(store, OLD, Clock()).load("acme")
    while await reseal_batch(store, again, limit=2):
        pass
    assert await _open_values(store, "acme") == ({2}, before[1])
    assert await count_old_values(store, again) == 0
    assert (await _open_values(store, "other"))[0] == {1}


async def test_a_value_that_a_gateway_is_writing_is_left_to_it(store: Store) -> None:
    await _store_values(store, "acme", 1)
    await _rotate(store)
    await _activate(store)
    keys = await TenantKeys(store, OLD, Clock()).load("acme")
    renewed = keys.seal("orders0 ana", "server link", b"renewed")
    async with store.write_transaction() as connection:
        await connection.execute("update deputize.server_links set sealed = $2 where tenant = $1", "acme", renewed)
        assert await reseal_batch(store, keys) == len(SEAL_PURPOSES) - 1
    assert "renewed" in (await _open_values(store, "acme"))[1]


def test_every_table_that_keeps_sealed_values_without_end_is_known() -> None:
    """What is not encrypted again is deleted by itself: after its retention, a window, a sign-in, or a revocation."""
    schema = (Path(migrate.__file__).parent / "schema.sql").read_text()
    tables = re.findall(r"CREATE TABLE deputize\.(\w+) \((?:(?!;).)*?\bsealed bytea", schema, re.DOTALL)
    assert set(tables) - {
        "server_sign_ins",
        "server_revocations",
        "observed_values",
        "results",
        "result_chunks",
        "journal",
    } == set(SEAL_PURPOSES)


def test_values_are_opened_for_the_purpose_that_they_were_sealed_for() -> None:
    assert SEAL_PURPOSES == {
        "secrets": local._SEAL_PURPOSE,
        "server_links": sealed_tokens._LINK_PURPOSE,
        "server_clients": sealed_tokens._CLIENT_PURPOSE,
        "signing_keys": signing_keys._SEAL_PURPOSE,
        "log_keys": log_keys.SEAL_PURPOSE,
    }
