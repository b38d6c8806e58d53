"""Serve the routes of calls: list, show, follow, audit, cancel, retry and roll back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from deputize.core.errors import (
    CallNotFound,
    CheckpointNotFound,
    ConcurrencyLimitReached,
    DisabledByKillSwitch,
    MalformedRequest,
    NotCancelable,
    NotRetryable,
    ParseFailed,
    Problem,
    ReceiptPending,
    RequestTooLarge,
    ScopeMissing,
    ToolNotFound,
    UnsealFailed,
    UnsupportedMedia,
    VersionNotInCapability,
    list_problem_types,
)
from deputize.core.outcome import build_problem_fields
from deputize.interfaces.asgi_http import make_retry_after_header, read_trace_id
from deputize.interfaces.call_batch import parse_call_batch, render_batch_results
from deputize.interfaces.rest.calls.call_models import (
    AcceptedCallModel,
    AgentToolCallModel,
    AuditEntryList,
    CallBatchBody,
    CallBatchModel,
    CallModel,
    CallPage,
    CallsQuery,
    CancellationResult,
    EnvelopeModel,
    InputRequiredModel,
    OpenCallModel,
    ReceiptModel,
    RollbackBody,
    RollbackResult,
)
from deputize.interfaces.rest.calls.post_call import build_outcome_headers
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import ProblemModel
from deputize.interfaces.rest.openapi import ROUTER_SLUGS, describe_body, describe_problems
from deputize.operations.gateway import CallEvent

router = APIRouter(prefix="/v1/calls", tags=["calls"])

KEEP_ALIVE_SECONDS = 15.0


@router.get("", summary="List calls", response_model=CallPage, responses=describe_problems())
async def list_calls(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[CallsQuery, Query()]) -> Response:
    """List writes and runs, newest first: your own, or the tenant's for an administrator."""
    before = None if query.before is None else str(query.before)
    calls = await gateway.calls.list_calls(caller, before=before, limit=query.limit)
    next_before = calls[-1]["call_id"] if len(calls) == query.limit else None
    return make_json_response({"calls": calls, "next_before": next_before})


@router.post(
    "/batch",
    summary="Call several tools",
    response_model=CallBatchModel,
    responses=describe_problems(ConcurrencyLimitReached, ParseFailed, RequestTooLarge, UnsupportedMedia),
    openapi_extra=describe_body(CallBatchBody),
)
async def post_batch(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Run up to 50 calls and return their envelopes in their order. Each is a call of its own, as if it had been sent
    alone. Calls that may change the same resources run one after another, the others side by side.
    """
    if "idempotency-key" in request.headers:
        raise MalformedRequest("each call of a batch has a key of its own, in its field idempotency_key")
    fields = await read_json_body(request, gateway)
    batch = parse_call_batch(fields, traceparent=request.headers.get("traceparent"))
    results = await gateway.run_calls(caller, batch)
    return make_json_response(render_batch_results(results, read_trace_id(request.scope)))


@router.get(
    "/{call_id}",
    summary="Show a call",
    response_model=EnvelopeModel | InputRequiredModel | ProblemModel | OpenCallModel | CallModel,
    responses=describe_problems(CallNotFound, UnsealFailed),
)
async def show_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Return the stored envelope of a call. A call that has not ended shows its progress, and `Retry-After` says when
    to poll again; a read shows its audit entry.
    """
    stored_call = await gateway.calls.show_call(caller, call_id)
    response = Response(stored_call.envelope.body, media_type="application/json")
    if stored_call.poll_after_ms is not None:
        name, value = make_retry_after_header(stored_call.poll_after_ms)
        response.headers[name.decode()] = value.decode()
    return response


@router.get(
    "/{call_id}/export",
    summary="Export a call",
    response_model=AgentToolCallModel,
    responses=describe_problems(CallNotFound, UnsealFailed),
)
async def export_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Export a call as objects of Agent Tool 0.2.0: its invocation, decision, progress, result and events."""
    return make_json_response(await gateway.call_exports.export_call(caller, call_id))


@router.get(
    "/{call_id}/audit",
    summary="List a call's audit entries",
    response_model=AuditEntryList,
    responses=describe_problems(CallNotFound),
)
async def list_call_entries(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """List the audit entries of your own call, or of any call as an administrator. They contain no values of arguments
    and results, only commitments.
    """
    entries = await gateway.calls.describe_entries(caller, call_id)
    return make_json_response({"call_id": call_id, "entries": entries})


@router.get(
    "/{call_id}/receipt",
    summary="Get a call's receipt",
    response_model=ReceiptModel,
    responses=describe_problems(CallNotFound, ReceiptPending),
)
async def get_receipt(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Get a receipt of your own call, or of any call as an administrator. It proves offline what was recorded; a call
    of the last second may have none yet (`receipt-pending`).
    """
    return make_json_response(await gateway.call_receipts.make_receipt(caller, call_id))


@router.post(
    "/{call_id}/cancel",
    summary="Cancel a call",
    status_code=202,
    response_model=CancellationResult,
    responses=describe_problems(CallNotFound, NotCancelable, VersionNotInCapability),
)
async def cancel_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Request a cancellation, which is always audited. A queued call ends at once; a run whose tool can be stopped ends
    within a second.
    """
    return make_json_response(await gateway.cancellations.cancel_call(caller, call_id), status=202)


@router.post(
    "/{call_id}/retry",
    summary="Retry a failed call",
    status_code=202,
    response_model=AcceptedCallModel,
    responses={
        200: {"model": EnvelopeModel, "description": "It was retried before; this is the outcome."},
        **describe_problems(*(kind for kind in list_problem_types() if kind.spec.slug not in ROUTER_SLUGS), common=()),
    },
)
async def retry_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Retry a failed run. A call with an unknown outcome continues if its upstream deduplicates by key; a call that
    did nothing is made anew. Any other is refused (`not-retryable`).
    """
    outcome = await gateway.retry_call(caller, call_id)
    headers = {name.decode(): value.decode() for name, value in build_outcome_headers(outcome, gateway.metadata_url)}
    return Response(outcome.body, status_code=outcome.http_status, headers=headers)


@router.post(
    "/{call_id}/rollback",
    summary="Roll a run back to a checkpoint",
    status_code=202,
    response_model=RollbackResult,
    responses=describe_problems(
        CallNotFound, CheckpointNotFound, NotRetryable, ToolNotFound, ParseFailed, RequestTooLarge, UnsupportedMedia,
        ScopeMissing, VersionNotInCapability, DisabledByKillSwitch,
    ),
    openapi_extra=describe_body(RollbackBody),
)  # fmt: skip
async def roll_back_call(request: Request, gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Roll back a run that has not ended, of a tool whose upstream deduplicates by key. Its worker loses the run, which
    continues from the checkpoint of that name. Effects since the checkpoint are not undone.
    """
    body = validate_body(RollbackBody, await read_json_body(request, gateway))
    return make_json_response(await gateway.rollbacks.roll_back_run(caller, call_id, body.checkpoint), status=202)


@router.get(
    "/{call_id}/events",
    summary="Follow a call",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One event per state and per progress report, until the end.",
            "content": {"text/event-stream": {}},
        },
        **describe_problems(CallNotFound, ConcurrencyLimitReached, UnsealFailed),
    },
)
async def follow_call(
    request: Request,
    gateway: CurrentGateway,
    caller: CurrentCaller,
    call_id: str,
    last_event_id: Annotated[
        str | None, Header(max_length=100, description="The id of the last event you received.")
    ] = None,
) -> Response:
    """Stream server-sent events. A stream ends early when the gateway stops; clients reconnect by themselves."""
    # The call is loaded before anything is sent, so that an unknown one is still a 404.
    events = await gateway.calls.follow_call(caller, call_id, after=last_event_id)
    stream = _stream_events(events, request.app.state.shutdown, read_trace_id(request.scope))
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _stream_events(
    events: AsyncIterator[CallEvent], shutdown: asyncio.Event, trace_id: str
) -> AsyncIterator[bytes]:
    prefix = b"retry: 1000\n"
    next_event = asyncio.ensure_future(anext(events, None))
    shutdown_task = asyncio.ensure_future(shutdown.wait())
    try:
        while not shutdown_task.done():
            tasks: set[asyncio.Future[Any]] = {next_event, shutdown_task}
            await asyncio.wait(tasks, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not next_event.done():
                yield prefix + b": still here\n\n"
                prefix = b""
                continue
            event = next_event.result()
            if event is None:
                return
            yield prefix + _format_event(event.event, event.facts, event.id)
            prefix = b""
            next_event = asyncio.ensure_future(anext(events, None))
    except Problem as problem:
        yield _format_event("error", build_problem_fields(problem, trace_id=trace_id))
    finally:
        shutdown_task.cancel()
        next_event.cancel()
        with contextlib.suppress(asyncio.CancelledError, Problem):
            await next_event


def _format_event(name: str, data: dict[str, Any], event_id: str | None = None) -> bytes:
    id_line = b"" if event_id is None else b"id: %s\n" % event_id.encode()
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, name.encode(), orjson.dumps(data))
