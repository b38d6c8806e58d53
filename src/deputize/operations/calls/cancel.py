"""Cancel calls. The request is always recorded; its effect depends on how far the call is.

waiting for approval, or queued   it ends at once, and nothing was executed; approvers are no longer asked
executed by a worker              the worker stops its tool within a second, and the envelope says what is known
in a thread, or in a request      it cannot be stopped, and the reply says so
"""

from typing import Any

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import NotCancelable, Problem
from deputize.core.states import TERMINAL_STATES, State
from deputize.govern.token_authorization import require_full_operator
from deputize.lifecycle.cancellation import add_cancel_entry, cancel_open_call
from deputize.lifecycle.runtime import Runtime
from deputize.operations.calls.queries import CallQueries
from deputize.store.queries import load_statements

_SQL = load_statements("calls")


class Cancellations:
    def __init__(self, runtime: Runtime, calls: CallQueries) -> None:
        self._runtime = runtime
        self._calls = calls

    async def cancel_call(self, caller: Caller, call_id: str) -> dict[str, Any]:
        row = await self._calls.load_row(caller, call_id, for_auditor=True)
        if row is not None and row["state"] == State.NEEDS_INPUT:
            return await self._abandon_questions(caller, row)
        if row is None or State(row["state"]) in TERMINAL_STATES:
            await self._calls.describe_read(caller, call_id, for_auditor=True) if row is None else None
            raise NotCancelable("the call has already ended", details={"call_id": call_id})
        if not caller.is_maker_of(row["caller_user"], row["caller_agent"]):
            require_full_operator(caller)
        cancellation = await cancel_open_call(self._runtime, caller, row)
        if (reason := cancellation.unstarted_reason) is not None:
            return _build_reply(call_id, State.CANCELED, "canceled", f"{reason}, and nothing was executed")
        if not cancellation.is_recorded:
            raise NotCancelable("the call has just ended", details={"call_id": call_id})
        return self._describe_request(row)

    async def _abandon_questions(self, caller: Caller, row: asyncpg.Record) -> dict[str, Any]:
        """Record that a call's input requests will stay unanswered; the call itself has already ended with them."""
        if not caller.is_maker_of(row["caller_user"], row["caller_agent"]):
            require_full_operator(caller)
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["cancel_input_requests"], caller.tenant, row["id"])
            await add_cancel_entry(
                self._runtime, connection, caller, row, "command", command="cancel", outcome="recorded"
            )
        return _build_reply(str(row["id"]), State.NEEDS_INPUT, "recorded", "the input requests will not be answered")

    def _describe_request(self, row: asyncpg.Record) -> dict[str, Any]:
        call_id, state = str(row["id"]), State(row["state"])
        if not row["is_run"]:
            detail = "the request is recorded; a tool that runs inside a request cannot be interrupted"
            return _build_reply(call_id, state, "recorded", detail)
        if state is State.QUEUED:
            detail = "the run is not resumed; its outcome says what it did before"
            return _build_reply(call_id, state, "asked", detail)
        if self._is_in_thread(row):
            detail = "the request is recorded; the tool runs in a thread and stops only if it checks for cancellation"
            return _build_reply(call_id, state, "recorded", detail)
        return _build_reply(
            call_id, state, "asked", "the worker stops the tool within a second; the outcome says what is known"
        )

    def _is_in_thread(self, row: asyncpg.Record) -> bool:
        authority = self._runtime.authority.get_tenant(row["tenant"])
        try:
            version = None if authority is None else authority.tools.resolve_version(row["tool"], row["version"])
            return version is not None and not self._runtime.driver.find_tool(version.tool.contract).is_async
        except Problem:
            return False


def _build_reply(call_id: str, state: State, cancel: str, detail: str) -> dict[str, Any]:
    return {"call_id": call_id, "state": state, "cancel": cancel, "detail": detail}
