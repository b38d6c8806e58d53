"""Changes of authority are noticed: at once by notification, and soon by the poll when notifications are lost."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from deputize.core.caller import Epochs
from deputize.store.epoch_watcher import EpochWatcher
from deputize.store.pool import Store
from deputize.store.queries import load_statements
from tests.integration.store.sample_rows import make_tenants

SQL = load_statements("epochs")
RAISE = "update deputize.epochs set registry = registry + 1 where tenant = $1"


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    await make_tenants(fresh_database, "acme", "broken", "other")
    opened = await Store.open(fresh_database, read_connections=1)
    yield opened
    await opened.close()


class Snapshots:
    """What a gateway knows of its tenants."""

    def __init__(self, *tenants: str) -> None:
        self.epochs = dict.fromkeys(tenants, Epochs())
        self.changes: asyncio.Queue[str] = asyncio.Queue()
        self.fails_for: str | None = None

    async def refresh(self, tenant: str, epochs: Epochs) -> None:
        if tenant == self.fails_for:
            raise ValueError("a contract this release cannot read")
        self.epochs[tenant] = epochs
        self.changes.put_nowait(tenant)


@asynccontextmanager
async def open_watcher(store: Store, snapshots: Snapshots, seconds: float) -> AsyncIterator[EpochWatcher]:
    watcher = EpochWatcher(store, current_epochs=lambda: snapshots.epochs, refresh=snapshots.refresh, seconds=seconds)
    await watcher.start()
    try:
        yield watcher
    finally:
        await watcher.stop()


async def _wait_until_listening(store: Store) -> None:
    owner = await asyncpg.connect(store.dsn)
    async with asyncio.timeout(90):
        while True:
            if await owner.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%' "
                "and state = 'idle'"
            ):
                break
            await asyncio.sleep(0.01)
    await owner.close()


async def _raise_epoch(store: Store, tenant: str, *, announce: bool) -> None:
    async with store.write_transaction() as connection:
        await connection.execute(SQL["lock_barrier_exclusive"], tenant)
        await connection.execute(RAISE, tenant)
        if announce:
            await connection.execute(SQL["notify_epoch_change"], tenant)


async def _wait_for_change(snapshots: Snapshots, seconds: float) -> str:
    async with asyncio.timeout(seconds):
        return await snapshots.changes.get()


async def test_a_notification_nudges_long_before_the_poll(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=600):
        await _wait_until_listening(store)
        await _raise_epoch(store, "acme", announce=True)
        assert await _wait_for_change(snapshots, 90) == "acme"
    assert snapshots.epochs["acme"] == Epochs(registry=1)


async def test_a_lost_notification_is_healed_by_the_poll(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=0.1):
        await _raise_epoch(store, "acme", announce=False)
        assert await _wait_for_change(snapshots, 90) == "acme"


async def test_a_listener_whose_connection_died_listens_again(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=0.1):
        await _wait_until_listening(store)
        owner = await asyncpg.connect(store.dsn)
        await owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
            "and query ilike 'listen%' and pid <> pg_backend_pid()"
        )
        await owner.close()
        await _raise_epoch(store, "acme", announce=False)
        assert await _wait_for_change(snapshots, 90) == "acme"
        await _wait_until_listening(store)


async def test_only_tenants_that_are_known_and_really_changed_are_refreshed(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=600) as watcher:
        await _raise_epoch(store, "other", announce=False)
        await watcher.refresh_stale_tenants()
        assert snapshots.changes.empty()
        await _raise_epoch(store, "acme", announce=False)
        await watcher.refresh_stale_tenants()
        await watcher.refresh_stale_tenants()
        assert snapshots.changes.qsize() == 1


@pytest.mark.parametrize("lose", [True, False])
async def test_a_tenant_that_cannot_be_refreshed_does_not_stop_the_watch_over_the_others(
    store: Store, lose: bool
) -> None:
    snapshots = Snapshots("broken", "acme")
    snapshots.fails_for = "broken"
    async with open_watcher(store, snapshots, seconds=0.1):
        await _raise_epoch(store, "broken", announce=not lose)
        for _ in range(2):
            await _raise_epoch(store, "acme", announce=not lose)
            assert await _wait_for_change(snapshots, 90) == "acme"
        snapshots.fails_for = None
        assert await _wait_for_change(snapshots, 90) == "broken"


async def test_a_watcher_survives_a_database_that_goes_away(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=0.1):
        owner = await asyncpg.connect(store.dsn)
        for _ in range(3):
            await owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid()"
            )
            await asyncio.sleep(0.05)
        await owner.close()
        await _raise_epoch_elsewhere(store, "acme")
        assert await _wait_for_change(snapshots, 90) == "acme"


async def _raise_epoch_elsewhere(store: Store, tenant: str) -> None:
    owner = await asyncpg.connect(store.dsn)
    await owner.execute(RAISE, tenant)
    await owner.close()


async def test_stopping_ends_both_tasks_and_the_listeners_connection(store: Store) -> None:
    snapshots = Snapshots("acme")
    async with open_watcher(store, snapshots, seconds=0.1):
        await _wait_until_listening(store)
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("epochs-")]
