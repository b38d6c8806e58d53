"""Store proposals of policies: sets that one operator proposed, and that another must confirm before they are active.

These functions run inside the transactions of `operations/admin/policy/two_operators.py`.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg
import orjson

from deputize.core.errors import Unavailable
from deputize.govern.policy.active_policies import ParsedPolicies
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

PROPOSAL_SECONDS = 86_400
_SQL = load_statements("policy")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyProposal:
    """A proposal that can be confirmed now."""

    digest: str
    files: list[dict[str, str]]
    proposed_by: str
    proposed_at: datetime
    expires_at: datetime

    def to_json(self) -> dict[str, Any]:
        return {
            "digest": self.digest,
            "proposed_by": self.proposed_by,
            "proposed_at": self.proposed_at.isoformat(),
            "expires_at": self.expires_at.isoformat(),
            "files": self.files,
        }


async def list_proposals(connection: Connection, tenant: str, digest: str | None = None) -> list[PolicyProposal]:
    """List the proposals that can be confirmed, newest first; with `digest`, that one."""
    return [_read_proposal(row) for row in await connection.fetch(_SQL["list_policy_proposals"], tenant, digest)]


async def find_proposal(connection: Connection, tenant: str, digest: str) -> PolicyProposal | None:
    return next(iter(await list_proposals(connection, tenant, digest)), None)


async def save_proposal(connection: Connection, tenant: str, policies: ParsedPolicies, *, by: str) -> PolicyProposal:
    """Store a proposal for the policies that are active now."""
    row = await connection.fetchrow(
        _SQL["insert_policy_proposal"], tenant, policies.digest, policies.files_json, by, float(PROPOSAL_SECONDS)
    )
    if row is None:
        raise Unavailable(
            "another operator activated these policies at this moment", retry_after_ms=0, nothing_happened=True
        )
    return _read_proposal(row)


async def delete_proposal(connection: Connection, tenant: str, digest: str) -> None:
    await connection.execute(_SQL["delete_policy_proposal"], tenant, digest)


def _read_proposal(row: asyncpg.Record) -> PolicyProposal:
    return PolicyProposal(
        digest=row["digest"],
        files=orjson.loads(row["files"]),
        proposed_by=row["proposed_by"],
        proposed_at=row["proposed_at"],
        expires_at=row["expires_at"],
    )
