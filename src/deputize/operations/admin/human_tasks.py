"""List and resolve human tasks: what the gateway cannot establish or put right by itself, and a person can.

A task of kind `reconcile` is about an unknown outcome, and its answer settles the call: it happened, or it did not and
its key is free again. A task of another kind asks for an act outside the gateway; its resolution says whether that was
done, and changes no call. `lifecycle/recording/human_tasks.py` opens them; their questions hold redacted facts only.
Auditors read them, operators resolve them. A resolution counts as a person's word, so an agent or a token that was
delegated cannot give it.
"""

from datetime import datetime
from typing import Any, Final, Literal, get_args
from uuid import UUID

import asyncpg
import orjson

from deputize.acts.act import commit_operator_act
from deputize.core.caller import Caller, Epochs, parse_nearest_agent
from deputize.core.decision import Decision
from deputize.core.errors import HumanTaskClosed, HumanTaskNotFound, MalformedRequest
from deputize.core.states import State
from deputize.govern.token_authorization import (
    ADMIN_RULE,
    OPERATE_RULE,
    list_visible_tools,
    require_auditor_scope,
    require_full_operator,
)
from deputize.lifecycle.recording.human_tasks import TaskKind
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
TaskOutcome = Literal[ActualOutcome, "done", "dismissed"]

_SQL = load_statements("human_tasks")
_RECONCILIATION = load_statements("reconciliation")
_ACTUAL_OUTCOMES: Final = get_args(ActualOutcome)


class HumanTasks:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list_tasks(
        self,
        caller: Caller,
        *,
        state: TaskState | None = "open",
        kind: TaskKind | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> list[dict[str, Any]]:
        """List tasks about tools that the token may see, newest first; by default the open ones."""
        await self._check_auditor(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_human_tasks"], caller.tenant, state, kind, before, limit, list_visible_tools(caller)
            )
        return [_describe_task(row) for row in rows]

    async def show_task(self, caller: Caller, task_id: str) -> dict[str, Any]:
        await self._check_auditor(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return _describe_task(await _load_row(connection, caller, task_id))

    async def resolve_task(self, caller: Caller, task_id: str, outcome: TaskOutcome, reason: str) -> dict[str, Any]:
        """Resolve a task by an operator's word, and record by which rule they are one.

        The outcome of an unknown call settles it; another task is done or dismissed.
        """
        require_full_operator(caller)
        if not reason.strip():
            raise MalformedRequest(
                "a reason is required: say how you know, or what you did", details={"field": "reason"}
            )

        # An operator is not asked to confirm what cannot be done; the act itself checks it again.
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            task = await _load_row(connection, caller, task_id)
            _require_open(task, task_id)
        _require_outcome_of_kind(task["kind"], outcome)

        async def act(connection: Connection, rule: str | None) -> dict[str, Any] | None:
            if outcome == "happened" or outcome == "did_not_happen":
                return await self._settle_call(connection, caller, rule, task_id, outcome, reason)
            await _close_task(connection, caller.tenant, task_id, caller.user, outcome, reason)
            return _describe_task(await _load_row(connection, caller, task_id))

        result = await commit_operator_act(self._runtime, caller, f"resolve:{outcome}", task_id, act, content=reason)
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
        row = await connection.fetchrow(_RECONCILIATION["load_unknown_call"], caller.tenant, task["call_id"])
        if row is None:
            raise HumanTaskNotFound("the call of this task is no longer stored")
        call = await load_unknown_call(runtime, caller.tenant, row)
        scope_rule = ADMIN_RULE if caller.is_admin else OPERATE_RULE
        outcome_text = "happened" if actual_outcome == "happened" else "did not happen"
        settlement = Settlement(
            actual_outcome=actual_outcome,
            by=caller,
            decision=Decision(rules=(scope_rule, *(() if rule is None else (rule,))), epochs=Epochs()),
            source="an operator",
            summary=f"An operator established that it {outcome_text}: {reason}",
            task_id=task_id,
        )
        # Lock the call first, like every settlement: a different order could deadlock.
        is_settled = await settle_unknown_call(runtime, connection, call, settlement)
        if is_settled:
            await _close_task(connection, caller.tenant, task_id, caller.user, actual_outcome, reason)
        else:
            await _close_task(connection, caller.tenant, task_id, "", SETTLED_ELSEWHERE, "")
        if not is_settled:
            return None
        return _describe_task(await _load_row(connection, caller, task_id))

    async def _check_auditor(self, caller: Caller) -> None:
        require_auditor_scope(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)


async def _close_task(connection: Connection, tenant: str, task_id: str, by: str, resolution: str, reason: str) -> None:
    row_id = await connection.fetchval(_SQL["resolve_human_task"], tenant, task_id, by, resolution, reason)
    if row_id is None:
        raise HumanTaskClosed("another person has just resolved this task", details={"task_id": task_id})


async def _load_row(connection: Connection, caller: Caller, task_id: str) -> asyncpg.Record:
    try:
        task_uuid = str(UUID(task_id))
    except ValueError:
        task_uuid = None
    row = (
        None
        if task_uuid is None
        else await connection.fetchrow(_SQL["load_human_task"], caller.tenant, task_uuid, list_visible_tools(caller))
    )
    if row is None:
        raise HumanTaskNotFound("no task has this id")
    return row


def _require_open(task: asyncpg.Record, task_id: str) -> None:
    if task["state"] != "open":
        raise HumanTaskClosed(f"this task is already {task['state']}", details={"task_id": task_id})


def _require_outcome_of_kind(kind: TaskKind, outcome: TaskOutcome) -> None:
    if (kind == "reconcile") != (outcome in _ACTUAL_OUTCOMES):
        choice = "happened or did_not_happen" if kind == "reconcile" else "done or dismissed"
        raise MalformedRequest(
            f"a task of kind {kind} is not resolved with {outcome}: say {choice}", details={"field": "outcome"}
        )


def _describe_task(row: asyncpg.Record) -> dict[str, Any]:
    question = orjson.loads(row["question"])
    return {
        "task_id": str(row["id"]),
        "kind": row["kind"],
        "state": row["state"],
        "call": {
            "call_id": question.get("call_id") or str(row["call_id"]),
            "state": None if row["call_state"] is None else State(row["call_state"]),
            "tool": question.get("tool") if row["tool"] is None else {"name": row["tool"], "version": row["version"]},
            "user": row["caller_user"],
            "agent": parse_nearest_agent(row["caller_agent"] or "") or None,
        },
        "question": question,
        "opened_at": _format_time(row["opened_at"]),
        "due_at": _format_time(row["due_at"]),
        "resolved_at": _format_time(row["resolved_at"]),
        "resolved_by": row["resolved_by"] or None,
        "resolution": row["resolution"],
        "reason": row["reason"] or None,
    }


def _format_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()
