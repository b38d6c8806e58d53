"""Open a task for a person, in the transaction of what needs one.

The reconciler opens them for unknown outcomes, `lifecycle/fallback.py` where no alternative answers, flows where a
compensation fails, and callers who ask for an undo. `admin/human_tasks.py` in operations lists and resolves them.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

from deputize.core.value_types import frozen
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

TaskKind = Literal["reconcile", "fallback", "compensate", "undo"]

_SQL = load_statements("human_tasks")
# When an administrator should have resolved a task. Nothing happens then: no task resolves itself.
_DUE_SECONDS: Final = 7 * 86_400.0


@frozen
class OpenedTask:
    """A task that is open now; `is_new` says whether it was opened just now."""

    id: str
    is_new: bool


async def open_human_task(
    runtime: Runtime,
    connection: Connection,
    tenant: str,
    kind: TaskKind,
    call_id: str,
    question: Mapping[str, Any],
    due_seconds: float | None = None,
) -> OpenedTask:
    """Open a task of this kind about a call, or return the one that is open already, whatever it asks.

    `question` says in `asked` what the person is to do, and in `why`, each in a line; its further fields are facts for
    them, redacted by the caller. A task about more than one call has an id of its own for `call_id`, and the question
    has the `call_id` and the `tool` that people look at.
    """
    task_id = runtime.clock.new_id()
    due = _DUE_SECONDS if due_seconds is None else due_seconds
    open_id = await connection.fetchval(
        _SQL["open_human_task"], tenant, task_id, kind, call_id, orjson.dumps(question), due
    )
    return OpenedTask(id=str(open_id), is_new=str(open_id) == task_id)
