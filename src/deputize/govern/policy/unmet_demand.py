"""Find a sandbox that a rule demands for a call, and that its tool does not have here: such a call is refused.

Calls, explanations, test cases and replays of decisions are judged by the same functions.
"""

from deputize.core.contract.isolation import BackendDemand
from deputize.core.decision import Behavior, MatchedRule, Verdict
from deputize.core.value_types import frozen
from deputize.sandboxes.port import Backend, Placement, choose_stronger, parse_placement


@frozen
class UnmetDemand:
    """A sandbox that a rule demands, and where calls of a tool run here instead."""

    demand: BackendDemand
    placement: Placement

    @property
    def reason(self) -> str:
        """Say what is missing, and why the rule's author demands it."""
        match self.placement:
            case "none":
                place = "would run in no sandbox"
            case "uncertain":
                place = "may run without a sandbox"
            case backend:
                place = f"would run on {backend}"
        why = f": {self.demand.reason}" if self.demand.reason else ""
        return f"it {place} here, and the rule demands {self.demand.backend}{why}"

    @property
    def advice(self) -> str:
        if isinstance(self.placement, Backend):
            return (
                f'The operator can set backend = "{self.demand.backend}" in [sandboxes], after deputize sandboxes '
                "check, or change the rule."
            )
        if self.placement == "uncertain":
            return (
                "Programs of code.run certainly have a sandbox in production, unless [sandboxes] accepts "
                "unsandboxed_code; the operator can change that, or narrow the rule."
            )
        return (
            "Only commands, programs of [[servers]] without sandbox = false, tools of browser.* and build.* and "
            "programs of code.run have a sandbox; the operator can put the tool in one, or narrow the rule."
        )

    def deny(self, verdict: Verdict) -> Verdict:
        """Deny in place of a verdict, by the rule that demands."""
        rule = MatchedRule(id=self.demand.rule, where=self.demand.where, reason=self.reason)
        return Verdict(
            behavior=Behavior.DENY, rules=(rule,), digest=verdict.digest, reason=self.reason, suggestion=self.advice,
            weak_sandbox=self.placement,
        )  # fmt: skip


def find_unmet_demand(verdict: Verdict, placement: Placement) -> UnmetDemand | None:
    """Find a rule that demands a stronger sandbox for a call than the one that its tool certainly has."""
    if verdict.behavior is Behavior.DENY:
        return None
    for each in verdict.backend_demands:
        wanted = Backend(each.backend)
        if not isinstance(placement, Backend) or choose_stronger(placement, wanted) != placement:
            return UnmetDemand(demand=each, placement=placement)
    return None


def deny_unmet(verdict: Verdict, placement: Placement) -> Verdict:
    """Deny a call if a rule demands a stronger sandbox than the one that its tool certainly has."""
    unmet = find_unmet_demand(verdict, placement)
    return verdict if unmet is None else unmet.deny(verdict)


def deny_replayed(verdict: Verdict, recorded: Verdict) -> Verdict:
    """Deny a replayed call like `deny_unmet`, if its record says which sandbox was too weak."""
    sandbox = recorded.weak_sandbox
    return deny_unmet(verdict, parse_placement(sandbox)) if sandbox else verdict
