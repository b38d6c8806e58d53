"""Policies on a real PostgreSQL: in force by epoch, per tenant, and as of an older epoch."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from deputize.core.decision import Behavior
from deputize.core.errors import PolicyFailed, PolicyInvalid, Unavailable
from deputize.govern.policy.force import MOST_VERSIONS, Policies, TenantPolicy, default_files, put
from deputize.govern.policy.rules import PolicyFile, set_digest
from deputize.store.pool import Store
from deputize.store.tenants import ensure_tenant
from tests.unit.govern.policy.asking import caller, ids, question

pytestmark = pytest.mark.requirement("GOV-2")

FORBID = PolicyFile(path="no.cedar", text='@id("no") forbid (principal, action, resource);')
PERMIT = PolicyFile(path="yes.cedar", text='@id("yes") permit (principal, action, resource);')


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    async with opened.writing() as connection:
        await ensure_tenant(connection, "acme")
        await ensure_tenant(connection, "other")
    yield opened
    await opened.close()


async def _refresh(policies: Policies, store: Store, tenant: str = "acme") -> TenantPolicy:
    async with store.reading(tenant) as connection:
        return await policies.refresh(connection, tenant, key=b"key")


async def _put(store: Store, *files: PolicyFile) -> int:
    async with store.writing() as connection:
        return await put(connection, "acme", files, {"amount": "Long"}, by="admin")


def _said(policy: TenantPolicy, as_of: int | None = None) -> list[str]:
    return ids(policy.decide(question(), as_of=as_of).verdict.rules)


async def test_a_tenant_without_policies_has_the_default_set(store: Store) -> None:
    policy = await _refresh(Policies(), store)
    assert (policy.epoch, policy.digest) == (0, set_digest(default_files()))
    assert _said(policy) == ["reads-are-free"]
    assert (await _refresh(Policies(), store, "stranger")).epoch == 0


async def test_what_is_put_decides_from_its_epoch_on_and_for_its_tenant_only(store: Store) -> None:
    policies = Policies()
    before = await _refresh(policies, store)
    assert await _put(store, FORBID) == 1
    after = await _refresh(policies, store)
    assert (after.epoch, after.digest) == (1, set_digest([FORBID]))
    assert after.policies.facts == {"amount": "Long"}
    assert _said(after) == ["no"]
    assert _said(before) == ["reads-are-free"]
    assert _said(await _refresh(policies, store, "other")) == ["reads-are-free"]
    assert after.decide(question(caller())).verdict.behavior is Behavior.DENY


async def test_a_snapshot_whose_epoch_did_not_move_is_the_same(store: Store) -> None:
    policies = Policies()
    await _put(store, PERMIT)
    assert await _refresh(policies, store) is await _refresh(policies, store)


async def test_no_files_stand_for_the_default_set(store: Store) -> None:
    await _put(store, FORBID)
    await _put(store)
    policy = await _refresh(Policies(), store)
    assert (policy.epoch, policy.digest) == (2, set_digest(default_files()))
    assert _said(policy) == ["reads-are-free"]


async def test_a_decision_can_be_made_as_of_an_older_epoch(store: Store) -> None:
    policies = Policies()
    await _refresh(policies, store)
    for file in (FORBID, PERMIT):
        await _put(store, file)
    for policy in (await _refresh(policies, store), await _refresh(Policies(), store)):
        assert [_said(policy, as_of=epoch) for epoch in range(4)] == [["reads-are-free"], ["no"], ["yes"], ["yes"]]


async def test_an_epoch_that_is_not_held_any_more_decides_nothing(store: Store) -> None:
    for _ in range(MOST_VERSIONS + 1):
        await _put(store, PERMIT)
    policy = await _refresh(Policies(), store)
    assert _said(policy, as_of=2) == ["yes"]
    with pytest.raises(PolicyFailed):
        policy.decide(question(), as_of=1)


async def test_what_cannot_be_read_is_not_put(store: Store) -> None:
    with pytest.raises(PolicyInvalid):
        await _put(store, PolicyFile(path="bad.cedar", text="permit (principal"))
    assert (await _refresh(Policies(), store)).epoch == 0


async def test_a_tenant_that_was_never_made_cannot_have_policies(store: Store) -> None:
    with pytest.raises(Unavailable):
        async with store.writing() as connection:
            await put(connection, "stranger", [PERMIT], {}, by="admin")


async def test_what_takes_force_does_not_wait_for_drafts_that_are_being_checked(store: Store) -> None:
    over = threading.Event()
    busy = [asyncio.create_task(asyncio.to_thread(over.wait, 20)) for _ in range(64)]
    try:
        async with asyncio.timeout(90):
            await _put(store, FORBID)
            assert _said(await _refresh(Policies(), store)) == ["no"]
    finally:
        over.set()
        await asyncio.gather(*busy)
