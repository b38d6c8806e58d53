"""Load what is stored of one call: its row, unless it is a read, and its audit entries.

Whoever loads it decides with `lifecycle/call_access.py` what of it a caller may see.
"""

from typing import Any

import asyncpg
import orjson

from deputize.core.value_types import frozen
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

_SQL = load_statements("calls")


@frozen
class CallHistory:
    """The row of a call, None for a read or an unknown call, and its audit entries, oldest first."""

    call_id: str
    row: asyncpg.Record | None
    entries: list[dict[str, Any]]

    @property
    def is_step(self) -> bool:
        """True if a flow made the call. What its entries say of one, its caller may have stated."""
        return self.row is not None and self.row["flow_id"] is not None


async def load_call_history(runtime: Runtime, tenant: str, call_id: str, *, with_input: bool = False) -> CallHistory:
    """Load a call's row, if asked with its sealed input, and audit entries; neither if there is no such call."""
    async with runtime.store.read_transaction(tenant) as connection:
        row = await connection.fetchrow(_SQL["load_call"], tenant, call_id, with_input)
        entries = await connection.fetch(_SQL["list_entries_of_call"], tenant, call_id)
    return CallHistory(call_id=call_id, row=row, entries=[orjson.loads(each["entry"]) for each in entries])
