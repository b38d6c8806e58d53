"""Run any statement in a transaction that may write and is committed, with the login that can only read."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from unittest.mock import patch

from deputize.tools.sql.database import Connection, Database
from proofs.variants.sql_bounds_unparsed import unparsed


@contextmanager
def writable() -> Iterator[None]:
    @asynccontextmanager
    async def open_writing(self: Database, seconds_left: float) -> AsyncIterator[Connection]:
        async with self.open_changing(seconds_left, keeps=True) as connection:
            yield connection

    with unparsed(), patch.object(Database, "open_reading", open_writing):
        yield
