"""Reconcile calls whose outcome is unknown, without ever repeating one blindly.

a run whose upstream deduplicates by key   is requeued, with the same key
the contract names a `status` tool         that tool is called with the call's key and answers {"state": …}: `happened`
                                           (and the `result`, if still known), `did_not_happen` or `unknown`
otherwise, or without a clear answer       a person is asked, in a human task

Runs in every worker; they share the work by skipping locked rows. An unknown call is retried ever more seldom, also
while a person is asked: a status that answers later settles the call and closes the task.
"""

import asyncio
from functools import partial
from typing import Any

import asyncpg
import orjson
import structlog

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.caller import RECONCILER_ISSUER, Caller, Capability, Epochs
from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import Effects, MutationClass, is_safe_to_repeat
from deputize.core.decision import Decision
from deputize.core.entry_kinds import EntryKind
from deputize.core.errors import Problem, TooManyTakeovers, UnsealFailed
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.json_values import run_for_value
from deputize.core.states import FINAL_STATES, State
from deputize.core.value_types import frozen
from deputize.evidence.audit_entries import AuditContext, encode_entry
from deputize.govern.token_authorization import RECONCILIATION_RULE
from deputize.lifecycle.recording.audit import trace_step
from deputize.lifecycle.recording.human_tasks import open_human_task
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.recording.settlement import (
    SETTLED_ELSEWHERE,
    ActualOutcome,
    Settlement,
    UnknownCall,
    load_unknown_call,
    settle_unknown_call,
)
from deputize.lifecycle.recording.stored_call import StoredInput, restore_caller
from deputize.lifecycle.run import Lifecycle
from deputize.store.pool import CONNECTION_ERRORS, Connection
from deputize.store.queries import load_statements

_SQL = load_statements("reconciliation")
_CHECKPOINTS = load_statements("checkpoints")
_RUNS = load_statements("runs")
_BATCH_SIZE = 10
_MAX_INTERVAL_SECONDS = 6 * 3600.0
_MAX_ARGUMENT_BYTES = 16_384
_STATUS_DECISION = Decision(rules=(RECONCILIATION_RULE,), epochs=Epochs())
log = structlog.get_logger(__name__)


@frozen
class StatusAnswer:
    """What a status tool answered; `actual_outcome` is None if it does not know either, and `why` says what it said."""

    actual_outcome: ActualOutcome | None
    result: Any = None
    why: str = ""


class Reconciler(PeriodicTask):
    """Establishes unknown outcomes by asking each tool's status, and opens a human task where it cannot."""

    task_name = "reconciler"
    tolerated_errors = CONNECTION_ERRORS

    def __init__(self, lifecycle: Lifecycle) -> None:
        super().__init__()
        self._lifecycle = lifecycle
        self._runtime = lifecycle.runtime
        self._settings = lifecycle.runtime.settings.runs

    @property
    def interval_seconds(self) -> float:
        return self._runtime.settings.timing.sweep_seconds

    async def run_step(self) -> float:
        """Reconcile one batch; go on at once after a full one."""
        return 0.0 if await self.reconcile_due() == _BATCH_SIZE else self.interval_seconds

    def report_error(self, error: Exception) -> None:
        log.warning("reconciliation_failed", reason=repr(error))

    async def reconcile_due(self) -> int:
        """Reconcile one batch of due calls concurrently; return how many there were."""
        async with self._runtime.store.write_transaction() as connection:
            due = await connection.fetch(
                _SQL["take_due_reconciliations"], self._settings.reconcile_after_seconds, _BATCH_SIZE,
                self._settings.reconcile_seconds, _MAX_INTERVAL_SECONDS,
            )  # fmt: skip
        await asyncio.gather(*(self._reconcile_safely(each) for each in due))
        return len(due)

    async def _reconcile_safely(self, due: asyncpg.Record) -> None:
        try:
            await self._reconcile_call(due)
        except (Problem, *CONNECTION_ERRORS) as error:
            # It is due again later.
            reason = error.spec.slug if isinstance(error, Problem) else repr(error)
            log.warning("not_reconciled", call_id=str(due["id"]), reason=reason)
        except Exception as fault:
            # A bug, or data of a newer release: it must not keep the others from being reconciled.
            log.exception("not_reconciled", call_id=str(due["id"]), reason=type(fault).__name__)

    async def _reconcile_call(self, due: asyncpg.Record) -> None:
        tenant, tries = due["tenant"], due["tries"]
        async with self._runtime.store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["load_unknown_call"], tenant, due["id"])
            if row is None or row["state"] in FINAL_STATES:
                await connection.execute(_SQL["resolve_reconciliation_tasks"], tenant, due["id"], SETTLED_ELSEWHERE)
                await connection.execute(_SQL["delete_reconciliation"], tenant, due["id"], due["generation"])
                return
            if row["state"] != State.UNKNOWN:
                # A worker has resumed it, so this try does not count.
                await connection.execute(_SQL["uncount_reconciliation_try"], tenant, due["id"])
                return
        call = await load_unknown_call(self._runtime, tenant, row)
        contract = call.tool.contract
        if contract.mutation_class is MutationClass.READ:
            summary = f"{call.tool.name} only reads, so it changed nothing"
            await self._settle_call(call, StatusAnswer(actual_outcome="did_not_happen"), "the contract", summary)
        elif tries <= self._settings.reconcile_tries and await self._requeue_run(call, row):
            log.info("run_goes_on", call_id=call.call_id, tries=tries)
        elif contract.status is not None:
            await self._ask_status_tool(call, row, contract.status, tries)
        else:
            await self._open_task(call, row, tries, "its contract names no status tool")

    async def _requeue_run(self, call: UnknownCall, row: asyncpg.Record) -> bool:
        """Requeue a run if its upstream deduplicates by key, unless the run killed its workers."""
        is_poison = call.error == TooManyTakeovers.spec.slug
        if row["caller"] is None or is_poison or row["cancel_requested"] or row["has_task"]:
            return False
        if not is_safe_to_repeat(call.tool.contract):
            return False
        async with self._runtime.store.write_transaction() as connection:
            is_queued = await connection.fetchval(
                _CHECKPOINTS["requeue_run"], call.tenant, call.call_id, call.epoch, [State.UNKNOWN]
            )
            if is_queued:
                passage = trace_step(State.UNKNOWN, State.QUEUED)
                await self._add_entry(connection, call, "yield", passage=passage)
        return bool(is_queued)

    async def _ask_status_tool(self, call: UnknownCall, row: asyncpg.Record, status: str, tries: int) -> None:
        try:
            caller = await self._load_status_caller(call, row, status)
        except (Problem, ValueError) as error:
            reason = error.message if isinstance(error, Problem) else str(error)
            answer = StatusAnswer(actual_outcome=None, why=f"{status} could not be called: {reason}")
        else:
            answer = await self._call_status_tool(call, caller, status)
        if answer.actual_outcome is not None:
            outcome_text = "happened" if answer.actual_outcome == "happened" else "did not happen"
            await self._settle_call(call, answer, status, f"{status} reports that the call {outcome_text}")
        elif tries >= self._settings.reconcile_tries:
            await self._open_task(call, row, tries, answer.why)

    async def _load_status_caller(self, call: UnknownCall, row: asyncpg.Record, status: str) -> Caller:
        """Load the caller for the status tool: the run's own caller, with the recorded grant.

        A call inside a request stores no caller; then the gateway itself calls, and may read only this one tool.
        """
        if row["caller"] is not None:
            keys = await self._runtime.keys.get(call.tenant)
            issuers = self._runtime.settings.identity.issuers
            return restore_caller(keys.unseal(call.call_id, "caller", row["caller"]), issuers)
        tools = (await self._runtime.authority.load_tenant(call.tenant)).tools
        version = tools.resolve_version(status)
        return Caller(
            tenant=call.tenant,
            user=RECONCILIATION_RULE,
            scopes=frozenset(version.contract.auth.required_scopes),
            capabilities=(Capability(tool=version.contract.full_name),),
            session=call.session,
            issuer=RECONCILER_ISSUER,
            ceiling=Effects.READ,
        )

    async def _call_status_tool(self, call: UnknownCall, caller: Caller, status: str) -> StatusAnswer:
        """Call the status tool through the lifecycle, like any read: authorized, limited and recorded."""
        request = CallRequest(
            tool=status,
            arguments={"key": call.call_id},
            session=call.session,
            traceparent=f"00-{call.trace}-{call.trace[16:]}-00",
            mode="sync",
            origin=CallOrigin(parent_call_id=call.call_id),
        )
        outcome = await self._lifecycle.run(caller, request)
        if outcome.state is not State.SUCCEEDED:
            return StatusAnswer(
                actual_outcome=None, why=f"{status} could not be called: {outcome.spec.slug if outcome.spec else ''}"
            )
        result = outcome.envelope.fields["result"]
        match result:
            case {"state": "happened"}:
                return StatusAnswer(actual_outcome="happened", result=result.get("result"))
            case {"state": "did_not_happen"}:
                return StatusAnswer(actual_outcome="did_not_happen")
            case {"state": "unknown"}:
                return StatusAnswer(actual_outcome=None, why=f"{status} does not know the outcome either")
            case _:
                return StatusAnswer(actual_outcome=None, why=f"{status} returned no valid status")

    async def _settle_call(self, call: UnknownCall, answer: StatusAnswer, source: str, summary: str) -> None:
        assert answer.actual_outcome is not None
        result = answer.result
        if result is not None:
            canonical_result = await run_for_value(result, canonicalize, result)
            run_job = partial(self._runtime.jobs.run_job, call.tenant)
            # What is invalid, or takes too long to check, is no result. That the call happened is known all the same.
            if not await call.tool.output.check(result, canonical_result, run_job):
                result = None
        settlement = Settlement(
            actual_outcome=answer.actual_outcome,
            by=Caller(tenant=call.tenant, user=""),
            decision=_STATUS_DECISION,
            source=source,
            summary=summary,
            result=result,
        )
        async with self._runtime.store.write_transaction() as connection:
            if await settle_unknown_call(self._runtime, connection, call, settlement):
                await connection.execute(
                    _SQL["resolve_reconciliation_tasks"], call.tenant, call.call_id, answer.actual_outcome
                )
                log.info("call_settled", call_id=call.call_id, found=answer.actual_outcome, source=source)

    async def _open_task(self, call: UnknownCall, row: asyncpg.Record, tries: int, why: str) -> None:
        if row["has_task"]:
            return
        question = {
            "asked": f"Did {call.tool.name} happen?",
            "why": why,
            "tries": tries,
            "ended_as": call.error,
            "key": call.call_id,
            "arguments": await self._load_arguments(call, row),
        }
        async with self._runtime.store.write_transaction() as connection:
            task = await open_human_task(self._runtime, connection, call.tenant, "reconcile", call.call_id, question)
            if task.is_new:
                await self._record_task(connection, call, task.id)
                log.warning("human_task_opened", call_id=call.call_id, task_id=task.id)

    async def _load_arguments(self, call: UnknownCall, row: asyncpg.Record) -> dict[str, Any] | None:
        """Load a run's stored arguments, redacted for people; None if there are none to show."""
        if row["input"] is None:
            return None
        keys = await self._runtime.keys.get(call.tenant)
        try:
            stored_input = StoredInput(keys.unseal(call.call_id, "input", row["input"]))
        except (UnsealFailed, ValueError):
            # Ask the person without them: without a task, the call would stay unknown for ever.
            return None
        plan = get_redaction_plan(call.tool, "input")
        visible_arguments: dict[str, Any] = (await asyncio.to_thread(plan.apply, stored_input.arguments))[0]
        return visible_arguments if len(orjson.dumps(visible_arguments)) <= _MAX_ARGUMENT_BYTES else None

    async def _record_task(self, connection: Connection, call: UnknownCall, task_id: str) -> None:
        await self._add_entry(
            connection, call, "decision", outcome=State.UNKNOWN, command="ask_a_person", subject=task_id
        )

    async def _add_entry(self, connection: Connection, call: UnknownCall, kind: EntryKind, **fields: Any) -> None:
        entry_id = self._runtime.clock.new_id()
        body = encode_entry(
            AuditContext(
                caller=Caller(tenant=call.tenant, user=""),
                trace_id=call.trace,
                call_id=call.call_id,
                session=call.session,
                contract=call.tool.contract,
            ),
            id=entry_id,
            kind=kind,
            time=self._runtime.stamps.now(),
            decision=_STATUS_DECISION,
            **fields,
        )
        await connection.execute(_RUNS["insert_audit_entry"], call.tenant, entry_id, call.call_id, body, None)
