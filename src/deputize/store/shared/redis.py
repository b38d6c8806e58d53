"""Counters in Redis, for gateways with replicas: everything a call asks for in one script and one round trip.

Calls that ask while an answer is on its way go together with the next, so that a busy gateway pays for few round trips.
Redis is never the authority for anything that must not be lost: emptied, it costs a little fairness. While it does not
answer, `CountersLost` is raised, after the full wait only once: then at once, but for one call that looks again.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from deputize.core.clock import Clock
from deputize.core.mistakes import Misconfigured
from deputize.store.shared.counters import Ask, Change, CountersLost, Recount, Release, Slot, Taken, Window

_MICROS: Final = 1_000_000
_CONNECTIONS: Final = 4
_MOST_AT_ONCE: Final = 200
_REST_SECONDS: Final = 0.5
_SCRIPT: Final = Path(__file__).with_name("counters.lua").read_text(encoding="utf-8")
_SCRIPT_ID: Final = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
log = structlog.get_logger(__name__)


class _Waiting(NamedTuple):
    since: float
    keys: list[str]
    words: list[str | int]
    future: "asyncio.Future[list[int]]"
    # What is given back if whoever asked has gone by the time it is granted.
    asks: Sequence[Ask] = ()


class RedisCounters:
    shared = True

    def __init__(self, url: str, *, seconds: float, clock: Clock) -> None:
        """`seconds` is how long Redis may take for one answer. Nothing is connected before the first one is wanted."""
        self._seconds = seconds
        self._clock = clock
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=seconds,
                socket_connect_timeout=seconds,
                # Asked twice, a counter counts twice.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError:
            # Without the error's own words, which may quote a password.
            raise Misconfigured(
                "limits.redis_url is no address of a Redis: write it like redis://127.0.0.1:6379/0."
            ) from None
        self._client: Redis = Redis.from_pool(pool)
        self._waiting: list[_Waiting] = []
        self._flight: asyncio.Task[None] | None = None
        self._lost: str | None = None
        self._look_again_at = 0.0

    async def take(self, asks: Sequence[Ask]) -> Taken:
        words: list[str | int] = ["take"]
        for ask in asks:
            span = int(ask.seconds * _MICROS)
            if isinstance(ask, Slot):
                words += ("slot", ask.limit, span, 0, ask.holder)
            else:
                words += ("window", ask.limit, span, ask.weight, "")
        place, at, used, wait = await self._ask([ask.key for ask in asks], words, asks)
        return Taken(refused=place - 1 if place else None, at=at, used=used, retry_after_ms=wait)

    def settle(self, changes: Sequence[Change]) -> "asyncio.Future[Any]":
        """In the queue when this returns: whoever asks afterwards finds it done."""
        words: list[str | int] = ["settle"]
        for change in changes:
            if isinstance(change, Release):
                words += ("slot", 0, 0, 0, change.holder)
            else:
                words += ("window", change.at, int(change.seconds * _MICROS), change.weight, "")
        return self._ask([change.key for change in changes], words)

    async def close(self) -> None:
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.wait({self._flight})
        await self._client.aclose()

    def _ask(self, keys: list[str], words: list[str | int], asks: Sequence[Ask] = ()) -> "asyncio.Future[list[int]]":
        now = self._clock.monotonic()
        if self._lost is not None:
            if now < self._look_again_at:
                raise CountersLost(self._lost)
            self._rest(self._lost)
        waiting = _Waiting(now, keys, words, asyncio.get_running_loop().create_future(), asks)
        self._waiting.append(waiting)
        if self._flight is None:
            self._flight = asyncio.create_task(self._fly(), name="counters")
        return waiting.future

    async def _fly(self) -> None:
        """Asks for everything that waits, and again for what came to wait meanwhile."""
        batch: list[_Waiting] = []
        try:
            while self._waiting:
                batch = self._next()
                try:
                    async with asyncio.timeout(self._seconds):
                        answers = await self._send(batch)
                except (RedisError, OSError, TimeoutError) as error:
                    self._lose(error, batch)
                else:
                    self._deliver(batch, answers)
        finally:
            self._flight = None
            # Nothing is left here unless the flight itself was ended.
            for each in (*batch, *self._waiting):
                if not each.future.done():
                    each.future.set_exception(CountersLost("the shared counters are being closed"))
            self._waiting = []

    def _next(self) -> list[_Waiting]:
        """As many as go together; whoever has waited in vain while others were asked for is told so."""
        too_late = self._clock.monotonic() - self._seconds
        batch, self._waiting = self._waiting[:_MOST_AT_ONCE], self._waiting[_MOST_AT_ONCE:]
        for each in batch:
            if each.asks and each.since < too_late and not each.future.done():
                each.future.set_exception(CountersLost("the shared counters did not answer in time"))
        # What only gives back is never too late; and nobody is charged who has gone before being asked for.
        return [each for each in batch if not (each.asks and each.future.done())]

    async def _send(self, batch: list[_Waiting]) -> list[Any]:
        answers: list[Any] = await self._run(batch)
        missed = [place for place, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missed:
            await self._client.script_load(_SCRIPT)
            again = await self._run([batch[place] for place in missed])
            for place, answer in zip(missed, again, strict=True):
                answers[place] = answer
        return answers

    async def _run(self, batch: list[_Waiting]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for each in batch:
            pipeline.evalsha(_SCRIPT_ID, len(each.keys), *each.keys, *each.words)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    def _deliver(self, batch: list[_Waiting], answers: list[Any]) -> None:
        failed = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if failed is not None:
            self._lose(failed, [each for each, answer in zip(batch, answers, strict=True) if answer is failed])
        elif self._lost is not None:
            log.info("counters_back")
            self._lost = None
        for each, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                self._fail(each)
            elif not each.future.done():
                each.future.set_result(answer)
            elif each.asks and not answer[0]:
                self._give_back(each.asks, answer[1])

    def _give_back(self, asks: Sequence[Ask], at: int) -> None:
        changes = [
            Recount(key=ask.key, seconds=ask.seconds, weight=-ask.weight, at=at)
            if isinstance(ask, Window)
            else Release(key=ask.key, holder=ask.holder)
            for ask in asks
        ]
        with contextlib.suppress(CountersLost):
            self.settle(changes).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _lose(self, error: Exception, batch: list[_Waiting]) -> None:
        late = isinstance(error, TimeoutError)
        if self._lost is None:
            log.warning("counters_lost", reason=type(error).__name__)
        self._rest("the shared counters did not answer in time" if late else "the shared counters do not answer")
        behind, self._waiting = self._waiting, []
        for each in (*batch, *behind):
            self._fail(each)

    def _fail(self, each: _Waiting) -> None:
        if not each.future.done():
            each.future.set_exception(CountersLost(self._lost or "the shared counters do not answer"))

    def _rest(self, why: str) -> None:
        """Nobody else waits for what one call has just waited for in vain."""
        self._lost = why
        self._look_again_at = self._clock.monotonic() + _REST_SECONDS
