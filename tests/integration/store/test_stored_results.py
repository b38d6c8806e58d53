"""Results of one tenant are stored while another tenant has many on their way."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.core.clock import Clock
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.stored_results import ResultOwner, StoredReference, StoredResults

pytestmark = pytest.mark.requirement("INV-10")


class SlowList(list[Any]):
    """A list whose members come when they are released."""

    def __init__(self, has_started: threading.Event, release: threading.Event) -> None:
        super().__init__([1, 2, 3])
        self._has_started, self._release = has_started, release

    def __iter__(self) -> Iterator[Any]:
        self._has_started.set()
        assert self._release.wait(120)
        return super().__iter__()


@pytest_asyncio.fixture
async def stored_results(fresh_database: str) -> AsyncIterator[StoredResults]:
    store = await Store.open(fresh_database, read_connections=2)
    yield StoredResults(store, TenantKeys(store, MasterKey(material=bytes(32)), Clock()), Clock())
    await store.close()


async def store_result(stored_results: StoredResults, tenant: str, value: Any) -> StoredReference:
    owner = ResultOwner(tenant=tenant, call_id=Clock().new_id(), tool="lab.export", user="ana", agent_key="")
    return await stored_results.store_result(owner, value, value, size=100, seconds=3600)


async def test_a_tenant_with_many_long_results_does_not_stop_another(stored_results: StoredResults) -> None:
    has_started, release = threading.Event(), threading.Event()
    slow_stores = [
        asyncio.create_task(store_result(stored_results, "acme", SlowList(has_started, release))) for _ in range(4)
    ]
    try:
        assert await asyncio.to_thread(has_started.wait, 60)
        async with asyncio.timeout(60):
            reference = (await store_result(stored_results, "globex", [1])).reference
        assert not any(each.done() for each in slow_stores)
    finally:
        release.set()
        references = [each.reference for each in await asyncio.gather(*slow_stores)]
    assert await stored_results.find_result("globex", reference) is not None
    for each in references:
        assert await stored_results.find_result("acme", each) is not None
        assert await stored_results.find_result("globex", each) is None


async def test_a_store_that_is_given_up_while_it_waits_lets_the_next_one_of_its_tenant_pass(
    stored_results: StoredResults,
) -> None:
    has_started, release = threading.Event(), threading.Event()
    first = asyncio.create_task(store_result(stored_results, "acme", SlowList(has_started, release)))
    try:
        assert await asyncio.to_thread(has_started.wait, 60)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await store_result(stored_results, "acme", [1])
    finally:
        release.set()
        await first
    async with asyncio.timeout(60):
        await store_result(stored_results, "acme", [1])
