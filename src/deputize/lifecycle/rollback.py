"""Take back the effect of a call whose result breaks its contract, where its tool brings a `rollback`."""

import structlog

from deputize.core.errors import Problem
from deputize.core.outcome import Result
from deputize.lifecycle.phases import Executed
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.state_check import read_state

log = structlog.get_logger(__name__)


async def roll_back(runtime: Runtime, executed: Executed) -> str | None:
    """Run the tool's `rollback`; return why the effect may still be there, or None if it was taken back.

    Where the state can be seen, it was taken back only if the state is as before the call.
    """
    validated, change = executed.authorized.validated, executed.state_change
    tool, seconds = runtime.driver.find_tool(validated.tool.contract), validated.tool.contract.timeout.effective_seconds
    output = executed.output.payload if isinstance(executed.output, Result) else executed.output
    failure = None
    try:
        if executed.claim is not None:
            # Without it, another worker may own the call by now.
            runtime.lease.require_valid()
        await runtime.driver.roll_back(tool, validated.call_input, output, seconds)
        if change is not None:
            restored_state = await read_state(runtime, tool, validated, change.salt, seconds)
            if restored_state.digest != change.before.digest:
                failure = "the state is not as before the call"
    except Problem as problem:
        failure = problem.message
    log.warning("rolled_back" if failure is None else "not_rolled_back", tool=validated.tool.name,
                call_id=validated.received.call_id)  # fmt: skip
    return failure
