"""Tickets, for administrators: what the gateway could not find out by itself, and their answers."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.errors import (
    NotInCapability,
    ParseFailed,
    ScopeMissing,
    SwitchedOff,
    TicketClosed,
    TicketNotFound,
    TooLarge,
    ToolNotFound,
    UnsupportedMedia,
)
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.ticket_models import TicketAnswer, TicketPage, TicketShown, TicketsQuery

router = APIRouter(prefix="/v1/tickets", tags=["administration"])


@router.get("", summary="List tickets", response_model=TicketPage, responses=problems(ScopeMissing))
async def list_tickets(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[TicketsQuery, Query()]
) -> Response:
    """Newest first: what waits for an answer, unless another state is asked for."""
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    found = await gateway.tickets.page(caller, state=state, before=before, limit=query.limit)
    last = found[-1]["ticket_id"] if len(found) == query.limit else None
    return reply({"tickets": found, "next_before": last})


@router.get(
    "/{ticket_id}",
    summary="Show a ticket",
    response_model=TicketShown,
    responses=problems(TicketNotFound, ScopeMissing),
)
async def show_ticket(gateway: CurrentGateway, caller: CurrentCaller, ticket_id: str) -> Response:
    return reply(await gateway.tickets.show(caller, ticket_id))


@router.post(
    "/{ticket_id}/resolve",
    summary="Answer a ticket",
    response_model=TicketShown,
    responses=problems(
        TicketNotFound, TicketClosed, ToolNotFound, ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing,
        NotInCapability, SwitchedOff,
    ),
    openapi_extra=body_of("TicketAnswer"),
)  # fmt: skip
async def resolve_ticket(request: Request, gateway: CurrentGateway, caller: CurrentCaller, ticket_id: str) -> Response:
    """Settles the call the ticket is about. Whoever repeats it with its key hears the end you found out."""
    answer = checked(TicketAnswer, await json_body(request, gateway))
    return reply(await gateway.tickets.resolve(caller, ticket_id, answer.outcome, answer.reason))
