"""Perform administrative acts: check revocations, act and record in one commit under the tenant's barrier.

An act that changes authority closes the barrier, so that no call commits meanwhile. An act that only adds something,
and must not outlive a revocation, takes it shared, as calls do.

An act that changes authority needs proof of an operator, unless it only tightens. The proof is required last, inside
the act's transaction: an operator confirms only what would really be done. So does an act that is an operator's word,
or that gives a key away.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from deputize.acts.operator_proof import require_operator
from deputize.core.caller import PROCESS_ISSUER, Caller
from deputize.core.contract.contract import Contract
from deputize.core.errors import OperatorConfirmationRequired, Problem, Unavailable
from deputize.evidence.audit_entries import AuditContext, encode_act, encode_entry
from deputize.govern.approvals.confirmation_codes import ListChanges, ProposedAct
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority, load_epochs
from deputize.store.commit_rows import AuditEntryRow
from deputize.store.pool import Connection
from deputize.store.queries import load_statements
from deputize.store.tenants import ensure_tenant

_EPOCHS = load_statements("epochs")
_RUNS = load_statements("runs")
T = TypeVar("T")
Act = Callable[[Connection], Awaitable[T]]
Prepare = Callable[[TenantAuthority], Awaitable[None]]
Confirm = Callable[[Connection, T], Awaitable[str | None]]
# How often a change is checked again because the authority moved on meanwhile.
_MAX_TRIES: Final = 10


async def change_authority(
    runtime: Runtime,
    caller: Caller,
    command: str,
    subject: str,
    act: Act[T],
    contract: Contract | None = None,
    *,
    prepare: Prepare | None = None,
    content: str = "",
    is_tightening: bool | Callable[[T], bool] = False,
    recorded_subject: str | None = None,
    list_changes: ListChanges | None = None,
) -> T:
    """Change authority; once this returns, no gateway starts anything that the change forbids.

    Only for a caller who was found to be allowed to: others must take no turn and nothing of the tenant's rate.
    `prepare` checks the change against the authority that it is made under. That may take long, so it comes before the
    barrier is closed; inside, only the epochs are compared, and if they have moved on it is checked again. `content` is
    what an operator confirms besides the subject. `is_tightening` tells, also by the result, that the act takes
    authority away or changes nothing, and so needs no operator. `recorded_subject` stands in the audit entry in place
    of a subject that must not be kept there. `list_changes` lists what the act changes, for the person who confirms it.
    """

    async def confirm(connection: Connection, result: T) -> str | None:
        if is_tightening(result) if callable(is_tightening) else is_tightening:
            return None
        proposed_act = ProposedAct.propose(caller, command, subject, content)
        return await _confirm_act(runtime, connection, caller, proposed_act, list_changes)

    tenant, limits = caller.tenant, runtime.act_limits
    # Whether an act tightens may be known only by its result; then it is counted with those that do not.
    is_known_tightening = is_tightening is True
    if caller.issuer != PROCESS_ISSUER:
        _require_current(await runtime.authority.load_tenant(tenant), caller)
        limits.count_act(caller, is_tightening=is_known_tightening)
    try:
        async with limits.take_turn(caller, is_tightening=is_known_tightening):
            result = await _change_under_barrier(
                runtime, caller, command, recorded_subject or subject, act, contract, prepare, confirm
            )
    except OperatorConfirmationRequired as problem:
        await record_refusal(runtime, caller, command, recorded_subject or subject, problem)
        raise
    await runtime.authority.reload_tenant(tenant)
    return result


async def _confirm_act(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    proposed_act: ProposedAct,
    list_changes: ListChanges | None = None,
) -> str | None:
    now = max(runtime.clock.epoch_ms() // 1000, await connection.fetchval(_EPOCHS["load_time"]))
    return require_operator(runtime, caller, proposed_act, now=now, list_changes=list_changes)


async def _change_under_barrier(
    runtime: Runtime,
    caller: Caller,
    command: str,
    subject: str,
    act: Act[T],
    contract: Contract | None,
    prepare: Prepare | None,
    confirm: Confirm[T],
) -> T:
    tenant = caller.tenant
    async with runtime.store.write_transaction() as connection:
        now = await load_epochs(connection, tenant)
    for _ in range(_MAX_TRIES):
        authority = await runtime.authority.refresh(tenant, now)
        if prepare is not None:
            await prepare(authority)
        async with runtime.store.write_transaction() as connection:
            await ensure_tenant(connection, tenant)
            await connection.execute(_EPOCHS["lock_barrier_exclusive"], tenant)
            now = await load_epochs(connection, tenant)
            is_current = authority.epochs.is_at_least(now)
            if is_current:
                result, entry_id = await _perform_act(
                    runtime, connection, authority, caller, command, subject, act, (caller,), contract, confirm
                )
                await connection.execute(_EPOCHS["notify_epoch_change"], tenant)
        if is_current:
            runtime.lineage.note_entry(tenant, entry_id)
            return result
    raise Unavailable(
        "other administrators keep changing this tenant, so the change could not be checked",
        retry_after_ms=1000,
        nothing_happened=True,
    )


async def commit_act(
    runtime: Runtime,
    caller: Caller,
    command: str,
    subject: str,
    act: Act[T],
    principals: Sequence[Caller],
    confirm: Confirm[T] | None = None,
) -> T:
    """Commit an act that depends on the authority of every principal: none of them is revoked at that moment."""
    async with runtime.store.write_transaction() as connection:
        await ensure_tenant(connection, caller.tenant)
        await connection.execute(_EPOCHS["lock_barrier_shared"], caller.tenant)
        authority = await runtime.authority.refresh(caller.tenant, await load_epochs(connection, caller.tenant))
        result, entry_id = await _perform_act(
            runtime, connection, authority, caller, command, subject, act, (caller, *principals), None, confirm
        )
    runtime.lineage.note_entry(caller.tenant, entry_id)
    return result


async def commit_operator_act(
    runtime: Runtime,
    caller: Caller,
    command: str,
    subject: str,
    act: Callable[[Connection, str | None], Awaitable[T]],
    *,
    content: str = "",
) -> T:
    """Commit an act that changes no authority and yet needs an operator. `act` gets the rule by which one confirmed it,
    or None from the process itself.
    """
    rule: str | None = None

    async def confirm_and_act(connection: Connection) -> T:
        nonlocal rule
        rule = await _confirm_act(runtime, connection, caller, ProposedAct.propose(caller, command, subject, content))
        return await act(connection, rule)

    async def get_rule(_: Connection, __: T) -> str | None:
        return rule

    try:
        return await commit_act(runtime, caller, command, subject, confirm_and_act, (), get_rule)
    except OperatorConfirmationRequired as problem:
        await record_refusal(runtime, caller, command, subject, problem)
        raise


async def _perform_act(
    runtime: Runtime,
    connection: Connection,
    authority: TenantAuthority,
    caller: Caller,
    command: str,
    subject: str,
    act: Act[T],
    callers: Sequence[Caller],
    contract: Contract | None,
    confirm: Confirm[T] | None = None,
) -> tuple[T, str]:
    """Act and record it, if the authority of every caller, as it is inside the barrier, allows it; return the result
    and the id of the audit entry.
    """
    # The operator belongs to no tenant: if one tenant could revoke it, the gateway would start for none.
    for each in callers if caller.issuer != PROCESS_ISSUER else ():
        _require_current(authority, each)
    result = await act(connection)
    confirmation = None if confirm is None else await confirm(connection, result)
    entry_id = await record_act(runtime, connection, caller, command, subject, contract, confirmation=confirmation)
    return result, entry_id


def _require_current(authority: TenantAuthority, caller: Caller) -> None:
    """Require that the caller is neither revoked nor switched off."""
    authority.revocations.check(caller)
    authority.switches.check_agents(caller)


async def record_act(
    runtime: Runtime,
    connection: Connection,
    caller: Caller,
    command: str,
    subject: str,
    contract: Contract | None = None,
    *,
    confirmation: str | None = None,
) -> str:
    """Record an act in its own commit, and return its id; several acts in one commit are recorded one by one.

    `confirmation` is the rule by which an operator confirmed it.
    """
    entry_id = runtime.clock.new_id()
    body = encode_act(
        caller,
        id=entry_id,
        time=runtime.stamps.now(),
        command=command,
        subject=subject,
        contract=contract,
        confirmation=confirmation,
    )
    await connection.execute(_RUNS["insert_audit_entry"], caller.tenant, entry_id, None, body, None)
    return entry_id


async def record_refusal(runtime: Runtime, caller: Caller, command: str, subject: str, problem: Problem) -> None:
    """Record that an act was refused, and by which error."""
    entry_id = runtime.clock.new_id()
    body = encode_entry(
        AuditContext(caller=caller, trace_id=entry_id.replace("-", ""), session=caller.session),
        id=entry_id,
        kind="refusal",
        time=runtime.stamps.now(),
        command=command,
        subject=subject,
        outcome="refused",
        error=problem.spec.e_number,
    )
    await runtime.writer.put(AuditEntryRow(caller.tenant, entry_id, None, body, None))
