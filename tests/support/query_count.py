"""Count the named statements that a gateway in this process sends to its database."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from deputize.govern.limits import request_slots
from deputize.store import queries
from deputize.store.pool import Store

# They only frame others.
_FRAMES = frozenset({"set_time_limit"})
_NAMES = {
    text: name
    for path in Path(queries.__file__).parent.glob("*.sql")
    for name, text in queries.load_statements(path.stem).items()
    if name not in _FRAMES
}


@asynccontextmanager
async def count_queries(store: Store, *, of_requests: bool = False) -> AsyncIterator[list[str]]:
    """Collect the names of the statements on all connections of the pools while the block runs.

    With `of_requests`, only those of HTTP requests: the loops in the background make others at any time.
    """
    names: list[str] = []

    def note(query: Any) -> None:
        is_counted = not of_requests or request_slots._current_slot.get() is not None
        if is_counted and query.query.strip() in _NAMES:
            names.append(_NAMES[query.query.strip()])

    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(pool.acquire())
            for pool in (store.readers, store.writers)
            for _ in range(pool.get_max_size())
        ]
        for connection in connections:
            connection.add_query_logger(note)
    yield names
    for pool in (store.readers, store.writers):
        await pool.expire_connections()
