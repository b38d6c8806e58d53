"""List the agents of a tenant: whom they act for, their delegations, their last call, and whether they are revoked.

An auditor sees every agent that made a call or was given a delegation. A person sees the agents they delegated to
and those that acted for them; an agent sees those it delegated to.
"""

from typing import Any

from deputize.core.caller import Caller, parse_agents
from deputize.core.subject import AGENT_PREFIX
from deputize.govern.identity.grants import GrantFilter
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader, describe_entry
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("agents")
# How long one agent's last call is searched for.
_SEARCH_MS = 100


class AgentList:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader

    async def list_agents(self, caller: Caller, *, after: str, limit: int) -> list[dict[str, Any]]:
        """List agents by name, after a name."""
        runtime = self._reader.runtime
        revocations = (await runtime.authority.load_tenant(caller.tenant)).revocations
        revocations.check(caller)
        whose = GrantFilter.for_caller(caller, for_auditor=True)
        async with runtime.store.read_transaction(caller.tenant) as connection:
            own_names = await self._list_own_agents(connection, caller) if whose.user is not None else None
            rows = await connection.fetch(
                _SQL["list_agents"], caller.tenant, AGENT_PREFIX, whose.user, list(whose.agents), whose.root,
                own_names, after, limit,
            )  # fmt: skip
        return [
            {
                "name": row["name"],
                "users": row["users"],
                "active_grants": row["active_grants"],
                "last_call": await self._find_last_call(caller, row["name"]),
                "revoked": row["name"] in revocations.agents or row["name"] in revocations.subjects,
            }
            for row in rows
        ]

    async def _list_own_agents(self, connection: Connection, caller: Caller) -> list[str]:
        """List the agents of a person's latest calls; an agent's own chain is not what it delegated to."""
        if caller.agents or caller.is_limited:
            return []
        keys = await connection.fetch(_SQL["list_agents_of_user"], caller.tenant, caller.user)
        return sorted({name for row in keys for name in parse_agents(row["caller_agent"])})

    async def _find_last_call(self, caller: Caller, agent: str) -> dict[str, Any] | None:
        search = await self._reader.permit(caller, AuditQuery(agent=agent))
        page = await self._reader.read_page(caller.tenant, search, None, 1, milliseconds=_SEARCH_MS)
        if not page.rows:
            return None
        entry = page.rows[0][2]
        names = await self._reader.load_names(caller.tenant, entry["caller"])
        description = describe_entry(entry, names)
        return {
            "time": description["time"],
            "call_id": entry.get("call"),
            "tool": entry.get("tool"),
            "user": description["user"],
            "outcome": entry.get("outcome"),
        }
