"""One contract for the counters, held against a process that counts alone and against a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from deputize.core.clock import Clock
from deputize.store.shared.counters import Ask, Change, Counters, Recount, Release, Slot, Taken, Window
from deputize.store.shared.in_process import InProcessCounters
from deputize.store.shared.redis import RedisCounters
from tests.integration.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.requirement("GOV-8")

SECONDS = 0.4
_numbers = count()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@dataclass
class Bench:
    """Counters, a key of their own, and a way to let time pass."""

    counters: Counters
    wait: Callable[[float], Awaitable[None]]
    key: str = field(default_factory=lambda: f"key-{next(_numbers)}")

    async def take(self, *asks: Ask) -> Taken:
        answer = self.counters.take(asks)
        return answer if isinstance(answer, Taken) else await answer

    async def settle(self, *changes: Change) -> None:
        answer = self.counters.settle(changes)
        if answer is not None:
            await answer

    def window(self, limit: int = 3, *, weight: int = 1, name: str = "", seconds: float = SECONDS) -> Window:
        return Window(key=self.key + name, limit=limit, seconds=seconds, weight=weight)

    def slot(self, holder: str, limit: int = 2, *, seconds: float = 60.0) -> Slot:
        return Slot(key=f"{self.key}-slots", limit=limit, seconds=seconds, holder=holder)

    async def admitted(self, *asks: Ask) -> bool:
        return (await self.take(*asks)).refused is None


@pytest.fixture(params=["in process", "redis"])
async def bench(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[Bench]:
    if request.param == "redis":
        shared = RedisCounters(redis.url, seconds=2, clock=Clock())
        yield Bench(shared, asyncio.sleep)
        await shared.close()
        return
    now = 1000.0

    async def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    yield Bench(InProcessCounters(Clock(monotonic=lambda: now)), advance)


async def test_a_window_lets_its_limit_through_and_says_when_to_come_again(bench: Bench) -> None:
    assert [await bench.admitted(bench.window()) for _ in range(4)] == [True, True, True, False]
    refused = await bench.take(bench.window())
    assert (refused.refused, refused.used) == (0, 3)
    assert 0 < refused.retry_after_ms <= SECONDS * 1000 * 1.002 + 1
    await bench.wait(refused.retry_after_ms / 1000)
    assert await bench.admitted(bench.window())


async def test_a_window_slides_and_does_not_begin_anew(bench: Bench) -> None:
    assert await bench.admitted(bench.window(2))
    await bench.wait(SECONDS * 0.6)
    assert await bench.admitted(bench.window(2))
    await bench.wait(SECONDS * 0.5)
    # The first is over, the second is not.
    assert [await bench.admitted(bench.window(2)) for _ in range(2)] == [True, False]


async def test_what_is_refused_takes_nothing_of_anything(bench: Bench) -> None:
    wide, narrow = bench.window(3, name="wide"), bench.window(1, name="narrow")
    assert await bench.admitted(wide, narrow, bench.slot("a"))
    for _ in range(5):
        refused = await bench.take(wide, bench.slot("b"), narrow)
        assert refused.refused == 2
    assert [await bench.admitted(wide) for _ in range(3)] == [True, True, False]
    assert [await bench.admitted(bench.slot(holder)) for holder in "bc"] == [True, False]


async def test_weights_add_up(bench: Bench) -> None:
    assert await bench.admitted(bench.window(10, weight=7))
    assert not await bench.admitted(bench.window(10, weight=4))
    assert await bench.admitted(bench.window(10, weight=3))
    assert (await bench.take(bench.window(10))).used == 10


async def test_a_full_window_is_closed_even_to_what_weighs_nothing(bench: Bench) -> None:
    assert await bench.admitted(bench.window(1, weight=0))
    assert await bench.admitted(bench.window(1))
    assert not await bench.admitted(bench.window(1, weight=0))


async def test_what_can_never_fit_is_told_to_wait_a_whole_window(bench: Bench) -> None:
    refused = await bench.take(bench.window(5, weight=6))
    assert (refused.refused, refused.retry_after_ms) == (0, SECONDS * 1000)


async def test_a_charge_can_be_given_back(bench: Bench) -> None:
    taken = await bench.take(bench.window(1))
    assert not await bench.admitted(bench.window(1))
    await bench.settle(Recount(key=bench.key, seconds=SECONDS, weight=-1, at=taken.at))
    assert [await bench.admitted(bench.window(1)) for _ in range(2)] == [True, False]


async def test_a_charge_is_given_back_where_it_was_taken(bench: Bench) -> None:
    early = await bench.take(bench.window(2))
    await bench.wait(SECONDS * 0.6)
    await bench.take(bench.window(2))
    await bench.settle(Recount(key=bench.key, seconds=SECONDS, weight=-1, at=early.at))
    await bench.wait(SECONDS * 0.5)
    # The later one still counts; had it been taken off instead, there would be room for two.
    assert [await bench.admitted(bench.window(2)) for _ in range(2)] == [True, False]


async def test_a_charge_that_was_more_counts_from_now_on(bench: Bench) -> None:
    taken = await bench.take(bench.window(10, weight=0))
    await bench.settle(Recount(key=bench.key, seconds=SECONDS, weight=8, at=taken.at))
    assert not await bench.admitted(bench.window(10, weight=3))
    await bench.wait(SECONDS * 1.1)
    assert await bench.admitted(bench.window(10, weight=10))


async def test_what_was_over_long_ago_is_not_given_back_again(bench: Bench) -> None:
    taken = await bench.take(bench.window(1))
    await bench.wait(SECONDS * 1.1)
    assert await bench.admitted(bench.window(1))
    await bench.settle(Recount(key=bench.key, seconds=SECONDS, weight=-1, at=taken.at))
    assert not await bench.admitted(bench.window(1))


async def test_slots_are_held_until_they_are_let_go(bench: Bench) -> None:
    assert [await bench.admitted(bench.slot(holder)) for holder in "abc"] == [True, True, False]
    assert (await bench.take(bench.slot("c"))).used == 2
    await bench.settle(Release(key=f"{bench.key}-slots", holder="a"))
    await bench.settle(Release(key=f"{bench.key}-slots", holder="a"))
    assert [await bench.admitted(bench.slot(holder)) for holder in "cd"] == [True, False]


async def test_a_slot_whose_holder_died_is_free_again(bench: Bench) -> None:
    assert await bench.admitted(bench.slot("dead", 1, seconds=0.2))
    assert not await bench.admitted(bench.slot("next", 1))
    await bench.wait(0.25)
    assert await bench.admitted(bench.slot("next", 1))


async def test_many_at_once_get_no_more_than_there_is(bench: Bench) -> None:
    asked = [bench.admitted(bench.window(40, seconds=60), bench.slot(str(n), 30)) for n in range(100)]
    assert sum(await asyncio.gather(*asked)) == 30
    assert [await bench.admitted(bench.window(40, seconds=60)) for _ in range(11)] == [True] * 10 + [False]


async def test_a_window_with_many_entries_still_adds_up(bench: Bench) -> None:
    for _ in range(30):
        assert await bench.admitted(bench.window(1000, weight=10, seconds=60))
        await bench.wait(0.001)
    assert await bench.admitted(bench.window(1000, weight=700, seconds=60))
    assert (await bench.take(bench.window(1000, seconds=60))).used == 1000
