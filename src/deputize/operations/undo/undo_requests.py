"""Let an agent ask for an undo: a person decides, sees the plan, and undoes with authority of their own.

A request is a human task about the call. It is answered by the undo itself, whoever makes it, or by an administrator
who dismisses the task; after a week nobody is asked any more.
"""

from collections.abc import Collection
from datetime import UTC
from typing import Any, Final

from deputize.acts.act import commit_act
from deputize.core.caller import Caller, parse_nearest_agent
from deputize.core.errors import CallNotFound, QueueFull
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.recording.human_tasks import OpenedTask, open_human_task
from deputize.lifecycle.runtime import Runtime
from deputize.operations.undo.undo_plan import UndoPlans, UndoSelection
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("human_tasks")
_SECONDS: Final = 7 * 86_400.0
# Of the agents of one user.
_MAX_REQUESTS: Final = 100
_MAX_NAMED_TOOLS: Final = 10


class UndoRequests:
    def __init__(self, runtime: Runtime, plans: UndoPlans) -> None:
        self._runtime, self._plans = runtime, plans

    async def request_undo(self, caller: Caller, call_id: str) -> dict[str, Any]:
        """Ask that a call, or the steps of a flow, be taken back; nobody is asked for what cannot be."""
        selection = UndoSelection(call_id=call_id)
        call_id = selection.call_id or call_id
        plan = await self._plans.plan_undo(caller, selection)
        if not plan.steps:
            raise CallNotFound("no call that you made and that changed something has this id")
        ready, staying = len(plan.list_ready()), sum(each.verdict == "blocked" for each in plan.steps)
        if not ready:
            return {"task_id": None, "plan": plan.to_json()}
        stays = f", {staying} cannot" if staying else ""
        tools = {each.compensation.tool for each in plan.list_ready() if each.compensation is not None}
        question = {
            "asked": f"undo the call, if you want to: deputize undo {call_id}",
            "why": f"an agent asked for it: {ready} call{'s' if ready > 1 else ''} can be undone{stays}. It would call "
            f"{', '.join(sorted(tools)[:_MAX_NAMED_TOOLS])}; the plan shows with which values, and whose they are",
        }

        async def open_task(connection: Connection) -> OpenedTask:
            await connection.execute(_SQL["expire_undo_request"], caller.tenant, call_id)
            opened = await open_human_task(
                self._runtime, connection, caller.tenant, "undo", call_id, question, _SECONDS
            )
            count = await connection.fetchval(_SQL["count_undo_requests"], caller.tenant, caller.user)
            if opened.is_new and count > _MAX_REQUESTS:
                raise QueueFull(
                    f"{_MAX_REQUESTS} requests to undo wait for {caller.user} already", nothing_happened=True
                )
            return opened

        opened = await commit_act(self._runtime, caller, "request_undo", call_id, open_task, ())
        return {"task_id": opened.id, "plan": plan.to_json()}

    async def list_requests(self, caller: Caller) -> list[dict[str, Any]]:
        """List the open requests, newest first: those about the caller's own calls, or the tenant's."""
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_undo_requests"], caller.tenant, None if caller.is_admin else caller.user, _MAX_REQUESTS
            )
        return [
            {
                "task_id": str(row["id"]),
                "call_id": str(row["call_id"]),
                "tool": row["tool"],
                "user": row["caller_user"],
                "agent": parse_nearest_agent(row["caller_agent"]) or None,
                "asked_at": row["opened_at"].astimezone(UTC).isoformat(timespec="milliseconds"),
            }
            for row in rows
            if await may_reach(self._runtime, caller, row, for_auditor=True)
        ]


async def answer_requests(runtime: Runtime, caller: Caller, call_ids: Collection[str]) -> None:
    """Close the requests about calls that a person has decided to undo."""
    async with runtime.store.write_transaction() as connection:
        await connection.execute(_SQL["answer_undo_requests"], caller.tenant, list(call_ids), caller.user)
