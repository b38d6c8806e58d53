"""Serve the routes of the audit: search, follow, export, and show one entry."""

import contextlib
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response, StreamingResponse

from deputize.core.errors import (
    AuditEntryNotFound,
    AuditQueryTooBroad,
    ConcurrencyLimitReached,
    ReceiptPending,
)
from deputize.core.outcome import build_problem_fields
from deputize.interfaces.asgi_http import read_trace_id
from deputize.interfaces.audit_download import build_export_headers, stream_export
from deputize.interfaces.event_stream import stream_events
from deputize.interfaces.rest.audit.audit_models import (
    AuditExportQuery,
    AuditFilterQuery,
    AuditPage,
    AuditSearchQuery,
    EntryReceiptModel,
    ShownEntryModel,
)
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems
from deputize.operations.gateway import TailEvent

router = APIRouter(prefix="/v1/audit", tags=["audit"])


@router.get(
    "", summary="Search the audit", response_model=AuditPage,
    responses=describe_problems(AuditQueryTooBroad, ConcurrencyLimitReached),
)  # fmt: skip
async def search_audit(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[AuditSearchQuery, Query()]
) -> Response:
    """Search audit entries, newest first: your own, or the tenant's with the scope `deputize:audit` or as an
    administrator. Every search is an entry.
    """
    page = await gateway.audit_search.search(caller, query.to_audit_query(), before=query.before, limit=query.limit)
    return make_json_response(page)


@router.get(
    "/tail",
    summary="Follow the audit",
    response_class=StreamingResponse,
    responses={
        200: {"description": "One event per entry, as it is committed.", "content": {"text/event-stream": {}}},
        **describe_problems(ConcurrencyLimitReached),
    },
)
async def follow_audit(
    request: Request,
    gateway: CurrentGateway,
    caller: CurrentCaller,
    query: Annotated[AuditFilterQuery, Query()],
    last_event_id: Annotated[
        str | None, Header(max_length=100, description="The id of the last entry you received.")
    ] = None,
) -> Response:
    """Stream server-sent events until the token expires or is revoked, or the gateway stops. An entry from just before
    the last event id may come again.
    """
    events = gateway.audit_tail.follow(caller, query.to_audit_query(), after=_parse_entry_id(last_event_id))
    # Whether it may be opened is known before anything is sent.
    await anext(events)
    trace_id = read_trace_id(request.scope)
    stream = stream_events(
        events,
        request.app.state.shutdown,
        _format_event,
        lambda problem: b"event: error\ndata: %s\n\n" % orjson.dumps(build_problem_fields(problem, trace_id=trace_id)),
    )
    return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})


@router.get(
    "/export",
    summary="Export the audit",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "One line per entry, newest first. A response that breaks off is not complete.",
            "content": {"application/x-ndjson": {}, "text/csv": {}},
        },
        **describe_problems(AuditQueryTooBroad, ConcurrencyLimitReached),
    },
)
async def export_audit(
    request: Request, gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[AuditExportQuery, Query()]
) -> Response:
    """Export audit entries: your own, or the tenant's for an administrator or auditor."""
    chunks = gateway.audit_export.export(caller, query.to_audit_query(), query.format)
    first_chunk = await anext(chunks)
    return StreamingResponse(
        stream_export(first_chunk, chunks, request.app.state.shutdown),
        headers={"cache-control": "no-store", **build_export_headers(query.format)},
    )


@router.get(
    "/{entry_id}",
    summary="Show an audit entry",
    response_model=ShownEntryModel,
    responses=describe_problems(AuditEntryNotFound),
)
async def show_entry(gateway: CurrentGateway, caller: CurrentCaller, entry_id: str) -> Response:
    """Show one audit entry with the events that it records."""
    return make_json_response(await gateway.audit_search.show_entry(caller, entry_id))


@router.get(
    "/{entry_id}/receipt",
    summary="Get the receipt of an audit entry",
    response_model=EntryReceiptModel,
    responses=describe_problems(AuditEntryNotFound, ReceiptPending),
)
async def get_entry_receipt(gateway: CurrentGateway, caller: CurrentCaller, entry_id: str) -> Response:
    """Get a receipt of an audit entry that you may see. It proves offline what was recorded; an entry of the last
    second may have none yet (`receipt-pending`).
    """
    return make_json_response(await gateway.log_history.make_receipt(caller, entry_id))


def _parse_entry_id(text: str | None) -> UUID | None:
    """Parse an id; anything that is not one starts from now."""
    with contextlib.suppress(ValueError):
        return None if text is None else UUID(text)
    return None


def _format_event(event: TailEvent) -> bytes:
    lines = [b"event: gap\ndata: {}\n\n"] if event.is_gap else []
    return b"".join([*lines, *(each.format_once("json", _format_entry) for each in event.entries)])


def _format_entry(entry: dict[str, Any]) -> bytes:
    return b"id: %s\nevent: entry\ndata: %s\n\n" % (entry["id"].encode(), orjson.dumps(entry))
