"""One lease per boot: renewed while the database answers, refused by its own process before others doubt it."""

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import asyncpg
import pytest
import structlog

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.runs.leases import ProcessLease
from deputize.store.pool import Store
from tests.integration.store.sample_rows import wait_for_blocked_query


class ManualClock:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.epoch_ms: int | None = None

    def make_clock(self) -> Clock:
        real = Clock()
        return Clock(
            monotonic=lambda: self.monotonic,
            epoch_ms=lambda: real.epoch_ms() if self.epoch_ms is None else self.epoch_ms,
        )


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    opened = await Store.open(fresh_database, read_connections=1)
    yield opened
    await opened.close()


def make_lease(store: Store, manual_clock: ManualClock, seconds: float = 10.0) -> ProcessLease:
    return ProcessLease(store, manual_clock.make_clock(), boot_id=Clock().new_id(), seconds=seconds, release="test")


async def _seconds_left(store: Store, boot: str) -> float:
    async with store.write_transaction() as connection:
        left: float = await connection.fetchval(
            "select extract(epoch from expires_at - clock_timestamp())::float8 from deputize.leases where boot = $1",
            boot,
        )
        return left


async def _fetch_expiry(store: Store, boot: str) -> datetime:
    async with store.write_transaction() as connection:
        expires_at: datetime = await connection.fetchval("select expires_at from deputize.leases where boot = $1", boot)
        return expires_at


async def test_a_process_without_a_lease_starts_nothing(store: Store) -> None:
    made = make_lease(store, ManualClock())
    assert not made.is_valid
    with pytest.raises(Unavailable) as refused:
        made.require_valid()
    assert refused.value.nothing_happened
    assert refused.value.retry_after_ms


async def test_a_lease_is_good_until_shortly_before_others_see_it_end(store: Store) -> None:
    manual_clock = ManualClock()
    made = make_lease(store, manual_clock)
    await made.start()
    made.require_valid()
    assert 5 < await _seconds_left(store, made.boot_id) <= 10
    manual_clock.monotonic += 7.9
    made.require_valid()
    manual_clock.monotonic += 0.2
    with pytest.raises(Unavailable):
        made.require_valid()
    await made.renew()
    made.require_valid()
    await made.stop()


async def test_the_process_reckons_from_before_it_asked(store: Store) -> None:
    """However long the answer takes, the process never believes in its lease longer than PostgreSQL does."""
    manual_clock = ManualClock()
    made = make_lease(store, manual_clock)
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        renewing = asyncio.create_task(made.renew())
        watching = await asyncpg.connect(store.dsn)
        await wait_for_blocked_query(watching, "%deputize.leases%")
        await watching.close()
        manual_clock.monotonic += 5
    await renewing
    await blocker.close()
    manual_clock.monotonic += 2.9
    made.require_valid()
    manual_clock.monotonic += 0.2
    with pytest.raises(Unavailable):
        made.require_valid()


async def test_a_lease_is_renewed_by_itself(store: Store) -> None:
    made = ProcessLease(store, Clock(), boot_id=Clock().new_id(), seconds=9, release="test")
    await made.start()
    async with asyncio.timeout(90):
        for _ in range(2):
            expires_at = await _fetch_expiry(store, made.boot_id)
            while await _fetch_expiry(store, made.boot_id) <= expires_at:  # noqa: ASYNC110 -- only the database shows it
                await asyncio.sleep(0.1)
            made.require_valid()
    await made.stop()


async def test_a_lease_that_cannot_be_renewed_runs_out_and_comes_back_with_the_database(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessLease, "interval_seconds", 0.02)
    manual_clock = ManualClock()
    made = make_lease(store, manual_clock, seconds=6)
    await made.start()
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        with structlog.testing.capture_logs() as lines:
            async with asyncio.timeout(90):
                while not any(each["event"] == "lease_not_renewed" for each in lines):  # noqa: ASYNC110 -- it only logs
                    await asyncio.sleep(0.02)
        manual_clock.monotonic += 5
        with pytest.raises(Unavailable):
            made.require_valid()
    async with asyncio.timeout(90):
        while not made.is_valid:  # noqa: ASYNC110 -- only the lease shows it
            await asyncio.sleep(0.02)
    await blocker.close()
    await made.stop()


async def test_stopping_ends_the_lease_for_everybody_at_once(store: Store) -> None:
    made = make_lease(store, ManualClock())
    await made.start()
    await made.stop()
    assert not made.is_valid
    assert await _seconds_left(store, made.boot_id) <= 0
    await made.stop()


async def test_a_renewal_under_way_cannot_bring_a_stopped_lease_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessLease, "interval_seconds", 0.05)
    made = make_lease(store, ManualClock(), seconds=60)
    for _ in range(5):
        await made.start()
        await asyncio.sleep(0.06)
        await made.stop()
        assert not made.is_valid
        assert await _seconds_left(store, made.boot_id) <= 0


async def test_stopping_without_a_database_does_not_hang_or_fail(store: Store) -> None:
    made = make_lease(store, ManualClock(), seconds=4)
    await made.start()
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        async with asyncio.timeout(90):
            await made.stop()
    await blocker.close()
    assert not made.is_valid


async def test_the_distance_to_the_databases_clock_is_known(store: Store) -> None:
    manual_clock = ManualClock()
    made = make_lease(store, manual_clock)
    await made.renew()
    # The answer of a busy machine takes a while.
    assert abs(made.skew_seconds) < 20
    manual_clock.epoch_ms = Clock().epoch_ms() + 45_000
    await made.renew()
    assert 25 < made.skew_seconds < 65


async def test_each_boot_has_its_own_row(store: Store) -> None:
    one, two = make_lease(store, ManualClock(), seconds=300), make_lease(store, ManualClock(), seconds=300)
    await one.start()
    await two.start()
    async with store.write_transaction() as connection:
        assert await connection.fetchval("select count(*) from deputize.leases") == 2
    await one.stop()
    assert await _seconds_left(store, two.boot_id) > 100
    await two.stop()
