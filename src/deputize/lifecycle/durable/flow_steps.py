"""Load and save what is recorded of a flow: the calls of its steps, those that were refused, and decided joins.

It is one sealed document beside the flow's input, kept and erased like it. The calls themselves say how they ended.
Once the flow fails, the document has its end too, and what of its calls is taken back (`flow_compensation.py`).

A worker records which calls it is about to make (`plan_calls`), makes them, and records what became of them
(`save_calls`). It may die between any two of these. A call that was planned and of which nothing else is recorded is
therefore looked up by its key, before a refusal is recorded in its place and before the flow ends (`settle_plans`).
"""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import field
from typing import Any, Final

import asyncpg
import orjson

from deputize.core.caller import parse_agent_chain
from deputize.core.contract.contract import MutationClass
from deputize.core.errors import Unavailable, UnsealFailed
from deputize.core.outcome import Envelope, Outcome
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.lifecycle.phases import CallContext
from deputize.lifecycle.recording.audit import derive_claim_scope
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import WITHHELD, StepRecord
from deputize.store.keys import KeySet
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("flows")
# Within so many seconds of its plan, a call is stored or will never be.
PLAN_SECONDS: Final = 30.0
# States in which a call is known to have failed: an alternative may be tried, if nothing happened.
_FAILED_STATES = frozenset(
    {State.FAILED, State.TIMED_OUT, State.DENIED, State.BLOCKED, State.VALIDATION_FAILED, State.SCHEMA_PARSE_FAILED}
)
# What is recorded of a program that has called nothing yet, and of every other flow.
_NO_PROGRAM: Final[Mapping[str, Any]] = {"calls": {}, "end": None, "seconds": 0.0}


@frozen
class StepCall:
    """One call of a flow as it is recorded."""

    call_id: str
    record: StepRecord
    # The row of the call; None if it was refused, which leaves only an audit entry.
    row: asyncpg.Record | None = None
    # The fields of its error, if it has ended with one.
    error: Mapping[str, Any] | None = None

    @property
    def may_have_acted(self) -> bool:
        """False if the call was refused, or is known to have had no effect."""
        if self.row is None:
            return not self.record.may_fall_back
        return self.row["mutation_class"] != MutationClass.READ and not self.row["nothing_happened"]


@frozen
class FlowSteps:
    """What is recorded of a flow: its calls by their paths, and which parallel steps count."""

    calls: Mapping[str, StepCall] = field(default_factory=dict)
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # By their paths, the tools of calls that a worker was about to make, where it is not recorded that it did.
    plans: Mapping[str, str] = field(default_factory=dict)
    has_flow_ended: bool = False
    # Of a flow that is a program: what it called, by path, how it ended, and how long it computed (`program_run.py`).
    program: Mapping[str, Any] = field(default_factory=lambda: dict(_NO_PROGRAM))
    # Why the flow failed, once that is decided: no call of a step is made any more.
    ending: Mapping[str, Any] | None = None
    # By journal entries, the effects that were taken back, and by which call; and the calls that do so, or tried to.
    taken_back: Mapping[str, Any] = field(default_factory=dict)
    compensations: Mapping[str, Any] = field(default_factory=dict)
    # What was taken back and what is left, once nothing more is tried.
    report: Mapping[str, Any] | None = None

    @property
    def records(self) -> dict[str, StepRecord]:
        return {path: each.record for path, each in self.calls.items()}

    @property
    def has_calls(self) -> bool:
        """False if nothing was ever tried, or if the call is no flow."""
        return bool(self.calls or self.plans)

    @property
    def may_have_acted(self) -> bool:
        """False if every call was refused, or is known to have had no effect."""
        return bool(self.plans) or any(each.may_have_acted for each in self.calls.values())


def build_step_key(flow_id: str, path: str) -> str:
    """Build the idempotency key of a step: the same for every worker that makes the call, so that it is made once.

    No client can send it: a call of its own, with other arguments, would count as the step.
    """
    return f"flow\0{flow_id}\0{path}"


async def load_flow_steps(runtime: Runtime, tenant: str, flow_id: str) -> FlowSteps:
    """Load the calls of a flow, and what they returned."""
    keys = await runtime.keys.get(tenant)
    async with runtime.store.write_transaction() as connection:
        flow = await connection.fetchrow(_SQL["load_flow"], tenant, flow_id)
        document = unseal_document(keys, flow_id, None if flow is None else flow["ciphertext"])
        call_ids = document["calls"]
        known = runtime.flow_outcomes.find(tenant, call_ids.values())
        rows = (
            await connection.fetch(_SQL["load_flow_calls"], tenant, list(call_ids.values()), list(known))
            if call_ids
            else ()
        )
    by_id = {str(row["id"]): row for row in rows}
    # Results may be large.
    opened = await asyncio.to_thread(_open_outcomes, keys, rows)
    runtime.flow_outcomes.keep(tenant, opened, rows)
    outcomes = {**known, **opened}
    calls = {path: _describe_refusal(refusal) for path, refusal in document["refusals"].items()}
    calls |= {path: _describe_call(call_id, by_id.get(call_id), outcomes) for path, call_id in call_ids.items()}
    return FlowSteps(
        calls=calls,
        joins={name: tuple(each) for name, each in document["joins"].items()},
        plans={path: plan["tool"] for path, plan in document["plans"].items() if path not in call_ids},
        has_flow_ended=flow is not None and flow["has_ended"],
        program=document["program"],
        ending=document["ending"],
        taken_back=document["taken_back"],
        compensations=document["compensations"],
        report=document["report"],
    )


async def has_flow_ended(runtime: Runtime, tenant: str, flow_id: str, *, is_step: bool) -> bool:
    """Tell whether a flow has ended, from the primary; one that was deleted has ended long ago.

    For its steps it has once its end is decided: only calls that take back what it did are made then.
    """
    async with runtime.store.write_transaction() as connection:
        flow = await connection.fetchrow(_SQL["load_flow"], tenant, flow_id)
    if flow is None or flow["has_ended"]:
        return True
    keys = await runtime.keys.get(tenant)
    return is_step and unseal_document(keys, flow_id, flow["ciphertext"])["ending"] is not None


async def load_steps_of_lost_flow(runtime: Runtime, tenant: str, flow_id: str, *, has_input: bool) -> FlowSteps:
    """Load the calls of a flow that cannot go on; by their ids if what was recorded of them is gone with its input."""
    with contextlib.suppress(UnsealFailed):
        steps = await load_flow_steps(runtime, tenant, flow_id)
        if has_input or steps.has_calls:
            return steps
    async with runtime.store.write_transaction() as connection:
        rows = await connection.fetch(_SQL["list_calls_of_flow"], tenant, flow_id)
    return FlowSteps(calls={str(row["id"]): _describe_lost_call(row) for row in rows})


def _describe_lost_call(row: asyncpg.Record) -> StepCall:
    record = StepRecord(state=State(row["state"]), result=WITHHELD)
    return StepCall(call_id=str(row["id"]), record=record, row=row)


def unseal_document(keys: KeySet, flow_id: str, ciphertext: bytes | None) -> dict[str, Any]:
    """Decrypt what is recorded of a flow; the names of an earlier release that has fewer of them are added."""
    empty: dict[str, Any] = {
        "calls": {}, "refusals": {}, "joins": {}, "plans": {},
        "program": {**_NO_PROGRAM, "calls": {}},
        "ending": None, "taken_back": {}, "compensations": {}, "report": None,
    }  # fmt: skip
    return empty if ciphertext is None else empty | orjson.loads(keys.unseal(flow_id, "flow", ciphertext))


def _describe_refusal(refusal: Mapping[str, Any]) -> StepCall:
    record = StepRecord(state=State(refusal["state"]), may_fall_back=True)
    return StepCall(call_id=refusal["call_id"], record=record, error=refusal["error"])


def _open_outcomes(keys: KeySet, rows: Collection[asyncpg.Record]) -> dict[str, dict[str, Any]]:
    """Decrypt the outcomes of steps that were loaded, by their calls."""
    loaded = ((str(row["id"]), row["ciphertext"]) for row in rows)
    return {
        call_id: Envelope.from_bytes(keys.unseal(call_id, "outcome", ciphertext)).fields
        for call_id, ciphertext in loaded
        if ciphertext is not None
    }


def _describe_call(call_id: str, row: asyncpg.Record | None, outcomes: Mapping[str, Mapping[str, Any]]) -> StepCall:
    if row is None:
        # Its row was deleted, which happens only long after its end.
        return StepCall(call_id=call_id, record=StepRecord(state=State.UNKNOWN))
    state = State(row["state"])
    # What was erased meanwhile is known to nobody any more.
    fields = outcomes[call_id] if row["has_outcome"] else {}
    if state is State.SUCCEEDED:
        result = WITHHELD if not fields or fields.get("persistence") is not None else fields["result"]
        return StepCall(call_id=call_id, record=StepRecord(state=state, result=result), row=row)
    nothing_happened = row["nothing_happened"] or row["mutation_class"] == MutationClass.READ
    record = StepRecord(state=state, may_fall_back=nothing_happened and state in _FAILED_STATES)
    return StepCall(call_id=call_id, record=record, row=row, error=select_error_fields(fields) if fields else None)


def select_error_fields(envelope: Mapping[str, Any]) -> dict[str, Any]:
    """Select what a flow repeats of the error of one of its steps."""
    error = envelope.get("error") or {}
    return {name: error[name] for name in ("code", "number", "slug", "message") if name in error}


def should_retry(outcome: Outcome) -> bool:
    """Tell whether a call could not be made now, and may be later."""
    if outcome.is_accepted or outcome.is_replay or outcome.spec is None:
        return False
    return outcome.spec.retryable or outcome.spec is Unavailable.spec


def get_root_flow(call: CallContext) -> str:
    """Return the flow that a person or an agent called: steps of flows within it are taken back with it."""
    origin = call.request.origin
    if call.request.flow_depth == 0 or origin is None or origin.flow_id is None:
        return call.call_id
    return origin.flow_id


async def plan_calls(runtime: Runtime, call: CallContext, epoch: int, planner: str, tools: Mapping[str, str]) -> bool:
    """Record which calls this worker is about to make; False if another one has begun the flow, or decided its end."""
    keys, now_ms = await runtime.keys.get(call.tenant), runtime.clock.epoch_ms()
    async with runtime.store.write_transaction() as connection:
        if not await connection.fetchval(_SQL["lock_waiting_flow"], call.tenant, call.call_id, epoch):
            return False
        async with edit_document(connection, keys, call.tenant, call.call_id) as document:
            if document["ending"] is not None or document["program"]["end"] is not None:
                return False
            for path, tool in tools.items():
                plan = document["plans"].setdefault(path, {"tool": tool, "by": {}})
                plan["by"][planner] = now_ms
    return True


async def save_calls(
    runtime: Runtime,
    call: CallContext,
    planner: str,
    tools: Mapping[str, str],
    outcomes: Mapping[str, Outcome],
    retried_paths: Collection[str],
) -> bool:
    """Save what became of planned calls; False if one was refused here that may be stored nevertheless.

    A call counts more than a refusal, whichever is saved first. No refusal is saved of a call that is to be made again.
    """
    tenant, flow_id = call.tenant, call.call_id
    keys, now_ms = await runtime.keys.get(tenant), runtime.clock.epoch_ms()
    call_ids = {path: each.call_id for path, each in outcomes.items() if each.is_accepted or each.is_replay}
    refused_tools = {path: tool for path, tool in tools.items() if path not in call_ids}
    is_settled = True
    call_ids = await _name_flow(runtime, tenant, flow_id, call_ids, refused_tools)
    async with (
        runtime.store.write_transaction() as connection,
        edit_document(connection, keys, tenant, flow_id) as document,
    ):
        _add_calls(document, call_ids)
        for path in (each for each in refused_tools if each not in document["calls"]):
            outcome = outcomes[path]
            # It is unknown if its commit was not acknowledged.
            if outcome.state is not State.UNKNOWN:
                _forget_plan(document["plans"], path, planner, now_ms)
            if path in document["plans"]:
                is_settled = False
            elif path not in retried_paths:
                document["refusals"].setdefault(path, describe_outcome(outcome))
    return is_settled


async def settle_plans(runtime: Runtime, tenant: str, flow_id: str, tools: Mapping[str, str]) -> bool:
    """Find out what became of planned calls that are no longer wanted; tell whether anything is known of one now.

    A plan without a call is dropped once nobody can be making that call any more.
    """
    keys, now_ms = await runtime.keys.get(tenant), runtime.clock.epoch_ms()
    call_ids = await _name_flow(runtime, tenant, flow_id, {}, tools)
    async with (
        runtime.store.write_transaction() as connection,
        edit_document(connection, keys, tenant, flow_id) as document,
    ):
        plan_count = len(document["plans"])
        _add_calls(document, call_ids)
        for path in tools:
            _forget_plan(document["plans"], path, None, now_ms)
        return len(document["plans"]) < plan_count


async def save_joins(runtime: Runtime, tenant: str, flow_id: str, joins: Mapping[str, tuple[str, ...]]) -> None:
    """Save which parallel steps count; what another worker saved first stays."""
    keys = await runtime.keys.get(tenant)
    async with (
        runtime.store.write_transaction() as connection,
        edit_document(connection, keys, tenant, flow_id) as document,
    ):
        document["joins"] = {**joins, **document["joins"]}


@contextlib.asynccontextmanager
async def edit_document(
    connection: Connection, keys: KeySet, tenant: str, flow_id: str
) -> AsyncIterator[dict[str, Any]]:
    """Lock the record of a flow, and save what was changed of it."""
    await connection.fetchval(_SQL["lock_flow"], tenant, flow_id)
    flow = await connection.fetchrow(_SQL["load_flow"], tenant, flow_id)
    document = unseal_document(keys, flow_id, None if flow is None else flow["ciphertext"])
    yield document
    sealed = keys.seal(flow_id, "flow", orjson.dumps(document))
    await connection.execute(_SQL["save_flow"], tenant, flow_id, sealed)


async def _name_flow(
    runtime: Runtime, tenant: str, flow_id: str, call_ids: Mapping[str, str], tools: Mapping[str, str]
) -> dict[str, str]:
    """Make calls wake their flow when they end: those of these ids, and others that are found by their keys.

    In a transaction of its own. What begins or ends calls may lock the flow first, and one of its steps after it.
    """
    async with runtime.store.write_transaction() as connection:
        all_ids = {**await _find_calls(connection, tenant, flow_id, tools), **call_ids}
        if all_ids:
            await connection.execute(_SQL["name_flow_of_calls"], tenant, flow_id, list(all_ids.values()))
    return all_ids


async def _find_calls(connection: Connection, tenant: str, flow_id: str, tools: Mapping[str, str]) -> dict[str, str]:
    """Find the calls that were made under the keys of these steps, by the paths of the steps."""
    flow = await connection.fetchrow(_SQL["load_flow"], tenant, flow_id) if tools else None
    if flow is None:
        return {}
    user, actor = flow["caller_user"], parse_agent_chain(flow["caller_agent"])
    paths = {
        (
            derive_claim_scope(user, actor, tool),
            hashlib.sha256(build_step_key(flow_id, path).encode()).digest(),
        ): path
        for path, tool in tools.items()
    }
    scopes, digests = zip(*paths, strict=True)
    rows = await connection.fetch(_SQL["find_step_calls"], tenant, list(scopes), list(digests))
    return {paths[bytes(row["scope"]), bytes(row["key"])]: str(row["call_id"]) for row in rows}


def _add_calls(document: dict[str, Any], call_ids: Mapping[str, str]) -> None:
    for path, call_id in call_ids.items():
        document["calls"].setdefault(path, call_id)
    for name in ("refusals", "plans"):
        document[name] = {path: each for path, each in document[name].items() if path not in document["calls"]}


def _forget_plan(plans: dict[str, Any], path: str, planner: str | None, now_ms: int) -> None:
    """Forget that this worker plans a call, and drop the plan if nobody can be making the call any more."""
    plan = plans.get(path)
    if plan is not None and not forget_planner(plan, planner, now_ms):
        del plans[path]


def forget_planner(plan: dict[str, Any], planner: str | None, now_ms: int) -> bool:
    """Forget that this worker plans a call, and all others that have had the time to make it; False if none is left."""
    plan["by"] = {
        name: at_ms for name, at_ms in plan["by"].items() if name != planner and now_ms - at_ms < 1000 * PLAN_SECONDS
    }
    return bool(plan["by"])


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Describe how a call was refused."""
    error = select_error_fields(outcome.envelope.fields)
    return {"call_id": outcome.call_id, "state": outcome.state, "error": error}
