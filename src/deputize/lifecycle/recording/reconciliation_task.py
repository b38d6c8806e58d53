"""Open a reconciliation task: a person establishes the outcome of a call that is recorded as unknown."""

from typing import Any

import orjson

from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("reconciliation")
# When an administrator should have resolved it. Nothing happens then: an unknown outcome never expires.
_DUE_SECONDS = 7 * 86_400.0
SETTLED_ELSEWHERE = "settled_elsewhere"


async def open_reconciliation_task(
    runtime: Runtime, connection: Connection, tenant: str, call_id: str, question: dict[str, Any]
) -> str | None:
    """Open a task and return its id; None if the call has one already."""
    task_id = runtime.clock.new_id()
    row_id = await connection.fetchval(
        _SQL["open_reconciliation_task"], tenant, task_id, "reconcile", call_id, orjson.dumps(question), _DUE_SECONDS
    )
    return None if row_id is None else task_id
