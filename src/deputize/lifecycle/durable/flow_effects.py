"""Find what the calls of a failed flow did that is still there, and report it to its caller, and to people as a task.

What is recorded of the flow says which calls it made, and the journal what they did. Both count for flows within it.
Below `flow_compensation.py`, which takes effects back, and `resume.py`, which ends flows that cannot.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import asyncpg

from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.contract import MutationClass
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.lifecycle.compensation.journal_entries import EntryVerdict, judge_entry, load_entries
from deputize.lifecycle.durable.flow_steps import FlowSteps, edit_document, unseal_document
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.recording.human_tasks import open_human_task
from deputize.lifecycle.runtime import Runtime
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("flows")
# What a flow reports whose calls did nothing.
NOT_NEEDED: Final[Mapping[str, Any]] = {"state": "not_needed", "compensated": [], "left": [], "task_id": None}


@frozen
class FlowCallRow:
    """A call of a flow, or of a flow within it; `step` is its path, through the flows around it."""

    step: str
    call_id: str
    # None if the call's row was deleted.
    row: asyncpg.Record | None


@frozen
class Effect:
    """What a call did, by its entry in the journal; without one, what it may have done is not known."""

    call: FlowCallRow
    entry_id: str | None = None

    def describe(self, **fields: Any) -> dict[str, Any]:
        return {
            "step": self.call.step,
            "call_id": self.call.call_id,
            "entry_id": self.entry_id,
            "tool": None if self.call.row is None else self.call.row["tool"],
            **fields,
        }


@frozen
class Remainder:
    """What is still to be taken back, newest first, and what was."""

    effects: tuple[Effect, ...] = ()
    taken_back: tuple[Mapping[str, Any], ...] = ()


async def load_remainder(
    runtime: Runtime, tenant: str, steps: FlowSteps, keys: KeySet | None, tools: TenantTools
) -> Remainder:
    """Load what the calls of a flow did that is not known to be taken back; without keys, not of flows within it."""
    # A refusal did nothing.
    made = {path: each.call_id for path, each in steps.calls.items() if each.row is not None or each.error is None}
    document = {"calls": made, "taken_back": steps.taken_back}
    async with runtime.store.write_transaction() as connection:
        calls, documents = await _load_calls(connection, keys, tenant, document)
        ids = list(calls)
        rows = await connection.fetch(_SQL["find_effects_of_calls"], tenant, ids, min(ids)) if ids else []
    taken_back: dict[str, Mapping[str, Any]] = {}
    # Flows within it have taken theirs back before.
    for prefix, each in reversed(documents.items()):
        for entry_id, fields in each["taken_back"].items():
            taken_back[entry_id] = {**fields, "step": f"{prefix}{fields['step']}"}
    effects = [Effect(call=calls[str(row["call_id"])], entry_id=str(row["id"])) for row in rows]
    known_ids = {each.call.call_id for each in effects}
    lost = [Effect(call=each) for each in calls.values() if each.call_id not in known_ids and _is_lost(each, tools)]
    return Remainder(
        # What is not in the journal has no place in its order: nothing below it is touched.
        effects=(*lost, *(each for each in effects if each.entry_id not in taken_back)),
        taken_back=tuple(taken_back.values()),
    )


def _is_lost(call: FlowCallRow, tools: TenantTools) -> bool:
    """Tell whether a call without an entry may have changed something all the same."""
    row = call.row
    if row is None:
        return True
    if row["mutation_class"] == MutationClass.READ or row["nothing_happened"]:
        return False
    if row["state"] == State.UNKNOWN:
        return True
    if row["has_steps"]:
        # What a flow changed, its steps did.
        return False
    contract = tools.find_contract(row["tool"])
    return row["state"] == State.SUCCEEDED and (contract is None or contract.flow is None)


async def _load_calls(
    connection: Connection, keys: KeySet | None, tenant: str, document: Mapping[str, Any]
) -> tuple[dict[str, FlowCallRow], dict[str, Mapping[str, Any]]]:
    """Load the calls of a flow and of the flows within it, and what is recorded of each flow, by the path before it.

    The calls that take back what such a flow did are none of them.
    """
    calls: dict[str, FlowCallRow] = {}
    documents = {"": document}
    level = {call_id: step for step, call_id in document["calls"].items()}
    while level:
        rows = await connection.fetch(_SQL["load_calls_to_compensate"], tenant, list(level))
        by_id = {str(row["id"]): row for row in rows}
        calls |= {
            call_id: FlowCallRow(step=step, call_id=call_id, row=by_id.get(call_id)) for call_id, step in level.items()
        }
        inner: dict[str, str] = {}
        for call_id, row in by_id.items():
            if row["ciphertext"] is not None and keys is not None:
                prefix = f"{level[call_id]}."
                documents[prefix] = unseal_document(keys, call_id, row["ciphertext"])
                inner |= {each: f"{prefix}{step}" for step, each in documents[prefix]["calls"].items()}
        level = {call_id: step for call_id, step in inner.items() if call_id not in calls}
    return calls, documents


async def save_report(
    runtime: Runtime, call: CallContext, epoch: int, remainder: Remainder, verdict: EntryVerdict | None
) -> bool:
    """Record that nothing more is tried, with what is left and, in the same transaction, the task of a person.

    The verdict is why the newest effect that is left stays. False if another worker has begun the flow.
    """
    tenant = call.tenant
    keys, tools = await runtime.keys.get(tenant), (await runtime.authority.load_tenant(tenant)).tools
    async with runtime.store.write_transaction() as connection:
        if not await connection.fetchval(_SQL["lock_waiting_flow"], tenant, call.call_id, epoch):
            return False
        left: list[dict[str, Any]] = []
        taken_back: list[dict[str, Any]] = []
        if verdict is not None:
            left, taken_back = await _describe_left(connection, keys, tenant, tools, remainder.effects, verdict)
        async with edit_document(connection, keys, tenant, call.call_id) as document:
            if document["report"] is None:
                failure = document["ending"]["failure"]
                document["report"] = await _build_report(
                    runtime, connection, call, [*remainder.taken_back, *taken_back], left,
                    why=document["ending"]["slug"], failed_step=None if failure is None else failure[0],
                )  # fmt: skip
    return True


async def report_lost_flow(runtime: Runtime, call: CallContext, steps: FlowSteps, why: str) -> Mapping[str, Any]:
    """Report what a flow did whose definition or input is gone, so that nothing more of it is taken back by itself."""
    if steps.report is not None:
        return steps.report
    tenant = call.tenant
    keys, tools = runtime.keys.find(tenant), (await runtime.authority.load_tenant(tenant)).tools
    remainder = await load_remainder(runtime, tenant, steps, keys, tools)
    verdict = EntryVerdict(reason="not_tried", detail=f"the flow could not go on ({why})")
    compensation = steps.compensations.get(remainder.effects[0].entry_id or "") if remainder.effects else None
    if compensation is not None and "call_id" in compensation:
        detail = f"call {compensation['call_id']} of {compensation['tool']} was made to take it back: see how it ended"
        verdict = EntryVerdict(reason="undo_uncertain", detail=detail)
    async with runtime.store.write_transaction() as connection:
        left, taken_back = await _describe_left(connection, keys, tenant, tools, remainder.effects, verdict)
        return await _build_report(
            runtime, connection, call, [*remainder.taken_back, *taken_back], left, why=why, failed_step=None
        )


async def _describe_left(
    connection: Connection, keys: KeySet | None, tenant: str, tools: TenantTools, effects: Sequence[Effect],
    verdict: EntryVerdict,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:  # fmt: skip
    """Describe what is left, newest first, and what of it was taken back by others."""
    ids = [UUID(each.entry_id) for each in effects if each.entry_id is not None]
    rows = {str(entry[0]["id"]): entry[0] for entry in await load_entries(connection, tenant, ids)}
    left, taken_back = [], []
    for place, effect in enumerate(effects):
        row = None if effect.entry_id is None else rows[effect.entry_id]
        judged = _judge(effect, row, keys, tools)
        if row is not None and judged.verdict == "done" and row["is_undone"]:
            fields = {"class": row["compensation_class"], "undo_call_id": str(row["undo_call_id"])}
            taken_back.append(effect.describe(**fields))
        else:
            if place == 0:
                judged = verdict
            elif judged.verdict == "ready":
                detail = f"call {effects[0].call.call_id} came after it, and stays"
                judged = EntryVerdict(reason="not_tried", detail=detail)
            left.append(effect.describe(reason=judged.reason, detail=judged.detail))
    return left, taken_back


def _judge(effect: Effect, row: asyncpg.Record | None, keys: KeySet | None, tools: TenantTools) -> EntryVerdict:
    if row is None:
        return explain_lost(effect)
    if keys is None:
        return EntryVerdict(reason="not_kept", detail="the key that sealed how it is taken back is not available")
    return judge_entry(row, keys, tools)


def explain_lost(effect: Effect) -> EntryVerdict:
    """Say why a call without an entry stays."""
    is_unknown = effect.call.row is None or effect.call.row["state"] == State.UNKNOWN
    detail = f"what call {effect.call.call_id} did is not in the journal"
    return EntryVerdict(reason="uncertain" if is_unknown else "not_kept", detail=detail)


async def _build_report(
    runtime: Runtime, connection: Connection, call: CallContext, taken_back: Sequence[Mapping[str, Any]],
    left: Sequence[Mapping[str, Any]], *, why: str, failed_step: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Build the report. If something is left, open the task of a person; it holds nothing that tools returned."""
    if not left:
        return {**NOT_NEEDED, "state": "compensated" if taken_back else "not_needed", "compensated": taken_back}
    question = {
        "asked": f"{call.request.tool} failed, and not all it did was taken back. Take back what is left, or leave it.",
        "why": why,
        "failed_step": failed_step,
        "compensated": taken_back,
        "left": left,
    }
    task = await open_human_task(runtime, connection, call.tenant, "compensate", call.call_id, question)
    return {"state": "incomplete", "compensated": taken_back, "left": left, "task_id": task.id}
