"""Read the journal for calls that take others back, in a time that is limited whatever it finds."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final
from uuid import UUID

import asyncpg

from deputize.core.caller import parse_agents
from deputize.core.decision import UndoneCall
from deputize.core.errors import UndoTooBroad
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("journal")
_SEARCH = load_statements("audit_search")
# One statement ends after this.
_STATEMENT_TIMEOUT: Final = "5s"


@contextlib.asynccontextmanager
async def read_journal(runtime: Runtime, tenant: str) -> AsyncIterator[Connection]:
    """Open a read transaction whose statements end in time; raise `UndoTooBroad` for one that does not.

    Not with a connection of the writers: leases and sweeps need those.
    """
    try:
        async with runtime.store.read_transaction(tenant) as connection:
            await connection.execute(_SEARCH["set_time_limit"], _STATEMENT_TIMEOUT)
            yield connection
    except asyncpg.QueryCanceledError:
        raise UndoTooBroad(
            "what others changed later was not found within five seconds", nothing_happened=True
        ) from None


async def load_undone_calls(
    connection: Connection, tenant: str, entry_ids: Sequence[UUID | str]
) -> dict[str, UndoneCall]:
    """Load what policies see of entries that are to be taken back, by their ids."""
    rows = await connection.fetch(_SQL["load_undone_calls"], tenant, list(entry_ids))
    return {
        str(row["id"]): UndoneCall(
            tool=row["tool"], agents=tuple(sorted({agent for key in row["agent_keys"] for agent in parse_agents(key)}))
        )
        for row in rows
    }
