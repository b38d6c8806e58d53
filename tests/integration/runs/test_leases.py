"""One lease per boot: renewed while the database answers, refused by its own process before others doubt it."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from deputize.core.clock import Clock
from deputize.core.errors import Unavailable
from deputize.runs.leases import Lease
from deputize.store.pool import Store


class Hands:
    """A clock that moves when a test says so."""

    def __init__(self) -> None:
        self.monotonic = 1000.0
        self.epoch_ms: int | None = None

    def clock(self) -> Clock:
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


def lease(store: Store, hands: Hands, seconds: float = 10.0) -> Lease:
    return Lease(store, hands.clock(), boot=Clock().new_id(), seconds=seconds, release="test")


async def _seconds_left(store: Store, boot: str) -> float:
    async with store.writing() as connection:
        left: float = await connection.fetchval(
            "select extract(epoch from expires_at - clock_timestamp())::float8 from deputize.leases where boot = $1",
            boot,
        )
        return left


async def test_a_process_without_a_lease_starts_nothing(store: Store) -> None:
    made = lease(store, Hands())
    assert not made.is_good
    with pytest.raises(Unavailable) as refused:
        made.require()
    assert refused.value.nothing_happened
    assert refused.value.retry_after_ms


async def test_a_lease_is_good_until_shortly_before_others_see_it_end(store: Store) -> None:
    hands = Hands()
    made = lease(store, hands)
    await made.start()
    made.require()
    assert 9 < await _seconds_left(store, made.boot) <= 10
    hands.monotonic += 7.9
    made.require()
    hands.monotonic += 0.2
    with pytest.raises(Unavailable):
        made.require()
    await made.renew()
    made.require()
    await made.stop()


async def test_the_process_reckons_from_before_it_asked(store: Store) -> None:
    """However long the answer takes, the process never believes in its lease longer than PostgreSQL does."""
    hands = Hands()
    made = lease(store, hands)
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        renewing = asyncio.create_task(made.renew())
        await asyncio.sleep(0.1)
        hands.monotonic += 5
    await renewing
    await blocker.close()
    hands.monotonic += 2.9
    made.require()
    hands.monotonic += 0.2
    with pytest.raises(Unavailable):
        made.require()


async def test_a_lease_is_renewed_by_itself(store: Store) -> None:
    made = Lease(store, Clock(), boot=Clock().new_id(), seconds=0.6, release="test")
    await made.start()
    for _ in range(8):
        await asyncio.sleep(0.15)
        made.require()
    assert await _seconds_left(store, made.boot) > 0
    await made.stop()


async def test_a_lease_that_cannot_be_renewed_runs_out_and_comes_back_with_the_database(store: Store) -> None:
    made = Lease(store, Clock(), boot=Clock().new_id(), seconds=0.6, release="test")
    await made.start()
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        async with asyncio.timeout(90):
            while made.is_good:  # noqa: ASYNC110 -- only time passes here
                await asyncio.sleep(0.02)
        with pytest.raises(Unavailable):
            made.require()
    async with asyncio.timeout(90):
        while not made.is_good:  # noqa: ASYNC110 -- only time passes here
            await asyncio.sleep(0.02)
    await blocker.close()
    await made.stop()


async def test_stopping_ends_the_lease_for_everybody_at_once(store: Store) -> None:
    made = lease(store, Hands())
    await made.start()
    await made.stop()
    assert not made.is_good
    assert await _seconds_left(store, made.boot) <= 0
    await made.stop()


async def test_a_renewal_under_way_cannot_bring_a_stopped_lease_back(store: Store) -> None:
    made = Lease(store, Clock(), boot=Clock().new_id(), seconds=0.2, release="test")
    for _ in range(5):
        await made.start()
        await asyncio.sleep(0.06)
        await made.stop()
        assert not made.is_good
        assert await _seconds_left(store, made.boot) <= 0


async def test_stopping_without_a_database_does_not_hang_or_fail(store: Store) -> None:
    made = lease(store, Hands(), seconds=0.4)
    await made.start()
    blocker = await asyncpg.connect(store.dsn)
    async with blocker.transaction():
        await blocker.execute("lock table deputize.leases in access exclusive mode")
        async with asyncio.timeout(90):
            await made.stop()
    await blocker.close()
    assert not made.is_good


async def test_the_distance_to_the_databases_clock_is_known(store: Store) -> None:
    hands = Hands()
    made = lease(store, hands)
    await made.renew()
    assert abs(made.skew_seconds) < 2
    hands.epoch_ms = Clock().epoch_ms() + 45_000
    await made.renew()
    assert 43 < made.skew_seconds < 47


async def test_each_boot_has_its_own_row(store: Store) -> None:
    one, two = lease(store, Hands()), lease(store, Hands())
    await one.start()
    await two.start()
    async with store.writing() as connection:
        assert await connection.fetchval("select count(*) from deputize.leases") == 2
    await one.stop()
    assert await _seconds_left(store, two.boot) > 8
    await two.stop()
