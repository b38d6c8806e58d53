"""Build the problem that says a call's outcome is unknown, with the next step its contract allows."""

from deputize.core.contract.contract import Contract, UpstreamIdempotency
from deputize.core.errors import OutcomeUnknown, Problem


def build_outcome_unknown(contract: Contract, problem: Problem) -> OutcomeUnknown:
    """Build the problem of a call that may or may not have acted, caused by `problem`."""
    unknown_outcome = OutcomeUnknown(
        f"{problem.message}; it is unknown whether the tool acted",
        details={"cause": problem.spec.slug, **_suggest_next_step(contract)},
    )
    unknown_outcome.__cause__ = problem
    return unknown_outcome


def _suggest_next_step(contract: Contract) -> dict[str, str]:
    if contract.idempotency.upstream is not UpstreamIdempotency.CANNOT:
        return {"next": "repeat the call with the same idempotency key: the upstream executes it only once"}
    if contract.status is not None:
        return {"next": f"call {contract.status} to find out what happened"}
    return {"next": "check the target system, and settle the call by hand"}
