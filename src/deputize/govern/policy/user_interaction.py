"""Ask a person about calls of tools whose contract requires it, whatever the policies allow."""

from dataclasses import replace
from typing import Final

from deputize.core.decision import Behavior, MatchedRule, Verdict, build_approval_requirements

INTERACTION_RULE: Final = "contract:requires-user-interaction"
_REASON: Final = "The tool's contract requires that a person takes part in each call."
_RULES: Final = (MatchedRule(id=INTERACTION_RULE, reason=_REASON),)


def require_person(verdict: Verdict, *, is_required: bool, is_human: bool) -> Verdict:
    """Turn an allowed call into one that needs approval, unless a person makes it without an agent.

    A verdict that asks already needs a person; one that denies stays.
    """
    if not is_required or is_human or verdict.behavior is not Behavior.ALLOW:
        return verdict
    return replace(
        verdict,
        behavior=Behavior.ASK,
        rules=_RULES,
        reason=_REASON,
        requirements=build_approval_requirements(_RULES),
    )
