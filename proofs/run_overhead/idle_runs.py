"""Calls that wait are rows: a hundred thousand cost a worker no memory, and PostgreSQL nothing while nothing moves."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from proofs.kit.cpu_metrics import read_postgres_cpu_seconds
from proofs.kit.worker_pool import WorkerPool
from proofs.run_overhead.testbed import PartResult, Testbed

# One call that runs, whose owner lives, and all the others behind it in one line, as `begin_runs` leaves them.
_FILL = """
with ids as (
    select (lpad(to_hex((extract(epoch from now()) * 1000)::bigint), 12, '0')
            || substr(replace(gen_random_uuid()::text, '-', ''), 13))::uuid as id, n
    from generate_series(0, $1::integer) as n
), called as (
    insert into deputize.calls (tenant, id, state, tool, version, tool_digest, mutation_class, caller_user,
        caller_agent, fingerprint, owner, owner_epoch, deadline_at, window_seconds, trace, uses_resource_locks)
    select 'acme', id, case when n = 0 then 'running' else 'queued' end, 'jobs.work', '0.1.0', 'd',
        'write-reversible', 'ann', '', '\\x00', $2::uuid, 0, now() + interval '1 day', 60, 't', true from ids
), queued as (
    insert into deputize.runs (tenant, id, priority, caller, release) select 'acme', id, 5, '\\x00', '0' from ids
)
insert into deputize.resource_locks (tenant, call_id, namespace, resource, scope, capacity, priority, is_held)
select 'acme', id, 'acme', 'write:desks', 'one', 1, 5, n = 0 from ids
"""
_LIVE = "insert into deputize.leases (boot, expires_at, release) values ($1, now() + interval '1 day', '0')"
_COMMITS = "select sum(xact_commit)::bigint from pg_stat_database"
_BOOT = "00000000-0000-7000-8000-000000000001"


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleLoad:
    memory_mb: float
    commits: float
    postgres: float


async def measure_idle_runs(testbed: Testbed) -> PartResult:
    count = testbed.sandbox.pick_size(quick=20_000, full=100_000)
    pool = await testbed.start_pool(1)
    await asyncio.sleep(3)
    before = await _sample_load(testbed, pool)
    await testbed.database.fetch(_LIVE, _BOOT)
    await testbed.database.fetch(_FILL, count, _BOOT)
    await testbed.database.fetch("analyze")
    await asyncio.sleep(3)
    after = await _sample_load(testbed, pool)
    testbed.sandbox.log(f"idle: {before} with none, {after} with {count} waiting")
    await pool.stop_all()
    for table in ("resource_locks", "calls", "runs"):
        await testbed.database.fetch(f"delete from deputize.{table}")
    return PartResult(
        figures={
            "calls_waiting": count,
            "worker_memory_mb": round(after.memory_mb, 1),
            "worker_memory_of_none": round(after.memory_mb / before.memory_mb, 3),
            "idle_commits_per_second": round(after.commits, 1),
            "idle_commits_of_none": round(after.commits / before.commits, 3),
            "idle_postgres_cpu_share": round(after.postgres, 4),
            "idle_postgres_cpu_more_than_none": round(after.postgres - before.postgres, 4),
        },
        notes=[f"Idle: one worker and one gateway, {count} runs in one line behind a run that does not end."],
    )


async def _sample_load(testbed: Testbed, pool: WorkerPool) -> IdleLoad:
    seconds = testbed.sandbox.pick_size(quick=5, full=30)
    commits = int(str(await testbed.database.fetch_value(_COMMITS)))
    cpu = read_postgres_cpu_seconds(testbed.postgres.pid)
    await asyncio.sleep(seconds)
    # What is counted is told with a delay of its own; the same delay at both ends.
    commits = int(str(await testbed.database.fetch_value(_COMMITS))) - commits
    cpu = read_postgres_cpu_seconds(testbed.postgres.pid) - cpu
    return IdleLoad(
        memory_mb=_read_memory_mb(pool.workers[0].process.pid), commits=commits / seconds, postgres=cpu / seconds
    )


def _read_memory_mb(pid: int) -> float:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * 4096 / 1_000_000
