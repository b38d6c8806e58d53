"""Combine the verdicts of Cedar and an external decision point: the stricter one wins, with the rules of both."""

from dataclasses import replace
from typing import Literal, Protocol

from deputize.core.decision import Behavior, PolicyRequest, Verdict
from deputize.core.errors import PolicyFailed
from deputize.govern.policy.user_interaction import require_person

Engine = Literal["cedar", "authzen", "both"]


class DecisionPoint(Protocol):
    """An engine that decides policy requests."""

    async def decide(self, request: PolicyRequest) -> Verdict: ...


async def consult_engines(
    cedar: Verdict, request: PolicyRequest, remote: DecisionPoint | None, engine: Engine
) -> Verdict:
    """Return the verdict of the configured engine, or of both. What Cedar denies is not sent elsewhere."""
    if engine == "cedar" or (engine == "both" and cedar.behavior is Behavior.DENY):
        return cedar
    if remote is None:
        raise PolicyFailed(
            f"policy.engine is {engine}, but no external decision point is configured",
            details={"rule": "authzen:no-answer"},
            nothing_happened=True,
        )
    answer = await remote.decide(request)
    verdict = answer if engine == "authzen" else combine_verdicts(cedar, answer)
    is_required = request.contract.requires_user_interaction
    return require_person(verdict, is_required=is_required, is_human=request.caller.human)


def combine_verdicts(first: Verdict, second: Verdict) -> Verdict:
    """Combine two verdicts: the stricter one, followed by the rules of the other. If equal, the first wins.

    If both require approval, the requirements of both apply.
    """
    stricter, milder = (second, first) if second.behavior.strictness > first.behavior.strictness else (first, second)
    has_same_behavior = milder.behavior is stricter.behavior
    return replace(
        stricter,
        rules=stricter.rules + tuple(rule for rule in milder.rules if rule not in stricter.rules),
        digest=first.digest or second.digest,
        errors=first.errors + tuple(error for error in second.errors if error not in first.errors),
        suggestion=stricter.suggestion or milder.suggestion,
        requirements=stricter.requirements
        + tuple(each for each in milder.requirements if has_same_behavior and each not in stricter.requirements),
        backend_demands=first.backend_demands + second.backend_demands,
    )
