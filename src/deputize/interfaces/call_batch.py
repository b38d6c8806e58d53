"""Parse several calls of one request, and render their outcomes in their order, for every interface."""

from collections.abc import Sequence
from typing import Any, Final, get_args

import orjson

from deputize.core.call_batch import MAX_BATCH_SIZE, BatchedCall, CallBatch, FailurePolicy
from deputize.core.errors import MalformedRequest
from deputize.core.outcome import Outcome, build_problem_fields
from deputize.interfaces.asgi_http import hide_internal_error
from deputize.interfaces.call_request import FIELDS, parse_call_request, parse_idempotency_key, raise_malformed

_BATCH_FIELDS: Final = frozenset({"calls", "on_failure"})
_FAILURE_POLICIES: Final[tuple[FailurePolicy, ...]] = get_args(FailurePolicy)


def parse_call_batch(fields: Any, *, traceparent: str | None = None, deadline_ms: int | None = None) -> CallBatch:
    """Parse several calls, or raise `MalformedRequest` with the first that is wrong; none of them is run then.

    `deadline_ms` is for calls that have no deadline of their own.
    """
    if type(fields) is not dict or not fields.keys() <= _BATCH_FIELDS or type(fields.get("calls")) is not list:
        raise MalformedRequest("a batch is an object with calls, a list, and perhaps on_failure")
    calls, on_failure = fields["calls"], fields.get("on_failure", "cancel_dependent")
    if on_failure not in _FAILURE_POLICIES:
        raise_malformed("on_failure", f"must be one of {', '.join(_FAILURE_POLICIES)}")
    if len(calls) > MAX_BATCH_SIZE:
        raise_malformed("calls", f"must be 1 to {MAX_BATCH_SIZE}")
    parsed_calls = []
    for index, each in enumerate(calls):
        try:
            parsed_calls.append(_parse_batched_call(each, traceparent, deadline_ms))
        except MalformedRequest as problem:
            details = {**problem.details, "call": index}
            raise problem.replace(message=f"calls[{index}]: {problem.message}", details=details) from None
    return CallBatch(calls=parsed_calls, on_failure=on_failure)


def _parse_batched_call(fields: Any, traceparent: str | None, deadline_ms: int | None) -> BatchedCall:
    if type(fields) is not dict:
        raise MalformedRequest("a call is a JSON object", details={"fields": list(FIELDS)})
    fields = dict(fields) if deadline_ms is None else {"deadline_ms": deadline_ms, **fields}
    key, depends_on = fields.pop("idempotency_key", None), fields.pop("depends_on", [])
    if type(depends_on) is not list or not all(type(each) is int for each in depends_on):
        raise_malformed("depends_on", "must be a list of positions of earlier calls, from 0")
    request = parse_call_request(
        fields, key=None if key is None else parse_idempotency_key(key), traceparent=traceparent
    )
    return BatchedCall(request=request, depends_on=frozenset(depends_on))


def render_batch_results(results: Sequence[Outcome | Exception], trace_id: str) -> dict[str, Any]:
    """Render what became of each call, for orjson: its HTTP status, and its envelope as if it had been made alone."""
    return {"results": [_render_result(each, trace_id) for each in results]}


def _render_result(result: Outcome | Exception, trace_id: str) -> dict[str, Any]:
    if isinstance(result, Outcome):
        facts = {"status": result.http_status, "is_replay": result.is_replay, "is_joined": result.is_joined}
        return {**facts, "envelope": orjson.Fragment(result.body)}
    problem = hide_internal_error(result, trace_id)
    envelope = build_problem_fields(problem, trace_id=trace_id)
    return {"status": problem.spec.http, "is_replay": False, "is_joined": False, "envelope": envelope}
