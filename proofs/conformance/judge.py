"""What the suite saw, held against what is expected to fail: wrong in either direction is wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proofs.conformance.expected_failures import ExpectedFailure
from proofs.conformance.suite import ScenarioResult


@dataclass(kw_only=True, slots=True)
class SuiteJudgement:
    """Scenarios by how they went. `wrong` holds a sentence for each that went other than expected, `odd` its name."""

    scenario_count: int = 0
    passed_count: int = 0
    check_count: int = 0
    expected_failure_count: int = 0
    faults: list[str] = field(default_factory=list)
    unexpected_names: list[str] = field(default_factory=list)
    # Those that passed, by name: what a revision requires is told apart from what it merely runs.
    passed_names: set[str] = field(default_factory=set)

    def add(self, other: "SuiteJudgement") -> None:
        self.scenario_count += other.scenario_count
        self.passed_count += other.passed_count
        self.check_count += other.check_count
        self.expected_failure_count += other.expected_failure_count
        self.faults += other.faults


def judge_scenarios(
    where: str,
    scenario_names: Sequence[str],
    results: Mapping[str, ScenarioResult],
    expected_failures: Mapping[str, ExpectedFailure],
) -> SuiteJudgement:
    """`wanted` is every scenario that was to be run; what is expected of others is nobody's business here."""
    judgement = SuiteJudgement()
    for name in scenario_names:
        judgement.scenario_count += 1
        fault = _find_fault(results.get(name), expected_failures.get(name))
        if fault is not None:
            judgement.faults.append(f"{where} {name}: {fault}")
            judgement.unexpected_names.append(name)
        elif name in expected_failures:
            judgement.expected_failure_count += 1
        else:
            judgement.passed_count += 1
            judgement.passed_names.add(name)
        judgement.check_count += results[name].passed_count if name in results else 0
    return judgement


def _find_fault(result: ScenarioResult | None, expected_failure: ExpectedFailure | None) -> str | None:
    if result is None:
        return "it was not run"
    if expected_failure is None:
        return _describe_failures(result) if result.failures else None
    if not result.failures:
        return "it passes, and expected_failures.py says that it does not"
    if result.failures.keys() == expected_failure.checks:
        return None
    more, fewer = result.failures.keys() - expected_failure.checks, expected_failure.checks - result.failures.keys()
    faults = [f"{each} fails as well: {result.failures[each]}" for each in sorted(more)]
    return "; ".join(
        faults + [f"{each} passes, and expected_failures.py says that it does not" for each in sorted(fewer)]
    )


def _describe_failures(result: ScenarioResult) -> str:
    return "; ".join(f"{check}: {why}" for check, why in result.failures.items())
