"""List the agents of a tenant: whom they act for, their delegations, their last call, and whether they are
revoked or switched off.

An auditor sees every agent that made a call or was given a delegation. A person sees the agents they delegated to
and those that acted for them; an agent sees those it delegated to.
"""

from collections.abc import Mapping
from typing import Any

from deputize.core.caller import AGENT_SEPARATOR, GRANT_SEPARATOR, Caller
from deputize.core.canonical import compute_commitment
from deputize.core.entry_kinds import DRY_RUN
from deputize.core.subject import AGENT_PREFIX
from deputize.govern.identity.grants import GrantFilter
from deputize.govern.kill_switches import KillSwitch
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader, describe_entry
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
        authority = await runtime.authority.load_tenant(caller.tenant)
        revocations = authority.revocations
        revocations.check(caller)
        whose = GrantFilter.for_caller(caller, for_auditor=True)
        # An agent's own chain is not what it delegated to.
        is_person = whose.user is not None and not caller.agents and not caller.is_limited
        async with runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_agents"], caller.tenant, AGENT_PREFIX, whose.user, list(whose.agents), whose.root,
                caller.user if is_person else None, GRANT_SEPARATOR, AGENT_SEPARATOR, after, limit,
            )  # fmt: skip
        last_calls = await self._find_last_calls(caller, {row["name"]: row["salt"] for row in rows})
        return [
            {
                "name": row["name"],
                "users": row["users"],
                "active_grants": row["active_grants"],
                "last_call": last_calls.get(row["name"]),
                "revoked": row["name"] in revocations.agents or row["name"] in revocations.subjects,
                "switched_off": _describe_switch(authority.switches.find_off("agent", row["name"])),
            }
            for row in rows
        ]

    async def _find_last_calls(self, caller: Caller, salts: Mapping[str, bytes | None]) -> dict[str, dict[str, Any]]:
        """Find the last call of each agent that the caller may see, by the salts of their names."""
        searches = []
        for agent, salt in salts.items():
            subject = f"{AGENT_PREFIX}{agent}"
            pseudonyms = {} if salt is None else {subject: compute_commitment(salt, subject.encode())}
            searches.append(self._reader.limit_query(caller, AuditQuery(agent=agent), pseudonyms))
        entries = await self._reader.find_newest(caller.tenant, searches, milliseconds=_SEARCH_MS)
        found = {agent: entry for agent, entry in zip(salts, entries, strict=True) if entry is not None}
        names = await self._reader.load_names(caller.tenant, (each for one in found.values() for each in one["caller"]))
        return {agent: _describe_call(entry, names) for agent, entry in found.items()}


def _describe_switch(switch: KillSwitch | None) -> dict[str, Any] | None:
    return None if switch is None else {"by": switch.by, "since": switch.since, "reason": switch.reason}


def _describe_call(entry: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "time": entry["time"],
        "call_id": entry.get("call"),
        "tool": entry.get("tool"),
        "user": describe_entry(entry, names)["user"],
        "outcome": entry.get("outcome"),
        "dry_run": entry.get("command") == DRY_RUN,
    }
