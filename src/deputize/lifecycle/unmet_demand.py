"""Find a sandbox that a rule demands for a call, and that its tool does not have here."""

from deputize.core.contract.contract import Contract
from deputize.core.contract.isolation import BackendDemand
from deputize.core.decision import Behavior, Verdict
from deputize.core.value_types import frozen
from deputize.lifecycle.runtime import Runtime
from deputize.sandboxes.port import Backend, choose_stronger


@frozen
class UnmetDemand:
    """A sandbox that a rule demands, and the weaker one that calls of a tool have here; None if they have none."""

    demand: BackendDemand
    backend: Backend | None

    @property
    def reason(self) -> str:
        place = "in no sandbox" if self.backend is None else f"on {self.backend}"
        return f"it would run {place} here, and the rule demands {self.demand.backend}"


def find_unmet_demand(runtime: Runtime, tenant: str, contract: Contract, verdict: Verdict) -> UnmetDemand | None:
    """Find a rule that demands a stronger sandbox for a call of this tool than it has here."""
    if not verdict.backend_demands or verdict.behavior is Behavior.DENY:
        return None
    backend = runtime.driver.find_backend(contract, tenant)
    for each in verdict.backend_demands:
        wanted = Backend(each.backend)
        if backend is None or choose_stronger(backend, wanted) != backend:
            return UnmetDemand(demand=each, backend=backend)
    return None
