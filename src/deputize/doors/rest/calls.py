"""Looking at calls, following one while it runs, asking for its end, for it again, or for an earlier point of it."""

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
    NotCancelable,
    NotInCapability,
    NotRetryable,
    ParseFailed,
    Problem,
    ScopeMissing,
    SealBroken,
    StreamUnavailable,
    SwitchedOff,
    TooLarge,
    ToolNotFound,
    UnsupportedMedia,
    every_problem,
)
from deputize.core.outcome import problem_fields
from deputize.doors.rest.call_models import (
    Accepted,
    CallOpen,
    CallPage,
    CallShown,
    CallsQuery,
    Canceling,
    Envelope,
    NeedsInput,
    RollbackAsked,
    SentBack,
)
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import OF_THE_ROUTER, body_of, problems
from deputize.doors.rest.hot import outcome_headers
from deputize.doors.rest.models import ProblemShown
from deputize.doors.wire import retry_after, trace_id_of
from deputize.lifecycle.calls import Seen

router = APIRouter(prefix="/v1/calls", tags=["calls"])

KEEP_ALIVE_SECONDS = 15.0


@router.get("", summary="List calls that changed something", response_model=CallPage, responses=problems())
async def list_calls(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[CallsQuery, Query()]) -> Response:
    """Newest first; your own, or for an administrator the tenant's. Reads are listed only where they became runs."""
    before = None if query.before is None else str(query.before)
    calls = await gateway.calls.page(caller, before=before, limit=query.limit)
    last = calls[-1]["call_id"] if len(calls) == query.limit else None
    return reply({"calls": calls, "next_before": last})


@router.get(
    "/{call_id}",
    summary="Look at a call",
    response_model=Envelope | NeedsInput | ProblemShown | CallOpen | CallShown,
    responses=problems(CallNotFound, SealBroken),
)
async def show_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """The envelope as it was answered; for a call still open, how far it is and, in `Retry-After`, when to look again;
    for a read, what is known of it.
    """
    shown = await gateway.calls.show(caller, call_id)
    response = Response(shown.body, media_type="application/json")
    if shown.poll_after_ms is not None:
        name, value = retry_after(shown.poll_after_ms)
        response.headers[name.decode()] = value.decode()
    return response


@router.post(
    "/{call_id}/cancel",
    summary="Ask a call to stop",
    status_code=202,
    response_model=Canceling,
    responses=problems(CallNotFound, NotCancelable, NotInCapability),
)
async def cancel_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Recorded always, obeyed where the tool can be stopped: a queued call ends at once, a worker's within a second."""
    return reply(await gateway.cancellations.cancel(caller, call_id), status=202)


@router.post(
    "/{call_id}/retry",
    summary="Try a call again",
    status_code=202,
    response_model=Accepted,
    responses={
        200: {"model": Envelope, "description": "It was tried again before, and this is what came of it."},
        **problems(*(kind for kind in every_problem() if kind.face.slug not in OF_THE_ROUTER), always=()),
    },
)
async def retry_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """For calls that were queued and came to no good end. One whose outcome is unknown goes on, where its upstream
    takes a repeated key once; one that did nothing is made anew. Any other is refused (`not-retryable`).
    """
    outcome = await gateway.lifecycle.retry(caller, call_id)
    told = {name.decode(): value.decode() for name, value in outcome_headers(outcome, gateway.metadata_url)}
    return Response(outcome.body, status_code=outcome.http_status, headers=told)


@router.post(
    "/{call_id}/rollback",
    summary="Send a run back to a checkpoint",
    status_code=202,
    response_model=SentBack,
    responses=problems(
        CallNotFound, CheckpointNotFound, NotRetryable, ToolNotFound, ParseFailed, TooLarge, UnsupportedMedia,
        ScopeMissing, NotInCapability, SwitchedOff,
    ),
    openapi_extra=body_of("RollbackAsked"),
)  # fmt: skip
async def roll_back_call(request: Request, gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """For runs that have not come to an end, of tools whose upstream takes a repeated key once. Whoever carries the run
    now is cut off from it; it goes on from the checkpoint of that name. What it did since stays done.
    """
    asked = checked(RollbackAsked, await json_body(request, gateway))
    return reply(await gateway.rollbacks.roll_back(caller, call_id, asked.checkpoint), status=202)


@router.get(
    "/{call_id}/events",
    summary="Follow a call",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One event per state, each word of its tool, until the end.",
            "content": {"text/event-stream": {}},
        },
        **problems(CallNotFound, SealBroken, StreamUnavailable),
    },
)
async def follow_call(
    request: Request,
    gateway: CurrentGateway,
    caller: CurrentCaller,
    call_id: str,
    last_event_id: Annotated[
        str | None, Header(max_length=100, description="The last event that was seen; what came since is sent.")
    ] = None,
) -> Response:
    """Server-sent events. A stream may end early when the gateway stops; clients come back by themselves."""
    # The call is looked for before anything is sent, so that an unknown one is still a 404.
    events = await gateway.calls.follow(caller, call_id, after=last_event_id)
    stream = _stream(events, request.app.state.closing, trace_id_of(request.scope))
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _stream(events: AsyncIterator[Seen], closing: asyncio.Event, trace_id: str) -> AsyncIterator[bytes]:
    lead = b"retry: 1000\n"
    following = asyncio.ensure_future(anext(events, None))
    closed = asyncio.ensure_future(closing.wait())
    try:
        while not closed.done():
            either: set[asyncio.Future[Any]] = {following, closed}
            await asyncio.wait(either, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                yield lead + b": still here\n\n"
                lead = b""
                continue
            seen = following.result()
            if seen is None:
                return
            yield lead + _event(seen.event, seen.facts, seen.id)
            lead = b""
            following = asyncio.ensure_future(anext(events, None))
    except Problem as problem:
        yield _event("error", problem_fields(problem, trace_id=trace_id))
    finally:
        closed.cancel()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, Problem):
            await following


def _event(name: str, data: dict[str, Any], event_id: str | None = None) -> bytes:
    known_by = b"" if event_id is None else b"id: %s\n" % event_id.encode()
    return b"%sevent: %s\ndata: %s\n\n" % (known_by, name.encode(), orjson.dumps(data))
