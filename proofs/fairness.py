"""One tenant floods the queue while another asks for a run now and then; and jobs that must not meet do not.

`kit/worker_pool.py` starts the workers. When a run was queued and when it began is read from its row; when jobs were
at work is what they say themselves, by the machine's clock.
"""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.fork_server import ForkServer, start_fork_server
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, put_policies, start_gateway
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.run_submitter import Job, RunSubmitter
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database, WorkerPool
from proofs.recovery.judge import compute_percentile

NAME = "fairness"
PROMISE = "One tenant's flood does not keep another waiting, and runs that touch the same thing never meet."

WORKERS = 3
FLOOD, OTHER = "acme", "beside"
SETTINGS = """
[timing]
lease_seconds = 5
sweep_seconds = 0.5
margin_seconds = 0.2

[runs]
poll_seconds = 0.1

[[runs.limits]]
tools = "jobs.single"
at_once = 1
"""
_STARTS = """
select extract(epoch from r.started_at - r.queued_at)::float8 from deputize.runs r
where r.tenant = $1 and r.id = any($2::uuid[])
"""
_QUEUED_COUNT = "select count(*) from deputize.calls where tenant = $1 and state = 'queued'"
_NONE_OPEN = (
    "select not exists (select from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running'))"
)
_ENDS = "select id::text, state, owner_epoch from deputize.calls where id = any($1::uuid[])"
_ALL_WORKERS_BUSY = (
    f"select count(*) >= {WORKERS} from (select distinct owner from deputize.calls where state = 'running') as o"
)
_ENQUEUE_DEFINITION = "select pg_get_functiondef('deputize.enqueue_run'::regproc)"
_OWN_QUEUE = "queue_partition_key => p_tenant"
_MAX_SECONDS_ALONE = 2.0
_CONTROL_FLOOD = 1000
_DELETE_WORKFLOWS = "delete from dbos.workflow_status where status <> 'SUCCESS'"
_CANCEL_QUEUED = "update deputize.calls set state = 'canceled', ended_at = now() where state = 'queued'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    fork_server: ForkServer
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    turns_file: Path

    async def start_pool(self, module: str | None = None) -> WorkerPool:
        pool = WorkerPool(
            sandbox=self.sandbox, fork_server=self.fork_server, folder=self.gateway.folder, database=self.database,
            env={"PROOF_TURNS": str(self.turns_file)},
        )  # fmt: skip
        pool.module = module or pool.module
        self.sandbox.add_cleanup(pool.stop_all)
        for slot in range(WORKERS):
            await pool.start_worker(slot)
        return pool

    def create_submitter(self) -> RunSubmitter:
        tokens = {tenant: self.issuer.issue_token("ann", tenant=tenant) for tenant in (FLOOD, OTHER)}
        return RunSubmitter(url=self.gateway.url, tokens=tokens)


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, fork_server = await asyncio.gather(sandbox.start_postgres(), start_fork_server(sandbox))
    issuer, turns_file = create_issuer(), sandbox.folder / "turns.jsonl"
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, tools="jobs.py", settings=SETTINGS, env={"PROOF_TURNS": str(turns_file)}
    )
    await _register_tenant(gateway, issuer)
    database = Database(postgres.dsn)
    sandbox.add_cleanup(database.close)
    testbed = Testbed(
        sandbox=sandbox,
        fork_server=fork_server,
        database=database,
        gateway=gateway,
        issuer=issuer,
        turns_file=turns_file,
    )
    delays_alone, delays_beside_flood, flood_left = await _measure_flood(testbed)
    pool = await testbed.start_pool()
    job_count = sandbox.pick_size(quick=150, full=2000)
    overlap_count, misdone = await _run_exclusive_jobs(testbed, pool, "turn", job_count)
    await pool.stop_all()
    controls = {
        "fairness_no_locks": await _run_control(testbed),
        "one queue for all tenants": await _run_flood_control(testbed, compute_limit_seconds(delays_alone)),
    }
    return Verdict(
        figures={
            **judge_delays(delays_alone, delays_beside_flood, flood_left),
            "jobs": job_count,
            "jobs_not_done_once": len(misdone),
            "jobs_that_met": overlap_count,
        },
        controls=controls,
        notes=[
            f"{sandbox.pick_size(quick=2000, full=10_000)} runs of one tenant, 20-80 ms each, on {WORKERS} "
            "workers; the other "
            "asks for one about five times a second. Allowed is the larger of twice the p95 without a flood and 1 s.",
            "Jobs that must not meet: nine in ten write to one of a few dozen things, the others come under a limit of "
            "one at once; priorities 1 to 10, a worker is killed in the middle. They note when they began and ended "
            "by CLOCK_MONOTONIC.",
        ],
    )


def require_quick_starts(delays_alone: Sequence[float]) -> None:
    """Raise if runs began late without a flood, too: nothing can be compared with that, not even the control."""
    p95 = compute_percentile(delays_alone, 0.95)
    if p95 > _MAX_SECONDS_ALONE:
        raise TimeoutError(f"without a flood the p95 is {p95:.3f} s: this machine is too busy to compare anything")


def compute_limit_seconds(delays_alone: Sequence[float]) -> float:
    """Compute how long a run may wait beside a flood: twice as long as without one, and always one second."""
    return max(2 * compute_percentile(delays_alone, 0.95), 1.0)


def judge_delays(alone: Sequence[float], beside_flood: Sequence[float], flood_left: int) -> dict[str, Figure]:
    """Compare how long runs took to begin; without any flood left at the end, they were not beside one."""
    beside_p95 = compute_percentile(beside_flood, 0.95)
    return {
        "start_p95_alone_seconds": round(compute_percentile(alone, 0.95), 3),
        "start_p95_beside_a_flood_seconds": round(beside_p95, 3),
        "start_p95_of_what_is_allowed": round(beside_p95 / compute_limit_seconds(alone), 3),
        "flood_left_at_the_end": flood_left,
    }


async def _register_tenant(gateway: GatewayHandle, issuer: Issuer) -> None:
    """The other tenant gets the same tool and policies."""
    scopes = ("proof:write", "deputize:admin")
    admin = HttpConnection.for_url(gateway.url, token=issuer.issue_token("root", tenant=FLOOD, scopes=scopes))
    token = issuer.issue_token("root", tenant=OTHER, scopes=scopes)
    other_admin = HttpConnection.for_url(gateway.url, token=token)
    tool = (await admin.get("/v1/tools/jobs.rest")).json()
    answer = await other_admin.post("/v1/tools", {**tool["contract"], "handler": {"target": "tools.jobs:rest"}})
    if answer.status != 201:
        raise RuntimeError(f"the tool was not registered: {answer.status} {answer.body[:500]!r}")
    await put_policies(gateway.url, token)
    admin.close()
    other_admin.close()


def _generate_rests(tenant: str, name: str, count: int, rng: random.Random) -> Iterator[Job]:
    for number in range(count):
        arguments: dict[str, object] = {"label": f"{name}-{number}", "milliseconds": rng.randrange(20, 80)}
        yield Job(label=f"{name}-{number}", tool="jobs.rest", arguments=arguments, tenant=tenant)


async def _measure_flood(testbed: Testbed) -> tuple[list[float], list[float], int]:
    """How long the other tenant's runs took to begin, without and with a flood; and what was left of it at the end."""
    few, rng = testbed.sandbox.pick_size(quick=25, full=100), random.Random(3)
    pool = await testbed.start_pool()
    delays_alone = await _measure_start_delays(testbed, "alone", few, rng)
    require_quick_starts(delays_alone)
    # It breaks in while nobody is there to drain it, so that all of it stands before the others.
    await pool.stop_all()
    flood = _generate_rests(FLOOD, "flood", testbed.sandbox.pick_size(quick=2000, full=10_000), rng)
    await testbed.create_submitter().submit_runs(flood, lanes=8)
    pool = await testbed.start_pool()
    await testbed.database.wait_until(_ALL_WORKERS_BUSY)
    delays_beside_flood = await _measure_start_delays(testbed, "beside", few, rng)
    left = int(str(await testbed.database.fetch_value(_QUEUED_COUNT, FLOOD)))
    testbed.sandbox.log(
        f"p95 {compute_percentile(delays_alone, 0.95):.3f} s alone, "
        f"{compute_percentile(delays_beside_flood, 0.95):.3f} s beside {left} runs"
    )
    # Nobody waits for the rest of it: that a queue is emptied is shown elsewhere.
    await testbed.database.fetch(_CANCEL_QUEUED)
    await pool.stop_all()
    await testbed.database.fetch(_DELETE_WORKFLOWS)
    return delays_alone, delays_beside_flood, left


async def _measure_start_delays(testbed: Testbed, name: str, count: int, rng: random.Random) -> list[float]:
    submitter = testbed.create_submitter()
    await submitter.submit_runs(_generate_rests(OTHER, name, count, rng), lanes=1, pace=0.2)
    ids = list(submitter.calls.values())
    await testbed.database.wait_until(_NONE_OPEN, ids)
    return [row[0] for row in await testbed.database.fetch(_STARTS, OTHER, ids)]


def _generate_jobs(name: str, count: int, rng: random.Random) -> Iterator[Job]:
    places = max(4, count // 50)
    for number in range(count):
        label = f"{name}-{number}"
        arguments: dict[str, object] = {"label": label, "milliseconds": rng.randrange(5, 40)}
        priority = rng.randrange(1, 11)
        if number % 10 == 0:
            yield Job(label=label, tool="jobs.single", arguments=arguments, priority=priority)
        else:
            arguments["place"] = f"desk-{rng.randrange(places)}"
            yield Job(label=label, tool="jobs.work", arguments=arguments, priority=priority)


async def _run_exclusive_jobs(testbed: Testbed, pool: WorkerPool, name: str, count: int) -> tuple[int, list[str]]:
    """Count the jobs that met another, and list those that were not done once."""
    submitter = testbed.create_submitter()
    submit_task = asyncio.create_task(submitter.submit_runs(_generate_jobs(name, count, random.Random(4)), lanes=8))
    await asyncio.sleep(testbed.sandbox.pick_size(quick=2, full=10))
    if not pool.module.startswith("proofs.variants"):
        await pool.kill_worker(0)
        await pool.start_worker(0)
    await submit_task
    ids = list(submitter.calls.values())
    await testbed.database.wait_until(_NONE_OPEN, ids, seconds=900)
    ends = {row[0]: (str(row[1]), int(row[2])) for row in await testbed.database.fetch(_ENDS, ids)}
    turns = [turn for turn in _read_turns(testbed.turns_file) if turn["label"].rpartition("-")[0] == name]
    misdone = find_misdone_jobs(submitter.calls, ends, Counter(turn["label"] for turn in turns))
    overlap_count = count_overlaps(turns)
    testbed.sandbox.log(f"{name}: {count} jobs, {len(turns)} noted, {overlap_count} met another; {misdone[:3]}")
    return overlap_count, misdone


def find_misdone_jobs(
    calls: Mapping[str, str], ends: Mapping[str, tuple[str, int]], notes: Mapping[str, int]
) -> list[str]:
    """List jobs that did not succeed, were not done, or were done more often than they had owners.

    A worker that is killed after its work and before the commit leaves a job that the next owner does again.
    """
    misdone = []
    for label, call_id in calls.items():
        state, owners = ends.get(call_id, ("missing", 0))
        if state != "succeeded" or not 1 <= notes.get(label, 0) <= max(owners, 1):
            misdone.append(f"{label}: {state}, {owners} owners, noted {notes.get(label, 0)} times")
    return misdone


def _read_turns(turns_file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in turns_file.read_bytes().splitlines()]


def count_overlaps(turns: Sequence[dict[str, Any]]) -> int:
    intervals_by_place: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for turn in turns:
        intervals_by_place[turn["kind"], turn["place"]].append((turn["began"], turn["ended"]))
    overlap_count = 0
    for intervals in intervals_by_place.values():
        latest = 0
        for began, end in sorted(intervals):
            overlap_count += began < latest
            latest = max(latest, end)
    return overlap_count


async def _run_control(testbed: Testbed) -> bool:
    """Workers that stand in no line: jobs meet, and the same look finds them."""
    pool = await testbed.start_pool("proofs.variants.fairness_no_locks")
    overlap_count, _ = await _run_exclusive_jobs(testbed, pool, "control", 60)
    await pool.stop_all()
    return overlap_count > 0


async def _run_flood_control(testbed: Testbed, limit_seconds: float) -> bool:
    """Put the runs of all tenants into one queue: the other tenant waits behind the flood, and the same bar sees it."""
    definition = str(await testbed.database.fetch_value(_ENQUEUE_DEFINITION))
    if definition.count(_OWN_QUEUE) != 1:
        raise RuntimeError(
            "enqueue_run no longer gives each tenant a queue of its own in the words this control changes"
        )
    await testbed.database.fetch(definition.replace(_OWN_QUEUE, "queue_partition_key => 'everyone'"))
    rng = random.Random(5)
    await testbed.create_submitter().submit_runs(_generate_rests(FLOOD, "shared", _CONTROL_FLOOD, rng), lanes=8)
    pool = await testbed.start_pool()
    await testbed.database.wait_until(_ALL_WORKERS_BUSY)
    delays = await _measure_start_delays(testbed, "behind", 5, rng)
    testbed.sandbox.log(f"one queue: p95 {compute_percentile(delays, 0.95):.3f} s behind {_CONTROL_FLOOD} runs")
    await testbed.database.fetch(_CANCEL_QUEUED)
    await pool.stop_all()
    return compute_percentile(delays, 0.95) > 3 * limit_seconds
