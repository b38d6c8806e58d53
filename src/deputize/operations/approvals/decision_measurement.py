"""Measure people's decisions on approval requests: how long calls waited for them, and what they cost."""

from collections.abc import Awaitable, Callable

import structlog

from deputize.core.caller import Caller, parse_agents
from deputize.core.contract.contract import Contract
from deputize.core.errors import Problem
from deputize.core.subject import ERASED_PREFIX
from deputize.lifecycle.runtime import Runtime
from deputize.operations.approvals.request_access import ApprovalRequestView
from deputize.store.pool import CONNECTION_ERRORS

log = structlog.get_logger(__name__)


async def measure_decision(
    runtime: Runtime,
    complete_caller: Callable[[Caller], Awaitable[Caller]],
    approval_request: ApprovalRequestView,
    state: str,
) -> None:
    """Measure a decision that was committed; `state` is that of the request after it."""
    row = approval_request.row
    wait_seconds = (row["now"] - row["opened_at"]).total_seconds()
    if state != "open":
        runtime.metrics.approval_time.labels(row["tool"], state).observe(wait_seconds)
    await _count_review(runtime, complete_caller, approval_request, wait_seconds)


async def _count_review(
    runtime: Runtime,
    complete_caller: Callable[[Caller], Awaitable[Caller]],
    approval_request: ApprovalRequestView,
    wait_seconds: float,
) -> None:
    """Count the cost for the caller whose call was decided; a failure is only logged."""
    row = approval_request.row
    try:
        contract = await _find_contract(runtime, row["tenant"], row["tool"], row["version"])
        maker = Caller(
            tenant=row["tenant"],
            user=row["caller_user"],
            agents=parse_agents(row["caller_agent"]),
            task=approval_request.contents.presentation.get("task"),
        )
        # Someone who was erased has no pseudonym any more, and gets no new one.
        if not maker.user.startswith(ERASED_PREFIX):
            maker = await complete_caller(maker)
    except (Problem, *CONNECTION_ERRORS) as error:
        log.warning("review_cost_not_counted", approval_id=approval_request.id, reason=repr(error))
        return
    if contract is None:
        return
    cost = runtime.call_costs.record_review(maker, contract, wait_seconds)
    if cost:
        runtime.metrics.record_review_cost(contract, cost)


async def _find_contract(runtime: Runtime, tenant: str, tool: str, version: str) -> Contract | None:
    """Find the contract of the call, or None if its version is not registered any more."""
    entry = (await runtime.authority.load_tenant(tenant)).tools.find_entry(tool)
    tool_version = None if entry is None else entry.by_version.get(version)
    return None if tool_version is None else tool_version.contract
