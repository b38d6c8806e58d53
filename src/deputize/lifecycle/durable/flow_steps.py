"""Load and save what is recorded of a flow: the calls of its steps, those that were refused, and decided joins.

It is one sealed document beside the flow's input, kept and erased like it. The calls themselves say how they ended.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import asyncpg
import orjson

from deputize.core.contract.contract import MutationClass
from deputize.core.outcome import Envelope, Outcome
from deputize.core.states import State
from deputize.core.value_types import frozen
from deputize.lifecycle.runtime import Runtime
from deputize.runs.flow_state import WITHHELD, StepRecord
from deputize.store.keys import KeySet
from deputize.store.queries import load_statements

_SQL = load_statements("flows")
# States in which a call is known to have failed: an alternative may be tried, if nothing happened.
_FAILED_STATES = frozenset(
    {State.FAILED, State.TIMED_OUT, State.DENIED, State.BLOCKED, State.VALIDATION_FAILED, State.SCHEMA_PARSE_FAILED}
)


@frozen
class StepCall:
    """One call of a flow as it is recorded."""

    call_id: str
    record: StepRecord
    # The row of the call; None if it was refused, which leaves only an audit entry.
    row: asyncpg.Record | None = None
    # The fields of its error, if it has ended with one.
    error: Mapping[str, Any] | None = None


@frozen
class FlowSteps:
    """What is recorded of a flow: its calls by their paths, and which parallel steps count."""

    calls: Mapping[str, StepCall] = field(default_factory=dict)
    joins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def records(self) -> dict[str, StepRecord]:
        return {path: each.record for path, each in self.calls.items()}


async def load_flow_steps(runtime: Runtime, tenant: str, flow_id: str) -> FlowSteps:
    """Load the calls of a flow, and what they returned."""
    keys = await runtime.keys.get(tenant)
    async with runtime.store.write_transaction() as connection:
        ciphertext = await connection.fetchval(_SQL["load_flow"], tenant, flow_id)
        if ciphertext is None:
            return FlowSteps()
        document: dict[str, Any] = orjson.loads(keys.unseal(flow_id, "flow", ciphertext))
        rows = await connection.fetch(_SQL["load_flow_calls"], tenant, list(document["calls"].values()))
    by_id = {str(row["id"]): row for row in rows}
    calls = {path: _describe_refusal(refusal) for path, refusal in document["refusals"].items()}
    # Results may be large.
    calls |= await asyncio.to_thread(_describe_calls, keys, document["calls"], by_id)
    return FlowSteps(calls=calls, joins={name: tuple(each) for name, each in document["joins"].items()})


def _describe_refusal(refusal: Mapping[str, Any]) -> StepCall:
    record = StepRecord(state=State(refusal["state"]), may_fall_back=True)
    return StepCall(call_id=refusal["call_id"], record=record, error=refusal["error"])


def _describe_calls(
    keys: KeySet, call_ids: Mapping[str, str], rows: Mapping[str, asyncpg.Record]
) -> dict[str, StepCall]:
    return {path: _describe_call(keys, call_id, rows.get(call_id)) for path, call_id in call_ids.items()}


def _describe_call(keys: KeySet, call_id: str, row: asyncpg.Record | None) -> StepCall:
    if row is None:
        # Its row was deleted, which happens only long after its end.
        return StepCall(call_id=call_id, record=StepRecord(state=State.UNKNOWN))
    state, fields = State(row["state"]), {}
    if row["ciphertext"] is not None:
        fields = Envelope.from_bytes(keys.unseal(call_id, "outcome", row["ciphertext"])).fields
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


async def save_flow_steps(
    runtime: Runtime,
    tenant: str,
    flow_id: str,
    outcomes: Mapping[str, Outcome],
    joins: Mapping[str, tuple[str, ...]],
) -> None:
    """Save calls that were made, and joins; what another worker saved first stays."""
    call_ids = {path: each.call_id for path, each in outcomes.items() if each.is_accepted or each.is_replay}
    refusals = {
        path: {"call_id": each.call_id, "state": each.state, "error": select_error_fields(each.envelope.fields)}
        for path, each in outcomes.items()
        if path not in call_ids
    }
    keys = await runtime.keys.get(tenant)
    async with runtime.store.write_transaction() as connection:
        await connection.execute(_SQL["name_flow_of_calls"], tenant, flow_id, list(call_ids.values()))
        await connection.fetchval(_SQL["lock_flow"], tenant, flow_id)
        ciphertext = await connection.fetchval(_SQL["load_flow"], tenant, flow_id)
        document: dict[str, Any] = {"calls": {}, "refusals": {}, "joins": {}}
        if ciphertext is not None:
            document = orjson.loads(keys.unseal(flow_id, "flow", ciphertext))
        known_paths = document["calls"].keys() | document["refusals"].keys()
        for name, additions in (("calls", call_ids), ("refusals", refusals)):
            document[name] |= {path: each for path, each in additions.items() if path not in known_paths}
        document["joins"] = {**joins, **document["joins"]}
        sealed = keys.seal(flow_id, "flow", orjson.dumps(document))
        await connection.execute(_SQL["save_flow"], tenant, flow_id, sealed)
