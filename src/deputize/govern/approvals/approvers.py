"""Check who may decide an approval request: people outside the call, freshly signed in to the console.

Approving and denying have the same rules, except that denying never needs a stronger sign-in, and is also open to the
people who took part in the call.
`operations/approvals/decisions.py` records every refusal.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import NotAnApprover
from deputize.core.settings import ApprovalSettings
from deputize.core.subject import build_subject, parse_subject
from deputize.core.value_types import frozen
from deputize.govern.approvals.requirements import ApprovalPlan, Vote, find_unmet_requirements, normalize_person

# The ids of the rules below, as refusals name them in `details.rule`.
HUMANS_ONLY = "humans-only"
CONSOLE_AUDIENCE = "console-audience"
NO_SELF_APPROVAL = "no-self-approval"
APPROVER_GROUP = "approver-group"
FRESH_SIGN_IN = "fresh-sign-in"
STEP_UP = "step-up"
ONE_VOTE_EACH = "one-vote-each"
BREAK_GLASS = "break-glass-scope"
# How many different people an emergency override needs.
BREAK_GLASS_QUORUM = 2
# How far an issuer's clock may be ahead of ours, as for its tokens.
_LEEWAY_SECONDS = 60


@frozen
class OpenApproval:
    """An open approval request. `participants` are those who may not approve it: its user, and the agents whose
    identity was proven, each as the subject is stored. `source_agents` are those whose words an undo sends, by their
    names: the journal does not record who proved them, so nobody of such a name approves it.
    """

    tenant: str
    participants: tuple[str, ...]
    plan: ApprovalPlan
    level: int
    votes: tuple[Vote, ...] = ()
    source_agents: tuple[str, ...] = ()


def check_approver(
    caller: Caller, approval: OpenApproval, *, now: int, settings: ApprovalSettings, is_denial: bool = False
) -> frozenset[int]:
    """Return the indexes of the requirements this person's vote counts for, or raise `NotAnApprover` with the rule.

    `now` is the latest of the available clocks, so that a sign-in is fresh only if it is fresh by all of them.
    """
    _require_person(caller, approval, now, settings)
    if not is_denial:
        _require_outsider(caller, approval)
    plan, level = approval.plan, approval.level
    own_indexes = frozenset(
        index
        for index in range(len(plan.requirements))
        if not caller.groups.isdisjoint(plan.get_requirement_groups(index, level))
    )
    if not own_indexes:
        groups = sorted(plan.get_groups(level))
        _refuse(
            APPROVER_GROUP,
            f"you are in none of the groups that may decide now: {', '.join(groups)}",
            advice="Leave the decision to a member of these groups. If you just joined one, sign in again.",
            groups=groups,
        )
    if any(normalize_person(vote.voter) == normalize_person(caller.user) for vote in approval.votes):
        _refuse(
            ONE_VOTE_EACH,
            "you have already decided on this approval request",
            advice="Leave the decision to another member of the approver groups, or cancel the call.",
        )
    if is_denial:
        return own_indexes
    proven_indexes = frozenset(index for index in own_indexes if _has_step_up(caller, plan.requirements[index].step_up))
    # A vote counts once, so an approver whose sign-in is too weak for an unmet requirement must sign in again first:
    # a second vote with the stronger sign-in would be refused.
    unproven_indexes = sorted((own_indexes - proven_indexes) & find_unmet_requirements(plan, approval.votes))
    if unproven_indexes or not proven_indexes:
        step_up = plan.requirements[unproven_indexes[0] if unproven_indexes else min(own_indexes)].step_up
        _refuse(
            STEP_UP,
            f"this approval needs the sign-in method {step_up}, which your token does not show",
            advice=f"Sign in again with the method your identity provider calls {step_up}.",
            step_up=step_up,
        )
    return proven_indexes


def check_break_glass(caller: Caller, approval: OpenApproval, *, now: int, settings: ApprovalSettings) -> None:
    """Check that a person may vote for an emergency override, which needs two authorised people.

    It needs no approver group and no stronger sign-in; all other rules apply.
    """
    _require_person(caller, approval, now, settings)
    _require_outsider(caller, approval)
    if BREAK_GLASS_SCOPE not in caller.scopes:
        _refuse(
            BREAK_GLASS,
            f"an emergency override needs the scope {BREAK_GLASS_SCOPE}",
            advice="Ask a person who has this scope; your identity provider knows who does.",
            missing_scopes=[BREAK_GLASS_SCOPE],
        )
    own_votes = [vote for vote in approval.votes if normalize_person(vote.voter) == normalize_person(caller.user)]
    if any(vote.is_break_glass or not vote.approve for vote in own_votes):
        _refuse(
            ONE_VOTE_EACH,
            "you have already decided on this approval request",
            advice=f"Ask another person with the scope {BREAK_GLASS_SCOPE} to confirm the override.",
        )


def is_break_glass_met(votes: tuple[Vote, ...]) -> bool:
    """Tell whether enough different people voted for the emergency override."""
    return (
        len({normalize_person(vote.voter) for vote in votes if vote.is_break_glass and vote.approve})
        >= BREAK_GLASS_QUORUM
    )


def _require_person(caller: Caller, approval: OpenApproval, now: int, settings: ApprovalSettings) -> None:
    if not caller.human or caller.agents or caller.grants:
        _refuse(
            HUMANS_ONLY,
            "only people decide approval requests; this token belongs to an agent or a program",
            advice="Ask a member of the approver groups to decide, and wait for the decision.",
        )
    if not caller.console:
        _refuse(
            CONSOLE_AUDIENCE,
            f"this token of {caller.issuer} is not for deciding approval requests: its audience (aud) is that of "
            "calls, and deciding needs the one set as console_audience for this issuer",
            advice="Decide in the console, or with deputize approvals approve ID --sign-in: both ask the identity "
            "provider for a token with that audience. No other audience or scope replaces it.",
            missing_claim="aud",
        )
    if caller.tenant != approval.tenant:
        _refuse(
            APPROVER_GROUP,
            "this approval request belongs to another tenant",
            advice="Leave the decision to that tenant's approvers.",
        )
    age = now - caller.auth_time
    if caller.auth_time <= 0 or not -_LEEWAY_SECONDS <= age <= settings.fresh_seconds:
        _refuse(
            FRESH_SIGN_IN,
            f"you signed in more than {settings.fresh_seconds} seconds ago, or your token has no auth_time",
            advice="Sign in again, then decide. The token must contain the claim auth_time.",
            fresh_seconds=settings.fresh_seconds,
        )


def _require_outsider(caller: Caller, approval: OpenApproval) -> None:
    if normalize_person(caller.user) in {normalize_person(each) for each in approval.participants}:
        _refuse(
            NO_SELF_APPROVAL,
            "you took part in this call, so another person must approve it",
            advice="Ask another member of the approver groups. You may deny the call.",
        )
    names = {normalize_person(parse_subject(each)[1]) for each in approval.source_agents}
    if normalize_person(parse_subject(caller.user)[1]) in names:
        _refuse(
            NO_SELF_APPROVAL,
            "what this undo sends may be the words of an agent of your name, so another person must approve it",
            advice="Ask another member of the approver groups. You may deny the call.",
        )


def parse_participants(names: Sequence[str], primary_issuer: str | None) -> tuple[str, ...]:
    """Parse the participants of a stored request. Earlier releases also stored the names that agents had only been
    given; those are left out, because they are not the people of the same names. Proven agents are stored with their
    issuer, and named here as the same subject would be as a user.
    """
    proven_agents = [(issuer, name) for issuer, name in map(parse_subject, names[1:]) if issuer is not None]
    return (*names[:1], *(build_subject(issuer, name, primary_issuer) for issuer, name in proven_agents))


def _has_step_up(caller: Caller, step_up: str) -> bool:
    return not step_up or step_up in caller.methods


def _refuse(rule: str, message: str, *, advice: str, **details: Any) -> NoReturn:
    raise NotAnApprover(message, details={"rule": rule, **details}, advice=advice, nothing_happened=True)
