"""Take back the effect of a call whose result breaks its contract, where its tool brings a `rollback`."""

import structlog

from deputize.core.errors import Problem
from deputize.core.outcome import Result
from deputize.lifecycle.phases import Executed
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.state_check import read_state
from deputize.store.pool import CONNECTION_ERRORS
from deputize.store.queries import load_statements

log = structlog.get_logger(__name__)
_CALLS = load_statements("calls")


async def roll_back(runtime: Runtime, executed: Executed) -> str | None:
    """Run the tool's `rollback`; return why the effect may still be there, or None if it was taken back.

    Where the state can be seen, it was taken back only if the state is as before the call. A call that was answered as
    unknown, or that another worker began or took over, is left alone: its effect may be settled, or taken back already.
    """
    validated, change = executed.validated, executed.state_change
    tool, seconds = runtime.driver.find_tool(validated.contract), validated.contract.timeout.effective_seconds
    output = executed.output.payload if isinstance(executed.output, Result) else executed.output
    failure = None
    try:
        if not await _is_own_call(runtime, executed):
            failure = "another worker or a person may already have settled this call"
        else:
            await runtime.driver.roll_back(tool, validated.call_input, output, seconds)
            if change is not None:
                restored_state = await read_state(runtime, tool, validated, change.salt, seconds)
                if restored_state.digest != change.before.digest:
                    failure = "the state is not as before the call"
    except Problem as problem:
        failure = problem.message
    except CONNECTION_ERRORS:
        failure = "the database did not answer whether this call is still ours"
    log.warning(
        "rolled_back" if failure is None else "not_rolled_back",
        tool=validated.tool.name,
        call_id=validated.call.call_id,
    )
    return failure


async def _is_own_call(runtime: Runtime, executed: Executed) -> bool:
    claim = executed.claim
    if claim is None or claim.is_takeover or executed.is_late:
        return False
    runtime.lease.require_valid()
    tenant = executed.call.tenant
    async with runtime.store.write_transaction() as connection:
        return bool(await connection.fetchval(_CALLS["is_running_under"], tenant, claim.call_id, claim.epoch))
