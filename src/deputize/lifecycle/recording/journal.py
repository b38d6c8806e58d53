"""Build the journal of a write: what it did to which resource, and how that is taken back.

The rows are part of the closing row of their call, so that they are committed with its outcome. A call that proved that
nothing happened has none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import asyncpg
import orjson

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.canonical import canonicalize
from deputize.core.contract.compensation_binding import (
    BoundCompensation,
    bind_compensation,
    get_compensation_class,
)
from deputize.core.contract.contract import Contract, MutationClass
from deputize.core.scopes import truncate_scope
from deputize.lifecycle.phases import Validated, Verified
from deputize.lifecycle.recording.redaction import get_redaction_plan
from deputize.lifecycle.runtime import Runtime
from deputize.store.commit_rows import Certainty, JournalRow
from deputize.store.keys import KeySet

_PURPOSE = "journal"


def build_journal_rows(runtime: Runtime, verified: Verified, call_id: str, entry_id: str) -> tuple[JournalRow, ...]:
    """Build a row for each resource that the call changed, or may have changed; the first says how to take it back."""
    executed, contract = verified.executed, verified.contract
    if contract.mutation_class is MutationClass.READ or contract.flow is not None:
        # What a flow changed, its steps did.
        return ()
    certainty = _judge_certainty(verified)
    if certainty is None:
        return ()
    validated, change = executed.validated, executed.state_change
    call, keys = validated.call, runtime.keys.find(validated.call.tenant)
    values: dict[str, Any] = {"arguments": validated.call_input}
    if change is not None and contract.compensation is not None and contract.compensation.binds_state:
        values["before"] = change.before.state
    if verified.problem is None:
        values["result"] = verified.payload
    sealed = None if keys is None else _seal_compensation(keys, entry_id, contract, values, certainty)
    request, compensation = call.request, contract.compensation
    effects = executed.authorized.side_effects or _list_effects(validated.tool, validated.call_input)
    effects = _hide_values(validated, effects)
    return tuple(
        JournalRow(
            tenant=call.tenant,
            call_id=call_id,
            id=entry_id,
            number=number,
            flow_id=_find_flow(request),
            step=_clean(request.step),
            resource=resource,
            op=op,
            scope=truncate_scope(scope),
            before_digest=None if change is None else change.before.digest,
            after_digest=None if change is None or change.after is None else change.after.digest,
            certainty=certainty,
            compensation_class=get_compensation_class(contract),
            undo_seconds=None if compensation is None else compensation.within_seconds,
            sealed=sealed if number == 0 else None,
        )
        for number, (resource, op, scope) in enumerate(effects)
    )


def _find_flow(request: CallRequest) -> str | None:
    """Find the flow that the gateway made this call for; what a caller states of a flow is only in the audit entry."""
    return None if request.flow_depth == 0 or request.origin is None else request.origin.flow_id


def _clean(text: str | None) -> str | None:
    """Replace what PostgreSQL stores in no text: the outcome of a call must not fail for it."""
    return None if text is None else text.replace("\x00", "\ufffd")


def _judge_certainty(verified: Verified) -> Certainty | None:
    """Judge whether the effect is there; None if it is certain that it is not."""
    executed, problem = verified.executed, verified.problem
    if verified.input_requests is not None or verified.is_rolled_back:
        return None
    if problem is None:
        return "happened"
    if problem.nothing_happened:
        return None
    if executed.problem is None:
        # The tool ended well, and its result was rejected.
        return "happened"
    change = executed.state_change
    if change is not None and change.after is not None and not change.is_changed and not executed.is_late:
        return None
    return "uncertain"


def did_nothing(verified: Verified) -> bool:
    """Tell whether a call is known to have had no effect. What a flow did, its steps know."""
    problem = verified.problem
    if problem is None:
        return False
    return problem.nothing_happened or (verified.contract.flow is None and _judge_certainty(verified) is None)


def _list_effects(tool: CompiledTool, arguments: Mapping[str, Any]) -> tuple[tuple[str, str, str], ...]:
    """List what a call may change. A tool that does not declare it may change anything in its namespace."""
    return tool.resolve_writes(tool.fill_defaults(arguments)) or ((tool.contract.namespace, "update", "*"),)


def _hide_values(validated: Validated, effects: Sequence[tuple[str, str, str]]) -> Sequence[tuple[str, str, str]]:
    """Cut scopes before a secret or personal value that an argument fills in; what is left covers them."""
    tool = validated.tool
    arguments = tool.fill_defaults(validated.call_input)
    named = {name: arguments[name] for name in tool.scope_arguments if name in arguments}
    if not named or (hidden := get_redaction_plan(tool, "input").apply(named)[0]) == named:
        return effects
    shown = tool.resolve_writes({**arguments, **hidden})
    return tuple(
        (resource, op, scope if scope == other else _cut_scope(scope, other))
        for (resource, op, scope), (_, _, other) in zip(effects, shown, strict=True)
    )


def _cut_scope(scope: str, shown: str) -> str:
    length = next((place for place, (a, b) in enumerate(zip(scope, shown, strict=False)) if a != b), len(shown))
    return f"{scope[:length].partition('*')[0]}*"


def _seal_compensation(
    keys: KeySet, entry_id: str, contract: Contract, values: Mapping[str, Any], certainty: Certainty
) -> bytes | None:
    bound = bind_compensation(contract, values)
    if bound is None:
        return None
    document = bound.to_json()
    if certainty == "uncertain" and bound.missing:
        # Whoever settles the call may know its result.
        document["values"] = values
    return keys.seal(entry_id, _PURPOSE, canonicalize(document))


def unseal_compensation(keys: KeySet, entry_id: str, sealed: bytes) -> BoundCompensation:
    """Decrypt how the call of a journal entry is taken back."""
    return BoundCompensation.from_json(orjson.loads(keys.unseal(entry_id, _PURPOSE, sealed)))


def settle_journal_rows(
    keys: KeySet, tool: CompiledTool, effects: list[asyncpg.Record], settled: JournalRow, result: Any
) -> tuple[JournalRow, ...]:
    """Build the rows of an uncertain call that is now known to have happened, from those written when it ended.

    A process that died left none that say what it changed, nor with which arguments.
    """
    last_id = effects[-1]["id"] if effects else None
    rows = [each for each in effects if each["id"] == last_id]
    if not rows or (rows[0]["sealed"] is None and rows[0]["scope"] == "*"):
        return tuple(
            settled._replace(number=number, resource=resource, op=op, scope=truncate_scope(scope))
            for number, (resource, op, scope) in enumerate(_list_effects(tool, {}))
        )
    sealed = None
    if rows[0]["sealed"] is not None:
        document = orjson.loads(keys.unseal(str(last_id), _PURPOSE, rows[0]["sealed"]))
        values = document.pop("values", None)
        if values is not None:
            known = values if result is None else {**values, "result": result}
            bound = bind_compensation(tool.contract, known)
            document = document if bound is None else bound.to_json()
        sealed = keys.seal(settled.id, _PURPOSE, canonicalize(document))
    names = ("number", "flow_id", "step", "resource", "op", "scope", "before_digest", "after_digest")
    return tuple(
        settled._replace(
            **{name: row[name] for name in names},
            sealed=sealed if row["number"] == 0 else None,
        )
        for row in rows
    )
