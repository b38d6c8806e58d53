"""Count in Redis, for gateways with replicas: all requests of a call in one script and one round trip.

Requests that arrive during a round trip share the next one, so a busy gateway needs few. Redis holds nothing that must
not be lost: an empty Redis costs a little fairness. While it does not answer, `CountersUnavailable` is raised: for the
first call after the timeout, then at once, except for one call per backoff that tries again.
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
from deputize.core.config_error import ConfigError
from deputize.store.counters.port import (
    CounterRequest,
    CountersUnavailable,
    CounterUpdate,
    Slot,
    SlotRelease,
    TakeResult,
    WeightCorrection,
    Window,
)

_MICROS: Final = 1_000_000
_CONNECTIONS: Final = 4
_MAX_BATCH_SIZE: Final = 200
_BACKOFF_SECONDS: Final = 0.5
_SCRIPT: Final = Path(__file__).with_name("counters.lua").read_text(encoding="utf-8")
_SCRIPT_ID: Final = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
log = structlog.get_logger(__name__)


class _PendingScript(NamedTuple):
    """A script that waits for its round trip."""

    since: float
    keys: list[str]
    arguments: list[str | int]
    future: "asyncio.Future[list[int]]"
    # Refunded if the caller has gone by the time they are taken.
    requests: Sequence[CounterRequest] = ()


class RedisCounters:
    """Counters that all gateways share."""

    is_shared = True

    def __init__(self, url: str, *, seconds: float, clock: Clock) -> None:
        """Create counters that connect at their first use. `seconds` is the timeout of one answer."""
        self._seconds = seconds
        self._clock = clock
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=seconds,
                socket_connect_timeout=seconds,
                # No retries: a repeated script would count twice.
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
        except ValueError:
            # Without the message of the error, which may quote a password.
            raise ConfigError(
                "limits.redis_url is not the URL of a Redis: write it like redis://127.0.0.1:6379/0."
            ) from None
        self._client: Redis = Redis.from_pool(pool)
        self._queue: list[_PendingScript] = []
        self._flush_task: asyncio.Task[None] | None = None
        self._outage_reason: str | None = None
        self._retry_at = 0.0

    async def take(self, requests: Sequence[CounterRequest]) -> TakeResult:
        """Take all requests, or none."""
        arguments: list[str | int] = ["take"]
        for request in requests:
            span = int(request.seconds * _MICROS)
            if isinstance(request, Slot):
                arguments += ("slot", request.limit, span, 0, request.holder)
            else:
                arguments += ("window", request.limit, span, request.weight, "")
        position, at, usage, wait = await self._enqueue([ask.key for ask in requests], arguments, requests)
        return TakeResult(refused_index=position - 1 if position else None, at=at, usage=usage, retry_after_ms=wait)

    def apply_updates(self, updates: Sequence[CounterUpdate]) -> "asyncio.Future[Any]":
        """Correct weights and release slots. The update is queued when this returns, before all later requests."""
        arguments: list[str | int] = ["settle"]
        for update in updates:
            if isinstance(update, SlotRelease):
                arguments += ("slot", 0, 0, 0, update.holder)
            else:
                arguments += ("window", update.at, int(update.seconds * _MICROS), update.weight, "")
        return self._enqueue([change.key for change in updates], arguments)

    async def close(self) -> None:
        """Stop and disconnect."""
        if self._flush_task is not None:
            self._flush_task.cancel()
            await asyncio.wait({self._flush_task})
        await self._client.aclose()

    def _enqueue(
        self, keys: list[str], arguments: list[str | int], requests: Sequence[CounterRequest] = ()
    ) -> "asyncio.Future[list[int]]":
        now = self._clock.monotonic()
        if self._outage_reason is not None:
            if now < self._retry_at:
                raise CountersUnavailable(self._outage_reason)
            self._back_off(self._outage_reason)
        pending_script = _PendingScript(now, keys, arguments, asyncio.get_running_loop().create_future(), requests)
        self._queue.append(pending_script)
        if self._flush_task is None:
            self._flush_task = asyncio.create_task(self._flush_queue(), name="counters")
        return pending_script.future

    async def _flush_queue(self) -> None:
        """Send queued scripts in batches until the queue is empty."""
        batch: list[_PendingScript] = []
        try:
            while self._queue:
                batch = self._take_batch()
                try:
                    async with asyncio.timeout(self._seconds):
                        answers = await self._send_batch(batch)
                except (RedisError, OSError, TimeoutError) as error:
                    self._handle_outage(error, batch)
                else:
                    self._deliver_answers(batch, answers)
        finally:
            self._flush_task = None
            # Something is left only if this task was canceled.
            for each in (*batch, *self._queue):
                if not each.future.done():
                    each.future.set_exception(CountersUnavailable("the shared counters are being closed"))
            self._queue = []

    def _take_batch(self) -> list[_PendingScript]:
        """Take the next batch, and fail requests that waited longer than the timeout."""
        too_late = self._clock.monotonic() - self._seconds
        batch, self._queue = self._queue[:_MAX_BATCH_SIZE], self._queue[_MAX_BATCH_SIZE:]
        for each in batch:
            if each.requests and each.since < too_late and not each.future.done():
                each.future.set_exception(CountersUnavailable("the shared counters did not answer in time"))
        # Updates are never too late; requests whose caller has gone are not sent.
        return [each for each in batch if not (each.requests and each.future.done())]

    async def _send_batch(self, batch: list[_PendingScript]) -> list[Any]:
        answers: list[Any] = await self._run_scripts(batch)
        retry_indexes = [index for index, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if retry_indexes:
            await self._client.script_load(_SCRIPT)
            retry_answers = await self._run_scripts([batch[place] for place in retry_indexes])
            for place, answer in zip(retry_indexes, retry_answers, strict=True):
                answers[place] = answer
        return answers

    async def _run_scripts(self, batch: list[_PendingScript]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for each in batch:
            pipeline.evalsha(_SCRIPT_ID, len(each.keys), *each.keys, *each.arguments)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        return answers

    def _deliver_answers(self, batch: list[_PendingScript], answers: list[Any]) -> None:
        failure = next((answer for answer in answers if isinstance(answer, Exception)), None)
        if failure is not None:
            self._handle_outage(
                failure, [each for each, answer in zip(batch, answers, strict=True) if answer is failure]
            )
        elif self._outage_reason is not None:
            log.info("counters_back")
            self._outage_reason = None
        for each, answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                self._fail_script(each)
            elif not each.future.done():
                each.future.set_result(answer)
            elif each.requests and not answer[0]:
                self._refund_requests(each.requests, answer[1])

    def _refund_requests(self, requests: Sequence[CounterRequest], at: int) -> None:
        updates = [
            WeightCorrection(key=request.key, seconds=request.seconds, weight=-request.weight, at=at)
            if isinstance(request, Window)
            else SlotRelease(key=request.key, holder=request.holder)
            for request in requests
        ]
        with contextlib.suppress(CountersUnavailable):
            self.apply_updates(updates).add_done_callback(lambda future: future.cancelled() or future.exception())

    def _handle_outage(self, error: Exception, batch: list[_PendingScript]) -> None:
        is_timeout = isinstance(error, TimeoutError)
        if self._outage_reason is None:
            log.warning("counters_lost", reason=type(error).__name__)
        self._back_off(
            "the shared counters did not answer in time" if is_timeout else "the shared counters do not answer"
        )
        queue, self._queue = self._queue, []
        for each in (*batch, *queue):
            self._fail_script(each)

    def _fail_script(self, each: _PendingScript) -> None:
        if not each.future.done():
            each.future.set_exception(CountersUnavailable(self._outage_reason or "the shared counters do not answer"))

    def _back_off(self, reason: str) -> None:
        """Fail the next requests at once, until the backoff is over."""
        self._outage_reason = reason
        self._retry_at = self._clock.monotonic() + _BACKOFF_SECONDS
