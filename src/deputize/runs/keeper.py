"""Behind `context.save`: keeps the checkpoints of one call while one process carries it.

Micro checkpoints are stored at most once per interval; what is saved in between waits in memory and is stored when the
interval is over, so that no more than one interval of saved work is ever lost. Macro and named ones are stored at once.
Only whoever holds the call may save: the database compares its epoch, and a zombie is told to stop.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from deputize.core.clock import Clock
from deputize.core.errors import TakenOver, Unavailable
from deputize.runs.checkpoints import Chain, Checkpoint, Kind, newest
from deputize.store.keys import KeySet
from deputize.store.pool import LOST, Connection, Store
from deputize.store.queries import load

MOST_BYTES = 8 * 1024 * 1024
MOST_NAMES = 100
LONGEST_NAME = 100
# Larger states are compared and packed in a thread: the loop has other calls to carry.
_LARGE = 32 * 1024
_SQL = load("checkpoints")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Whose checkpoints these are, and by which epoch they may be written."""

    call_id: str
    epoch: int
    interval: float


class Keeper:
    def __init__(self, store: Store, keys: KeySet, clock: Clock, place: Place) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._place = place
        self._chain = Chain(keys, place.call_id, epoch=place.epoch)
        self._names: set[str] = set()
        self._known: bytes | None = None
        self._waiting: bytes | None = None
        self._due = float("-inf")
        self._timer: asyncio.Task[None] | None = None
        self._storing = asyncio.Lock()
        self._lost: TakenOver | None = None
        self._closed = False

    async def load(self) -> None:
        """For a call that had an owner before: the newest checkpoint that verifies is what is gone on from."""
        try:
            async with self._store.writing() as connection:
                rows = await connection.fetch(_SQL["list_checkpoints"], self._keys.tenant, self._place.call_id)
                found = await newest(
                    self._keys, self._place.call_id, [row["seq"] for row in rows], self._reading(connection)
                )
        except LOST as error:
            raise Unavailable("the checkpoints of this call cannot be read now", retry_after_ms=1000) from error
        self._names = {row["name"] for row in rows if row["name"] is not None}
        last = rows[0]["seq"] if rows else -1
        self._chain = Chain(self._keys, self._place.call_id, epoch=self._place.epoch, last=last)
        self._known = None if found is None else found[1]

    def _reading(self, connection: Connection) -> "Reading":
        return Reading(connection, self._keys.tenant, self._place.call_id)

    def restored(self) -> Any:
        """The newest state, made anew: what the tool does to it changes nothing here."""
        return None if self._known is None else orjson.loads(self._known)

    async def save(self, state: Any, name: str | None = None, macro: bool = False) -> None:
        if self._lost is not None:
            raise self._lost
        data = plain(state)
        if name is not None:
            self._require_name(name)
        self._known = data
        if name is None and not macro:
            self._waiting = data
            await self._store_waiting()
            return
        self._waiting = None
        async with self._storing:
            try:
                await self._store_one(data, "macro" if name is None else "named", name)
            except LOST as error:
                raise Unavailable("the checkpoint could not be stored", retry_after_ms=1000) from error

    def close(self) -> None:
        """The tool has ended: what waits is not stored behind its back."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _require_name(self, name: str) -> None:
        if not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            raise ValueError(f"a checkpoint's name has 1 to {LONGEST_NAME} printable characters")
        if len(self._names | {name}) > MOST_NAMES:
            raise ValueError(f"a call has at most {MOST_NAMES} named checkpoints")
        self._names.add(name)

    async def _store_late(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timer = None
        with contextlib.suppress(TakenOver):
            # Told to the tool when it saves next.
            await self._store_waiting()

    async def _store_waiting(self) -> None:
        """The newest that waits, once its time has come. What cannot be stored now waits on: no tool fails for that."""
        async with self._storing:
            data, wait = self._waiting, self._due - self._clock.monotonic()
            if data is not None and wait <= 0:
                wait = self._place.interval
                try:
                    await self._store_one(data, "micro", None)
                except LOST as error:
                    log.warning("checkpoint_not_stored", call_id=self._place.call_id, reason=repr(error))
                    self._due = self._clock.monotonic() + wait
                else:
                    self._forget(data)
            if self._waiting is not None and self._timer is None and not self._closed:
                storing = self._store_late(wait)
                self._timer = asyncio.create_task(storing, name=f"checkpoint-{self._place.call_id}")

    def _forget(self, stored: bytes) -> None:
        if self._waiting is stored:
            self._waiting = None

    async def _store_one(self, data: bytes, kind: Kind, name: str | None) -> None:
        if len(data) > _LARGE:
            made = await asyncio.to_thread(self._chain.next, data, kind, name)
        else:
            made = self._chain.next(data, kind, name)
        tenant, call_id = self._keys.tenant, self._place.call_id
        async with self._store.writing() as connection:
            stored = await connection.fetchval(
                _SQL["add_checkpoint"], tenant, call_id, made.seq, made.epoch, kind, name, made.parent, made.box
            )
            if stored is not None:
                await connection.execute(_SQL["prune"], tenant, call_id, self._chain.frames(made))
        if stored is None:
            self._lost = TakenOver("another worker took this call over, so its state is not saved here any more")
            raise self._lost
        self._chain.stored(made, data)
        self._due = self._clock.monotonic() + self._place.interval


class Reading:
    """Rows by their numbers, over one connection."""

    def __init__(self, connection: Connection, tenant: str, call_id: str) -> None:
        self._connection, self._tenant, self._call_id = connection, tenant, call_id

    async def __call__(self, seq: int) -> Checkpoint | None:
        row = await self._connection.fetchrow(_SQL["show_checkpoint"], self._tenant, self._call_id, seq)
        return None if row is None else Checkpoint(**dict(row))


def plain(state: Any) -> bytes:
    """The state's bytes, from which exactly this state can be made again; anything else is refused."""
    try:
        data = orjson.dumps(state)
        exact = orjson.loads(data) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a state to save must be plain JSON: {error}") from error
    if not exact:
        raise ValueError("a state to save must be plain JSON: lists and no tuples, finite numbers, texts for times")
    if len(data) > MOST_BYTES:
        raise ValueError(f"a state to save has at most {MOST_BYTES} bytes, not {len(data)}")
    return data
