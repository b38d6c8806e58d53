"""Compensate a failed flow: take back what its calls did, newest first, until nothing is left or something stays.

Once a flow has failed and all of its calls have ended, its end is recorded (`save_ending`): from then on no call of a
step is made. The effects come from the journal. They are taken back one at a time, each by a call of its own under the
authority of the flow's caller, which claims the effect like everyone who takes it back: a person who undoes it at the
same moment makes the same call. Such a call is recorded before it is made, and its end wakes the flow.

The first effect that cannot be taken back stops this: older ones may be what it stands on. `flow_effects.py` reports
what is left.
"""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from deputize.core.call import CallOrigin, CallRequest
from deputize.core.contract.compensation_binding import BoundCompensation
from deputize.core.contract.contract import Effects
from deputize.core.errors import Problem, UndoTooBroad, find_problem_type
from deputize.core.outcome import Outcome
from deputize.core.states import TERMINAL_STATES, State
from deputize.lifecycle.compensation.journal_entries import EntryVerdict, judge_entry, load_entries
from deputize.lifecycle.compensation.later_writers import find_later_writers
from deputize.lifecycle.durable.flow_effects import Effect, Remainder, explain_lost, load_remainder, save_report
from deputize.lifecycle.durable.flow_end import cancel_steps
from deputize.lifecycle.durable.flow_steps import (
    FlowSteps,
    describe_outcome,
    edit_document,
    forget_planner,
    get_root_flow,
    load_flow_steps,
    should_retry,
)
from deputize.lifecycle.durable.resume import PendingRun, RunNotReady
from deputize.lifecycle.journal_reader import read_journal
from deputize.lifecycle.phases import CallContext, Validated
from deputize.lifecycle.recording.audit import UNDO_SCOPE
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import FlowFailure
from deputize.store.queries import load_statements

_SQL = load_statements("flows")
_JOURNAL = load_statements("journal")
_RETRY_SECONDS: Final = 2.0
# The database was too slow to say who changed something later.
_SLOW_RETRY_SECONDS: Final = 30.0


def is_compensated(validated: Validated) -> bool:
    """Tell whether what a call of this flow did is taken back if it fails."""
    flow = validated.contract.flow
    return flow is not None and flow.is_compensated and validated.contract.effects is not Effects.READ


async def save_ending(
    runtime: Runtime, run: PendingRun, steps: FlowSteps, problem: Problem, failure: FlowFailure | None,
    *, is_owner: bool = False,
) -> bool:  # fmt: skip
    """Record why a flow failed; what another worker recorded first stays. False if its calls are not those known here.

    Nobody may conclude the flow in between: it still waits, or this worker has begun it (`is_owner`).
    """
    call = run.validated.call
    keys = await runtime.keys.get(call.tenant)
    async with runtime.store.write_transaction() as connection:
        if not is_owner and not await connection.fetchval(
            _SQL["lock_waiting_flow"], call.tenant, call.call_id, run.epoch
        ):
            return False
        async with edit_document(connection, keys, call.tenant, call.call_id) as document:
            if document["plans"] or {*document["calls"], *document["refusals"]} != steps.calls.keys():
                return False
            document["ending"] = document["ending"] or {
                "slug": problem.spec.slug,
                "message": problem.message,
                "details": orjson.loads(orjson.dumps(dict(problem.details), default=str)),
                "failure": None if failure is None else [failure.path, failure.reason],
                "at_ms": runtime.clock.epoch_ms(),
            }
    return True


def restore_ending(ending: Mapping[str, Any]) -> tuple[Problem, FlowFailure | None]:
    """Restore why a flow failed, as it was recorded."""
    problem = find_problem_type(ending["slug"])(ending["message"], details=ending["details"])
    failure = ending["failure"]
    return problem, None if failure is None else FlowFailure(path=failure[0], reason=failure[1])


async def compensate_flow(runtime: Runtime, run: PendingRun) -> bool:
    """Take back what the calls of a failed flow did; tell whether nothing more is to be tried.

    False if a call that does so has not ended: its end wakes the flow.
    """
    compensator = _Compensator(runtime, run)
    while True:
        steps = await load_flow_steps(runtime, compensator.call.tenant, compensator.call.call_id)
        if steps.report is not None:
            return True
        # A worker that stood still for long may have made one too late.
        if await cancel_steps(runtime, compensator.call.caller, steps.calls.values()):
            continue
        if any(each.record.is_open for each in steps.calls.values()) or not await compensator.go_on(steps):
            return False


class _Compensator:
    """Takes back the effects of one flow. Any number of workers may do so at once."""

    def __init__(self, runtime: Runtime, run: PendingRun) -> None:
        self._runtime, self._run = runtime, run
        self.call = run.validated.call
        self._planner = runtime.clock.new_id()

    async def go_on(self, steps: FlowSteps) -> bool:
        """Go on with the newest effect that is left; False if the call that takes it back has not ended."""
        runtime, tenant = self._runtime, self.call.tenant
        keys, tools = await runtime.keys.get(tenant), (await runtime.authority.load_tenant(tenant)).tools
        remainder = await load_remainder(runtime, tenant, steps, keys, tools)
        if not remainder.effects:
            await self._stop(remainder, None)
            return True
        effect = remainder.effects[0]
        if effect.entry_id is None:
            await self._stop(remainder, explain_lost(effect))
            return True
        plan = steps.compensations.get(effect.entry_id)
        if plan is not None and "call_id" in plan:
            return await self._follow_call(remainder, effect, plan)
        if plan is not None and "refusal" in plan:
            await self._stop(remainder, _explain_refusal(plan))
        elif plan is None or not await self._find_planned_call(effect.entry_id):
            await self._take_back(remainder, effect, effect.entry_id, steps)
        return True

    async def _stop(self, remainder: Remainder, verdict: EntryVerdict | None) -> None:
        """Try nothing more: all is taken back, or the verdict is why the newest effect that is left stays."""
        if not await save_report(self._runtime, self.call, self._run.epoch, remainder, verdict):
            raise RunNotReady("another worker has begun the flow", seconds=_RETRY_SECONDS)

    async def _follow_call(self, remainder: Remainder, effect: Effect, plan: Mapping[str, Any]) -> bool:
        """Record what became of the call that takes an effect back; False if it has not ended."""
        call_id = plan["call_id"]
        async with self._runtime.store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["load_compensation"], self.call.tenant, call_id)
        state = State.UNKNOWN if row is None else State(row["state"])
        if state not in TERMINAL_STATES:
            return False
        if state is State.SUCCEEDED:
            await self._save_taken_back(effect, plan["class"], call_id)
        elif state is State.UNKNOWN:
            detail = f"whether call {call_id} of {plan['tool']} took it back is unknown: settle that call first"
            await self._stop(remainder, EntryVerdict(reason="undo_uncertain", detail=detail))
        else:
            error = "" if row is None or row["error"] is None else f" ({row['error']})"
            detail = f"call {call_id} of {plan['tool']}, which takes it back, is {state}{error}"
            await self._stop(remainder, EntryVerdict(reason="compensation_failed", detail=detail))
        return True

    async def _take_back(self, remainder: Remainder, effect: Effect, entry_id: str, steps: FlowSteps) -> None:
        """Make the call that takes an effect back; or find that it is taken back already, or that nothing does so."""
        runtime, tenant = self._runtime, self.call.tenant
        keys, tools = await runtime.keys.get(tenant), (await runtime.authority.load_tenant(tenant)).tools
        try:
            async with read_journal(runtime, tenant) as connection:
                ((row, *_),) = await load_entries(connection, tenant, [UUID(entry_id)])
                writers = await find_later_writers(connection, tenant, [entry_id])
        except UndoTooBroad as problem:
            if not self._is_retried_enough(steps, runtime.clock.epoch_ms()):
                raise RunNotReady(problem.message, seconds=_SLOW_RETRY_SECONDS) from problem
            verdict = EntryVerdict(reason="compensation_failed", detail=problem.message)
            await self._stop_unplanned(remainder, entry_id, verdict)
            return
        verdict = judge_entry(row, keys, tools)
        # What was taken back and done again is there.
        if verdict.verdict == "done" and row["is_undone"]:
            await self._save_taken_back(effect, row["compensation_class"], str(row["undo_call_id"]))
            return
        if verdict.verdict == "ready" and entry_id in writers:
            # Who it was says the plan of an undo: a task is stored as it is read, and names nobody.
            is_concurrent = writers[entry_id]["is_concurrent"]
            verdict = EntryVerdict(
                reason="concurrent" if is_concurrent else "changed_since",
                detail=f"another call changed the same {'at the same time' if is_concurrent else 'later'}",
            )
        if verdict.compensation is None:
            await self._stop_unplanned(remainder, entry_id, verdict)
            return
        if await self._plan_call(entry_id, row, verdict.compensation):
            request = _build_request(self.call, effect, verdict.compensation)
            outcome = await runtime.run_call(runtime, self.call.caller, request)
            await self._save_call(entry_id, outcome, steps)

    async def _stop_unplanned(self, remainder: Remainder, entry_id: str, verdict: EntryVerdict) -> None:
        """Stop at an effect that nothing takes back, once no worker can be making a call that does."""
        keys, now_ms = await self._runtime.keys.get(self.call.tenant), self._runtime.clock.epoch_ms()
        async with (
            self._runtime.store.write_transaction() as connection,
            edit_document(connection, keys, self.call.tenant, self.call.call_id) as document,
        ):
            plan = document["compensations"].get(entry_id)
            is_pending = plan is not None and ("call_id" in plan or forget_planner(plan, None, now_ms))
        if is_pending:
            raise RunNotReady("another worker may be taking back what it did", seconds=_RETRY_SECONDS)
        await self._stop(remainder, verdict)

    async def _plan_call(self, entry_id: str, row: asyncpg.Record, compensation: BoundCompensation) -> bool:
        """Record which call this worker is about to make; False if another one was quicker."""
        keys, now_ms = await self._runtime.keys.get(self.call.tenant), self._runtime.clock.epoch_ms()
        async with self._runtime.store.write_transaction() as connection:
            if not await connection.fetchval(
                _SQL["lock_waiting_flow"], self.call.tenant, self.call.call_id, self._run.epoch
            ):
                raise RunNotReady("another worker has begun the flow", seconds=_RETRY_SECONDS)
            async with edit_document(connection, keys, self.call.tenant, self.call.call_id) as document:
                plan: dict[str, Any] = document["compensations"].setdefault(
                    entry_id, {"tool": compensation.tool, "class": row["compensation_class"], "by": {}}
                )
                if document["report"] is not None or "call_id" in plan or "refusal" in plan:
                    return False
                plan["by"][self._planner] = now_ms
        return True

    async def _save_call(self, entry_id: str, outcome: Outcome, steps: FlowSteps) -> None:
        """Save what became of a planned call. A call counts more than a refusal, whichever is saved first."""
        is_made = outcome.is_accepted or outcome.is_replay
        if is_made:
            await self._name_flow(outcome.call_id)
        elif await self._find_planned_call(entry_id):
            return
        keys, now_ms = await self._runtime.keys.get(self.call.tenant), self._runtime.clock.epoch_ms()
        wait_seconds: float | None = None
        async with (
            self._runtime.store.write_transaction() as connection,
            edit_document(connection, keys, self.call.tenant, self.call.call_id) as document,
        ):
            plan = document["compensations"][entry_id]
            if is_made:
                plan.setdefault("call_id", outcome.call_id)
            elif "call_id" not in plan:
                # It is unknown if its commit was not acknowledged.
                planner = None if outcome.state is State.UNKNOWN else self._planner
                if forget_planner(plan, planner, now_ms):
                    wait_seconds = _RETRY_SECONDS
                elif should_retry(outcome) and not self._is_retried_enough(steps, now_ms):
                    wait_seconds = (outcome.retry_after_ms or 1000 * _RETRY_SECONDS) / 1000
                else:
                    plan["refusal"] = describe_outcome(outcome)
        if wait_seconds is not None:
            raise RunNotReady("what it did could not be taken back yet", seconds=wait_seconds)

    def _is_retried_enough(self, steps: FlowSteps, now_ms: int) -> bool:
        """Tell whether a call that could not be made was tried for as long as the whole flow may take."""
        began_ms = now_ms if steps.ending is None else steps.ending["at_ms"]
        return bool(now_ms - began_ms > 1000 * self._run.validated.contract.timeout.effective_seconds)

    async def _find_planned_call(self, entry_id: str) -> bool:
        """Find the call of a worker that died before it recorded it, by its claim; tell whether there is one."""
        tenant, flow_id = self.call.tenant, self.call.call_id
        async with self._runtime.store.write_transaction() as connection:
            found_id = await connection.fetchval(_JOURNAL["find_undo"], tenant, UNDO_SCOPE, UUID(entry_id).bytes)
        if found_id is None:
            return False
        await self._name_flow(str(found_id))
        keys = await self._runtime.keys.get(tenant)
        async with (
            self._runtime.store.write_transaction() as connection,
            edit_document(connection, keys, tenant, flow_id) as document,
        ):
            document["compensations"][entry_id].setdefault("call_id", str(found_id))
        return True

    async def _name_flow(self, call_id: str) -> None:
        """Make a call wake the flow when it ends: in a transaction of its own, like those of the steps."""
        async with self._runtime.store.write_transaction() as connection:
            await connection.execute(_SQL["name_flow_of_calls"], self.call.tenant, self.call.call_id, [call_id])

    async def _save_taken_back(self, effect: Effect, compensation_class: str, undo_call_id: str) -> None:
        keys = await self._runtime.keys.get(self.call.tenant)
        async with (
            self._runtime.store.write_transaction() as connection,
            edit_document(connection, keys, self.call.tenant, self.call.call_id) as document,
        ):
            fields = effect.describe(**{"class": compensation_class, "undo_call_id": undo_call_id})
            document["taken_back"].setdefault(effect.entry_id, fields)


def _build_request(call: CallContext, effect: Effect, compensation: BoundCompensation) -> CallRequest:
    return CallRequest(
        tool=compensation.tool,
        arguments=dict(compensation.arguments),
        session=call.session,
        step=effect.call.step,
        traceparent=call.trail.traceparent,
        mode="async",
        origin=CallOrigin(parent_call_id=call.call_id, flow_id=get_root_flow(call)),
        # It may take the time of its own tool: that of the flow may be over.
        flow_depth=call.request.flow_depth + 1,
        undoes=effect.entry_id,
    )


def _explain_refusal(plan: Mapping[str, Any]) -> EntryVerdict:
    error = plan["refusal"]["error"]
    detail = f"a call of {plan['tool']}, which takes it back, was refused: {error.get('slug')} ({error.get('number')})"
    return EntryVerdict(reason="compensation_refused", detail=detail)
