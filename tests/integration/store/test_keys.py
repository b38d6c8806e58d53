"""Tenants' keys and pseudonyms on a real PostgreSQL: made once, shared by processes, kept apart, erasable."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from deputize.core.canonical import compute_commitment
from deputize.core.clock import Clock
from deputize.core.errors import UnsealFailed
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.pseudonyms import Pseudonyms
from deputize.store.tenants import ensure_tenant

CALL = "01890000-0000-7000-8000-000000000001"
MASTER = MasterKey(material=b"\x05" * KEY_BYTES)


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=4)
    yield opened
    await opened.close()


@pytest.mark.requirement("GOV-6")
async def test_a_tenants_key_is_made_on_first_use_and_shared_by_every_process(store: Store) -> None:
    first, second = TenantKeys(store, MASTER, Clock()), TenantKeys(store, MASTER, Clock())
    assert first.find("acme") is None
    made = await first.load("acme")
    assert first.find("acme") is made
    found = await second.load("acme")
    assert found.unseal(CALL, "input", made.seal(CALL, "input", b"secret")) == b"secret"
    assert found.fingerprint_key == made.fingerprint_key


async def test_processes_that_meet_a_tenant_at_once_agree_on_its_key(store: Store) -> None:
    racers = [TenantKeys(store, MASTER, Clock()) for _ in range(8)]
    loaded = await asyncio.gather(*(racer.load("acme") for racer in racers))
    assert len({keys.fingerprint_key for keys in loaded}) == 1
    async with store.write_transaction() as connection:
        assert await connection.fetchval("select count(*) from deputize.tenant_keys") == 1


@pytest.mark.requirement("GOV-6")
async def test_tenants_cannot_decrypt_each_others_data_and_the_database_has_no_plain_key(store: Store) -> None:
    keys = TenantKeys(store, MASTER, Clock())
    acme, other = await keys.load("acme"), await keys.load("other")
    assert acme.fingerprint_key != other.fingerprint_key
    with pytest.raises(UnsealFailed):
        other.unseal(CALL, "input", acme.seal(CALL, "input", b"secret"))
    async with store.write_transaction() as connection:
        wrapped = await connection.fetchval("select wrapped from deputize.tenant_keys where tenant = 'acme'")
    with pytest.raises(UnsealFailed):
        MASTER.unwrap("other", 1, wrapped)


async def test_a_wrong_master_key_is_reported(store: Store) -> None:
    await TenantKeys(store, MASTER, Clock()).load("acme")
    with pytest.raises(UnsealFailed, match="master key"):
        await TenantKeys(store, MasterKey(material=b"\x06" * KEY_BYTES), Clock()).load("acme")


async def test_a_forgotten_tenant_is_read_again(store: Store) -> None:
    keys = TenantKeys(store, MASTER, Clock())
    await keys.load("acme")
    keys.forget("acme")
    assert keys.find("acme") is None


async def test_a_pseudonym_is_the_same_everywhere_and_differs_between_tenants(store: Store) -> None:
    one, two = Pseudonyms(Clock()), Pseudonyms(Clock())
    subjects = ("ana", "bot", "ana")
    first = await one.get_or_create(store, "acme", subjects)
    assert first[0] == first[2] != first[1]
    assert one.find("acme", subjects) == first
    assert two.find("acme", subjects) is None
    assert await two.get_or_create(store, "acme", subjects) == first
    assert (await one.get_or_create(store, "other", ("ana",)))[0] != first[0]
    async with store.write_transaction() as connection:
        salt = await connection.fetchval("select salt from deputize.subjects where tenant = 'acme' and subject = 'ana'")
    assert first[0] == compute_commitment(salt, b"ana")


async def test_subjects_met_by_many_at_once_in_any_order_get_one_salt_each(store: Store) -> None:
    names = [f"user-{n}" for n in range(20)]
    orders = [names[n:] + names[:n] for n in range(8)]
    found = await asyncio.gather(*(Pseudonyms(Clock()).get_or_create(store, "acme", order) for order in orders))
    assert len({tuple(sorted(answer)) for answer in found}) == 1


async def test_an_erased_subject_is_forgotten_and_comes_back_as_somebody_new(store: Store) -> None:
    seconds = 0.0
    here, elsewhere = (Pseudonyms(Clock(monotonic=lambda: seconds)) for _ in range(2))
    before = await here.get_or_create(store, "acme", ("ana", "bot"))
    await elsewhere.get_or_create(store, "acme", ("ana",))
    async with store.write_transaction() as connection:
        # Without the rest of an erasure, which a gateway's role needs.
        await connection.execute("set local role deputize_owner")
        await here.erase(connection, "acme", "ana")
    after = await here.get_or_create(store, "acme", ("ana", "bot"))
    assert after[0] != before[0]
    assert after[1] == before[1]
    seconds = 31.0
    assert await elsewhere.get_or_create(store, "acme", ("ana",)) == after[:1]


async def test_making_a_tenant_twice_changes_nothing(store: Store) -> None:
    async with store.write_transaction() as connection:
        await ensure_tenant(connection, "acme")
        await connection.execute("update deputize.epochs set registry = 7 where tenant = 'acme'")
        await ensure_tenant(connection, "acme")
        assert await connection.fetchval("select registry from deputize.epochs where tenant = 'acme'") == 7
