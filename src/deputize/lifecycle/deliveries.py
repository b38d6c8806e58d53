"""Tells receivers of the ends of runs: each until it was heard, or until it was tried often enough.

Every worker runs one; they share the work by skipping what another holds. A delivery is put off before it is tried, so
one whose process dies is tried again: at least once, with the same `webhook-id` to know it by.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Any, Final, Protocol

import asyncpg
import orjson
import structlog

from deputize.core.call import Callback
from deputize.core.errors import Problem
from deputize.core.events import EVENT_OF_STATE, State
from deputize.lifecycle.record import redaction_of
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.webhooks import is_named, read, signed
from deputize.prove.redact import MARK
from deputize.store.pool import LOST
from deputize.store.queries import load

_SQL = load("webhooks")
_AT_ONCE: Final = 40
# Of one tenant: receivers that are slow take up these places, and no others.
_OF_ONE: Final = 5
_SLOWEST_SECONDS: Final = 6 * 3600.0
_FORGET_EVERY: Final = 3600.0
_MOST_BYTES: Final = 900_000
_GONE: Final = 410
MEDIA: Final = "application/cloudevents+json"
log = structlog.get_logger(__name__)


class Send(Protocol):
    """`Egress.send`: the status a receiver answered with."""

    def __call__(self, url: str, body: bytes, *, headers: dict[str, str], seconds: float) -> Awaitable[int]: ...


class Deliveries:
    def __init__(self, rooms: Rooms, send: Send) -> None:
        self._rooms = rooms
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self._forget_due = 0.0
        self._under_way: dict[asyncio.Task[None], str] = {}
        self._served_last = ""

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_telling(), name="deliveries")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def _keep_telling(self) -> None:
        while True:
            began = 0
            try:
                began = await self._begin_due()
                await self._forget()
            except LOST as error:
                log.warning("deliveries_failed", reason=repr(error))
            if not began or len(self._under_way) >= _AT_ONCE:
                await self._pause()

    async def _pause(self) -> None:
        """Until a place is free, or it is time to look again."""
        seconds = self._rooms.settings.timing.sweep_seconds
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        else:
            await asyncio.sleep(seconds)

    async def _begin_due(self) -> int:
        """Takes what is due into the places that are free, tenant by tenant; how many that was."""
        seconds, room = self._rooms.settings.webhooks.seconds, _AT_ONCE - len(self._under_way)
        if not room:
            return 0
        counted = Counter(self._under_way.values())
        enough = [tenant for tenant, count in counted.items() if count >= _OF_ONE]
        async with self._rooms.store.writing() as connection:
            due = await connection.fetch(_SQL["take_due"], room, seconds + 30, _OF_ONE, self._served_last, enough)
        # Whoever was reached last goes last the next time; once nobody is left behind, it begins from the beginning.
        begun_behind, self._served_last = self._served_last, ""
        if len(due) == room:
            self._served_last = max(row["tenant"] for row in due)
        for row in due:
            task = asyncio.create_task(self._deliver(row), name=f"delivery-{row['id']}")
            self._under_way[task] = row["tenant"]
            task.add_done_callback(self._under_way.pop)
        return len(due) or bool(begun_behind)

    async def _deliver(self, row: asyncpg.Record) -> None:
        try:
            await self._try(row)
        except LOST as error:
            # Still put off as it was taken; whoever is there by then tries it.
            log.warning("delivery_lost", delivery_id=str(row["id"]), reason=type(error).__name__)

    async def _try(self, row: asyncpg.Record) -> None:
        try:
            problem, final = await self._told(row)
        except LOST:
            raise
        except Exception as fault:
            # It counts as an attempt: one that cannot be made must neither end the others nor be tried for ever.
            log.exception("delivery_failed", delivery_id=str(row["id"]), reason=type(fault).__name__)
            problem, final = f"the gateway could not tell it ({type(fault).__name__})", False
        settings, tenant, delivery_id = self._rooms.settings.webhooks, row["tenant"], row["id"]
        async with self._rooms.store.writing() as connection:
            if problem is None:
                await connection.execute(_SQL["delivered"], tenant, delivery_id)
            elif final or row["attempts"] >= settings.attempts:
                await connection.execute(_SQL["give_up"], tenant, delivery_id, problem)
                log.warning("delivery_given_up", delivery_id=str(delivery_id), call_id=str(row["call_id"]))
            else:
                pause = backoff(settings.retry_seconds, row["attempts"])
                await connection.execute(_SQL["try_later"], tenant, delivery_id, pause, problem)

    async def _told(self, row: asyncpg.Record) -> tuple[str | None, bool]:
        """What kept the receiver from hearing it, and whether trying again would be in vain."""
        rooms, tenant, call_id = self._rooms, row["tenant"], str(row["call_id"])
        try:
            keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
            async with rooms.store.writing() as connection:
                call = await connection.fetchrow(_SQL["what_to_tell"], tenant, call_id)
            if call is None:
                return "the call is not kept any more", True
            callback = read(keys.open(call_id, "callback", call["asked"]))
            body = await self._body(row, call, callback)
            headers = signed(keys, callback.secret, str(row["id"]), rooms.clock.epoch_ms() // 1000, body)
            status = await self._send(
                callback.url, body, headers={**headers, "content-type": MEDIA}, seconds=rooms.settings.webhooks.seconds
            )
        except Problem as problem:
            return problem.message[:400], False
        if 200 <= status < 300:
            return None, True
        return f"the receiver answered {status}", status == _GONE

    async def _body(self, row: asyncpg.Record, call: asyncpg.Record, callback: Callback) -> bytes:
        """A CloudEvent with the facts anybody may know, and where to ask for the rest."""
        call_id, base = str(row["call_id"]), self._rooms.settings.identity.public_url or ""
        data: dict[str, Any] = {
            "call_id": call_id,
            "state": row["state"],
            "tool": {"name": call["tool"], "version": call["version"]},
            "session": call["session"],
            "error_slug": call["error"],
            "created_at": call["created_at"].isoformat(),
            "ended_at": row["created_at"].isoformat(),
            "trace_id": call["trace"],
            "links": {"self": f"{base}/v1/calls/{call_id}"},
        }
        event = {
            "specversion": "1.0",
            "id": str(row["id"]),
            "source": f"{base}/v1/calls/{call_id}",
            "type": EVENT_OF_STATE[State(row["state"])],
            "subject": call_id,
            "time": row["created_at"].isoformat(),
            "datacontenttype": "application/json",
            "data": data,
        }
        if callback.include_result and is_named(self._rooms.settings.webhooks, callback) and call["box"] is not None:
            with_result = orjson.dumps({**event, "data": {**data, "outcome": await self._outcome(row, call)}})
            if len(with_result) <= _MOST_BYTES:
                return with_result
            data["outcome_omitted"] = "it is too large to be sent"
        return orjson.dumps(event)

    async def _outcome(self, row: asyncpg.Record, call: asyncpg.Record) -> dict[str, Any]:
        """The envelope as whoever asked gets it, but for what the contract marks as sensitive."""
        rooms, tenant, call_id = self._rooms, row["tenant"], str(row["call_id"])
        keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
        envelope: dict[str, Any] = orjson.loads(keys.open(call_id, "outcome", call["box"]))
        if "result" not in envelope:
            return envelope
        # Whatever became of that version since: what it returned is marked as it said then.
        found = (await rooms.authority.of(tenant)).tools.entry(call["tool"]).by_version.get(call["version"])
        if found is None or found.digest != call["tool_digest"]:
            return {**envelope, "result": MARK}
        shown, _ = redaction_of(found.tool, "output").apply(envelope["result"])
        return {**envelope, "result": shown}

    async def _forget(self) -> None:
        if self._rooms.clock.monotonic() >= self._forget_due:
            self._forget_due = self._rooms.clock.monotonic() + _FORGET_EVERY
            async with self._rooms.store.writing() as connection:
                for old in ("forget_delivered", "forget_callbacks"):
                    await connection.execute(_SQL[old], self._rooms.settings.database.retention_days)


def backoff(first: float, attempts: int) -> float:
    """Seconds before the next attempt: four times the last, give or take a fifth, so that many do not come at once."""
    return float(min(first * 4 ** (attempts - 1), _SLOWEST_SECONDS) * random.uniform(0.8, 1.2))
