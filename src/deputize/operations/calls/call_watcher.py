"""Watch the calls that streams follow: one query per tenant and round, however many streams follow however many calls.

One task asks for all tenants, one after the other, so that all streams of a process use one connection while nothing
happens. PostgreSQL's NOTIFY would need no rounds, but every commit of a call would queue for its lock.
"""

import asyncio
import contextvars
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from deputize.store.pool import CONNECTION_ERRORS, Store
from deputize.store.queries import load_statements

_SQL = load_statements("calls")
_POLL_SECONDS = 0.25
# A call in which nothing happens is looked at less and less often, to this pause.
_MAX_POLL_SECONDS = 1.0
_PAUSE_GROWTH = 1.05
# How many connections the streams of one tenant use at once, to load what changed.
_LOADS_PER_TENANT = 2


@dataclass(kw_only=True, slots=True)
class _WatchedCall:
    """A call with the events of its streams. `mark` is what was seen of it last, and differs if anything changed."""

    mark: Any = None
    pause: float = _POLL_SECONDS
    look_at: float = 0.0
    events: list[asyncio.Event] = field(default_factory=list)


class CallWatcher:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._calls: defaultdict[str, dict[str, _WatchedCall]] = defaultdict(dict)
        self._loads: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_LOADS_PER_TENANT))
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, tenant: str, call_id: str) -> Iterator[tuple[asyncio.Event, asyncio.Semaphore]]:
        """Watch a call while the block runs: the event is set when it may have changed since the block began.

        The tenant's streams share the semaphore, which they hold while they load a call.
        """
        changed = asyncio.Event()
        call = self._calls[tenant].setdefault(call_id, _WatchedCall())
        call.events.append(changed)
        if self._task is None or self._task.done():
            # In a context of its own: it serves more than the request that starts it.
            self._task = asyncio.create_task(self._poll(), name="call-watcher", context=contextvars.Context())
        try:
            yield changed, self._loads[tenant]
        finally:
            call.events.remove(changed)
            if not call.events:
                del self._calls[tenant][call_id]
            if not self._calls[tenant]:
                del self._calls[tenant], self._loads[tenant]

    async def _poll(self) -> None:
        loop, pause = asyncio.get_running_loop(), _POLL_SECONDS
        while self._calls:
            await asyncio.sleep(pause)
            started_at = loop.time()
            for tenant in list(self._calls):
                await self._look(tenant, loop.time())
            # If a round takes long, the database is busy, or there are many tenants.
            pause = min(max(_POLL_SECONDS, loop.time() - started_at), _MAX_POLL_SECONDS)

    async def _look(self, tenant: str, now: float) -> None:
        # In the round that is nearest to the time at which it is due.
        due_at = now + _POLL_SECONDS / 2
        calls = {call_id: call for call_id, call in self._calls.get(tenant, {}).items() if call.look_at <= due_at}
        if not calls:
            return
        try:
            async with self._store.read_transaction(tenant) as connection:
                rows = await connection.fetch(_SQL["load_call_marks"], tenant, list(calls))
            marks: dict[str, Any] = {str(row["id"]): tuple(row) for row in rows}
        except CONNECTION_ERRORS as error:
            # Whoever follows a call finds out by loading it.
            marks = dict.fromkeys(calls, error)
        for call_id, call in calls.items():
            call.look_at, call.pause = now + call.pause, min(call.pause * _PAUSE_GROWTH, _MAX_POLL_SECONDS)
            if marks[call_id] != call.mark:
                call.mark = marks[call_id]
                for event in call.events:
                    event.set()
