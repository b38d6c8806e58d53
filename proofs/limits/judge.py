"""Judge calls under limits as their callers saw them: what was admitted, what was refused, and in which words."""

from collections import deque
from collections.abc import Sequence

from proofs.kit.report import Figure
from proofs.limits.traffic import LimitCall

RATE, WINDOW = 100, 1.0
REDIS_SECONDS = 1.0
# By then, a call that was on its way when Redis was lost, or came back, has been answered.
SETTLE_SECONDS = 2.0
FREEZE_AT, KILL_AT, RESTART_AT, END_AT = 3.0, 7.0, 11.0, 16.0


def judge_rate(calls: Sequence[LimitCall]) -> dict[str, Figure]:
    """Compare what was admitted with what an exact counter would have admitted of the same calls."""
    duration = max(call.sent_at for call in calls) - min(call.sent_at for call in calls)
    admitted_count, allowed_count = count_admitted(calls), _count_allowed([call.sent_at for call in calls])
    return {
        "seconds": round(duration, 2),
        "offered per second": round(len(calls) / duration, 1),
        "admitted": admitted_count,
        "allowed": allowed_count,
        "admitted of allowed": round(admitted_count / allowed_count, 4),
        "admitted above allowed": round(max(admitted_count / allowed_count - 1, 0.0), 4),
        "refused unnamed": _count_unnamed_refusals(calls, "rate-limited", "pace"),
    }


def judge_redis_loss(calls: Sequence[LimitCall], began: float) -> dict[str, Figure]:
    """Judge each call by what its rule says for the state that Redis was in when it was sent."""

    def select_between(start: float, end: float) -> list[LimitCall]:
        return [call for call in calls if start <= call.sent_at - began < end]

    calls_while_counted = select_between(0, FREEZE_AT - SETTLE_SECONDS) + select_between(
        RESTART_AT + 2 * SETTLE_SECONDS, END_AT
    )
    calls_while_frozen = select_between(FREEZE_AT + SETTLE_SECONDS, KILL_AT)
    calls_while_killed = select_between(KILL_AT + SETTLE_SECONDS, RESTART_AT)
    calls_while_lost = calls_while_frozen + calls_while_killed
    slow_calls = [call for call in calls_while_lost if call.seconds > REDIS_SECONDS * 0.8]
    return {
        "calls while counted": len(calls_while_counted),
        "calls while frozen": len(calls_while_frozen),
        "calls while killed": len(calls_while_killed),
        "wrong while counted": sum(not (call.is_admitted and not call.warnings) for call in calls_while_counted),
        "wrong while frozen": sum(not _is_as_configured(call) for call in calls_while_frozen),
        "wrong while killed": sum(not _is_as_configured(call) for call in calls_while_killed),
        "admitted against a rule that denies": sum(
            call.is_admitted and call.tool == "strict" for call in calls_while_lost
        ),
        "share that waited while lost": round(len(slow_calls) / max(len(calls_while_lost), 1), 4),
    }


def judge_runaways(
    loop_calls: Sequence[LimitCall],
    budget_calls: Sequence[LimitCall],
    slope_calls: Sequence[LimitCall],
    granted_budget: float,
) -> dict[str, Figure]:
    """Sum up where a loop, a budget and a rising cost were stopped, and count the refusals that do not say by what."""
    return {
        "loop admitted": count_admitted(loop_calls),
        "budget spent": round(sum(call.cost for call in budget_calls), 6),
        "budget leased": granted_budget,
        "cost when the slope was stopped": round(sum(call.cost for call in slope_calls), 6),
        "refused in other words": _count_unnamed_refusals(loop_calls, "runaway", "loops")
        + _count_unnamed_refusals(budget_calls, "budget-spent", "purse")
        + _count_unnamed_refusals(slope_calls, "runaway", "slope"),
    }


def count_admitted(calls: Sequence[LimitCall]) -> int:
    return sum(call.is_admitted for call in calls)


def _count_allowed(times: Sequence[float]) -> int:
    """Count how many of these calls an exact counter would have admitted."""
    window: deque[float] = deque()
    admitted_count = 0
    for moment in sorted(times):
        while window and window[0] <= moment - WINDOW:
            window.popleft()
        if len(window) < RATE:
            window.append(moment)
            admitted_count += 1
    return admitted_count


def _count_unnamed_refusals(calls: Sequence[LimitCall], slug: str, rule: str) -> int:
    """Count refusals that do not say which rule they are by, or not when to come again."""
    return sum(not (call.is_admitted or call.is_refused_by(slug, rule)) for call in calls)


def _is_as_configured(call: LimitCall) -> bool:
    """Tell whether a call met what its rule says while it cannot be counted, by name."""
    if call.tool == "strict":
        return call.status == 503 and call.is_refused_by("limits-unavailable", "strict")
    return call.is_admitted and any(warning.startswith("limit lenient was not counted") for warning in call.warnings)
