"""What only shared counters have: replicas that agree, a server that is lost and comes back, callers that left."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.store.counters.port import CountersUnavailable, Slot, Window
from deputize.store.counters.redis import RedisCounters
from tests.support.redis_server import RedisServer, run_redis_server

pytestmark = pytest.mark.requirement("GOV-8")


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with run_redis_server() as server:
        yield server


@pytest.fixture
async def counters(redis: RedisServer) -> AsyncIterator[RedisCounters]:
    made = RedisCounters(redis.url, seconds=10, clock=Clock())
    yield made
    await made.close()


def _make_window(limit: int = 100) -> Window:
    return Window(key="deputize:{acme}:w", limit=limit, seconds=60)


async def test_replicas_count_together(redis: RedisServer, counters: RedisCounters) -> None:
    replicas = [counters, *(RedisCounters(redis.url, seconds=10, clock=Clock()) for _ in range(2))]
    taken = await asyncio.gather(*(replicas[n % 3].take([_make_window()]) for n in range(300)))
    assert sum(each.refused_index is None for each in taken) == 100
    for replica in replicas[1:]:
        await replica.close()


async def test_every_key_expires_with_what_it_counts(redis: RedisServer, counters: RedisCounters) -> None:
    await counters.take([_make_window(), Slot(key="deputize:{acme}:s", limit=1, seconds=60, holder="a")])
    async with Redis.from_url(redis.url) as client:
        assert 30_000 < await client.pttl("deputize:{acme}:w") <= 60_100
        assert 30_000 < await client.pttl("deputize:{acme}:s") <= 60_100


async def test_a_window_keeps_one_entry_for_each_part_of_it(redis: RedisServer, counters: RedisCounters) -> None:
    began = time.perf_counter()
    for _ in range(20):
        await asyncio.gather(*(counters.take([_make_window(10_000)]) for _ in range(100)))
    parts = (time.perf_counter() - began) / 0.06
    async with Redis.from_url(redis.url) as client:
        # 60 ms each, the one it began in, and the sum.
        assert await client.llen("deputize:{acme}:w") <= parts + 3


async def test_a_lost_server_costs_one_wait_and_is_probed_again(redis: RedisServer, counters: RedisCounters) -> None:
    assert (await counters.take([_make_window()])).refused_index is None
    redis.kill()
    lost = await asyncio.gather(*(counters.take([_make_window()]) for _ in range(50)), return_exceptions=True)
    assert {type(each) for each in lost} == {CountersUnavailable}
    began = time.perf_counter()
    for _ in range(100):
        with pytest.raises(CountersUnavailable, match="the shared counters"):
            await counters.take([_make_window()])
    # Not one of them waited for an answer.
    assert time.perf_counter() - began < 60
    redis.start()
    async with asyncio.timeout(90):
        while True:
            try:
                assert (await counters.take([_make_window()])).refused_index is None
                break
            except CountersUnavailable:
                await asyncio.sleep(0.05)
    assert (await counters.take([_make_window()])).refused_index is None


async def test_a_server_that_hangs_costs_the_full_wait_once() -> None:
    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    counters = RedisCounters(f"redis://127.0.0.1:{port}/0", seconds=3, clock=Clock())
    began = time.perf_counter()
    for _ in range(20):
        with pytest.raises(CountersUnavailable):
            await counters.take([_make_window()])
    # Twenty waits would take 60 s.
    assert 2.9 < time.perf_counter() - began < 40
    await counters.close()
    server.close()


async def test_a_caller_that_queued_too_long_is_refused_and_not_charged(redis: RedisServer) -> None:
    now = 0.0
    counters = RedisCounters(redis.url, seconds=10, clock=Clock(monotonic=lambda: now))
    waiting = asyncio.create_task(counters.take([_make_window(1)]))
    await asyncio.sleep(0)
    now = 11.0
    with pytest.raises(CountersUnavailable, match="in time"):
        await waiting
    assert (await counters.take([_make_window(1)])).refused_index is None
    await counters.close()


async def test_the_script_is_loaded_again_after_a_redis_restart(redis: RedisServer, counters: RedisCounters) -> None:
    await counters.take([_make_window()])
    async with Redis.from_url(redis.url) as client:
        await client.script_flush()
    taken = await asyncio.gather(*(counters.take([_make_window()]) for _ in range(10)))
    assert {each.refused_index for each in taken} == {None}


async def test_anyone_who_leaves_before_the_answer_holds_nothing(redis: RedisServer, counters: RedisCounters) -> None:
    slot = Slot(key="deputize:{acme}:s", limit=1, seconds=60, holder="gone")
    leaving = asyncio.create_task(counters.take([_make_window(1), slot]))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    # What it was granted is given back right behind its answer, before anybody else's question.
    assert (await counters.take([Window(key="other", limit=1, seconds=60)])).refused_index is None
    assert (await counters.take([_make_window(1), slot])).refused_index is None


def test_an_address_that_is_none_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigError, match="redis_url"):
        RedisCounters("http://127.0.0.1:1", seconds=1, clock=Clock())
