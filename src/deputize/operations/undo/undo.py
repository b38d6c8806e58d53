"""Take calls back: execute an undo plan, newest call first, each step as a call of the person who undoes.

A step passes the whole lifecycle, with their authority; when it begins, it is refused if someone changed the same thing
since. It claims the journal entry, which one call holds until it is known to have done nothing; so whoever repeats the
request, after whatever crash, goes on where it stopped. The first step that does not succeed ends the request, and the
plan of what is left is returned. If it needs approval, people are asked about the steps after it too.
"""

import asyncio
from dataclasses import replace
from typing import Any

from deputize.core.caller import UNDO_SCOPE, Caller
from deputize.core.errors import ScopeMissing, UndoPlanChanged
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.lifecycle.run import Lifecycle
from deputize.operations.undo.undo_plan import (
    MAX_STEPS,
    UndoPlan,
    UndoPlans,
    UndoSelection,
    UndoStep,
    list_planned_undos,
    may_undo,
)
from deputize.operations.undo.undo_requests import UndoRequests, answer_requests


class Undo:
    """Plans and executes undos."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._plans = UndoPlans(lifecycle.runtime)
        self.requests = UndoRequests(lifecycle.runtime, self._plans)

    async def plan_undo(self, caller: Caller, selection: UndoSelection) -> dict[str, Any]:
        """Show what would be taken back, in which order, and what cannot be."""
        return (await self._plans.plan_undo(caller, selection)).to_json()

    async def execute_undo(self, caller: Caller, selection: UndoSelection, digest: str) -> dict[str, Any]:
        """Take back what the plan with this digest has ready; return the steps that were made, and what is left."""
        _require_undo(caller)
        plan = await self._plans.plan_undo(caller, selection)
        if plan.digest != digest:
            raise UndoPlanChanged(
                "the plan is not the one that you saw: something changed since", nothing_happened=True
            )
        made, approval = await self._run_steps(caller, plan)
        # Not before: a request is not answered by who dies on the way, or by a step that was refused.
        if undone_ids := {each["undone_call_id"] for each in made if each["error"] is None}:
            # A flow has no step of its own.
            flow_ids = set() if selection.call_id is None else {selection.call_id}
            await answer_requests(self._lifecycle.runtime, caller, undone_ids | flow_ids)
        left = await self._plans.plan_left(caller, selection) if made else plan
        return {"made": made, "left": left.to_json(), "approval": approval}

    async def _run_steps(self, caller: Caller, plan: UndoPlan) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Make the steps up to the first that does not succeed; return them, and the approval that this one needs."""
        made: list[dict[str, Any]] = []
        steps = plan.list_ready()[:MAX_STEPS]
        planned = await asyncio.to_thread(list_planned_undos, caller, steps)
        for number, step in enumerate(steps):
            request = replace(planned[number].request, undo_plan=tuple(planned[number:]))
            outcome = await self._lifecycle.run(caller, request)
            made.append(_describe_step(step, outcome))
            if outcome.state is State.AWAITING_APPROVAL:
                return made, outcome.envelope.fields.get("approval")
            if outcome.state is not State.SUCCEEDED:
                break
        return made, None


def _require_undo(caller: Caller) -> None:
    """Refuse agents: what an agent did is taken back by a person, with authority of their own."""
    if caller.agents:
        raise ScopeMissing("an agent cannot undo: ask the person it acts for", details={"missing_scopes": [UNDO_SCOPE]})
    if not may_undo(caller):
        raise ScopeMissing(f"undoing calls needs the scope {UNDO_SCOPE}", details={"missing_scopes": [UNDO_SCOPE]})


def _describe_step(step: UndoStep, outcome: Outcome) -> dict[str, Any]:
    return {
        "entry_id": step.entry_id,
        "undone_call_id": step.call_id,
        "call_id": outcome.call_id,
        "tool": None if step.compensation is None else step.compensation.tool,
        "state": outcome.state.value,
        "error": None if outcome.spec is None else outcome.spec.slug,
    }
