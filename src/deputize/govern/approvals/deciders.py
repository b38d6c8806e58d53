"""Who may decide about a ticket: people who signed in for that, just now, and have no part in the call.

The same for a yes and a no, except that saying no takes no stronger sign-in. Above: `lifecycle/approvals/decide.py`,
which records every refusal. Below: `demands.py`.
"""

from typing import Any, NoReturn

from deputize.core.caller import BREAK_GLASS_SCOPE, Caller
from deputize.core.errors import NotAnApprover
from deputize.core.frozen import frozen
from deputize.core.settings import Approvals
from deputize.govern.approvals.demands import Asked, Vote, person, unmet

# The rules that speak here, by the names that refusals carry.
HUMANS_ONLY = "humans-only"
CONSOLE_AUDIENCE = "console-audience"
NO_SELF_APPROVAL = "no-self-approval"
APPROVER_GROUP = "approver-group"
FRESH_SIGN_IN = "fresh-sign-in"
STEP_UP = "step-up"
ONE_VOTE_EACH = "one-vote-each"
BREAK_GLASS = "break-glass-scope"
# So many different people break the glass together.
GLASS_PEOPLE = 2
# The most an issuer's clock may be ahead of ours and be forgiven, as for its tokens.
_LEEWAY_SECONDS = 60


@frozen
class Deciding:
    """An open ticket as it stands. `chain` is everybody behind the call: its user, the agents, and whoever lent."""

    tenant: str
    chain: tuple[str, ...]
    asked: Asked
    level: int
    votes: tuple[Vote, ...] = ()


def check(caller: Caller, ticket: Deciding, *, now: int, settings: Approvals, denying: bool = False) -> frozenset[int]:
    """The places of the demands this person's word counts for; or `NotAnApprover` with the rule that says no.

    `now` is the later of the clocks that are asked: a sign-in is fresh only if all of them say so.
    """
    _require_person(caller, ticket, now, settings)
    asked, level = ticket.asked, ticket.level
    mine = frozenset(
        place for place in range(len(asked.demands)) if not caller.groups.isdisjoint(asked.groups_of(place, level))
    )
    if not mine:
        groups = sorted(asked.groups_at(level))
        _refuse(
            APPROVER_GROUP,
            f"you are in none of the groups that are asked now: {', '.join(groups)}",
            advice="Leave it to somebody of these groups, or sign in again if you joined one of them lately.",
            groups=groups,
        )
    if any(person(vote.voter) == person(caller.user) for vote in ticket.votes):
        _refuse(
            ONE_VOTE_EACH,
            "you decided about this already",
            advice="Leave it to somebody else of the groups that are asked, or withdraw the call itself.",
        )
    if denying:
        return mine
    strong = frozenset(place for place in mine if _signed_in_for(caller, asked.demands[place].step_up))
    # Whoever is needed for a demand says yes to it when they do: nobody comes back to say it better.
    weak = sorted((mine - strong) & unmet(asked, ticket.votes))
    if weak or not strong:
        wanted = asked.demands[weak[0] if weak else min(mine)].step_up
        _refuse(
            STEP_UP,
            f"your sign-in does not show {wanted}, which this needs",
            advice=f"Sign in again in the way your identity provider calls {wanted}.",
            step_up=wanted,
        )
    return strong


def check_glass(caller: Caller, ticket: Deciding, *, now: int, settings: Approvals) -> None:
    """Whether somebody may break the glass: let a call go on, together with another, that its approvers do not decide.

    No group is asked then, and no stronger sign-in; everything else stands.
    """
    _require_person(caller, ticket, now, settings)
    if BREAK_GLASS_SCOPE not in caller.scopes:
        _refuse(
            BREAK_GLASS,
            f"this needs the scope {BREAK_GLASS_SCOPE}",
            advice="Ask whoever holds it; your identity provider says who does.",
            missing_scopes=[BREAK_GLASS_SCOPE],
        )
    before = [vote for vote in ticket.votes if person(vote.voter) == person(caller.user)]
    if any(vote.glass or not vote.approve for vote in before):
        _refuse(ONE_VOTE_EACH, "you decided about this already", advice="Somebody else who may must do the same.")


def glass_broken(votes: tuple[Vote, ...]) -> bool:
    """Whether enough different people broke the glass."""
    return len({person(vote.voter) for vote in votes if vote.glass and vote.approve}) >= GLASS_PEOPLE


def _require_person(caller: Caller, ticket: Deciding, now: int, settings: Approvals) -> None:
    if not caller.human or caller.agents or caller.grants:
        _refuse(
            HUMANS_ONLY,
            "only a person decides, with a token of their own: no agent does, and no program",
            advice="Have somebody of the ticket's groups look at it; waiting for them is all an agent can do.",
        )
    if not caller.console:
        _refuse(
            CONSOLE_AUDIENCE,
            "this token is not one for deciding",
            advice="Sign in for the console: its tokens have the audience that console_audience names.",
        )
    if caller.tenant != ticket.tenant:
        _refuse(APPROVER_GROUP, "this is another tenant's to decide", advice="Leave it to its own people.")
    if person(caller.user) in {person(each) for each in ticket.chain}:
        _refuse(
            NO_SELF_APPROVAL,
            "you have a part in this call, so somebody else decides about it",
            advice="Ask somebody else of the ticket's groups.",
        )
    age = now - caller.auth_time
    if caller.auth_time <= 0 or not -_LEEWAY_SECONDS <= age <= settings.fresh_seconds:
        _refuse(
            FRESH_SIGN_IN,
            f"you signed in longer ago than {settings.fresh_seconds} seconds, or your token does not say when",
            advice="Sign in again, then decide; the token must carry auth_time.",
            fresh_seconds=settings.fresh_seconds,
        )


def _signed_in_for(caller: Caller, step_up: str) -> bool:
    return not step_up or step_up in caller.methods


def _refuse(rule: str, why: str, *, advice: str, **details: Any) -> NoReturn:
    raise NotAnApprover(why, details={"rule": rule, **details}, advice=advice, nothing_happened=True)
