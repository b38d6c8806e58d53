"""The official conformance suite, both ways: our interface as its server, our upstream client as its client.

Behind the interface stands a server of the official SDK with the tools the suite looks for. What does not pass is
listed in `expected_failures.py`, each with its reason; the proof fails when that list is wrong in either direction.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from proofs.conformance.expected_failures import EXPECTED_FAILURES
from proofs.conformance.judge import SuiteJudgement, judge_scenarios
from proofs.conformance.relay import HeaderFixingRelay
from proofs.conformance.suite import LEGS, REVISIONS, Leg, ScenarioResult, Suite
from proofs.conformance.testbed import Testbed
from proofs.kit.asgi_server import READY
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "conformance"
PROMISE = "Both sides of MCP pass the official conformance suite, but for a list that says why."

_ROOT = Path(__file__).resolve().parents[2]
_CLIENT_SHIM = _ROOT / "proofs" / "conformance" / "client_shim.py"
# Both forms run everything: the suite takes longest to start, so leaving some out would save little.
_MAX_TRIES = 2


async def prove(sandbox: Sandbox) -> Verdict:
    suite = await Suite.install(sandbox)
    testbed, command = await asyncio.gather(Testbed.start(sandbox), _start_client(sandbox))
    sandbox.log("the door and the client stand")
    judgements: dict[tuple[Leg, str], SuiteJudgement] = {}
    async with testbed.create_relay().start() as url:
        for revision in REVISIONS:
            arguments: dict[Leg, tuple[str, str]] = {"server": ("--url", url), "client": ("--command", command)}
            leg_results = await asyncio.gather(*(suite.run_revision(leg, revision, *arguments[leg]) for leg in LEGS))
            for leg, results in zip(LEGS, leg_results, strict=True):
                judgements[leg, revision] = await _judge_revision(suite, leg, revision, results, arguments[leg])
            sandbox.log(f"{revision}: {_describe_revision(judgements, revision)}")
    controls = await _run_controls(suite, testbed)
    return _build_verdict(suite, judgements, controls)


async def _start_client(sandbox: Sandbox) -> str:
    path = sandbox.folder / "client.sock"
    argv = [sys.executable, "-m", "proofs.conformance.client", "--socket", str(path)]
    await sandbox.start_process("client", argv, cwd=_ROOT, ready_line=READY)
    return f"{sys.executable} -I -S {_CLIENT_SHIM} {path}"


async def _judge_revision(
    suite: Suite, leg: Leg, revision: str, results: dict[str, ScenarioResult], arguments: tuple[str, str]
) -> SuiteJudgement:
    """What went other than expected is run again, by itself: the suite waits half a second for some answers, which a
    machine with other work cannot always keep.
    """
    expected_failures, scenario_names = EXPECTED_FAILURES[leg, revision], suite.get_required(leg, revision).all_names
    for _ in range(_MAX_TRIES):
        unexpected_names = judge_scenarios(
            f"{leg} {revision}", scenario_names, results, expected_failures
        ).unexpected_names
        for name in unexpected_names:
            suite.sandbox.log(f"again, by itself: {leg} {revision} {name}")
            results[name] = await suite.run_scenario(leg, revision, name, *arguments)
    return judge_scenarios(f"{leg} {revision}", scenario_names, results, expected_failures)


def _describe_revision(judgements: Mapping[tuple[Leg, str], SuiteJudgement], revision: str) -> str:
    return "; ".join(
        f"{leg}: {each.passed_count} of {each.scenario_count} scenarios pass, {each.expected_failure_count} fail "
        "for a reason"
        for (leg, of), each in judgements.items()
        if of == revision
    )


async def _run_controls(suite: Suite, testbed: Testbed) -> dict[str, bool]:
    """The suite has to notice an interface that does not compare headers with bodies, and a client that does
    nothing.
    """
    revision = REVISIONS[-1]
    async with testbed.create_relay(HeaderFixingRelay).start() as url:
        headers = await suite.run_scenario("server", revision, "http-header-validation", "--url", url)
    idle = await suite.run_scenario("client", revision, "tools_call", "--command", "true")
    return {"headers are not compared": bool(headers.failures), "a client that does nothing": bool(idle.failures)}


def _summarize_required(suite: Suite, judgements: Mapping[tuple[Leg, str], SuiteJudgement]) -> dict[str, str]:
    """Of what each revision requires, and of the tasks extension, which it does not, how much passes."""
    figures = {}
    for (leg, revision), judgement in judgements.items():
        scored_names = suite.get_required(leg, revision).scored_names
        figures[f"required_{leg}_{revision}"] = (
            f"{len(judgement.passed_names.intersection(scored_names))} of {len(scored_names)}"
        )
        tasks = [name for name in suite.get_required(leg, revision).unscored_names if name.startswith("tasks-")]
        if tasks:
            figures["tasks"] = f"{len(judgement.passed_names.intersection(tasks))} of {len(tasks)}"
    return figures


def _build_verdict(
    suite: Suite, judgements: Mapping[tuple[Leg, str], SuiteJudgement], controls: dict[str, bool]
) -> Verdict:
    total = SuiteJudgement()
    for each in judgements.values():
        total.add(each)
    reasons = {reason.reason for of_leg in EXPECTED_FAILURES.values() for reason in of_leg.values()}
    stale = [
        f"expected_failures.py names {name} of {leg} {revision}, which the suite does not have"
        for (leg, revision), names in EXPECTED_FAILURES.items()
        for name in names
        if name not in suite.get_required(leg, revision).all_names
    ]
    wrong = total.faults + stale
    figures: dict[str, int | float | str] = {
        "unexpected": len(wrong),
        "scenarios": total.scenario_count,
        "passed": total.passed_count,
        "checks_passed": total.check_count,
        "failing_with_reason": total.expected_failure_count,
        "reasons": len(reasons),
        **_summarize_required(suite, judgements),
    }
    return Verdict(
        figures=figures,
        controls=controls,
        notes=[*wrong, *sorted(reasons)],
    )
