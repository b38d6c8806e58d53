"""Judge the findings of the checks by what each tool really is: caught, caught by the fitting check, or suspected."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from proofs.contract_violations.checker import DISABLED, ERROR_SCHEMA, UNCHANGED, Observation
from proofs.contract_violations.generator import Label
from proofs.contract_violations.kinds import ViolationKind
from proofs.kit.report import Figure

TIMEOUTS = frozenset({"tool-timeout", "outcome-unknown"})
# What shows a violation of each kind: one of these sets of signs, all of it.
FITTING_SIGNS: Mapping[ViolationKind, tuple[frozenset[str], ...]] = {
    ViolationKind.READ_THAT_WRITES: (frozenset({"mutation-class-violated", DISABLED}),),
    ViolationKind.WRITE_WITHOUT_EFFECT: (frozenset({UNCHANGED}),),
    ViolationKind.NOT_IDEMPOTENT: (frozenset({"not idempotent"}),),
    ViolationKind.NOT_REVERSIBLE: (frozenset({"not reversible"}),),
    ViolationKind.NOT_DETERMINISTIC: (frozenset({"not deterministic"}),),
    ViolationKind.WRONG_OUTPUT: (frozenset({"result-invalid"}),),
    ViolationKind.WRONG_ERROR: (frozenset({ERROR_SCHEMA}),),
    ViolationKind.TOO_SLOW: tuple(frozenset({each}) for each in sorted(TIMEOUTS)),
}


@dataclass(kw_only=True, slots=True)
class ViolationFindings:
    """What was found about all tools; each list holds the wrong ones as text."""

    honest_count: int = 0
    violation_count: int = 0
    caught_by_test: int = 0
    caught_at_first_call: int = 0
    misses: list[str] = field(default_factory=list)
    unfitting_catches: list[str] = field(default_factory=list)
    quarantines: list[str] = field(default_factory=list)
    honest_timeouts: list[str] = field(default_factory=list)
    pairs: set[tuple[str, str]] = field(default_factory=set)
    catches: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often a kind was caught by a set of signs."""


def judge_tools(
    findings: ViolationFindings, labels: Mapping[str, Label], observations: Mapping[str, Observation]
) -> None:
    """Judge every tool that was generated; one without an observation was not looked at."""
    for name, label in labels.items():
        observation = observations.get(name, Observation())
        if label.kind is None:
            _judge_honest_tool(findings, name, label, observation, is_seen=name in observations)
        else:
            _judge_violation(findings, name, label.kind, label, observation)


def _judge_violation(
    findings: ViolationFindings, name: str, kind: ViolationKind, label: Label, observation: Observation
) -> None:
    findings.violation_count += 1
    findings.pairs.add((kind, label.base))
    signs = observation.test_signs | observation.call_signs
    fitting = next((each for each in FITTING_SIGNS[kind] if each <= signs), None)
    text = f"{kind}: {name} with {label.fault!r} showed {sorted(signs) or 'nothing'}"
    if not signs:
        findings.misses.append(text)
    elif fitting is None:
        findings.unfitting_catches.append(text)
    else:
        findings.catches[kind, " + ".join(sorted(fitting))] += 1
        is_red = bool(fitting & observation.test_signs)
        findings.caught_by_test += is_red
        findings.caught_at_first_call += not is_red


def _judge_honest_tool(
    findings: ViolationFindings, name: str, label: Label, observation: Observation, *, is_seen: bool
) -> None:
    findings.honest_count += 1
    signs = observation.test_signs | observation.call_signs
    text = f"honest: {name} ({label.base}) with {label.fault!r} showed {sorted(signs) or 'nothing'}"
    if signs and signs <= TIMEOUTS:
        findings.honest_timeouts.append(text)
    elif signs or not is_seen or not observation.case_count:
        findings.quarantines.append(text)


def build_figures(findings: ViolationFindings) -> dict[str, Figure]:
    """Build the figures that have bars, and those that tell where violations were caught."""
    return {
        "tools": findings.honest_count + findings.violation_count,
        "violating_tools": findings.violation_count,
        "violations_missed": len(findings.misses),
        "violations_caught_only_by_another_check": len(findings.unfitting_catches),
        "honest_tools_quarantined": len(findings.quarantines),
        "honest_tools_timed_out": len(findings.honest_timeouts),
        "violation_kinds": len({kind for kind, _ in findings.pairs}),
        "kind_and_tool_pairs": len(findings.pairs),
        "caught_by_test": findings.caught_by_test,
        "caught_at_first_call": findings.caught_at_first_call,
    }


def list_notes(findings: ViolationFindings, limit: int) -> list[str]:
    """List what caught each kind, and some of the tools that were judged wrongly."""
    catches = [f"{kind}: {count} by {signs}" for (kind, signs), count in sorted(findings.catches.items())]
    wrong = (findings.misses, findings.unfitting_catches, findings.quarantines, findings.honest_timeouts)
    return [*catches, *(text for texts in wrong for text in texts[:limit])]
