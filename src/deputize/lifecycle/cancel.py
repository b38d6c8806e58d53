"""Asking a call to stop. The request is always on record; what comes of it depends on how far the call is.

asked about, or queued          it ends here and now, and nothing happened; nobody is asked any more
carried by a worker             the worker stops its tool within a second, and the outcome says what is known
in a thread, or in a request    it cannot be stopped, and the answer says so
"""

from typing import Any

import asyncpg

from deputize.core.caller import Caller
from deputize.core.errors import Canceled, NotCancelable, Problem
from deputize.core.events import TERMINAL, State
from deputize.core.outcome import failure_body
from deputize.govern.decide import require_administering
from deputize.lifecycle.calls import Calls
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, Kind, entry
from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("calls")
_RUNS = load("runs")


class Cancellations:
    def __init__(self, rooms: Rooms, calls: Calls) -> None:
        self._rooms = rooms
        self._calls = calls

    async def cancel(self, caller: Caller, call_id: str) -> dict[str, Any]:
        row = await self._calls.row(caller, call_id)
        if row is not None and row["state"] == State.NEEDS_INPUT:
            return await self._unanswered(caller, row)
        if row is None or State(row["state"]) in TERMINAL:
            await self._calls.read(caller, call_id) if row is None else None
            raise NotCancelable("the call has already ended", details={"call_id": call_id})
        if not caller.made(row["caller_user"], row["caller_agent"]):
            require_administering(caller)
        await self._rooms.keys.load(self._rooms.store, caller.tenant)
        async with self._rooms.store.writing() as connection:
            waited = await connection.fetchval(_SQL["cancel_queued"], caller.tenant, call_id)
            if waited is not None:
                nobody = "nobody had decided yet" if waited == State.AWAITING_APPROVAL else "nobody had begun it"
                await self._ended(connection, caller, row, nobody)
                return _answer(call_id, State.CANCELED, "canceled", f"{nobody}, and nothing was done")
            asked = await connection.fetchval(_SQL["ask_to_cancel"], caller.tenant, call_id)
            await self._entry(connection, caller, row, "command", command="cancel", outcome="recorded")
        if asked is None:
            raise NotCancelable("the call has just ended", details={"call_id": call_id})
        return self._asked(row)

    async def _unanswered(self, caller: Caller, row: asyncpg.Record) -> dict[str, Any]:
        """The call has ended with what its server asks; that nobody will answer is for who follows it to know."""
        if not caller.made(row["caller_user"], row["caller_agent"]):
            require_administering(caller)
        async with self._rooms.store.writing() as connection:
            await connection.execute(_SQL["give_up_questions"], caller.tenant, row["id"])
            await self._entry(connection, caller, row, "command", command="cancel", outcome="recorded")
        return _answer(str(row["id"]), State.NEEDS_INPUT, "recorded", "nobody will answer what its server asked")

    def _asked(self, row: asyncpg.Record) -> dict[str, Any]:
        call_id, state = str(row["id"]), State(row["state"])
        if not row["is_run"]:
            said = "the request is recorded; a tool that runs inside a request cannot be interrupted"
            return _answer(call_id, state, "recorded", said)
        if state is State.QUEUED:
            said = "it is not begun again; its outcome says what is known of what was done before"
            return _answer(call_id, state, "asked", said)
        if self._in_thread(row):
            said = "the request is recorded; the tool runs in a thread, and stops only if it looks for such requests"
            return _answer(call_id, state, "recorded", said)
        return _answer(call_id, state, "asked", "its worker stops it within a second; its outcome says what is known")

    def _in_thread(self, row: asyncpg.Record) -> bool:
        known = self._rooms.authority.known(row["tenant"])
        try:
            found = None if known is None else known.tools.resolve(row["tool"], row["version"])
            return found is not None and not self._rooms.driver.find(found.tool.contract).is_async
        except Problem:
            return False

    async def _ended(self, connection: Connection, caller: Caller, row: asyncpg.Record, nobody: str) -> None:
        """Who asked for it and what came of it, each with an entry; and the envelope for whoever looks."""
        call_id = str(row["id"])
        problem = Canceled(f"the call was canceled: {nobody}", nothing_happened=True)
        body = failure_body(problem, call_id=call_id, state=State.CANCELED, trace_id=row["trace"], more={})
        keys = self._rooms.keys.ready(caller.tenant)
        assert keys is not None  # loaded before the transaction began
        await connection.execute(_SQL["keep_outcome"], caller.tenant, call_id, keys.seal(call_id, "outcome", body))
        await self._entry(connection, caller, row, "command", command="cancel", outcome="succeeded")
        await self._entry(connection, caller, row, "outcome", outcome=State.CANCELED, error=problem.face.e_number)

    async def _entry(
        self, connection: Connection, caller: Caller, row: asyncpg.Record, kind: Kind, **told: Any
    ) -> None:
        rooms, call_id, entry_id = self._rooms, str(row["id"]), self._rooms.clock.new_id()
        about = About(caller=caller, trace=row["trace"], call=call_id, session=caller.session, tool=row["tool"])
        if kind == "command":
            told["subject"] = call_id
        body = entry(about, id=entry_id, kind=kind, time=rooms.stamps.now(), **told)
        await connection.execute(_RUNS["add_entry"], caller.tenant, entry_id, call_id, body, None)


def _answer(call_id: str, state: State, cancel: str, detail: str) -> dict[str, Any]:
    return {"call_id": call_id, "state": state, "cancel": cancel, "detail": detail}
