"""Store the checkpoints of one call while this process runs it; `context.save` of a tool ends up here.

Micro checkpoints are stored at most once per interval. A state that is saved in between waits in memory until the
interval is over, so at most one interval of work is lost. Macro and named checkpoints are stored at once. Only the
owner of the call may save: the database compares its epoch, and a worker that lost the run is stopped.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

import orjson
import structlog

from deputize.core.call import MAX_CHECKPOINT_NAME_LENGTH
from deputize.core.clock import Clock
from deputize.core.errors import RunOwnershipLost, Unavailable
from deputize.runs.checkpoints import Checkpoint, CheckpointChain, CheckpointKind, find_newest_valid
from deputize.store.keys import KeySet
from deputize.store.pool import CONNECTION_ERRORS, Connection, Store
from deputize.store.queries import load_statements

MAX_STATE_BYTES = 8 * 1024 * 1024
MAX_NAMES = 100
# Larger states are compared and compressed in a thread, so that they do not block the event loop.
_THREAD_THRESHOLD_BYTES = 32 * 1024
_SQL = load_statements("checkpoints")
log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointScope:
    """The call of these checkpoints, and the epoch that may write them."""

    call_id: str
    epoch: int
    interval: float
    # The names of milestones, if the contract declares them; then there are no others.
    macro_events: tuple[str, ...] = ()


class CheckpointWriter:
    """Stores and loads the checkpoints of one call."""

    def __init__(self, store: Store, keys: KeySet, clock: Clock, scope: CheckpointScope) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        self._scope = scope
        self._chain = CheckpointChain(keys, scope.call_id, epoch=scope.epoch)
        self._names: set[str] = set()
        self._newest_state: bytes | None = None
        self._pending_state: bytes | None = None
        self._next_store_at = float("-inf")
        self._timer: asyncio.Task[None] | None = None
        self._store_lock = asyncio.Lock()
        self._ownership_loss: RunOwnershipLost | None = None
        self._is_closed = False

    async def load(self) -> None:
        """Load the newest valid checkpoint of a call that another owner ran before."""
        try:
            async with self._store.write_transaction() as connection:
                rows = await connection.fetch(_SQL["list_checkpoints"], self._keys.tenant, self._scope.call_id)
                newest_checkpoint = await find_newest_valid(
                    self._keys, self._scope.call_id, [row["seq"] for row in rows], self._make_reader(connection)
                )
        except CONNECTION_ERRORS as error:
            raise Unavailable(
                "the checkpoints of this call cannot be read: PostgreSQL is unavailable", retry_after_ms=1000
            ) from error
        self._names = {row["name"] for row in rows if row["name"] is not None}
        last = rows[0]["seq"] if rows else -1
        self._chain = CheckpointChain(self._keys, self._scope.call_id, epoch=self._scope.epoch, last=last)
        self._newest_state = None if newest_checkpoint is None else newest_checkpoint[1]

    def _make_reader(self, connection: Connection) -> "CheckpointReader":
        return CheckpointReader(connection, self._keys.tenant, self._scope.call_id)

    def decode_newest_state(self) -> Any:
        """Decode the newest state; the tool gets a copy that it may change."""
        return None if self._newest_state is None else orjson.loads(self._newest_state)

    async def save(self, state: Any, name: str | None = None, macro: bool = False) -> None:
        """Save a state: at once if it has a name or is a milestone, else within the interval."""
        if self._ownership_loss is not None:
            raise self._ownership_loss
        data = encode_state(state)
        if macro and self._scope.macro_events and name not in self._scope.macro_events:
            raise ValueError(
                f"a milestone must be one of the contract's checkpoints.macro_events: "
                f"{', '.join(self._scope.macro_events)}; got {name!r}"
            )
        if name is not None:
            self._register_name(name)
        self._newest_state = data
        if name is None and not macro:
            self._pending_state = data
            await self._store_pending()
            return
        self._pending_state = None
        async with self._store_lock:
            try:
                await self._store_checkpoint(data, "macro" if name is None else "named", name)
            except CONNECTION_ERRORS as error:
                raise Unavailable(
                    "the checkpoint could not be stored: PostgreSQL is unavailable", retry_after_ms=1000
                ) from error

    def close(self) -> None:
        """Drop what is not stored yet, because the tool has ended."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _register_name(self, name: str) -> None:
        if not 0 < len(name) <= MAX_CHECKPOINT_NAME_LENGTH or not name.isprintable():
            raise ValueError(
                f"the name of a checkpoint must have 1 to {MAX_CHECKPOINT_NAME_LENGTH} printable characters"
            )
        if len(self._names | {name}) > MAX_NAMES:
            raise ValueError(f"a call may have at most {MAX_NAMES} named checkpoints")
        self._names.add(name)

    async def _store_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._timer = None
        with contextlib.suppress(RunOwnershipLost):
            # The tool gets this error at its next save.
            await self._store_pending()

    async def _store_pending(self) -> None:
        """Store the newest pending state once the interval is over. If the database is away, it stays pending."""
        async with self._store_lock:
            data, wait = self._pending_state, self._next_store_at - self._clock.monotonic()
            if data is not None and wait <= 0:
                wait = self._scope.interval
                try:
                    await self._store_checkpoint(data, "micro", None)
                except CONNECTION_ERRORS as error:
                    log.warning("checkpoint_not_stored", call_id=self._scope.call_id, reason=repr(error))
                    self._next_store_at = self._clock.monotonic() + wait
                else:
                    self._clear_pending(data)
            if self._pending_state is not None and self._timer is None and not self._is_closed:
                delayed_store = self._store_later(wait)
                self._timer = asyncio.create_task(delayed_store, name=f"checkpoint-{self._scope.call_id}")

    def _clear_pending(self, state: bytes) -> None:
        if self._pending_state is state:
            self._pending_state = None

    async def _store_checkpoint(self, data: bytes, kind: CheckpointKind, name: str | None) -> None:
        if len(data) > _THREAD_THRESHOLD_BYTES:
            checkpoint = await asyncio.to_thread(self._chain.seal_next, data, kind, name)
        else:
            checkpoint = self._chain.seal_next(data, kind, name)
        tenant, call_id = self._keys.tenant, self._scope.call_id
        async with self._store.write_transaction() as connection:
            stored_seq = await connection.fetchval(
                _SQL["insert_checkpoint"],
                tenant,
                call_id,
                checkpoint.seq,
                checkpoint.epoch,
                kind,
                name,
                checkpoint.parent,
                checkpoint.ciphertext,
            )
            if stored_seq is not None:
                await connection.execute(
                    _SQL["prune_checkpoints"], tenant, call_id, self._chain.list_frames(checkpoint)
                )
        if stored_seq is None:
            self._ownership_loss = RunOwnershipLost(
                "another worker took over this call, so this worker can no longer save its state"
            )
            raise self._ownership_loss
        self._chain.mark_stored(checkpoint, data)
        self._next_store_at = self._clock.monotonic() + self._scope.interval


class CheckpointReader:
    """Reads checkpoints by their numbers, over one connection."""

    def __init__(self, connection: Connection, tenant: str, call_id: str) -> None:
        self._connection, self._tenant, self._call_id = connection, tenant, call_id

    async def __call__(self, seq: int) -> Checkpoint | None:
        row = await self._connection.fetchrow(_SQL["load_checkpoint"], self._tenant, self._call_id, seq)
        return None if row is None else Checkpoint(**dict(row))


def encode_state(state: Any) -> bytes:
    """Encode a state as JSON; raise `ValueError` unless decoding gives exactly the same state."""
    try:
        data = orjson.dumps(state)
        is_exact = orjson.loads(data) == state
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the state must be plain JSON: {error}") from error
    if not is_exact:
        raise ValueError("the state must be plain JSON: lists instead of tuples, finite numbers, strings for times")
    if len(data) > MAX_STATE_BYTES:
        raise ValueError(f"the state may have at most {MAX_STATE_BYTES} bytes; got {len(data)}")
    return data
