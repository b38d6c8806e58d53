"""Measure policies at size and under change: the cost of a decision, when a change holds, what a draft would do."""

import asyncio
import random
import time

from deputize.govern.policy.slices import SliceIndex
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.policy import backtest, changes_under_load, large_rule_set

NAME = "policy"
PROMISE = "Policies decide at size, hold at their commit, deny when they fail, and tell beforehand what they change."

_SAMPLE = 250


async def prove(sandbox: Sandbox) -> Verdict:
    tools = sandbox.pick_size(quick=100, full=500)
    figures, controls = await _measure_at_size(sandbox, tools)
    testbed = await changes_under_load.start_testbed(sandbox)
    findings = await changes_under_load.run_changes_under_load(
        sandbox, testbed, sandbox.pick_size(quick=30, full=400), "the gateways"
    )
    await asyncio.gather(*(restart_as_variant(gateway, "policy_epoch_ignored") for gateway in testbed.gateways))
    broken_findings = await changes_under_load.run_changes_under_load(
        sandbox, testbed, sandbox.pick_size(quick=25, full=120), "policy_epoch_ignored"
    )
    controls["policy_epoch_ignored"] = broken_findings.count_violations("late") > 0
    gateway = await backtest.start_backtest_gateway(sandbox, testbed)
    backtest_result = await backtest.run_backtest(sandbox, gateway, sandbox.pick_size(quick=1000, full=10_000))
    figures |= {
        "changes": findings.put_count,
        "calls_meanwhile": findings.call_count,
        "stopped_at_barrier": findings.stopped_count,
        "late": findings.count_violations("late"),
        "early": findings.count_violations("early"),
        "refused_otherwise": findings.count_violations("refused"),
        "other": findings.count_violations("other"),
        "snapshot_lag_ms": round(findings.lag_us / 1000, 1),
        "let_through_on_error": await backtest.count_failures_let_through(gateway, 20),
        "backtested": backtest_result.call_count,
        "backtest_seconds": round(backtest_result.seconds, 2),
        "backtest_changed": backtest_result.changed_count,
        "backtest_untold": backtest_result.undecidable_count,
        "backtest_wrong": backtest_result.wrong_count,
    }
    return Verdict(figures=figures, controls=controls, notes=findings.samples)


async def _measure_at_size(sandbox: Sandbox, tools: int) -> tuple[dict[str, Figure], dict[str, bool]]:
    began = time.monotonic()
    policies = await asyncio.to_thread(large_rule_set.compile_rules, tools)
    compile_seconds = time.monotonic() - began
    contracts = [large_rule_set.build_contract(number) for number in range(tools)]
    rng = random.Random(5)
    sample = large_rule_set.build_questions(_SAMPLE, contracts, rng)
    cost = large_rule_set.measure_cost(policies, sample, sandbox.pick_size(quick=6, full=20), compile_seconds)
    sandbox.log(
        f"{len(policies.rules)} rules: bare {cost.bare_us:.1f} µs, decided {cost.decide_us:.1f} µs, with its record "
        f"{cost.record_us:.1f} µs, cached {cost.cached_us:.2f} µs"
    )
    questions = large_rule_set.build_questions(sandbox.pick_size(quick=500, full=10_000), contracts, rng)
    difference_count = await asyncio.to_thread(
        large_rule_set.count_differences, policies, SliceIndex(policies.rules), questions
    )
    sandbox.log(f"{len(questions)} random requests: a slice differs from the whole set in {difference_count}")
    incomplete_slices = large_rule_set.IncompleteSlices(policies.rules)
    figures: dict[str, Figure] = {
        "rules": len(policies.rules),
        "decision_ratio": round(cost.decide_us / cost.bare_us, 3),
        "recorded_ratio": round(cost.record_us / cost.bare_us, 3),
        "bare_us": round(cost.bare_us, 1),
        "cached_us": round(cost.cached_us, 2),
        "reading_seconds": round(cost.compile_seconds, 2),
        "slice_requests": len(questions),
        "slice_differences": difference_count,
    }
    return figures, {
        "forgetful_slices": large_rule_set.count_differences(policies, incomplete_slices, questions[:_SAMPLE]) > 0
    }
