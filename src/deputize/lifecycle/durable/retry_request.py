"""Retry a failed call at the request of its caller, never blindly.

unknown, upstream deduplicates by key   the same call is resumed, with the same upstream key
nothing happened, a read, canceled      a new call with the same arguments, which takes over the key of the ended one;
                                        if another call has the key meanwhile, that one is returned
a flow that was canceled                the same, if none of its steps may have acted
the step of a flow                      the same, once the flow has ended
anything else                           refused: it may have acted, so a person has to check
"""

import hashlib
from dataclasses import replace
from typing import NoReturn
from uuid import UUID

import asyncpg

from deputize.core.call import CallRequest, ReplacedCall
from deputize.core.caller import Caller, parse_agent_chain
from deputize.core.contract.contract import MutationClass, is_safe_to_repeat
from deputize.core.errors import CallNotFound, NotRetryable
from deputize.core.states import TERMINAL_STATES, State
from deputize.lifecycle.call_access import may_reach
from deputize.lifecycle.durable.flow_steps import has_flow_ended, load_flow_steps
from deputize.lifecycle.recording.audit import derive_claim_scope
from deputize.lifecycle.recording.stored_call import StoredInput
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

_SQL = load_statements("calls")
_REFUSAL_REASONS = {
    State.SUCCEEDED: "it succeeded",
    State.NEEDS_INPUT: "its server requests input: answer that instead",
}


async def build_retry_request(runtime: Runtime, caller: Caller, call_id: str) -> CallRequest:
    """Build the original request again, to pass through the whole lifecycle with the authority of today's caller."""
    authority = await runtime.authority.load_tenant(caller.tenant)
    authority.revocations.check(caller)
    row = await _load_call(runtime, caller, call_id)
    call_id = str(row["id"])
    state = State(row["state"])
    if row["input"] is None:
        _refuse_retry(call_id, state, "its arguments are not stored: repeat it with its own idempotency key")
    if state not in TERMINAL_STATES or state in _REFUSAL_REASONS:
        _refuse_retry(call_id, state, _REFUSAL_REASONS.get(state, "it has not ended yet"))
    keys = await runtime.keys.get(caller.tenant)
    stored_input = StoredInput(keys.unseal(call_id, "input", row["input"]))
    if stored_input.input_round is not None:
        _refuse_retry(call_id, state, "it answered a server's input request: make the first call again")
    if stored_input.undoes is not None and caller.agents:
        _refuse_retry(
            call_id, state, "it takes back another call, which an agent cannot do: ask the person it acts for"
        )
    if state is State.UNKNOWN:
        contract = authority.tools.resolve_version(row["tool"], row["version"]).tool.contract
        if not is_safe_to_repeat(contract):
            _refuse_retry(call_id, state, f"the service behind {row['tool']} cannot recognise a repeated call")
        return stored_input.build_request(row["tool"], row["version"], row["session"], mode="async", retry_of=call_id)
    is_repeatable = row["mutation_class"] == MutationClass.READ or state is State.CANCELED
    # What is taken back is taken back by one call.
    is_harmless = row["nothing_happened"] or (is_repeatable and stored_input.undoes is None)
    if not is_harmless:
        _refuse_retry(call_id, state, "it failed after it started, and may have acted")
    if state is State.CANCELED and (await load_flow_steps(runtime, caller.tenant, call_id)).may_have_acted:
        _refuse_retry(call_id, state, "some of its steps were done before it was canceled, and would be done again")
    if stored_input.flow_depth > 0 and not await _has_flow_ended(runtime, caller.tenant, stored_input):
        _refuse_retry(call_id, state, "it is a step of a flow that has not ended, which may make it again itself")
    # It is nobody's step: the flow of a step went on without it.
    request = stored_input.build_request(row["tool"], row["version"], row["session"], mode="async")
    return replace(request, replaces=_build_replaced_call(row), flow_depth=0, max_seconds=None)


async def _has_flow_ended(runtime: Runtime, tenant: str, stored_input: StoredInput) -> bool:
    origin = stored_input.origin
    if origin is None or origin.parent_call_id is None:
        return True
    return await has_flow_ended(runtime, tenant, origin.parent_call_id, is_step=False)


def _build_replaced_call(row: asyncpg.Record) -> ReplacedCall:
    """Build what a retry takes over: the key of the call, or one made of its id, so that two retries make one call."""
    call_id, scope, key = str(row["id"]), row["claim_scope"], row["claim_key"]
    if key is None:
        # Whoever retries it: an agent and its user must not both make it again.
        scope = derive_claim_scope(row["caller_user"], parse_agent_chain(row["caller_agent"]), row["tool"])
        key = hashlib.sha256(f"retry:{call_id}".encode()).digest()
    return ReplacedCall(call_id=call_id, scope=scope, key=key, window_seconds=row["window_seconds"])


async def _load_call(runtime: Runtime, caller: Caller, call_id: str) -> asyncpg.Record:
    """Load the call for its caller only: not for another agent of the user, and not for an administrator."""
    try:
        call_uuid = str(UUID(call_id))
    except ValueError:
        call_uuid = ""
    row: asyncpg.Record | None = None
    if call_uuid:
        async with runtime.store.read_transaction(caller.tenant) as connection:
            row = await connection.fetchrow(_SQL["load_call_to_retry"], caller.tenant, call_uuid)
    is_own = row is not None and caller.is_maker_of(row["caller_user"], row["caller_agent"])
    if row is None or not is_own or not await may_reach(runtime, caller, row):
        raise CallNotFound("no call has this id, or it is not yours", details={"call_id": call_id[:64]})
    return row


def _refuse_retry(call_id: str, state: State, why: str) -> NoReturn:
    raise NotRetryable(f"the call cannot be retried: {why}", details={"call_id": call_id, "state": state})
