"""Store grants: durable delegations from a user to an agent. A grant is immutable, and is not a token.

These functions run inside the transactions of `operations/admin/delegations.py`.
"""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from deputize.core.caller import Caller
from deputize.govern.identity.token_exchange import Delegation, serialize_tools
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("grants")
_NO_GRANT = str(UUID(int=0))


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantFilter:
    """Which grants a caller may see, and revoke unless they only audit.

    A user sees their own grants and all that were derived from them, an administrator all. A delegation sees itself and
    what was derived from it, and so does an agent whose issuer made its token. A limited token sees no others.
    """

    user: str | None = None
    agents: tuple[str, ...] = ()
    root: str | None = None

    @classmethod
    def for_caller(cls, caller: Caller, *, for_auditor: bool = False) -> "GrantFilter":
        """Build the filter. `for_auditor` is for lists: there, an auditor sees all."""
        sees_all = caller.is_admin or (for_auditor and caller.is_auditor)
        if sees_all and not caller.is_limited:
            return cls()
        if caller.grants or caller.is_limited:
            return cls(user=caller.user, root=caller.grants[0] if caller.grants else _NO_GRANT)
        return cls(user=caller.user, agents=caller.agents)


async def add_grant(connection: Connection, delegation: Delegation) -> None:
    """Store a delegation as a grant."""
    tools = None if delegation.tools is None else orjson.dumps(serialize_tools(delegation.tools))
    await connection.execute(
        _SQL["insert_grant"],
        delegation.tenant,
        delegation.id,
        delegation.parent,
        delegation.user,
        list(delegation.agents),
        sorted(delegation.scopes),
        tools,
        delegation.ceiling,
        delegation.task,
        None if delegation.own_constraints is None else delegation.own_constraints.encode(),
        float(delegation.not_after),
    )


async def add_operator_token(
    connection: Connection, tenant: str, id: str, *, user: str, scopes: frozenset[str], expires_at: int
) -> bool:
    """Store that an operator client got a token, or return False if it got one with this id before.

    It is a grant without an agent: kept as long, and not listed, because it delegates nothing.
    """
    row_id = await connection.fetchval(
        _SQL["insert_operator_token"], tenant, id, user, sorted(scopes), float(expires_at)
    )
    return row_id is not None


async def list_grants(
    connection: Connection, tenant: str, grant_filter: GrantFilter, *, before: str | None = None, limit: int
) -> list[dict[str, Any]]:
    """List the grants a caller may see, newest first."""
    rows = await connection.fetch(
        _SQL["list_grants"],
        tenant,
        grant_filter.user,
        list(grant_filter.agents),
        before,
        None,
        limit,
        grant_filter.root,
    )
    return [_serialize_grant(row) for row in rows]


async def find_grant(connection: Connection, tenant: str, grant_filter: GrantFilter, id: str) -> dict[str, Any] | None:
    """Find a grant, or None if it does not exist or the caller may not see it."""
    row = await connection.fetchrow(
        _SQL["list_grants"],
        tenant,
        grant_filter.user,
        list(grant_filter.agents),
        None,
        id,
        1,
        grant_filter.root,
    )
    return None if row is None else _serialize_grant(row)


def _serialize_grant(row: asyncpg.Record) -> dict[str, Any]:
    return {
        "grant_id": str(row["id"]),
        "parent": None if row["parent"] is None else str(row["parent"]),
        "user": row["grantor"],
        "agents": list(row["agents"]),
        "scopes": list(row["scopes"]),
        "tools": None if row["tools"] is None else orjson.loads(row["tools"]),
        "ceiling": row["ceiling"],
        "task": row["task"],
        "constraints": None if row["constraints"] is None else orjson.loads(row["constraints"]),
        "state": "revoked" if row["revoked"] else "ended" if row["ended"] else "active",
        "created_at": row["created_at"].isoformat(),
        "not_after": row["not_after"].isoformat(),
    }
