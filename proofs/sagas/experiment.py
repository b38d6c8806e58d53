"""A change in six steps that fails at each of them, with each compensation failing, and its worker killed at a commit.

The worker reaches PostgreSQL through a proxy that kills it with SIGKILL before or after one of the commits that carry a
flow: calls, their outcomes, and what is recorded of the flow. Then another worker goes on. `judge.py` compares the
ledger with what the outcomes and the tasks say is left.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import orjson

from proofs.kit.fork_server import ForkServer, start_fork_server
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import use_gateway_login
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.ledger import kill_and_wait
from proofs.kit.postgres_proxy import PgPoint, PgProxy
from proofs.kit.report import Verdict
from proofs.kit.run_submitter import Job, RunSubmitter
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database, WorkerPool
from proofs.sagas.judge import STEPS, Change, Judgement, Scenario, judge_changes

NAME = "sagas"
PROMISE = "A change that fails is taken back whole, or what is left of it is named, wherever its worker is killed."

SETTINGS = """
[timing]
lease_seconds = 3.0
sweep_seconds = 0.1
margin_seconds = 0.2

[runs]
poll_seconds = 0.05
most_takeovers = 50
"""
# The commits that carry a flow and its calls; all others, such as of leases, are of no flow.
_CARRYING = ("'flow', $3", "deputize.commit_calls(", "deputize.queue_runs(", "set flow_id = $2", "undo_run_begin(")
_ENDED = "select state not in ('queued', 'running') from deputize.calls where id = $1"
_ALL_ENDED = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_TASKS = "select question from deputize.human_tasks where call_id = $1 and kind = 'compensate' and state = 'open'"


def list_scenarios() -> list[Scenario]:
    scenarios = [Scenario()]
    for failing in range(1, STEPS + 1):
        scenarios += [Scenario(failing_step=failing), Scenario(failing_step=failing, failure="doubtful")]
        for stuck in range(1, failing):
            for obstacle in ("locked", "lost"):
                scenarios.append(Scenario(failing_step=failing, stuck_step=stuck, obstacle=obstacle))
    return scenarios


def is_carrying(sql: str) -> bool:
    """Tell whether a commit with this statement carries a flow or one of its calls."""
    return any(each in sql for each in _CARRYING)


@dataclass(kw_only=True, slots=True)
class Testbed:
    sandbox: Sandbox
    ledger: LedgerHandle
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    proxy: PgProxy
    pool: WorkerPool
    submitter: RunSubmitter
    scenarios: dict[str, Scenario] = field(default_factory=dict)
    kills: int = 0
    missed_kills: int = 0

    async def start_changes(self, scenarios: Sequence[Scenario], name: str, tool: str = "sagas.change") -> list[str]:
        labels = {f"{name}-{number}": scenario for number, scenario in enumerate(scenarios)}
        self.scenarios |= labels
        jobs = [Job(label=label, tool=tool, arguments=each.build_arguments(label)) for label, each in labels.items()]
        await self.submitter.submit_runs(jobs, lanes=4)
        return list(labels)

    async def strike_change(self, scenario: Scenario, number: int, nth: int, point: PgPoint) -> str:
        """Start a change, kill its worker around its nth commit, and let another worker end it."""
        pid = self.pool.workers[0].process.pid

        async def kill() -> None:
            kill_and_wait(pid)
            self.kills += 1

        before = self.kills
        self.proxy.arm(is_carrying, nth, point, kill)
        (label,) = await self.start_changes([scenario], f"struck-{number}")
        async with asyncio.timeout(120):
            call_id = self.submitter.calls[label]
            while self.kills == before and not await self.database.fetch_value(_ENDED, call_id):  # noqa: ASYNC110 -- what changes it is another process
                await asyncio.sleep(0.05)
        self.proxy.disarm()
        if self.kills == before:
            self.missed_kills += 1
        else:
            await self.pool.kill_worker(0)
            await self.pool.start_worker(0)
        await self.database.wait_until(_ENDED, self.submitter.calls[label])
        return label

    async def judge_labels(self, labels: Sequence[str]) -> Judgement:
        http = HttpConnection.for_url(self.gateway.url, token=self.submitter.tokens["acme"])
        changes = []
        for label in labels:
            call_id = self.submitter.calls[label]
            answer = (await http.get(f"/v1/calls/{call_id}")).json()
            details = (answer.get("error") or {}).get("details") or {}
            tasks = [orjson.loads(row["question"]) for row in await self.database.fetch(_TASKS, call_id)]
            changes.append(
                Change(
                    label=label, is_struck=label.startswith("struck"), scenario=self.scenarios[label],
                    state=answer["state"], compensation=details.get("compensation"), tasks=tasks,
                )
            )  # fmt: skip
        http.close()
        return judge_changes(changes, await self.ledger.list_effects())


async def prove(sandbox: Sandbox) -> Verdict:
    testbed = await _open_testbed(sandbox)
    scenarios = list_scenarios()
    labels = await testbed.start_changes(scenarios, "calm")
    await testbed.database.wait_until(_ALL_ENDED)
    sandbox.log(f"{len(labels)} changes ended with nobody killed")
    per_step, per_compensation = await _count_commits(testbed)
    rng = random.Random(0)
    rounds = sandbox.pick_size(quick=8, full=16 * len(scenarios))
    struck = [scenarios[number % len(scenarios)] for number in range(rounds)]
    rng.shuffle(struck)
    for number, scenario in enumerate(struck):
        # Later than its last commit, and the change has ended: that is counted as missed.
        nth = rng.randint(
            1, round(scenario.count_calls() * per_step + scenario.count_compensations() * per_compensation)
        )
        point: PgPoint = "before_forward" if number % 2 else "after_commit_before_ack"
        labels.append(await testbed.strike_change(scenario, number, nth, point))
        if (number + 1) % 50 == 0:
            sandbox.log(f"{number + 1} of {rounds} changes struck")
    judgement = await testbed.judge_labels(labels)
    for sentence in judgement.list_sentences()[:40]:
        sandbox.log(f"wrong: {sentence}")
    kept = await testbed.start_changes([each for each in scenarios if each.failing_step == STEPS], "kept", "sagas.keep")
    await testbed.database.wait_until(_ALL_ENDED)
    partials = len((await testbed.judge_labels(kept)).silent_partials)
    sandbox.log(f"{partials} of {len(kept)} changes that keep what they did are silent partials")
    return Verdict(
        figures={
            "changes": len(labels),
            "scenarios": len(scenarios),
            "workers_killed": testbed.kills,
            "changes_that_ended_before_their_kill": testbed.missed_kills,
            "completed": judgement.ends["completed"],
            "compensated": judgement.ends["compensated"],
            "flagged": judgement.ends["flagged"],
            "silent_partials": len(judgement.silent_partials),
            "wrong_remainders": len(judgement.wrong_remainders),
            "effects_repeated": len(judgement.repeated_effects),
            "wrong_tasks": len(judgement.wrong_tasks),
            "open_changes": len(judgement.open_changes),
            "unexpected_ends": len(judgement.unexpected_ends),
            "silent_partials_of_the_control": partials,
        },
        controls={"flows that keep what they did": partials > 0},
        notes=[
            "A change makes six things at the ledger, a process of its own. One of its steps fails before it acts, or "
            "after it has acted and without saying so; or none does. Taking back one of the things fails before it "
            "acts, or with its answer lost.",
            f"The worker is killed before or after a commit that carries the flow or a call of it: there are about "
            f"{per_step:.0f} per step and {per_compensation:.0f} per compensation.",
            "A silent partial is a thing that is still there after a change that failed, and that its outcome does not "
            "name; a wrong remainder is one that it names and that is not there, or says it took back and that is.",
        ],
    )


async def _open_testbed(sandbox: Sandbox) -> Testbed:
    postgres, ledger, fork_server = await asyncio.gather(
        sandbox.start_postgres(), start_ledger(sandbox), start_fork_server(sandbox)
    )
    issuer, env = create_issuer(), {"PROOF_LEDGER": ledger.url}
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="sagas.py", settings=SETTINGS, env=env)
    proxy, database = PgProxy(postgres.dsn), Database(postgres.dsn)
    await proxy.__aenter__()
    sandbox.add_cleanup(proxy.__aexit__)
    sandbox.add_cleanup(database.close)
    pool = _create_pool(sandbox, fork_server, gateway, database, use_gateway_login(proxy.dsn), env)
    await pool.start_worker(0)
    submitter = RunSubmitter(url=gateway.url, tokens={"acme": issuer.issue_token("ann")})
    return Testbed(
        sandbox=sandbox, ledger=ledger, database=database, gateway=gateway, issuer=issuer, proxy=proxy, pool=pool,
        submitter=submitter,
    )  # fmt: skip


def _create_pool(
    sandbox: Sandbox, fork_server: ForkServer, gateway: GatewayHandle, database: Database, dsn: str, env: dict[str, str]
) -> WorkerPool:
    pool = WorkerPool(
        sandbox=sandbox, fork_server=fork_server, folder=gateway.folder, env={**env, "DEPUTIZE_DATABASE__URL": dsn},
        database=database,
    )  # fmt: skip
    sandbox.add_cleanup(pool.stop_all)
    return pool


async def _count_commits(testbed: Testbed) -> tuple[float, float]:
    """Count the commits of a step, and of taking one back: of a whole change, and of one that fails at its end."""
    counts = []
    for number, scenario in enumerate((Scenario(), Scenario(failing_step=STEPS))):
        before = _sum_commits(testbed.proxy)
        (label,) = await testbed.start_changes([scenario], f"counted-{number}")
        await testbed.database.wait_until(_ENDED, testbed.submitter.calls[label])
        counts.append(_sum_commits(testbed.proxy) - before)
    whole, failed = counts
    return whole / STEPS, (failed - whole) / (STEPS - 1)


def _sum_commits(proxy: PgProxy) -> int:
    return sum(count for sql, count in proxy.commits.items() if is_carrying(sql))
