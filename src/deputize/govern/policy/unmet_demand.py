"""Find a sandbox that a rule demands for a call, and that its tool does not have here: such a call is refused.

Calls, explanations, test cases and replays of decisions are judged by the same functions.
"""

from deputize.core.contract.isolation import BackendDemand
from deputize.core.decision import Behavior, MatchedRule, Verdict
from deputize.core.value_types import frozen
from deputize.sandboxes.port import Backend, choose_stronger

# What a record says of a call that would have been made in no sandbox.
_NO_SANDBOX = "none"


@frozen
class UnmetDemand:
    """A sandbox that a rule demands, and the weaker one that calls of a tool have here; None if they have none."""

    demand: BackendDemand
    backend: Backend | None

    @property
    def reason(self) -> str:
        """Say what is missing, and why the rule's author demands it."""
        place = "in no sandbox" if self.backend is None else f"on {self.backend}"
        why = f": {self.demand.reason}" if self.demand.reason else ""
        return f"it would run {place} here, and the rule demands {self.demand.backend}{why}"

    @property
    def advice(self) -> str:
        if self.backend is not None:
            return (
                f'The operator can set backend = "{self.demand.backend}" in [sandboxes], after deputize sandboxes '
                "check, or change the rule."
            )
        return (
            "Only commands, programs of [[servers]] without sandbox = false and programs of code.run have a sandbox; "
            "the operator can put the tool in one, or narrow the rule."
        )

    def deny(self, verdict: Verdict) -> Verdict:
        """Deny in place of a verdict, by the rule that demands."""
        rule = MatchedRule(id=self.demand.rule, where=self.demand.where, reason=self.reason)
        return Verdict(
            behavior=Behavior.DENY, rules=(rule,), digest=verdict.digest, reason=self.reason, suggestion=self.advice,
            weak_sandbox=self.backend or _NO_SANDBOX,
        )  # fmt: skip


def find_unmet_demand(verdict: Verdict, backend: Backend | None) -> UnmetDemand | None:
    """Find a rule that demands a stronger sandbox for a call than the one that its tool has; None if it has none."""
    if verdict.behavior is Behavior.DENY:
        return None
    for each in verdict.backend_demands:
        wanted = Backend(each.backend)
        if backend is None or choose_stronger(backend, wanted) != backend:
            return UnmetDemand(demand=each, backend=backend)
    return None


def deny_unmet(verdict: Verdict, backend: Backend | None) -> Verdict:
    """Deny a call if a rule demands a stronger sandbox than the one that its tool has; None if it has none."""
    unmet = find_unmet_demand(verdict, backend)
    return verdict if unmet is None else unmet.deny(verdict)


def deny_replayed(verdict: Verdict, recorded: Verdict) -> Verdict:
    """Deny a replayed call like `deny_unmet`, if its record says which sandbox was too weak."""
    sandbox = recorded.weak_sandbox
    return deny_unmet(verdict, None if sandbox == _NO_SANDBOX else Backend(sandbox)) if sandbox else verdict
