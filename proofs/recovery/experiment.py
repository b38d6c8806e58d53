"""Runs of three steps on three workers, while workers are killed and frozen, PostgreSQL is killed and Redis is emptied.

Half of the runs act on an upstream that deduplicates, half on one that cannot. Some runs are handed out twice on
purpose. `kit/worker_pool.py` are the workers, `faults.py` the storm, `judge.py` the verdict.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

from proofs.kit.fork_server import ForkServer, start_fork_server
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.report import Verdict
from proofs.kit.run_submitter import Job, RunSubmitter
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database, WorkerPool
from proofs.recovery.faults import FaultInjector
from proofs.recovery.judge import LEASE_SECONDS, Judgement, compute_percentile, judge_runs

NAME = "recovery"
PROMISE = "Whatever dies, a run neither repeats a step nor loses one, and is gone on with soon."

WORKERS = 3
# On a busy machine all runs may have ended before the blow falls; then nothing can be found wrong.
_CONTROL_TRIES = 4
SETTINGS = f"""
[timing]
lease_seconds = {LEASE_SECONDS}
sweep_seconds = 0.2
margin_seconds = 0.2

[runs]
at_once = 12
poll_seconds = 0.1
most_takeovers = 50
reconcile_after_seconds = 1
reconcile_seconds = 1
reconcile_tries = 1

[limits]
redis_url = "{{redis}}"

[[limits.rules]]
name = "counted"
kind = "rate"
limit = 1000000
when_lost = "allow"
"""
_OPEN = "select count(*) from deputize.calls where state in ('queued', 'running')"
_ALL_SETTLED = """
select not exists (select from deputize.calls k where k.state in ('queued', 'running') or k.state = 'unknown'
    and not exists (select from deputize.human_tasks t where t.tenant = k.tenant and t.call_id = k.id))
"""
_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_RUNNING_SENDS = "select count(*) from deputize.calls where owner = $1 and state = 'running' and tool = 'steps.send'"
_ENQUEUE_AGAIN = """
select deputize.enqueue_run(r.tenant, r.id, r.priority) from deputize.runs r join deputize.calls k using (tenant, id)
where k.state in ('queued', 'running') order by random() limit $1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    ledger: LedgerHandle
    fork_server: ForkServer
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    env: dict[str, str]

    def create_pool(self, module: str | None = None) -> WorkerPool:
        pool = WorkerPool(
            sandbox=self.sandbox,
            fork_server=self.fork_server,
            folder=self.gateway.folder,
            env=self.env,
            database=self.database,
        )
        pool.module = module or pool.module
        self.sandbox.add_cleanup(pool.stop_all)
        return pool

    def create_submitter(self) -> RunSubmitter:
        return RunSubmitter(url=self.gateway.url, tokens={"acme": self.issuer.issue_token("ann")})


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, ledger, fork_server = await asyncio.gather(
        sandbox.start_postgres(), start_ledger(sandbox), start_fork_server(sandbox)
    )
    redis = sandbox.pick_free_port()
    injector = FaultInjector(sandbox=sandbox, postgres=postgres, redis_port=redis, rng=random.Random(0))
    await injector.start_redis()
    issuer, env = create_issuer(), {"PROOF_LEDGER": ledger.url}
    settings = SETTINGS.format(redis=f"redis://127.0.0.1:{redis}/0")
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="steps.py", settings=settings, env=env)
    database = Database(postgres.dsn)
    sandbox.add_cleanup(database.close)
    testbed = Testbed(
        sandbox=sandbox,
        ledger=ledger,
        fork_server=fork_server,
        database=database,
        gateway=gateway,
        issuer=issuer,
        env=env,
    )
    count = sandbox.pick_size(quick=200, full=10_000)
    submitter, pool = testbed.create_submitter(), testbed.create_pool()
    for slot in range(WORKERS):
        await pool.start_worker(slot)
    sandbox.log(f"{WORKERS} workers, {count} runs")
    await _run_under_faults(testbed, submitter, pool, injector, count)
    judgement = await judge_runs(
        submitter.calls, await ledger.list_effects(), pool.faults, injector.downtimes, database
    )
    for sentence in judgement.list_sentences()[:40]:
        sandbox.log(f"wrong: {sentence}")
    sandbox.log(
        f"{dict(judgement.states)}, {judgement.takeover_count} taken over, asked again {submitter.retry_count} times"
    )
    await pool.stop_all()
    return _build_verdict(judgement, submitter, pool, injector, count, await _run_controls(testbed))


def _generate_jobs(count: int, name: str, rng: random.Random) -> Iterator[Job]:
    for number in range(count):
        tool = "steps.book" if number % 2 else "steps.send"
        arguments: dict[str, object] = {"label": f"{name}-{number}", "delay_ms": rng.randrange(20, 500)}
        yield Job(label=f"{name}-{number}", tool=tool, arguments=arguments)


async def _run_under_faults(
    testbed: Testbed, submitter: RunSubmitter, pool: WorkerPool, injector: FaultInjector, count: int
) -> None:
    """The storm begins with the first run and ends with the last; then everything still open has to come to its end."""
    fault_task = asyncio.create_task(injector.inject_faults(pool, is_brief=not testbed.sandbox.full))
    requeue_task = asyncio.create_task(_enqueue_twice(testbed.database))
    submit_task = asyncio.create_task(
        submitter.submit_runs(_generate_jobs(count, "run", random.Random(1)), lanes=6, pace=0.3)
    )
    try:
        second_count = 0
        while not submit_task.done() or await testbed.database.fetch_value(_OPEN):
            for task in (fault_task, requeue_task, submit_task):
                if task.done() and task.exception() is not None:
                    task.result()
            await asyncio.sleep(1)
            second_count += 1
            if second_count % 20 == 0:
                open_count = await testbed.database.fetch_value(_OPEN)
                testbed.sandbox.log(f"{len(submitter.calls)} queued, {open_count} open, {len(pool.faults)} blows")
    finally:
        fault_task.cancel()
        requeue_task.cancel()
        await asyncio.gather(fault_task, requeue_task, return_exceptions=True)
    await submit_task
    await testbed.database.wait_until(_ALL_SETTLED)


async def _enqueue_twice(database: Database) -> None:
    while True:
        await asyncio.sleep(0.5)
        await database.fetch(_ENQUEUE_AGAIN, 3)


async def _run_controls(testbed: Testbed) -> dict[str, bool]:
    """Workers broken on purpose, struck where they are broken; true where the same judgement catches them."""
    controls = {}
    for variant in ("recovery_no_claim", "recovery_blind_retry"):
        wrong: list[str] = []
        for number in range(_CONTROL_TRIES):
            wrong = wrong or await _run_control(testbed, variant, f"{variant}-{number}")
        testbed.sandbox.log(f"{variant}: {wrong[0] if wrong else 'nothing was found wrong'}")
        controls[variant] = bool(wrong)
    return controls


async def _run_control(testbed: Testbed, variant: str, name: str) -> list[str]:
    """Run a broken variant once, and return the duplicates that were found."""
    submitter, pool = testbed.create_submitter(), testbed.create_pool(f"proofs.variants.{variant}")
    for slot in range(2):
        await pool.start_worker(slot)
    await submitter.submit_runs(_generate_jobs(20, name, random.Random(2)), lanes=4)
    await testbed.database.wait_until(_RUNNING_SENDS, pool.workers[0].boot)
    await testbed.database.fetch(_ENQUEUE_AGAIN, 20)
    if variant == "recovery_blind_retry":
        # Long enough for a first step, too short for the third.
        await asyncio.sleep(0.6)
        await pool.kill_worker(0)
    await testbed.database.wait_until(_NONE_OPEN)
    judgement = await judge_runs(submitter.calls, await testbed.ledger.list_effects(), [], [], testbed.database)
    await pool.stop_all()
    return judgement.duplicates


def _build_verdict(
    judgement: Judgement,
    submitter: RunSubmitter,
    pool: WorkerPool,
    injector: FaultInjector,
    count: int,
    controls: dict[str, bool],
) -> Verdict:
    return Verdict(
        figures={
            "runs": len(submitter.calls),
            "workers_killed": sum(not fault.is_freeze for fault in pool.faults),
            "workers_frozen": sum(fault.is_freeze for fault in pool.faults),
            "databases_killed": len(injector.downtimes),
            "redis_emptied_or_killed": injector.redis_faults,
            "runs_taken_over": judgement.takeover_count,
            "duplicate_or_blindly_repeated_steps": len(judgement.duplicates),
            "lost_runs_or_steps": len(judgement.losses) + len(judgement.open_runs),
            "keys_with_two_calls": len(submitter.changed_labels),
            "entries_that_do_not_match": len(judgement.entry_mismatches),
            "unknown_and_nobody_asked": len(judgement.missing_tasks),
            "takeover_p99_seconds": round(compute_percentile(judgement.takeover_waits, 0.99), 2),
            "takeovers_timed": len(judgement.takeover_waits),
            "upper_bound_per_run": 3 / count,
        },
        controls=controls,
        notes=[
            "A run makes three effects at the ledger, a process of its own, under keys made of the run's key.",
            "steps.book: the upstream takes a key once; every run succeeds. steps.send: it would act twice; a run ends "
            "in success or, where a worker died with it, in UNKNOWN with a ticket.",
            "A worker is killed every 1-5 s and started again; one is frozen for longer than its lease, and wakes.",
            "Every half second up to three open runs are handed out a second time on purpose.",
            "Takeover is timed from the end of the dead worker's lease to the next entry of the run, without the time "
            "PostgreSQL was away; runs that were handed to the worker and not yet begun are counted too.",
            "With none seen in N runs, the rate of failures is below 3/N with 95% confidence.",
        ],
    )
