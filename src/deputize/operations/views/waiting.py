"""List what waits for a person: approval requests, human tasks, undos that agents ask for, changes of servers.

An administrator sees what waits in the tenant, an operator all of it but approval requests, and anyone the approval
requests for their groups and what their agents ask them. Each kind has its own list, with more about each: this one
answers in one query what needs someone now.
"""

from typing import Any, Final

import asyncpg
import orjson

from deputize.core.caller import Caller, parse_nearest_agent
from deputize.core.display_text import to_display_text
from deputize.lifecycle.approval.presentation import format_time
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

_SQL = load_statements("waiting")
_MAX_ITEMS: Final = 10
_MAX_TEXT_LENGTH: Final = 400


class Waiting:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def list_waiting(self, caller: Caller) -> list[dict[str, Any]]:
        """List the newest of each kind; a server also if this gateway does not reach it."""
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        # A token that was limited to less than its scopes decides nothing.
        if caller.is_limited or caller.agents:
            return []
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_waiting"], caller.tenant, caller.is_admin, caller.user, _MAX_ITEMS, sorted(caller.groups),
                caller.can_operate,
            )  # fmt: skip
        items = [_describe_item(row) for row in rows if row["kind"] != "server"]
        if caller.can_operate:
            items += self._list_servers(caller, {row["id"]: row["changes"] for row in rows if row["kind"] == "server"})
        return items

    def _list_servers(self, caller: Caller, changes: dict[str, int]) -> list[dict[str, Any]]:
        items = []
        for server in sorted(self._runtime.upstreams.list_servers(caller.tenant), key=lambda each: each.name):
            state, count = (
                self._runtime.server_states.get_state(caller.tenant, server.name),
                changes.get(server.name, 0),
            )
            is_away = state is not None and not state.is_connected
            if count or is_away:
                why = to_display_text(state.reason, _MAX_TEXT_LENGTH) if state is not None and state.reason else None
                items.append({"kind": "server", "name": server.name, "changes": count, "why": why})
        return items


def _describe_item(row: asyncpg.Record) -> dict[str, Any]:
    question = {} if row["question"] is None else orjson.loads(row["question"])
    tool = row["tool"] or (question.get("tool") or {}).get("name")
    return {
        "kind": row["kind"],
        "id": row["id"],
        "call_id": question.get("call_id") or str(row["call_id"]),
        "tool": tool,
        "user": row["caller_user"],
        "agent": parse_nearest_agent(row["caller_agent"] or "") or None,
        "asked": question.get("asked"),
        "opened_at": format_time(row["opened_at"]),
        "ends_at": format_time(row["expires_at"]),
    }
