"""Submit a call as a run: claim, store and queue it in one commit, and answer at once.

A repeated key gets the same run. A call that started inside its request may continue as a run, too, if it is safe to
repeat. A worker then re-enters the lifecycle in `durable/resume.py`.
"""

from typing import Any

import asyncpg

from deputize.core.caller import Epochs
from deputize.core.canonical import compute_fingerprint
from deputize.core.contract.contract import MutationClass, is_safe_to_repeat
from deputize.core.errors import MalformedRequest, ToolTimeout, Unavailable
from deputize.core.outcome import Envelope, Outcome
from deputize.core.states import TERMINAL_STATES, State
from deputize.execute.drivers.python import ThreadOverrun
from deputize.lifecycle.callbacks import require_callback_allowed, serialize_callback
from deputize.lifecycle.claim import (
    build_key_reuse_error,
    derive_key,
    load_holder_call,
    reauthorize_if_stale,
    replay_outcome,
    require_known_key,
)
from deputize.lifecycle.envelope import build_refusal_outcome
from deputize.lifecycle.phases import Authorized, Executed
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.stored_call import compute_expiry, serialize_caller, serialize_input
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_functions import CONTINUE_CALL_AS_RUN
from deputize.store.commit_rows import QueueRunRow, RunRow
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("runs")
_FIRST_POLL_MS = 500
_MAX_POLL_MS = 30_000
_NO_WORKER = ("no worker is running: the call stays queued until one is started with `deputize work`",)


def require_valid_callback(runtime: Runtime, authorized: Authorized) -> None:
    """Require that a callback has an allowed address and belongs to a call that may outlive its request."""
    request = authorized.call.request
    if request.callback is None:
        return
    if request.dry_run:
        raise MalformedRequest(
            "a dry run is answered in its own request, so it takes no callback",
            details={"field": "callback"},
            nothing_happened=True,
        )
    if not (authorized.validated.outlives_request or request.may_continue or authorized.decision.requirements):
        raise MalformedRequest(
            "this call is answered in its own request, so it takes no callback: use mode async, or set may_continue",
            details={"field": "callback"},
            nothing_happened=True,
        )
    require_callback_allowed(runtime.settings.webhooks, request.callback)


async def submit_run(runtime: Runtime, authorized: Authorized, *, is_continuation: bool = False) -> Outcome:
    """Submit the call as a run; with `is_continuation`, a read that ran out of its caller's time begins anew."""
    validated = authorized.validated
    call, contract = validated.call, validated.contract
    request, tenant, call_id = call.request, call.tenant, call.call_id
    keys = await runtime.keys.get(tenant)
    arguments_digest = compute_fingerprint(keys.fingerprint_key, contract.full_name, validated.request_bytes)
    if request.retry_of is not None:
        return await resolve_repeat(runtime, authorized, keys, request.retry_of, arguments_digest)
    key = derive_key(authorized, arguments_digest)
    opening_row = audit.build_opening_row(
        runtime, authorized, arguments_digest, key, State.QUEUED, is_continuation=is_continuation
    )
    await require_known_key(runtime, authorized, opening_row)
    callback_ciphertext = (
        None if request.callback is None else keys.seal(call_id, "callback", serialize_callback(request.callback))
    )
    row = QueueRunRow(
        tenant, call_id, opening_row, _build_run_row(runtime, authorized, keys, call_id), callback_ciphertext
    )
    try:
        commit = await runtime.queue.put(row)
    except Unavailable as problem:
        if problem.nothing_happened:
            raise
        # The commit may have succeeded, so do not refuse: repeating the key or reading the call by its id shows it.
        return build_refusal_outcome(call, problem, State.UNKNOWN)
    await reauthorize_if_stale(runtime, authorized, commit.epochs)
    if commit.holder is not None:
        return await resolve_repeat(runtime, authorized, keys, commit.holder, arguments_digest)
    return build_accepted_outcome(
        authorized, call_id, State.QUEUED, warnings=_NO_WORKER if commit.no_worker_alive else ()
    )


def _build_run_row(runtime: Runtime, authorized: Authorized, keys: KeySet, call_id: str) -> RunRow:
    validated = authorized.validated
    call = validated.call
    now_ms, max_seconds = runtime.clock.epoch_ms(), runtime.settings.identity.max_grant_seconds
    return RunRow(
        input=keys.seal(call_id, "input", serialize_input(validated)),
        caller=keys.seal(call_id, "caller", serialize_caller(call.caller)),
        not_after=compute_expiry(call.caller, now_ms=now_ms, longest_seconds=max_seconds),
        priority=call.request.priority or validated.contract.priority,
        release=runtime.release,
    )


def parse_epochs(rows: list[asyncpg.Record]) -> Epochs:
    row = next(each for each in rows if each["kind"] == "epochs")
    return Epochs(registry=row["registry"], policy=row["policy"], revocation=row["revocation"])


async def resolve_repeat(
    runtime: Runtime, authorized: Authorized, keys: KeySet, holder_id: str, arguments_digest: bytes
) -> Outcome:
    """Return the outcome of a repeated key; resume an unknown call if the upstream deduplicates by key.

    A canceled call is resumed only by its id: a client that repeats the key may not know of the cancellation.
    """
    queued_call = await load_holder_call(runtime, authorized, holder_id)
    if queued_call["fingerprint"] != arguments_digest:
        raise build_key_reuse_error(authorized)
    can_continue = authorized.call.request.retry_of is not None or not queued_call["cancel_requested"]
    if queued_call["state"] == State.UNKNOWN and can_continue and is_safe_to_repeat(authorized.contract):
        if await _continue_run(runtime, authorized, keys, holder_id, queued_call["owner_epoch"], State.UNKNOWN):
            return build_accepted_outcome(authorized, holder_id, State.QUEUED)
        # Another process was faster: return what became of the call.
        queued_call = await load_holder_call(runtime, authorized, holder_id)
    state = State(queued_call["state"])
    if state in TERMINAL_STATES:
        return replay_outcome(keys, queued_call, holder_id, state, is_join=False)
    return build_accepted_outcome(authorized, holder_id, state)


async def _continue_run(
    runtime: Runtime, authorized: Authorized, keys: KeySet, call_id: str, epoch: int, before: State
) -> bool:
    """Continue a started call as a run, unless another owner took it over meanwhile."""
    tenant = authorized.call.tenant
    run = _build_run_row(runtime, authorized, keys, call_id)
    arguments = CONTINUE_CALL_AS_RUN.build_row_arguments(runtime.lease.boot_id, tenant, call_id, epoch, run=run)
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(CONTINUE_CALL_AS_RUN.sql, *arguments)
        is_claimed = any(each["kind"] == "continued" for each in rows)
        if is_claimed:
            await _add_callback(connection, authorized, keys, call_id)
            entry_row = audit.build_yield_entry(runtime, authorized, call_id, before)
            await connection.execute(_SQL["insert_audit_entry"], *entry_row)
    await reauthorize_if_stale(runtime, authorized, parse_epochs(rows))
    return is_claimed


async def _add_callback(connection: Connection, authorized: Authorized, keys: KeySet, call_id: str) -> None:
    call = authorized.call
    if call.request.callback is not None:
        ciphertext = keys.seal(call_id, "callback", serialize_callback(call.request.callback))
        await connection.execute(_SQL["insert_callback"], call.tenant, call_id, ciphertext)


def _should_continue(executed: Executed) -> bool:
    """Tell whether a call that ran out of its caller's time continues as a run.

    It must be safe to repeat, and a thread that still acts is not joined by a second one.
    """
    problem, validated = executed.problem, executed.validated
    timeout = problem if problem is None or isinstance(problem, ToolTimeout) else problem.__cause__
    contract, caller_deadline = validated.contract, validated.call.deadline
    return (
        isinstance(timeout, ToolTimeout)
        and caller_deadline is not None
        and caller_deadline.at == validated.deadline.at
        and is_safe_to_repeat(contract)
        and not (isinstance(timeout, ThreadOverrun) and contract.mutation_class is not MutationClass.READ)
    )


async def continue_as_run(runtime: Runtime, executed: Executed) -> Outcome | None:
    """Continue a call that ran out of time as a run; return None if it ends as it did."""
    if not _should_continue(executed):
        return None
    authorized, claim = executed.authorized, executed.claim
    call = authorized.call
    keys = await runtime.keys.get(call.tenant)
    if claim is None:
        outcome = await submit_run(runtime, authorized, is_continuation=True)
    elif await _continue_run(runtime, authorized, keys, claim.call_id, claim.epoch, State.RUNNING):
        outcome = build_accepted_outcome(authorized, claim.call_id, State.QUEUED)
    else:
        return None
    runtime.credentials.forget_call(authorized)
    return outcome


def compute_poll_ms(age_seconds: float) -> int:
    """Compute when to poll again: after a tenth of the call's age."""
    return int(min(max(_FIRST_POLL_MS, age_seconds * 100), _MAX_POLL_MS))


def build_call_links(call_id: str) -> dict[str, str]:
    url = f"/v1/calls/{call_id}"
    return {"self": url, "events": f"{url}/events", "cancel": f"{url}/cancel"}


def build_accepted_outcome(
    authorized: Authorized, call_id: str, state: State, *, warnings: tuple[str, ...] = ()
) -> Outcome:
    """Build the outcome of a call that has not ended: where and when to poll for it."""
    call, tool = authorized.call, authorized.validated.tool
    if call.request.mode == "sync":
        warnings = (f"{tool.name} runs asynchronously by its contract, although mode sync was requested", *warnings)
    body: dict[str, Any] = {
        "call_id": call_id,
        "state": state,
        "is_error": False,
        "trace_id": call.trail.trace_id,
        "tool": {"name": tool.name, "version": tool.contract.version, "digest": tool.digest},
        "decision": {"rules": authorized.decision.rules},
        "poll_after_ms": _FIRST_POLL_MS,
        "links": build_call_links(call_id),
        "warnings": (*authorized.validated.warnings, *warnings),
    }
    deprecation = authorized.validated.deprecation
    if deprecation is not None:
        body["deprecation"] = deprecation.to_json()
    return Outcome(
        call_id=call_id,
        state=state,
        envelope=Envelope(body),
        is_accepted=True,
        retry_after_ms=_FIRST_POLL_MS,
        deprecation=deprecation,
    )
