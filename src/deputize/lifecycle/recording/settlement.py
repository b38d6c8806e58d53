"""Settle a call recorded as UNKNOWN once its real outcome is established.

The outcome comes from the tool's status or from a person; here it is written into the call's envelope, encrypted, and
recorded, by compare-and-set. Used by `background/reconciler.py` and `admin/human_tasks.py` in operations.
"""

from typing import Any, Literal

import asyncpg

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.canonical import canonicalize
from deputize.core.clock import Deadline
from deputize.core.decision import Decision
from deputize.core.errors import EffectDidNotHappen, Problem, ToolNotFound
from deputize.core.outcome import Result
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.evidence.tracing import CallTrace
from deputize.lifecycle.envelope import build_outcome
from deputize.lifecycle.phases import Authorized, CallContext, Claim, Executed, Validated, Verified
from deputize.lifecycle.recording import audit
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.recording.journal import settle_journal_rows
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_functions import SETTLE_UNKNOWN_CALL
from deputize.store.commit_rows import CloseCallRow, JournalRow
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_JOURNAL = load_statements("journal")
SETTLED_ELSEWHERE = "settled_elsewhere"

ActualOutcome = Literal["happened", "did_not_happen"]


@frozen
class UnknownCall:
    """A call whose outcome is unknown, and the epoch it was loaded at."""

    tenant: str
    call_id: str
    epoch: int
    tool: CompiledTool
    session: str | None
    trace: str
    error: str
    mutation_class: str


@frozen
class Settlement:
    """A call's real outcome, who established it, and by which rule; `task_id` is the task that a person resolved.

    `result` is valid by the tool's schema, or None if the result is unknown.
    """

    actual_outcome: ActualOutcome
    by: Caller
    decision: Decision
    source: str
    summary: str
    result: Any = None
    task_id: str | None = None


async def load_unknown_call(runtime: Runtime, tenant: str, row: asyncpg.Record) -> UnknownCall:
    """Load the call with the tool version it was made with, whatever that version's state is now."""
    tools = (await runtime.authority.load_tenant(tenant)).tools
    version = tools.get_entry(row["tool"]).by_version.get(row["version"])
    if version is None or version.digest != row["tool_digest"]:
        raise ToolNotFound(f"{row['tool']} {row['version']} is no longer the tool that this call was made with")
    return UnknownCall(
        tenant=tenant,
        call_id=str(row["id"]),
        epoch=row["owner_epoch"],
        tool=await version.load_tool(),
        session=row["session"],
        trace=row["trace"],
        error=row["error"] or "",
        mutation_class=row["mutation_class"],
    )


async def settle_unknown_call(
    runtime: Runtime, connection: Connection, unknown_call: UnknownCall, settlement: Settlement
) -> bool:
    """Settle the call; False if it was settled or taken over meanwhile, and nothing changed."""
    keys = await runtime.keys.get(unknown_call.tenant)
    problem = (
        None
        if settlement.actual_outcome == "happened"
        else EffectDidNotHappen(settlement.summary, details={"source": settlement.source})
    )
    verified = _build_verified(runtime, unknown_call, settlement, problem)
    state = State.SUCCEEDED if problem is None else State.FAILED
    outcome = build_outcome(verified, unknown_call.call_id, state, problem, runtime.stamps.now())
    claim = Claim(call_id=unknown_call.call_id, epoch=unknown_call.epoch)
    ciphertext = keys.seal(unknown_call.call_id, "outcome", outcome.body)
    closing_row = audit.build_closing_row(runtime, verified, claim, state, problem, ciphertext, before=State.UNKNOWN)
    journal: tuple[JournalRow, ...] = ()
    if settlement.actual_outcome == "happened" and closing_row.journal:
        effects = await connection.fetch(_JOURNAL["load_uncertain_effects"], unknown_call.tenant, unknown_call.call_id)
        settled = closing_row.journal[0]._replace(sealed=None)
        journal = settle_journal_rows(keys, unknown_call.tool, effects, settled, settlement.result)
    if settlement.task_id is not None:
        closing_row = _record_as_decision(runtime, unknown_call, settlement, closing_row)
    arguments = SETTLE_UNKNOWN_CALL.build_row_arguments(
        closing=closing_row[:-1], journal=list(zip(*journal, strict=True)) or [()] * len(JournalRow._fields)
    )
    return bool(await connection.fetchval(SETTLE_UNKNOWN_CALL.sql, *arguments))


def _build_verified(
    runtime: Runtime, unknown_call: UnknownCall, settlement: Settlement, problem: Problem | None
) -> Verified:
    """Build the phase value as if the call had just ended like this."""
    now = runtime.clock.monotonic()
    request = CallRequest(tool=unknown_call.tool.name, arguments={}, version=unknown_call.tool.contract.version)
    call = CallContext(
        call_id=unknown_call.call_id,
        caller=settlement.by,
        request=request,
        session=unknown_call.session,
        started_at=now,
        deadline=None,
        trail=CallTrace(trace_id=unknown_call.trace),
    )
    validated = Validated(
        call=call, tool=unknown_call.tool, deadline=Deadline(at=now), canonical=b"", call_input={},
        warnings=(settlement.summary,),
    )  # fmt: skip
    executed = Executed(
        authorized=Authorized(validated=validated, decision=settlement.decision),
        claim=None,
        output=None,
        problem=problem,
        attempts=0,
        seconds=0,
    )
    if problem is not None:
        return Verified(executed=executed, problem=problem)
    payload = settlement.result
    if payload is None:
        # The tool's own result is unknown; that it acted is known.
        payload = {"settled": {"happened": True, "by": settlement.source, "said": settlement.summary}}
    result = Result(payload=payload, summary=settlement.summary, source=settlement.source)
    return Verified(
        executed=executed, problem=None, payload=payload, canonical=canonicalize({"result": payload}), result=result
    )


def _record_as_decision(
    runtime: Runtime, unknown_call: UnknownCall, settlement: Settlement, closing_row: CloseCallRow
) -> CloseCallRow:
    """Record a person's settlement as a decision that names the task with their reason."""
    about = AuditContext(
        caller=settlement.by,
        trace_id=unknown_call.trace,
        call_id=unknown_call.call_id,
        session=settlement.by.session,
        contract=unknown_call.tool.contract,
    )
    body = encode_entry(
        about,
        id=closing_row.entry_id,
        kind="decision",
        time=runtime.stamps.now(),
        decision=settlement.decision,
        outcome=closing_row.state,
        error=EffectDidNotHappen.spec.e_number if closing_row.error else None,
        command=f"settle:{settlement.actual_outcome}",
        subject=settlement.task_id,
        passage=trace_step(State.UNKNOWN, State(closing_row.state)),
    )
    return closing_row._replace(entry=body, salt=None)
