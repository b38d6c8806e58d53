"""Compare what a tool did to the state that it can change with the effects that it declares.

A tool with `read_state` lets the gateway see that state before and after each call. A tool that is declared as a read
and changes it is disabled, with the evidence in the audit log. A write that changes nothing is marked in its reply.
"""

import asyncio
from typing import Any, Final

import orjson
import structlog

from deputize.core.canonical import NotCanonical, canonicalize, compute_commitment
from deputize.core.clock import make_first_id
from deputize.core.contract.contract import Contract, MutationClass
from deputize.core.contract.tools import AnyTool
from deputize.core.errors import MutationClassViolated, Problem, ToolFailed
from deputize.lifecycle.phases import Executed, StateChange, StateReading, Validated
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

log = structlog.get_logger(__name__)

_CALLS = load_statements("calls")
# Mutations that began longer ago count only while they run.
_RECENT_MS: Final = 600_000
# Clocks of gateways and database differ by less than this.
_SLACK_SECONDS: Final = 2.0


async def read_state(
    runtime: Runtime, tool: AnyTool, validated: Validated, salt: bytes, seconds: float
) -> StateReading:
    """Read the state that a tool could change. Raises a Problem: without it, nothing could be compared.

    The salt is one call's own, so that a state cannot be guessed from the digests in replies and the audit log.
    """
    state = await runtime.driver.read_state(tool, validated.call_input, seconds)
    try:
        return await asyncio.to_thread(_copy_state, state, salt, keeps_values=_needs_values(validated.contract))
    except NotCanonical as error:
        raise ToolFailed(f"read_state of {validated.tool.name} returned what is not plain JSON: {error}") from error


def _needs_values(contract: Contract) -> bool:
    return bool(contract.predicates) or (contract.compensation is not None and contract.compensation.binds_state)


def _copy_state(state: Any, salt: bytes, *, keeps_values: bool) -> StateReading:
    """Digest a state, and copy it for predicates and the journal: the tool may go on changing its object."""
    canonical_state = canonicalize({"state": state})
    digest = compute_commitment(salt, canonical_state)
    return StateReading(digest=digest, state=orjson.loads(canonical_state)["state"] if keeps_values else None)


async def compare_state(
    runtime: Runtime, tool: AnyTool, validated: Validated, salt: bytes, before: StateReading, started_at: float
) -> StateChange:
    """Read the state again, after the tool ran."""
    after = None
    try:
        after = await read_state(runtime, tool, validated, salt, validated.contract.timeout.effective_seconds)
    except Problem as problem:
        log.warning("state_not_read", tool=validated.tool.name, reason=problem.message)
    return StateChange(before=before, after=after, salt=salt, seconds=runtime.clock.monotonic() - started_at)


async def check_state_change(runtime: Runtime, executed: Executed) -> Problem | None:
    """Disable a read that changed the state, and return the problem of its call; None if its effects are declared."""
    validated, change = executed.validated, executed.state_change
    contract = validated.contract
    if change is None or contract.mutation_class is not MutationClass.READ or not change.is_changed:
        return None
    if await _has_other_mutation(runtime, executed, change.seconds):
        log.info("state_changed_beside_read", tool=validated.tool.name, call_id=validated.call.call_id)
        return None
    runtime.metrics.record_schema_violation(contract, "effects")
    tenant, call_id = validated.call.tenant, validated.call.call_id
    digests = {"before": change.before.digest, "after": None if change.after is None else change.after.digest}
    evidence = f"call {call_id}: state {digests['before']} became {digests['after']}"
    await runtime.disable_mutating_read(runtime, tenant, contract, evidence)
    log.error("tool_disabled", tool=contract.full_name, version=contract.version, call_id=call_id)
    return MutationClassViolated(
        f"{contract.full_name} {contract.version} is declared as a read but changed state during this call; "
        "the version is disabled",
        details=digests,
    )


def list_state_values(change: StateChange) -> dict[str, Any]:
    """List what predicates can compare of the state; nothing if it could not be read after the call: then they fail."""
    return {} if change.after is None else {"before": change.before.state, "after": change.after.state}


def describe_unchanged_state(executed: Executed) -> tuple[str, ...]:
    """Describe what the caller of a write should know about the state: that it is as before, or could not be read."""
    change, contract = executed.state_change, executed.contract
    if change is None:
        return ("the state before the call was not read, so its effects were not checked",)
    if change.after is None:
        return ("the state could not be read after the call, so its effects were not checked",)
    if contract.mutation_class is MutationClass.READ or change.is_changed:
        return ()
    return ("the call changed nothing: the state is as before",)


async def _has_other_mutation(runtime: Runtime, executed: Executed, seconds: float) -> bool:
    """Tell whether another call may have changed the state meanwhile: of any tenant, through any gateway."""
    call_id, since = (
        executed.call.call_id,
        make_first_id(runtime.clock.epoch_ms() - _RECENT_MS),
    )
    async with runtime.store.write_transaction() as connection:
        return bool(await connection.fetchval(_CALLS["has_other_mutation"], call_id, since, seconds + _SLACK_SECONDS))
