"""Compare the objectives that a contract declares with what was measured of its version."""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from deputize.core.contract.contract import Contract
from deputize.evidence.call_measurements import MICROSECONDS, CallEnd, Measurement

# Of fewer calls nothing is said; an objective that allows one bad call in a thousand needs a thousand.
MIN_CALLS: Final = 100
_P99_ALLOWANCE: Final = 0.01


class ObjectiveStatus(StrEnum):
    """Whether an objective was met."""

    MET = "met"
    NOT_MET = "not-met"
    NOT_DECLARED = "not-declared"
    TOO_FEW_CALLS = "too-few-calls"
    NOT_MEASURED = "not-measured"


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectiveLevel:
    """One objective beside what was measured."""

    name: str
    target: float | None
    value: float | None
    status: ObjectiveStatus
    # Of how many calls the value is, and of how many it can be said that the objective is met.
    calls: int
    needed_calls: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge_objectives(contract: Contract, measurement: Measurement) -> list[ObjectiveLevel]:
    """Judge each objective: latency, availability, accuracy and cost."""
    return [
        _judge_latency(contract, measurement),
        _judge_availability(contract, measurement),
        _judge_accuracy(contract, measurement),
        _judge_cost(contract, measurement),
    ]


def compute_p99(contract: Contract, measurement: Measurement) -> float | None:
    """Compute the p99. Calls beyond the objective are counted exactly, so that the estimate is on its side of it."""
    p99 = measurement.compute_quantile(0.99)
    objective = None if contract.objectives is None else contract.objectives.p99_seconds
    if p99 is None or objective is None:
        return p99
    is_slow = measurement.slow_calls > _compute_allowance(_P99_ALLOWANCE, measurement.timed_calls)
    return max(p99, objective) if is_slow else min(p99, objective)


def compute_share(part: int, whole: int) -> float | None:
    """Compute a share, or None of nothing."""
    return part / whole if whole else None


def _judge_latency(contract: Contract, measurement: Measurement) -> ObjectiveLevel:
    target = None if contract.objectives is None else contract.objectives.p99_seconds
    return _judge(
        "p99_seconds",
        target,
        compute_p99(contract, measurement),
        calls=measurement.timed_calls,
        bad_calls=measurement.slow_calls,
        allowance=_P99_ALLOWANCE,
        what="took longer",
    )


def _judge_availability(contract: Contract, measurement: Measurement) -> ObjectiveLevel:
    target = None if contract.objectives is None else contract.objectives.availability
    successes = measurement.get_calls(CallEnd.SUCCESS)
    return _judge(
        "availability",
        target,
        compute_share(successes, measurement.calls),
        calls=measurement.calls,
        bad_calls=measurement.calls - successes,
        allowance=1 - (target or 0),
        what="did not succeed",
    )


def _judge_accuracy(contract: Contract, measurement: Measurement) -> ObjectiveLevel:
    """Judge the share of results that passed schema, critical predicates and `verify`.

    A schema alone tells the form of a result and not whether it is right, so that without the others nothing is known.
    """
    target = None if contract.objectives is None else contract.objectives.accuracy
    rejections = measurement.get_calls(CallEnd.REJECTION)
    results = measurement.get_calls(CallEnd.SUCCESS) + rejections
    if not contract.verifies and all(each.severity != "critical" for each in contract.predicates):
        return ObjectiveLevel(
            name="accuracy",
            target=target,
            value=None,
            status=ObjectiveStatus.NOT_DECLARED if target is None else ObjectiveStatus.NOT_MEASURED,
            calls=results,
            needed_calls=MIN_CALLS,
            reason="only the schema checks results, which says nothing about their content: "
            "declare predicates or verify to measure it",
        )
    return _judge(
        "accuracy",
        target,
        compute_share(results - rejections, results),
        calls=results,
        bad_calls=rejections,
        allowance=1 - (target or 0),
        what="returned a result that fails its schema, a predicate or verify",
    )


def _judge_cost(contract: Contract, measurement: Measurement) -> ObjectiveLevel:
    """Judge the highest cost of a call, because the objective is the most that one may cost."""
    target = None if contract.objectives is None else contract.objectives.cost
    highest_cost = measurement.max_cost_micros / MICROSECONDS if measurement.calls else None
    return _judge(
        "cost",
        target,
        highest_cost,
        calls=measurement.calls,
        # Rounded, because costs are counted in millionths, rounded up.
        bad_calls=int(measurement.max_cost_micros > math.ceil(round((target or 0) * MICROSECONDS, 3))),
        allowance=0,
        what="cost more",
    )


def _judge(
    name: str,
    target: float | None,
    value: float | None,
    *,
    calls: int,
    bad_calls: int,
    allowance: float,
    what: str,
) -> ObjectiveLevel:
    """Judge bad calls against the share that is allowed.

    Below the needed number of calls an objective is missed only if it would be with nothing but good calls from now on.
    """
    needed_calls = max(MIN_CALLS, math.ceil(round(1 / allowance, 6)) if allowance > 0 else 0)
    if target is None:
        status, needed_calls = ObjectiveStatus.NOT_DECLARED, MIN_CALLS
        reason = "the contract declares no such objective"
    elif bad_calls > _compute_allowance(allowance, max(calls, needed_calls)):
        status, reason = ObjectiveStatus.NOT_MET, f"{_count_bad_calls(name, bad_calls, calls)} {what}"
    elif calls < needed_calls:
        status = ObjectiveStatus.TOO_FEW_CALLS
        reason = f"{calls:,} of the {needed_calls:,} calls that are needed to say so were measured"
    else:
        status, reason = ObjectiveStatus.MET, f"{_count_bad_calls(name, bad_calls, calls)} {what}"
    return ObjectiveLevel(
        name=name,
        target=target,
        value=value,
        status=status,
        calls=calls,
        needed_calls=needed_calls,
        reason=reason,
    )


def _count_bad_calls(name: str, bad_calls: int, calls: int) -> str:
    # Of costs only the highest is stored.
    if name == "cost" and bad_calls:
        return f"at least one of {calls:,} calls"
    return f"{bad_calls:,} of {calls:,} calls"


def _compute_allowance(share: float, calls: int) -> int:
    """Compute how many calls a share allows; rounded first, because 1 - 0.9 is less than a tenth."""
    return math.floor(round(share * calls, 6))
