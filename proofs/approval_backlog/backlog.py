"""Approval requests by the million, put where `ask` leaves them: call, run, approval request, what is asked, and
whom.
"""

from dataclasses import dataclass

import asyncpg
import orjson

from deputize.store.migrate import upgrade_async

TENANTS = 20
# One of them is the tenant whose people look at their tickets.
APPROVER_TENANT = "acme"
_CHUNK = 100_000
_DEMANDS = orjson.dumps(
    [
        {
            "rule": "deletions", "where": "policies/proof.cedar:3", "reason": "what is deleted is gone",
            "groups": ["oncall", "leads", "security"], "quorum": 1, "deadline_seconds": None, "step_up": "",
        },
        {
            "rule": "money", "where": "policies/proof.cedar:9", "reason": "somebody who knows the customer",
            "groups": ["support"], "quorum": 2, "deadline_seconds": None, "step_up": "hwk",
        },
    ]
)  # fmt: skip
# Between which moments people were asked, how long after it something is due, how long a request lives, and after how
# many seconds more people are asked: one kind after the other. Nothing that was looked at, or that waits, is due again
# before the proof ends. Nothing is older than a day: partitions begin with yesterday, at any hour.
REMIND_SECONDS = 7200
_KINDS = {
    "over": ("20 hours", "19 hours", "18 hours", "18 hours", "3600,14400"),
    "escalate": ("80 minutes", "61 minutes", "1 hour", "24 hours", "3600,14400"),
    "remind": ("148 minutes", "121 minutes", "2 hours", "24 hours", "14400"),
    "idle": ("23 hours", "1 second", "27 hours", "24 hours", "3600,14400"),
}
# One after the other, as they were asked: ids lead with their moment, and lie in the tables in that order.
_CREATE_IDS = """
create temporary table crowd on commit drop as
select case n % {tenants} when 0 then '{here}' else 't' || n % {tenants} end as tenant, opened_at,
       opened_at + interval '{after}' as next_at, opened_at + interval '{life}' as expires_at,
       (prefix || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as id,
       (prefix || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as ticket
from (select n, opened_at, lpad(to_hex((extract(epoch from opened_at) * 1000)::bigint), 12, '0') as prefix
      from (select n, now() - interval '{first}' + (interval '{first}' - interval '{last}') * n / {count} as opened_at
            from generate_series(1, {count}) as n) as moments) as named
"""
_INSERT_CALLS = """
insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user, caller_agent,
    fingerprint, owner, owner_epoch, created_at, deadline_at, window_seconds, trace, needs_approval)
select tenant, id, 'awaiting_approval', 'crm.delete_user', '1.0.0', 'd', 'write-irreversible', 'ann', 'bot', '\\x00',
    id, 0, opened_at, opened_at, 86400, md5(id::text), true from crowd;
insert into deputize.runs (tenant, id, priority, caller, release) select tenant, id, 5, '\\x00', '0' from crowd;
insert into deputize.human_tasks (tenant, id, kind, call_id, question, due_at, opened_at)
select tenant, ticket, 'approval', id, '{}', expires_at, opened_at from crowd;
insert into deputize.approval_groups (tenant, grp, id)
select tenant, g, ticket from crowd cross join unnest(array['oncall', 'support']) as g;
"""
_INSERT_APPROVALS = """
insert into deputize.approvals (tenant, id, call_id, binding, demands, presentation, chain, tool, group_key, levels,
    opened_at, expires_at, next_at)
select tenant, ticket, id, sha256(id::text::bytea), $1, $2, '{ann,bot}', 'crm.delete_user', 'd p', $3,
    opened_at, expires_at, next_at from crowd
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Backlog:
    """How many there are of each kind."""

    over: int
    escalate: int
    remind: int
    idle: int

    @property
    def due(self) -> int:
        return self.over + self.escalate + self.remind


async def fill_backlog(dsn: str, backlog: Backlog) -> None:
    """Past the triggers, which would make everything due soon: these have been there for a while."""
    await upgrade_async(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("set session_replication_role = replica; set synchronous_commit = off")
        await connection.execute("call deputize.create_partitions(7)")
        for kind, (first, last, after, life, levels) in _KINDS.items():
            for count in _split_chunks(getattr(backlog, kind)):
                async with connection.transaction():
                    ids = _CREATE_IDS.format(
                        tenants=TENANTS,
                        here=APPROVER_TENANT,
                        first=first,
                        last=last,
                        after=after,
                        life=life,
                        count=count,
                    )
                    await connection.execute(ids)
                    await connection.execute(_INSERT_CALLS)
                    steps = [float(each) for each in levels.split(",")]
                    await connection.execute(_INSERT_APPROVALS, _DEMANDS, bytes(600), steps)
        await connection.execute("vacuum analyze")
        # Filling wrote in a minute what a week writes; PostgreSQL is not to be still at that when it is timed.
        await connection.execute("checkpoint")
    finally:
        await connection.close()


def _split_chunks(count: int) -> list[int]:
    whole, rest = divmod(count, _CHUNK)
    return [_CHUNK] * whole + ([rest] if rest else [])
