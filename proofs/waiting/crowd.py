"""Tickets by the million, put where `ask` leaves them: call, run, ticket, what is asked, and whom."""

from dataclasses import dataclass

import asyncpg
import orjson

from deputize.store.migrate import upgrade_async

TENANTS = 20
# One of them is the tenant whose people look at their tickets.
HERE = "acme"
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
# Between which moments people were asked, how long after it something is due, and after how many seconds more of them
# are asked: one kind after the other. Nothing that was looked at, or that waits, is due again before the proof ends.
REMIND_SECONDS = 7200
_KINDS = {
    "over": ("26 hours", "25 hours", "24 hours", "3600,14400"),
    "rising": ("80 minutes", "61 minutes", "1 hour", "3600,14400"),
    "remind": ("150 minutes", "121 minutes", "2 hours", "14400"),
    "waiting": ("23 hours", "1 second", "27 hours", "3600,14400"),
}
# One after the other, as they were asked: ids lead with their moment, and lie in the tables in that order.
_IDS = """
create temporary table crowd on commit drop as
select case n % {tenants} when 0 then '{here}' else 't' || n % {tenants} end as tenant, opened_at,
       opened_at + interval '{after}' as next_at,
       (prefix || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as id,
       (prefix || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as ticket
from (select n, opened_at, lpad(to_hex((extract(epoch from opened_at) * 1000)::bigint), 12, '0') as prefix
      from (select n, now() - interval '{first}' + (interval '{first}' - interval '{last}') * n / {count} as opened_at
            from generate_series(1, {count}) as n) as moments) as named
"""
_FILL = """
insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user, caller_agent,
    fingerprint, owner, owner_epoch, created_at, deadline_at, window_seconds, trace, asked)
select tenant, id, 'awaiting_approval', 'crm.delete_user', '1.0.0', 'd', 'write-irreversible', 'ann', 'bot', '\\x00',
    id, 0, opened_at, opened_at, 86400, md5(id::text), true from crowd;
insert into deputize.runs (tenant, id, priority, caller, release) select tenant, id, 5, '\\x00', '0' from crowd;
insert into deputize.tickets (tenant, id, kind, call_id, question, due_at, opened_at)
select tenant, ticket, 'approval', id, '{}', opened_at + interval '1 day', opened_at from crowd;
insert into deputize.approval_groups (tenant, grp, id)
select tenant, g, ticket from crowd cross join unnest(array['oncall', 'support']) as g;
"""
_APPROVALS = """
insert into deputize.approvals (tenant, id, call_id, binding, demands, shown, chain, tool, group_key, levels,
    opened_at, expires_at, next_at)
select tenant, ticket, id, sha256(id::text::bytea), $1, $2, '{ann,bot}', 'crm.delete_user', 'd p', $3,
    opened_at, opened_at + interval '24 hours', next_at from crowd
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Crowd:
    """How many there are of each kind."""

    over: int
    rising: int
    remind: int
    waiting: int

    @property
    def due(self) -> int:
        return self.over + self.rising + self.remind


async def fill(dsn: str, crowd: Crowd) -> None:
    """Past the triggers, which would make everything due soon: these have been there for a while."""
    await upgrade_async(dsn)
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("set session_replication_role = replica; set synchronous_commit = off")
        await connection.execute("call deputize.make_partitions(7)")
        for kind, (first, last, after, levels) in _KINDS.items():
            for count in _chunks(getattr(crowd, kind)):
                async with connection.transaction():
                    ids = _IDS.format(tenants=TENANTS, here=HERE, first=first, last=last, after=after, count=count)
                    await connection.execute(ids)
                    await connection.execute(_FILL)
                    steps = [float(each) for each in levels.split(",")]
                    await connection.execute(_APPROVALS, _DEMANDS, bytes(600), steps)
        await connection.execute("vacuum analyze")
        # Filling wrote in a minute what a week writes; PostgreSQL is not to be still at that when it is timed.
        await connection.execute("checkpoint")
    finally:
        await connection.close()


def _chunks(count: int) -> list[int]:
    whole, rest = divmod(count, _CHUNK)
    return [_CHUNK] * whole + ([rest] if rest else [])
