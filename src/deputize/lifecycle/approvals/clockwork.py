"""What time does to calls that wait for people: more of them are asked, they are reminded, and in the end it is a no.

Every gateway runs one; they share the work by skipping what another holds. PostgreSQL's clock alone says what is due: a
gateway whose clock is off can neither end a ticket early nor keep it open. Nothing is ever approved here. What people
have to be told is written down in the same commit as what it tells; `telling.py` sends it.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final

import asyncpg
import orjson
import structlog

from deputize.core.caller import Caller, Epochs
from deputize.core.decision import Decision
from deputize.core.errors import ApprovalExpired, Problem
from deputize.core.events import State
from deputize.core.outcome import failure_body
from deputize.govern.approvals.demands import asked_from
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.keys import KeySet
from deputize.store.pool import LOST
from deputize.store.queries import load

_SQL = load("approval_time")
AT_ONCE: Final = 500
MOST_REMINDERS: Final = 10
# By then another ends what a process that died had taken on; until then nobody can approve it either.
PUT_OFF_SECONDS: Final = 15.0
# Sealing and writing entries keeps the loop to itself; after so many, whoever else wants it has it.
_IN_ONE_BREATH: Final = 25
# Counting reads everything that waits: seldom, and the more there is the more seldom.
_COUNT_EVERY: Final = 15.0
_COUNT_SHARE: Final = 0.01
_MOST_SERIES: Final = 1000
_NOBODY_DECIDED = Decision(rules=("nobody-decided",), epochs=Epochs())
_REASON: Final = "nobody decided in time"
log = structlog.get_logger(__name__)


class Clockwork:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._task: asyncio.Task[None] | None = None
        self._count_due = 0.0

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_going(), name="approval clockwork")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_going(self) -> None:
        clock, usual = self._rooms.clock, self._rooms.settings.timing.sweep_seconds
        pause = usual
        while True:
            await asyncio.sleep(pause)
            pause, began = usual, clock.monotonic()
            try:
                if await self.sweep() == AT_ONCE:
                    # There is more; as much time as this took is left to whoever else needs the database.
                    pause = min(usual, clock.monotonic() - began)
                elif began >= self._count_due:
                    await self.count()
            except LOST as error:
                log.warning("approvals_not_swept", reason=repr(error))

    async def sweep(self) -> int:
        """One batch of tickets that something is due of; how many there were."""
        due = await self.take()
        await self.end([row for row in due if row["over"]])
        return len(due)

    async def take(self) -> list[asyncpg.Record]:
        """What is due is done, except for ending what is over: that is put off, and left to `sweep`."""
        async with self._rooms.store.writing() as connection:
            due = await connection.fetch(_SQL["take_due"], AT_ONCE)
            if not due:
                return due
            levels = [max(row["level"], row["rises_to"]) for row in due]
            asked = [each for row, level in zip(due, levels, strict=True) for each in _newly_asked(row, level)]
            await connection.execute(
                _SQL["move"], [row["tenant"] for row in due], [row["id"] for row in due], levels,
                [row["tenant"] for row, _ in asked], [row["id"] for row, _ in asked], [group for _, group in asked],
                float(self._rooms.settings.approvals.remind_seconds), MOST_REMINDERS, PUT_OFF_SECONDS,
            )  # fmt: skip
        return due

    async def end(self, over: Sequence[asyncpg.Record]) -> None:
        """Each with its envelope and its entry, all in one commit; what somebody decided meanwhile is left alone."""
        tenants = sorted({row["tenant"] for row in over})
        loaded = await asyncio.gather(*map(self._keys, tenants))
        keys = {tenant: found for tenant, found in zip(tenants, loaded, strict=True) if found is not None}
        ends = []
        for number, row in enumerate(row for row in over if row["tenant"] in keys and row["trace"] is not None):
            ends.append(self._ended(row, keys[row["tenant"]]))
            if number % _IN_ONE_BREATH == _IN_ONE_BREATH - 1:
                await asyncio.sleep(0)
        if not ends:
            return
        async with self._rooms.store.writing() as connection:
            ended = await connection.fetch(
                _SQL["end_asked"], sorted(keys), _REASON, *map(list, zip(*ends, strict=True))
            )
        known = {row["call_id"]: row for row in over}
        for each in ended:
            row = known[each["end_asked"]]
            self._rooms.metrics.approval_time.labels(row["tool"], "expired").observe(row["age"])
        log.info("approvals_expired", count=len(ended))

    async def count(self) -> None:
        """How many tickets wait, for whoever watches the gateways."""
        clock, pending = self._rooms.clock, self._rooms.metrics.approvals_pending
        began = clock.monotonic()
        async with self._rooms.store.writing() as connection:
            rows = await connection.fetch(_SQL["pending"], _MOST_SERIES)
        pending.clear()
        for row in rows:
            pending.labels(row["tool"], row["grp"]).set(row["calls"])
        now = clock.monotonic()
        self._count_due = now + max(_COUNT_EVERY, (now - began) / _COUNT_SHARE)

    async def _keys(self, tenant: str) -> KeySet | None:
        """A tenant whose keys cannot be had keeps nobody else waiting; its tickets come up again."""
        rooms = self._rooms
        try:
            return rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
        except Problem as problem:
            log.warning("approvals_not_ended", tenant=tenant, reason=problem.face.slug)
            return None

    def _ended(self, row: asyncpg.Record, keys: KeySet) -> tuple[object, ...]:
        """In the order of `end_asked`. Written by nobody's authority: the caller chain stands in the intent."""
        rooms, tenant, call_id = self._rooms, row["tenant"], str(row["call_id"])
        problem = ApprovalExpired(
            "nobody decided about this call in time, so it was not made",
            details={"ticket_id": str(row["id"]), "expired_at": row["expires_at"].isoformat()},
            nothing_happened=True,
        )
        outcome = failure_body(problem, call_id=call_id, state=State.DENIED, trace_id=row["trace"], more={})
        entry_id = rooms.clock.new_id()
        body = entry(
            About(
                caller=Caller(tenant=tenant, user=""), trace=row["trace"], call=call_id, session=row["session"],
                tool=row["tool"],
            ),
            id=entry_id,
            kind="outcome",
            time=rooms.stamps.now(),
            decision=_NOBODY_DECIDED,
            outcome=State.DENIED,
            error=problem.face.e_number,
            subject=str(row["id"]),
        )  # fmt: skip
        box = keys.seal(call_id, "outcome", outcome)
        return tenant, row["call_id"], row["owner_epoch"], State.DENIED, problem.face.slug, box, entry_id, body


def _newly_asked(row: asyncpg.Record, level: int) -> Iterator[tuple[asyncpg.Record, str]]:
    """The groups that are asked from this level on, and were not before. Nobody is asked about what is over."""
    if row["over"] or level == row["level"]:
        return
    try:
        asked = asked_from(orjson.loads(row["demands"]), levels=row["levels"])
        groups = asked.groups_at(level) - asked.groups_at(row["level"])
    except (ValueError, TypeError, KeyError) as broken:
        # One ticket that cannot be read stops no other; it stays with those who were asked, and ends in time.
        log.warning("approval_not_escalated", ticket=str(row["id"]), reason=type(broken).__name__)
        return
    for group in sorted(groups):
        yield row, group
