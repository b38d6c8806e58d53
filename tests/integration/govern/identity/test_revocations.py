"""Revocations on a real PostgreSQL: loaded by epoch, separate per tenant, never undone by an older reader."""

from collections.abc import AsyncIterator

import pytest

from deputize.core.caller import Caller
from deputize.core.errors import AuthorityRevoked, Unavailable
from deputize.govern.identity.revocations import Revocations, revoke
from deputize.store.pool import Store
from deputize.store.tenants import ensure_tenant

ANA = Caller(tenant="acme", user="ana", agents=("bot",), token_id="t-1")


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    async with opened.write_transaction() as connection:
        await ensure_tenant(connection, "acme")
        await ensure_tenant(connection, "other")
    yield opened
    await opened.close()


async def _refresh(revocations: Revocations, store: Store, tenant: str = "acme") -> int:
    async with store.read_transaction(tenant) as connection:
        return (await revocations.refresh(connection, tenant)).epoch


@pytest.mark.requirement("NEW-7")
async def test_a_revocation_applies_from_its_epoch_on(store: Store) -> None:
    revocations = Revocations()
    assert await _refresh(revocations, store) == 0
    assert revocations.check(ANA) == 0
    async with store.write_transaction() as connection:
        epoch = await revoke(connection, "acme", "subject", "bot", reason="stolen", by="admin")
    assert epoch == 1
    assert await _refresh(revocations, store) == epoch
    with pytest.raises(AuthorityRevoked):
        revocations.check(ANA)
    assert revocations.check(Caller(tenant="acme", user="ana")) == epoch


async def test_each_refresh_adds_revocations(store: Store) -> None:
    revocations = Revocations()
    for number, (kind, value) in enumerate([("token", "t-9"), ("subject", "eve"), ("token", "t-1")], start=1):
        async with store.write_transaction() as connection:
            await revoke(connection, "acme", "token" if kind == "token" else "subject", value, by="admin")
        assert await _refresh(revocations, store) == number
    known = revocations.get_snapshot("acme")
    assert known is not None
    assert known.tokens == {"t-1", "t-9"}
    assert known.subjects == {"eve"}


async def test_a_revocation_that_is_rolled_back_has_no_effect(store: Store) -> None:
    async with store.writers.acquire() as connection:
        undone = connection.transaction()
        await undone.start()
        assert await revoke(connection, "acme", "subject", "ana", by="admin") == 1
        await undone.rollback()
    revocations = Revocations()
    assert await _refresh(revocations, store) == 0
    revocations.check(ANA)


async def test_revoking_again_keeps_the_first_record_and_still_raises_the_epoch(store: Store) -> None:
    for who in ("first", "second"):
        async with store.write_transaction() as connection:
            await revoke(connection, "acme", "subject", "ana", by=who)
    async with store.write_transaction() as connection:
        rows = await connection.fetch("select revoked_by, changed_epoch from deputize.revocations")
        assert [tuple(row) for row in rows] == [("first", 1)]
    assert await _refresh(Revocations(), store) == 2


async def test_revocations_do_not_affect_other_tenants(store: Store) -> None:
    async with store.write_transaction() as connection:
        await revoke(connection, "other", "subject", "ana", by="admin")
    revocations = Revocations()
    assert await _refresh(revocations, store) == 0
    revocations.check(ANA)
    # A connection of one tenant sees no rows of another.
    async with store.read_transaction("acme") as connection:
        crossed = await Revocations().refresh(connection, "other")
    assert crossed.subjects == frozenset()


async def test_a_reader_with_an_older_snapshot_does_not_undo_newer_revocations(store: Store) -> None:
    revocations = Revocations()
    async with store.read_transaction("acme", repeatable=True) as early:
        await early.fetch("select 1")
        async with store.write_transaction() as connection:
            await revoke(connection, "acme", "subject", "ana", by="admin")
        await _refresh(revocations, store)
        await revocations.refresh(early, "acme")
    with pytest.raises(AuthorityRevoked):
        revocations.check(ANA)


async def test_an_uninitialised_tenant_cannot_revoke(store: Store) -> None:
    with pytest.raises(Unavailable):
        async with store.write_transaction() as connection:
            await revoke(connection, "nobody", "subject", "ana", by="admin")
