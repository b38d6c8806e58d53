"""Durable delegations: what was lent to whom, for what, and until when. A row is never changed and is no token.

Above: `lifecycle/delegate.py`, inside whose transaction these run. Below: the database.
"""

from dataclasses import dataclass
from typing import Any

import asyncpg
import orjson

from deputize.core.caller import Caller
from deputize.govern.identity.exchange import Delegation, shown_tools
from deputize.store.pool import Connection
from deputize.store.queries import load

_SQL = load("grants")


@dataclass(frozen=True, kw_only=True, slots=True)
class Whose:
    """Whose delegations somebody may see and take back: what a user lent, all that came of it included; what an agent
    passed on; everybody's, without a user.
    """

    user: str | None = None
    agents: tuple[str, ...] = ()

    @classmethod
    def of(cls, caller: Caller) -> "Whose":
        return cls() if caller.is_admin else cls(user=caller.user, agents=caller.agents)


async def add(connection: Connection, made: Delegation) -> None:
    tools = None if made.tools is None else orjson.dumps(shown_tools(made.tools))
    await connection.execute(
        _SQL["add_grant"], made.tenant, made.id, made.parent, made.user, list(made.agents), sorted(made.scopes), tools,
        made.ceiling, made.task, made.constraints, float(made.not_after),
    )  # fmt: skip


async def listed(
    connection: Connection, tenant: str, whose: Whose, *, before: str | None = None, limit: int
) -> list[dict[str, Any]]:
    """Newest first."""
    rows = await connection.fetch(_SQL["list_grants"], tenant, whose.user, list(whose.agents), before, None, limit)
    return [_shown(row) for row in rows]


async def shown(connection: Connection, tenant: str, whose: Whose, id: str) -> dict[str, Any] | None:
    """One of them; None whether it is somebody else's or nobody's."""
    row = await connection.fetchrow(_SQL["list_grants"], tenant, whose.user, list(whose.agents), None, id, 1)
    return None if row is None else _shown(row)


def _shown(row: asyncpg.Record) -> dict[str, Any]:
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
