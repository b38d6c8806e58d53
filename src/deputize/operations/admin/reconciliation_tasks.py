"""Let operators resolve reconciliation tasks: unknown outcomes that the gateway cannot establish by itself.

The answer settles the call: it happened, or it did not and its key is free again. `background/reconciler.py` opens the
tasks; their questions hold redacted facts only. Administrators read them; the answer counts as a person's word, so an
agent or a token that was delegated cannot give it.
"""

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import asyncpg
import orjson

from deputize.acts.act import commit_operator_act
from deputize.core.caller import Caller, Epochs, parse_nearest_agent
from deputize.core.decision import Decision
from deputize.core.errors import HumanTaskClosed, HumanTaskNotFound, MalformedRequest
from deputize.core.states import State
from deputize.govern.token_authorization import ADMIN_RULE, require_admin, require_full_admin
from deputize.lifecycle.recording.settlement import (
    SETTLED_ELSEWHERE,
    ActualOutcome,
    Settlement,
    load_unknown_call,
    settle_unknown_call,
)
from deputize.lifecycle.runtime import Runtime
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

TaskState = Literal["open", "resolved", "expired"]

_SQL = load_statements("reconciliation")


class ReconciliationTasks:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list_tasks(
        self, caller: Caller, *, state: TaskState | None = "open", before: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """List tasks, newest first; by default the open ones."""
        await self._check_admin(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(_SQL["list_reconciliation_tasks"], caller.tenant, state, before, limit)
        return [_describe_task(row) for row in rows]

    async def show_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        await self._check_admin(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return _describe_task(await _load_row(connection, caller, task_id))

    async def resolve_task(
        self, caller: Caller, task_id: str, actual_outcome: ActualOutcome, reason: str
    ) -> dict[str, Any]:
        """Settle the call with the outcome that an operator established, and record by which rule they are one."""
        require_full_admin(caller)
        if not reason.strip():
            raise MalformedRequest("a reason is required: say how you know", details={"field": "reason"})

        # An operator is not asked to confirm what cannot be done; the act itself checks it again.
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            _require_open(await _load_row(connection, caller, task_id), task_id)

        async def act(connection: Connection, rule: str | None) -> dict[str, Any] | None:
            return await self._settle_call(connection, caller, rule, task_id, actual_outcome, reason)

        result = await commit_operator_act(
            self._runtime, caller, f"resolve:{actual_outcome}", task_id, act, content=reason
        )
        if result is None:
            raise HumanTaskClosed("the call was settled meanwhile", details={"task_id": task_id})
        return result

    async def _settle_call(
        self,
        connection: Connection,
        caller: Caller,
        rule: str | None,
        task_id: str,
        actual_outcome: ActualOutcome,
        reason: str,
    ) -> dict[str, Any] | None:
        runtime = self._runtime
        task = await _load_row(connection, caller, task_id)
        _require_open(task, task_id)
        row = await connection.fetchrow(_SQL["load_unknown_call"], caller.tenant, task["call_id"])
        if row is None:
            raise HumanTaskNotFound("the call of this reconciliation task is no longer stored")
        call = await load_unknown_call(runtime, caller.tenant, row)
        outcome_text = "happened" if actual_outcome == "happened" else "did not happen"
        settlement = Settlement(
            actual_outcome=actual_outcome,
            by=caller,
            decision=Decision(rules=(ADMIN_RULE, *(() if rule is None else (rule,))), epochs=Epochs()),
            source="an operator",
            summary=f"An operator established that it {outcome_text}: {reason}",
            task_id=task_id,
        )
        # Lock the call first, like every settlement: a different order could deadlock.
        is_settled = await settle_unknown_call(runtime, connection, call, settlement)
        if is_settled:
            row_id = await connection.fetchval(
                _SQL["resolve_reconciliation_task"], caller.tenant, task_id, caller.user, actual_outcome, reason
            )
        else:
            row_id = await connection.fetchval(
                _SQL["resolve_reconciliation_task"], caller.tenant, task_id, "", SETTLED_ELSEWHERE, ""
            )
        if row_id is None:
            raise HumanTaskClosed("another person has just resolved this task", details={"task_id": task_id})
        if not is_settled:
            return None
        return _describe_task(await _load_row(connection, caller, task_id))

    async def _check_admin(self, caller: Caller) -> None:
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)


async def _load_row(connection: Connection, caller: Caller, task_id: str) -> asyncpg.Record:
    try:
        task_uuid = str(UUID(task_id))
    except ValueError:
        task_uuid = None
    row = (
        None
        if task_uuid is None
        else await connection.fetchrow(_SQL["load_reconciliation_task"], caller.tenant, task_uuid)
    )
    if row is None:
        raise HumanTaskNotFound("no reconciliation task has this id")
    return row


def _require_open(task: asyncpg.Record, task_id: str) -> None:
    if task["state"] != "open":
        raise HumanTaskClosed(f"this reconciliation task is already {task['state']}", details={"task_id": task_id})


def _describe_task(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "task_id": str(row["id"]),
        "kind": row["kind"],
        "state": row["state"],
        "call": {
            "call_id": str(row["call_id"]),
            "state": State(row["call_state"]),
            "tool": {"name": row["tool"], "version": row["version"]},
            "user": row["caller_user"],
            "agent": parse_nearest_agent(row["caller_agent"]) or None,
        },
        "question": orjson.loads(row["question"]),
        "opened_at": _format_time(row["opened_at"]),
        "due_at": _format_time(row["due_at"]),
        "resolved_at": _format_time(row["resolved_at"]),
        "resolved_by": row["resolved_by"] or None,
        "resolution": row["resolution"],
        "reason": row["reason"] or None,
    }


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
