"""Calls that wait are rows: a hundred thousand cost a worker no memory, and PostgreSQL nothing while nothing moves."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from proofs.fleet.crew import Crew
from proofs.fleet.measured import postgres_cpu_seconds
from proofs.fleet.site import Part, Site

# One call that runs, whose owner lives, and all the others behind it in one line, as `begin_runs` leaves them.
_FILL = """
with ids as (
    select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0')
            || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as id, n
    from generate_series(0, $1::integer) as n
), called as (
    insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
        caller_agent, fingerprint, owner, owner_epoch, deadline_at, window_seconds, trace, ordered)
    select 'acme', id, case when n = 0 then 'running' else 'queued' end, 'jobs.work', '0.1.0', 'd',
        'write-reversible', 'ann', '', '\\x00', $2::uuid, 0, now() + interval '1 day', 60, 't', true from ids
), queued as (
    insert into deputize.runs (tenant, id, priority, caller, release) select 'acme', id, 5, '\\x00', '0' from ids
)
insert into deputize.places (tenant, call_id, space, resource, scope, most, priority, held)
select 'acme', id, 'acme', 'write:desks', 'one', 1, 5, n = 0 from ids
"""
_LIVE = "insert into deputize.leases (boot, expires_at, release) values ($1, now() + interval '1 day', '0')"
_COMMITS = "select sum(xact_commit)::bigint from pg_stat_database"
_BOOT = "00000000-0000-7000-8000-000000000001"


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    memory_mb: float
    commits: float
    postgres: float


async def idle(site: Site) -> Part:
    count = site.world.size(quick=20_000, full=100_000)
    crew = await site.crew(1)
    await asyncio.sleep(3)
    before = await _look(site, crew)
    await site.database.fetch(_LIVE, _BOOT)
    await site.database.fetch(_FILL, count, _BOOT)
    await site.database.fetch("analyze")
    await asyncio.sleep(3)
    after = await _look(site, crew)
    site.world.say(f"idle: {before} with none, {after} with {count} waiting")
    await crew.dismiss()
    for table in ("places", "calls", "runs"):
        await site.database.fetch(f"delete from deputize.{table}")
    return Part(
        figures={
            "calls_waiting": count,
            "worker_memory_mb": round(after.memory_mb, 1),
            "worker_memory_of_none": round(after.memory_mb / before.memory_mb, 3),
            "idle_commits_per_second": round(after.commits, 1),
            "idle_commits_of_none": round(after.commits / before.commits, 3),
            "idle_postgres_cpu_share": round(after.postgres, 4),
            "idle_postgres_cpu_more_than_none": round(after.postgres - before.postgres, 4),
        },
        bars={
            "worker_memory_of_none": ("<=", 1.1),
            "idle_postgres_cpu_more_than_none": ("<=", site.world.within(0.02)),
        },
        notes=[f"Idle: one worker and one gateway, {count} runs in one line behind a run that does not end."],
    )


async def _look(site: Site, crew: Crew) -> Load:
    seconds = site.world.size(quick=5, full=30)
    commits = int(str(await site.database.value(_COMMITS)))
    cpu = postgres_cpu_seconds(site.postgres.pid)
    await asyncio.sleep(seconds)
    # What is counted is told with a delay of its own; the same delay at both ends.
    commits = int(str(await site.database.value(_COMMITS))) - commits
    cpu = postgres_cpu_seconds(site.postgres.pid) - cpu
    return Load(memory_mb=_memory(crew.hands[0].born.pid), commits=commits / seconds, postgres=cpu / seconds)


def _memory(pid: int) -> float:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * 4096 / 1_000_000
