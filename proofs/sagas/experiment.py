"""A change in six steps that fails at each of them, with each compensation failing, and its worker killed at a commit.

The worker reaches PostgreSQL through a proxy that kills it with SIGKILL before or after one of the commits that carry a
flow: calls, their outcomes, and what is recorded of the flow. Then another worker goes on. `judge.py` compares the
ledger with what the outcomes and the tasks say is left.
"""

import asyncio
import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import orjson

from deputize.store.migrate import upgrade_async
from proofs.kit.fork_server import start_fork_server
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import create_gateway_login, use_gateway_login
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
    database: Database
    gateway: GatewayHandle
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

    async def strike_changes(self, strikes: Sequence["Strike"], log: Callable[[str], None]) -> list[str]:
        labels = []
        for each in strikes:
            labels.append(await self._strike_change(each))
            if (each.number + 1) % 50 == 0:
                log(f"about {each.number + 1} changes struck")
        return labels

    async def _strike_change(self, strike: "Strike") -> str:
        """Start a change, kill its worker around its nth commit, and let another worker end it."""
        pid = self.pool.workers[0].process.pid

        async def kill() -> None:
            kill_and_wait(pid)
            self.kills += 1

        before = self.kills
        self.proxy.arm(is_carrying, strike.nth, strike.point, kill)
        (label,) = await self.start_changes([strike.scenario], f"struck-{strike.number}")
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

    async def list_changes(self) -> list[Change]:
        """List how each change of this testbed has ended."""
        http = HttpConnection.for_url(self.gateway.url, token=self.submitter.tokens["acme"])
        changes = []
        for label, scenario in self.scenarios.items():
            call_id = self.submitter.calls[label]
            answer = (await http.get(f"/v1/calls/{call_id}")).json()
            details = (answer.get("error") or {}).get("details") or {}
            tasks = [orjson.loads(row["question"]) for row in await self.database.fetch(_TASKS, call_id)]
            changes.append(
                Change(
                    label=label, is_struck=label.startswith("struck"), scenario=scenario, state=answer["state"],
                    compensation=details.get("compensation"), tasks=tasks,
                )
            )  # fmt: skip
        http.close()
        return changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Strike:
    """A change whose worker is killed before or after its nth commit."""

    number: int
    scenario: Scenario
    nth: int
    point: PgPoint


async def prove(sandbox: Sandbox) -> Verdict:
    # A struck change mostly waits for the lease of its dead worker: several testbeds wait beside each other.
    ledger, issuer = await start_ledger(sandbox), create_issuer()
    count = sandbox.pick_size(quick=1, full=4)
    testbeds = [await _open_testbed(sandbox, ledger, issuer, number) for number in range(count)]
    first, scenarios = testbeds[0], list_scenarios()
    calm = await first.start_changes(scenarios, "calm")
    await first.database.wait_until(_ALL_ENDED)
    sandbox.log(f"{len(calm)} changes ended with nobody killed")
    per_step, per_compensation = await _count_commits(first)
    strikes = _draw_strikes(sandbox.pick_size(quick=8, full=16 * len(scenarios)), per_step, per_compensation)
    struck = await asyncio.gather(
        *(each.strike_changes(strikes[number::count], sandbox.log) for number, each in enumerate(testbeds))
    )
    judged = {*calm, *(label for labels in struck for label in labels)}
    judgement = await _judge(testbeds, ledger, judged)
    for sentence in judgement.list_sentences()[:40]:
        sandbox.log(f"wrong: {sentence}")
    failing_late = [each for each in scenarios if each.failing_step == STEPS]
    kept = await first.start_changes(failing_late, "kept", "sagas.keep")
    await first.database.wait_until(_ALL_ENDED)
    partials = len((await _judge(testbeds, ledger, set(kept))).silent_partials)
    sandbox.log(f"{partials} of {len(kept)} changes that keep what they did are silent partials")
    return Verdict(
        figures={
            "changes": len(judged),
            "scenarios": len(scenarios),
            "workers_killed": sum(each.kills for each in testbeds),
            "changes_that_ended_before_their_kill": sum(each.missed_kills for each in testbeds),
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


def _draw_strikes(count: int, per_step: float, per_compensation: float) -> list[Strike]:
    """Draw a commit for each change; if it is later than its last one, the change ends before, which is counted."""
    scenarios, rng = list_scenarios(), random.Random(0)
    struck = [scenarios[number % len(scenarios)] for number in range(count)]
    rng.shuffle(struck)
    return [
        Strike(
            number=number,
            scenario=each,
            nth=rng.randint(1, round(each.count_calls() * per_step + each.count_compensations() * per_compensation)),
            point="before_forward" if number % 2 else "after_commit_before_ack",
        )
        for number, each in enumerate(struck)
    ]


async def _judge(testbeds: Sequence[Testbed], ledger: LedgerHandle, labels: Set[str]) -> Judgement:
    changes = [change for each in testbeds for change in await each.list_changes() if change.label in labels]
    return judge_changes(changes, await ledger.list_effects())


async def _open_testbed(sandbox: Sandbox, ledger: LedgerHandle, issuer: Issuer, number: int) -> Testbed:
    postgres, fork_server = await asyncio.gather(
        sandbox.start_postgres(f"postgres-{number}"), start_fork_server(sandbox, f"fork-{number}")
    )
    if number:
        # The first gateway of a proof does this for its own.
        await upgrade_async(postgres.dsn)
        await create_gateway_login(postgres.dsn)
    env = {"PROOF_LEDGER": ledger.url}
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, name=f"gateway-{number}", tools="sagas.py", settings=SETTINGS, env=env
    )
    proxy, database = PgProxy(postgres.dsn), Database(postgres.dsn)
    await proxy.__aenter__()
    sandbox.add_cleanup(proxy.__aexit__)
    sandbox.add_cleanup(database.close)
    pool = WorkerPool(
        sandbox=sandbox, fork_server=fork_server, folder=gateway.folder, name=f"worker-{number}", database=database,
        env={**env, "DEPUTIZE_DATABASE__URL": use_gateway_login(proxy.dsn)},
    )  # fmt: skip
    sandbox.add_cleanup(pool.stop_all)
    await pool.start_worker(0)
    submitter = RunSubmitter(url=gateway.url, tokens={"acme": issuer.issue_token("ann")})
    return Testbed(database=database, gateway=gateway, proxy=proxy, pool=pool, submitter=submitter)


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
