"""One contract for the counters, held against a process that counts alone and against a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

import pytest

from deputize.core.clock import Clock
from deputize.store.counters.in_process import InProcessCounters
from deputize.store.counters.port import (
    CounterRequest,
    Counters,
    CounterUpdate,
    Slot,
    SlotRelease,
    TakeResult,
    WeightCorrection,
    Window,
)
from deputize.store.counters.redis import RedisCounters
from tests.support.redis_server import RedisServer, run_redis_server

pytestmark = pytest.mark.requirement("GOV-8")

# Redis counts real time: a test may be late by almost half of it.
SECONDS = 6.0
_numbers = count()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with run_redis_server() as server:
        yield server


@dataclass
class CountersUnderTest:
    """Counters, a key of their own, and a way to let time pass."""

    counters: Counters
    wait: Callable[[float], Awaitable[None]]
    key: str = field(default_factory=lambda: f"key-{next(_numbers)}")

    async def take_permits(self, *asks: CounterRequest) -> TakeResult:
        answer = self.counters.take(asks)
        return answer if isinstance(answer, TakeResult) else await answer

    async def settle_permits(self, *changes: CounterUpdate) -> None:
        answer = self.counters.apply_updates(changes)
        if answer is not None:
            await answer

    def make_window(self, limit: int = 3, *, weight: int = 1, name: str = "", seconds: float = SECONDS) -> Window:
        return Window(key=self.key + name, limit=limit, seconds=seconds, weight=weight)

    def make_slot(self, holder: str, limit: int = 2, *, seconds: float = 60.0) -> Slot:
        return Slot(key=f"{self.key}-slots", limit=limit, seconds=seconds, holder=holder)

    async def is_admitted(self, *asks: CounterRequest) -> bool:
        return (await self.take_permits(*asks)).refused_index is None


@pytest.fixture(params=["in process", "redis"])
async def counters_under_test(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[CountersUnderTest]:
    if request.param == "redis":
        shared = RedisCounters(redis.url, seconds=10, clock=Clock())
        yield CountersUnderTest(shared, asyncio.sleep)
        await shared.close()
        return
    now = 1000.0

    async def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    yield CountersUnderTest(InProcessCounters(Clock(monotonic=lambda: now)), advance)


async def test_a_window_lets_its_limit_through_and_says_when_to_come_again(
    counters_under_test: CountersUnderTest,
) -> None:
    assert [await counters_under_test.is_admitted(counters_under_test.make_window()) for _ in range(4)] == [
        True,
        True,
        True,
        False,
    ]
    refused = await counters_under_test.take_permits(counters_under_test.make_window())
    assert (refused.refused_index, refused.usage) == (0, 3)
    assert 0 < refused.retry_after_ms <= SECONDS * 1000 * 1.002 + 1
    await counters_under_test.wait(refused.retry_after_ms / 1000)
    assert await counters_under_test.is_admitted(counters_under_test.make_window())


async def test_a_window_slides_and_does_not_begin_anew(counters_under_test: CountersUnderTest) -> None:
    assert await counters_under_test.is_admitted(counters_under_test.make_window(2))
    await counters_under_test.wait(SECONDS * 0.6)
    assert await counters_under_test.is_admitted(counters_under_test.make_window(2))
    await counters_under_test.wait(SECONDS * 0.5)
    # The first is over, the second is not.
    assert [await counters_under_test.is_admitted(counters_under_test.make_window(2)) for _ in range(2)] == [
        True,
        False,
    ]


async def test_what_is_refused_takes_nothing_of_anything(counters_under_test: CountersUnderTest) -> None:
    wide, narrow = counters_under_test.make_window(3, name="wide"), counters_under_test.make_window(1, name="narrow")
    assert await counters_under_test.is_admitted(wide, narrow, counters_under_test.make_slot("a"))
    for _ in range(5):
        refused = await counters_under_test.take_permits(wide, counters_under_test.make_slot("b"), narrow)
        assert refused.refused_index == 2
    assert [await counters_under_test.is_admitted(wide) for _ in range(3)] == [True, True, False]
    assert [await counters_under_test.is_admitted(counters_under_test.make_slot(holder)) for holder in "bc"] == [
        True,
        False,
    ]


async def test_weights_add_up(counters_under_test: CountersUnderTest) -> None:
    assert await counters_under_test.is_admitted(counters_under_test.make_window(10, weight=7))
    assert not await counters_under_test.is_admitted(counters_under_test.make_window(10, weight=4))
    assert await counters_under_test.is_admitted(counters_under_test.make_window(10, weight=3))
    assert (await counters_under_test.take_permits(counters_under_test.make_window(10))).usage == 10


async def test_a_full_window_is_closed_even_to_what_weighs_nothing(counters_under_test: CountersUnderTest) -> None:
    assert await counters_under_test.is_admitted(counters_under_test.make_window(1, weight=0))
    assert await counters_under_test.is_admitted(counters_under_test.make_window(1))
    assert not await counters_under_test.is_admitted(counters_under_test.make_window(1, weight=0))


async def test_a_request_that_never_fits_waits_a_whole_window(counters_under_test: CountersUnderTest) -> None:
    refused = await counters_under_test.take_permits(counters_under_test.make_window(5, weight=6))
    assert (refused.refused_index, refused.retry_after_ms) == (0, SECONDS * 1000)


async def test_a_charge_can_be_given_back(counters_under_test: CountersUnderTest) -> None:
    taken = await counters_under_test.take_permits(counters_under_test.make_window(1))
    assert not await counters_under_test.is_admitted(counters_under_test.make_window(1))
    await counters_under_test.settle_permits(
        WeightCorrection(key=counters_under_test.key, seconds=SECONDS, weight=-1, at=taken.at)
    )
    assert [await counters_under_test.is_admitted(counters_under_test.make_window(1)) for _ in range(2)] == [
        True,
        False,
    ]


async def test_a_charge_is_given_back_where_it_was_taken(counters_under_test: CountersUnderTest) -> None:
    early = await counters_under_test.take_permits(counters_under_test.make_window(2))
    await counters_under_test.wait(SECONDS * 0.6)
    await counters_under_test.take_permits(counters_under_test.make_window(2))
    await counters_under_test.settle_permits(
        WeightCorrection(key=counters_under_test.key, seconds=SECONDS, weight=-1, at=early.at)
    )
    await counters_under_test.wait(SECONDS * 0.5)
    # The later one still counts; had it been taken off instead, there would be room for two.
    assert [await counters_under_test.is_admitted(counters_under_test.make_window(2)) for _ in range(2)] == [
        True,
        False,
    ]


async def test_a_charge_that_was_more_counts_from_now_on(counters_under_test: CountersUnderTest) -> None:
    taken = await counters_under_test.take_permits(counters_under_test.make_window(10, weight=0))
    await counters_under_test.settle_permits(
        WeightCorrection(key=counters_under_test.key, seconds=SECONDS, weight=8, at=taken.at)
    )
    assert not await counters_under_test.is_admitted(counters_under_test.make_window(10, weight=3))
    await counters_under_test.wait(SECONDS * 1.1)
    assert await counters_under_test.is_admitted(counters_under_test.make_window(10, weight=10))


async def test_what_was_over_long_ago_is_not_given_back_again(counters_under_test: CountersUnderTest) -> None:
    taken = await counters_under_test.take_permits(counters_under_test.make_window(1))
    await counters_under_test.wait(SECONDS * 1.1)
    assert await counters_under_test.is_admitted(counters_under_test.make_window(1))
    await counters_under_test.settle_permits(
        WeightCorrection(key=counters_under_test.key, seconds=SECONDS, weight=-1, at=taken.at)
    )
    assert not await counters_under_test.is_admitted(counters_under_test.make_window(1))


async def test_slots_are_held_until_they_are_let_go(counters_under_test: CountersUnderTest) -> None:
    assert [await counters_under_test.is_admitted(counters_under_test.make_slot(holder)) for holder in "abc"] == [
        True,
        True,
        False,
    ]
    assert (await counters_under_test.take_permits(counters_under_test.make_slot("c"))).usage == 2
    await counters_under_test.settle_permits(SlotRelease(key=f"{counters_under_test.key}-slots", holder="a"))
    await counters_under_test.settle_permits(SlotRelease(key=f"{counters_under_test.key}-slots", holder="a"))
    assert [await counters_under_test.is_admitted(counters_under_test.make_slot(holder)) for holder in "cd"] == [
        True,
        False,
    ]


async def test_a_slot_whose_holder_died_is_free_again(counters_under_test: CountersUnderTest) -> None:
    assert await counters_under_test.is_admitted(counters_under_test.make_slot("dead", 1, seconds=SECONDS))
    assert not await counters_under_test.is_admitted(counters_under_test.make_slot("next", 1))
    await counters_under_test.wait(SECONDS + 0.1)
    assert await counters_under_test.is_admitted(counters_under_test.make_slot("next", 1))


async def test_many_at_once_get_no_more_than_there_is(counters_under_test: CountersUnderTest) -> None:
    asked = [
        counters_under_test.is_admitted(
            counters_under_test.make_window(40, seconds=60), counters_under_test.make_slot(str(n), 30)
        )
        for n in range(100)
    ]
    assert sum(await asyncio.gather(*asked)) == 30
    assert [
        await counters_under_test.is_admitted(counters_under_test.make_window(40, seconds=60)) for _ in range(11)
    ] == [True] * 10 + [False]


async def test_a_window_with_many_entries_still_adds_up(counters_under_test: CountersUnderTest) -> None:
    for _ in range(30):
        assert await counters_under_test.is_admitted(counters_under_test.make_window(1000, weight=10, seconds=60))
        await counters_under_test.wait(0.001)
    assert await counters_under_test.is_admitted(counters_under_test.make_window(1000, weight=700, seconds=60))
    assert (await counters_under_test.take_permits(counters_under_test.make_window(1000, seconds=60))).usage == 1000
