"""Active policies on a real PostgreSQL: by epoch, per tenant, and as of an older epoch."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from deputize.core.decision import Behavior
from deputize.core.errors import PolicyFailed, PolicyInvalid, Unavailable
from deputize.govern.policy.active_policies import (
    MAX_VERSIONS,
    ActivePolicies,
    TenantPolicy,
    load_default_files,
    parse_for_activation,
    put_policies,
)
from deputize.govern.policy.policy_parser import PolicyFile, compute_set_digest
from deputize.store.pool import Store
from deputize.store.tenants import ensure_tenant
from tests.support.policy_inputs import make_caller, make_question, rule_ids

pytestmark = pytest.mark.requirement("GOV-2")

FORBID = PolicyFile(path="no.cedar", text='@id("no") forbid (principal, action, resource);')
PERMIT = PolicyFile(path="yes.cedar", text='@id("yes") permit (principal, action, resource);')


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=2)
    async with opened.write_transaction() as connection:
        await ensure_tenant(connection, "acme")
        await ensure_tenant(connection, "other")
    yield opened
    await opened.close()


async def _refresh(policies: ActivePolicies, store: Store, tenant: str = "acme") -> TenantPolicy:
    async with store.read_transaction(tenant) as connection:
        return await policies.refresh(connection, tenant, key=b"key")


async def _put_policies(store: Store, *files: PolicyFile) -> int:
    async with store.write_transaction() as connection:
        policies = await parse_for_activation(files, {"amount": "Long"})
        return await put_policies(connection, "acme", policies, by="admin")


def _matching_rules(policy: TenantPolicy, as_of: int | None = None) -> list[str]:
    return rule_ids(policy.decide(make_question(), as_of=as_of).verdict.rules)


async def test_a_tenant_without_policies_has_the_default_policies(store: Store) -> None:
    policy = await _refresh(ActivePolicies(), store)
    assert (policy.epoch, policy.digest) == (0, compute_set_digest(load_default_files()))
    assert _matching_rules(policy) == ["reads-are-free"]
    assert (await _refresh(ActivePolicies(), store, "stranger")).epoch == 0


async def test_policies_apply_from_their_epoch_to_their_tenant_only(store: Store) -> None:
    policies = ActivePolicies()
    before = await _refresh(policies, store)
    assert await _put_policies(store, FORBID) == 1
    after = await _refresh(policies, store)
    assert (after.epoch, after.digest) == (1, compute_set_digest([FORBID]))
    assert after.policies.facts == {"amount": "Long"}
    assert _matching_rules(after) == ["no"]
    assert _matching_rules(before) == ["reads-are-free"]
    assert _matching_rules(await _refresh(policies, store, "other")) == ["reads-are-free"]
    assert after.decide(make_question(make_caller())).verdict.behavior is Behavior.DENY


async def test_a_snapshot_is_reused_while_its_epoch_is_unchanged(store: Store) -> None:
    policies = ActivePolicies()
    await _put_policies(store, PERMIT)
    assert await _refresh(policies, store) is await _refresh(policies, store)


async def test_no_files_mean_the_default_policies(store: Store) -> None:
    await _put_policies(store, FORBID)
    await _put_policies(store)
    policy = await _refresh(ActivePolicies(), store)
    assert (policy.epoch, policy.digest) == (2, compute_set_digest(load_default_files()))
    assert _matching_rules(policy) == ["reads-are-free"]


async def test_a_decision_can_be_made_as_of_an_older_epoch(store: Store) -> None:
    policies = ActivePolicies()
    await _refresh(policies, store)
    for file in (FORBID, PERMIT):
        await _put_policies(store, file)
    for policy in (await _refresh(policies, store), await _refresh(ActivePolicies(), store)):
        assert [_matching_rules(policy, as_of=epoch) for epoch in range(4)] == [
            ["reads-are-free"],
            ["no"],
            ["yes"],
            ["yes"],
        ]


async def test_an_epoch_no_longer_in_memory_cannot_decide(store: Store) -> None:
    for _ in range(MAX_VERSIONS + 1):
        await _put_policies(store, PERMIT)
    policy = await _refresh(ActivePolicies(), store)
    assert _matching_rules(policy, as_of=2) == ["yes"]
    with pytest.raises(PolicyFailed):
        policy.decide(make_question(), as_of=1)


async def test_invalid_policies_are_not_activated(store: Store) -> None:
    with pytest.raises(PolicyInvalid):
        await _put_policies(store, PolicyFile(path="bad.cedar", text="permit (principal"))
    assert (await _refresh(ActivePolicies(), store)).epoch == 0


async def test_an_uninitialised_tenant_cannot_have_policies(store: Store) -> None:
    with pytest.raises(Unavailable):
        async with store.write_transaction() as connection:
            await put_policies(connection, "stranger", await parse_for_activation([PERMIT], {}), by="admin")


async def test_new_active_policies_do_not_wait_for_drafts_under_check(store: Store) -> None:
    over = threading.Event()
    busy = [asyncio.create_task(asyncio.to_thread(over.wait, 20)) for _ in range(64)]
    try:
        async with asyncio.timeout(90):
            await _put_policies(store, FORBID)
            assert _matching_rules(await _refresh(ActivePolicies(), store)) == ["no"]
    finally:
        over.set()
        await asyncio.gather(*busy)
