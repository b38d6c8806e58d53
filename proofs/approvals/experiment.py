"""People are asked, while gateways and workers are killed, clocks are off, and what was asked about changes in between.

Each approval request is a story: who asked, who tried to decide, what changed when. `scenarios.py` tells them at
random, `faults.py` is the storm, `judge.py` the verdict, from an independent ledger and the audit
entries.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from urllib.parse import urlencode

from proofs.approvals.clock_skew import AHEAD, BEHIND, RIGHT, start_clocks
from proofs.approvals.faults import WORKERS, FaultInjector
from proofs.approvals.judge import ApprovalFindings, judge_cases
from proofs.approvals.latency import LatencySample, measure_latency
from proofs.approvals.scenarios import Scenarios, sample_scenarios
from proofs.approvals.testbed import Testbed, create_testbed
from proofs.confused_deputy.testbed import build_exchange_form
from proofs.kit.helper_servers import start_ledger
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.variants.approvals_unchecked import REPLACE_CHECK

NAME = "approvals"
PROMISE = "What people approved happens once, as they saw it and in time, by those who may; nothing else happens."

SEED = 5
_QUICK, _FULL = 80, 2000
_LANES = {False: 25, True: 32}
_DELEGATED_COUNT = 8
_MAX_WAIT_MS = 300.0
_NOTES = (
    "Three gateways and two workers, each killed with SIGKILL at random and born again with a clock that is "
    "right, 45 minutes ahead or 45 minutes behind.",
    "What would be refused by readiness for its clock is given work here all the same.",
    "Between a yes and the beginning of its call: all workers are killed, something is changed, others come.",
    "An act that its upstream cannot tell from a repeat may end as unknown where a worker died with it; then "
    "somebody is asked, and it happened once at most. Every other approved one happened exactly once.",
    "From the answer to approve to the effect at the ledger, one call at a time.",
)
_OPEN_CALLS = """
select k.id, k.state, k.error, k.owner_epoch, a.state as ticket, a.expires_at, now() as now
from deputize.calls k join deputize.approvals a on a.tenant = k.tenant and a.call_id = k.id
where k.tenant = 'acme' and (k.state in ('queued', 'running') or a.state = 'open' and a.expires_at <= now()
    or k.state = 'unknown' and not exists (select from deputize.human_tasks t where t.tenant = k.tenant
        and t.call_id = k.id and t.kind <> 'approval'))
"""


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, ledger, clocks = await asyncio.gather(
        sandbox.start_postgres(), start_ledger(sandbox), start_clocks(sandbox)
    )
    testbed = await create_testbed(sandbox, postgres, ledger, clocks, random.Random(SEED))
    await asyncio.gather(*(testbed.start_gateway(slot, RIGHT) for slot in testbed.gateway_slots))
    await testbed.put_policies()
    for worker_slot in range(WORKERS):
        await testbed.start_worker(worker_slot, RIGHT)
    sandbox.log(f"{len(testbed.gateway_slots)} gateways and {WORKERS} workers are there")
    scenarios = Scenarios(testbed)
    latency = await measure_latency(testbed, scenarios, sandbox.pick_size(quick=8, full=200))
    sandbox.log(f"calm: {latency.compute_quantile(0.5):.0f} ms from a yes to the effect")
    kinds = sample_scenarios(sandbox.pick_size(quick=_QUICK, full=_FULL), testbed.rng)
    await scenarios.prepare_tools(kinds)
    injector = FaultInjector(testbed=testbed, is_brief=not sandbox.full)
    await injector.skew_clocks()
    scenarios.delegated_tokens = await _delegate_tokens(testbed)
    sandbox.log("the storm rises")
    await _run_under_faults(testbed, scenarios, injector, kinds)
    findings = await judge_cases(scenarios.cases, await ledger.list_effects(), testbed.database)
    for sentence in findings.list_sentences()[:40]:
        sandbox.log(f"wrong: {sentence}")
    sandbox.log(
        f"{findings.run_count} ran, {findings.void_count} void, {findings.expired_count} expired, "
        f"{findings.unknown_count} unknown"
    )
    fault_counts = {"gateways_killed": testbed.killed_gateways, "workers_killed": len(testbed.pool.faults)}
    fault_counts |= {"times_without_a_worker": injector.outage_count, "handed_out_again": injector.requeue_count}
    controls = await _run_controls(testbed, injector)
    return _build_verdict(testbed, scenarios, findings, latency, fault_counts, controls)


async def _delegate_tokens(testbed: Testbed) -> list[tuple[str, str, str]]:
    """Lent where the clock is behind, so that what is lent is no token of the future anywhere."""
    delegated_tokens = []
    slot = next(gate for gate in testbed.gateway_slots if gate.minutes == BEHIND)
    for number in range(_DELEGATED_COUNT):
        user, agent = f"lender-{number}", f"helper-{number}"
        form = {
            **build_exchange_form(),
            "subject_token": testbed.people.issue_caller_token(user),
            "actor_token": testbed.people.issue_caller_token(agent),
        }
        answer = await testbed.post_form(slot, "/oauth/token", urlencode(form))
        if answer.status != 200:
            raise RuntimeError(f"nothing was lent: {answer.status} {answer.body[:400]!r}")
        delegated_tokens.append((user, agent, str(answer.json()["access_token"])))
    return delegated_tokens


async def _run_under_faults(
    testbed: Testbed, scenarios: Scenarios, injector: FaultInjector, kinds: Sequence[str]
) -> None:
    """Until each story has been told to its end, and everything has come to one."""
    pending = iter(enumerate(kinds))

    async def run_lane() -> None:
        for number, kind in pending:
            await scenarios.run_scenario(number, kind)
            if number % 200 == 199:
                testbed.sandbox.log(f"{number + 1} stories begun, {len(testbed.pool.faults)} workers killed")

    fault_task = asyncio.create_task(injector.inject_faults())
    scenario_tasks = asyncio.gather(*(run_lane() for _ in range(_LANES[testbed.sandbox.full])))
    try:
        await asyncio.wait((fault_task, scenario_tasks), return_when=asyncio.FIRST_COMPLETED)
        if fault_task.done():
            fault_task.result()
        await scenario_tasks
    finally:
        fault_task.cancel()
        scenario_tasks.cancel()
        await asyncio.gather(fault_task, scenario_tasks, return_exceptions=True)
    testbed.sandbox.log(f"{len(kinds)} stories told")
    await injector.restore_clocks()
    await _wait_until_settled(testbed)


async def _wait_until_settled(testbed: Testbed) -> None:
    """Until nothing is under way; what does not come to its end is left to the judge."""
    try:
        await testbed.database.wait_until(f"select not exists ({_OPEN_CALLS})", seconds=300)
    except TimeoutError:
        for row in await testbed.database.fetch(_OPEN_CALLS):
            testbed.sandbox.log(f"unsettled: {dict(row)}")


async def _run_controls(testbed: Testbed, injector: FaultInjector) -> dict[str, bool]:
    """Workers broken on purpose; true where the same judgement catches what they do."""
    controls = {}
    for variant in ("approvals_unbound", "approvals_unchecked"):
        scenarios = Scenarios(testbed)
        kinds = ["rules after", "rules after", "rules before", "rules before"]
        if variant == "approvals_unchecked":
            kinds += ["expired in the dark"] * 2
            await testbed.database.fetch(REPLACE_CHECK)
        prefix = variant.replace("_", "-")
        await scenarios.prepare_tools(kinds, prefix)
        scenario_tasks = asyncio.gather(
            *(scenarios.run_scenario(number, kind, prefix) for number, kind in enumerate(kinds))
        )
        outage_count = sum(kind.endswith(("after", "dark")) for kind in kinds)
        await asyncio.gather(
            injector.swap_workers_in_outage(f"proofs.variants.{variant}", outage_count), scenario_tasks
        )
        await _wait_until_settled(testbed)
        findings = await judge_cases(scenarios.cases, await testbed.ledger.list_effects(), testbed.database)
        wrong = [*findings.acted_after_change, *findings.acted_after_expiry]
        testbed.sandbox.log(f"{variant}: {wrong[0] if wrong else 'nothing was found wrong'}")
        controls[variant] = bool(findings.acted_after_change) and bool(
            findings.acted_after_expiry or variant == "approvals_unbound"
        )
    return controls


def _build_verdict(
    testbed: Testbed,
    scenarios: Scenarios,
    findings: ApprovalFindings,
    latency: LatencySample,
    fault_counts: dict[str, int],
    controls: dict[str, bool],
) -> Verdict:
    request_count = sum(len(case.request_ids) for case in scenarios.cases)
    kinds = Counter(tale.kind for tale in scenarios.cases)
    zero_bars: Sequence[tuple[str, list[str]]] = (
        ("executed_after_a_change", findings.acted_after_change),
        ("executed_after_expiry", findings.acted_after_expiry),
        ("executed_unapproved", findings.acted_without_approval),
        ("used_or_executed_twice", findings.twice),
        ("approved_and_lost", findings.losses),
        ("decided_by_who_may_not", findings.wrong_decisions),
        ("expired_and_not_denied", findings.undenied_expiries),
        ("entries_that_do_not_match", findings.entry_mismatches),
        ("not_come_to_an_end", findings.open_calls),
        ("otherwise_wrong", findings.other),
    )
    return Verdict(
        figures={
            "tickets": request_count,
            "kinds_of_stories": len(kinds),
            **fault_counts,
            "born_with_a_clock_off": testbed.starts_by_clock.get(AHEAD, 0) + testbed.starts_by_clock.get(BEHIND, 0),
            "executed": findings.run_count,
            "void": findings.void_count,
            "expired": findings.expired_count,
            "unknown_and_somebody_asked": findings.unknown_count,
            "wrong_people_refused": sum(findings.refusals.values()),
            "ways_to_be_wrong": len(findings.refusals),
            **{name: len(sentences) for name, sentences in zero_bars},
            "approve_to_effect_p50_ms": round(latency.compute_quantile(0.5), 1),
            "approve_to_effect_p99_ms": round(latency.compute_quantile(0.99), 1),
            "seed": SEED,
        },
        controls=controls,
        notes=_NOTES,
    )
