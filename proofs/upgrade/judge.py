"""Judge what happened to calls, runs and approved calls while releases were exchanged."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proofs.kit.ledger import Effect
from proofs.kit.report import Figure
from proofs.kit.write_load import Load


@dataclass(frozen=True, kw_only=True, slots=True)
class UpgradeFacts:
    """What callers were told, and what the database has in the end."""

    load: Load
    seconds: float
    """For how long the load ran."""
    runs: Mapping[str, str]
    """The call of each run, by its label."""
    approvals: Mapping[str, str]
    """The call of each approved request, by its label."""
    other_failures: Mapping[str, int]
    """How runs, approval requests and decisions failed."""
    states: Mapping[str, str]
    """The state of each call in the end, by its id."""
    open_counts: Sequence[tuple[int, int]]
    """How many runs and approval requests were open when each step began."""


def judge_upgrade(facts: UpgradeFacts, effects: Sequence[Effect]) -> dict[str, Figure]:
    """Judge by answers, rows and effects: each call that was acknowledged has succeeded, and has one effect."""
    writes = dict(zip(facts.load.acknowledged, facts.load.call_ids, strict=True))
    calls = {**writes, **facts.runs, **facts.approvals}
    effect_counts = Counter(each.call for each in effects)
    return {
        "steps": len(facts.open_counts),
        "calls": facts.load.count,
        "calls_per_second": round(facts.load.count / facts.seconds, 1),
        "slowest_call_seconds": round(facts.load.longest_seconds, 2),
        "runs": len(facts.runs),
        "approvals": len(facts.approvals),
        "fewest_open_runs": min((runs for runs, _ in facts.open_counts), default=0),
        "fewest_open_approvals": min((approvals for _, approvals in facts.open_counts), default=0),
        "failed": facts.load.failures.total() + sum(facts.other_failures.values()),
        "lost": sum(facts.states.get(call) != "succeeded" or not effect_counts[label] for label, call in calls.items()),
        "twice": sum(count > 1 for count in effect_counts.values()),
    }
