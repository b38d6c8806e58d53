"""Looking back at calls, following one while it runs, and asking for its end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from deputize.core.errors import CallNotFound, NotCancelable, Problem, SealBroken, StreamUnavailable
from deputize.core.events import Event
from deputize.core.outcome import problem_fields
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, reply
from deputize.doors.rest.document import problems
from deputize.doors.rest.models import CallPage, CallShown, CallsQuery, Canceling, Envelope, ProblemShown
from deputize.doors.wire import trace_id_of

router = APIRouter(prefix="/v1/calls", tags=["calls"])

KEEP_ALIVE_SECONDS = 15.0
_Events = AsyncIterator[tuple[Event, dict[str, Any]]]


@router.get("", summary="List calls that changed something", response_model=CallPage, responses=problems())
async def list_calls(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[CallsQuery, Query()]) -> Response:
    """Newest first; your own, or for an administrator the tenant's. Reads leave an audit entry and are not listed."""
    before = None if query.before is None else str(query.before)
    calls = await gateway.calls.page(caller, before=before, limit=query.limit)
    last = calls[-1]["call_id"] if len(calls) == query.limit else None
    return reply({"calls": calls, "next_before": last})


@router.get(
    "/{call_id}",
    summary="Look at a call",
    response_model=Envelope | ProblemShown | CallShown,
    responses=problems(CallNotFound, SealBroken),
)
async def show_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """The envelope as it was answered; for a call still open, or a read, what is known of it."""
    return Response(await gateway.calls.show(caller, call_id), media_type="application/json")


@router.post(
    "/{call_id}/cancel",
    summary="Ask a call to stop",
    status_code=202,
    response_model=Canceling,
    responses=problems(CallNotFound, NotCancelable),
)
async def cancel_call(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Recorded always, obeyed where the tool can be stopped."""
    return reply(await gateway.calls.cancel(caller, call_id), status=202)


@router.get(
    "/{call_id}/events",
    summary="Follow a call",
    response_class=StreamingResponse,
    responses={
        200: {"description": "One event per state, until the last.", "content": {"text/event-stream": {}}},
        **problems(CallNotFound, StreamUnavailable),
    },
)
async def follow_call(request: Request, gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Server-sent events. A stream may end early when the gateway stops; clients come back by themselves."""
    events = gateway.calls.events(caller, call_id)
    # The first event is fetched before anything is sent, so that an unknown call is still a 404.
    first = await anext(events)
    stream = _stream(first, events, request.app.state.closing, trace_id_of(request.scope))
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


async def _stream(
    first: tuple[Event, dict[str, Any]], events: _Events, closing: asyncio.Event, trace_id: str
) -> AsyncIterator[bytes]:
    number = 1
    yield b"retry: 1000\n" + _event(number, *first)
    following = asyncio.ensure_future(anext(events, None))
    closed = asyncio.ensure_future(closing.wait())
    either: set[asyncio.Future[Any]] = {following, closed}
    try:
        while not closed.done():
            await asyncio.wait(either, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                yield b": still here\n\n"
                continue
            seen = following.result()
            if seen is None:
                return
            number += 1
            yield _event(number, *seen)
            following = asyncio.ensure_future(anext(events, None))
            either = {following, closed}
    except Problem as problem:
        yield _event(number + 1, "error", problem_fields(problem, trace_id=trace_id))
    finally:
        closed.cancel()
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError, Problem):
            await following


def _event(number: int, name: str, data: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (number, name.encode(), orjson.dumps(data))
