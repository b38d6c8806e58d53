"""Approvals: calls that wait for people, and what people say to them.

Tokens for the console are good here. Who may decide is asked below; in development whoever shows the code that only the
gateway's own terminal shows is the person who sits there.
"""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials

from deputize.core.caller import Caller
from deputize.core.errors import (
    ApprovalChanged,
    ApprovalExpired,
    NotAnApprover,
    ParseFailed,
    Problem,
    SealBroken,
    TicketClosed,
    TicketNotFound,
    TooLarge,
    UnsupportedMedia,
)
from deputize.doors.rest.approval_models import (
    ApprovalPage,
    ApprovalShown,
    ApprovalsQuery,
    Approving,
    BreakingGlass,
    Decided,
    DecidedMany,
    DecidingMany,
    Denying,
)
from deputize.doors.rest.common import SCHEME, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.wire import headers_of

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])

_DECIDING: tuple[type[Problem], ...] = (
    NotAnApprover, TicketNotFound, TicketClosed, ApprovalChanged, ApprovalExpired, SealBroken, ParseFailed, TooLarge,
    UnsupportedMedia,
)  # fmt: skip


async def _caller(
    request: Request,
    gateway: CurrentGateway,
    _: Annotated[HTTPAuthorizationCredentials | None, Security(SCHEME)],
) -> Caller:
    return await gateway.caller(headers_of(request.scope).get(b"authorization"), deciding=True)


Looking = Annotated[Caller, Depends(_caller)]


async def _person(
    gateway: CurrentGateway,
    caller: Looking,
    ticket_id: str,
    deputize_code: Annotated[
        str | None,
        Header(max_length=64, description="In development: the code that the terminal of the gateway shows."),
    ] = None,
) -> Caller:
    if deputize_code is None:
        return caller
    return await gateway.approvals.at_terminal(caller, ticket_id, deputize_code)


Deciding = Annotated[Caller, Depends(_person)]


@router.get("", summary="List calls that wait for people", response_model=ApprovalPage, responses=problems())
async def list_approvals(
    gateway: CurrentGateway, caller: Looking, query: Annotated[ApprovalsQuery, Query()]
) -> Response:
    """Newest first: with a token for the console what waits for your groups, with any other what your own calls wait
    for; for an administrator the tenant's.
    """
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    found = await gateway.approvals.page(caller, state=state, before=before, limit=query.limit)
    last = found[-1]["ticket_id"] if len(found) == query.limit else None
    return reply({"approvals": found, "next_before": last})


@router.get(
    "/{ticket_id}",
    summary="Show what is to be decided",
    response_model=ApprovalShown,
    responses=problems(TicketNotFound, SealBroken),
)
async def show_approval(gateway: CurrentGateway, caller: Looking, ticket_id: str) -> Response:
    """By the id of the ticket or of the call. For those who are asked, who made the call, and administrators."""
    return reply(await gateway.approvals.show(caller, ticket_id))


@router.post(
    "/batch",
    summary="Decide about equal calls at once",
    response_model=DecidedMany,
    responses=problems(*_DECIDING),
    openapi_extra=body_of("DecidingMany"),
)
async def decide_many(request: Request, gateway: CurrentGateway, caller: Looking) -> Response:
    """The same word on calls that differ in nothing but the arguments you name; if they do, none is decided. Each is
    decided by itself, and listed with what came of it.
    """
    asked = checked(DecidingMany, await json_body(request, gateway))
    tickets = [str(each) for each in asked.tickets]
    decided = await gateway.approvals.decide_many(
        caller, tickets, asked.decision, reason=asked.reason, vary=asked.vary
    )  # fmt: skip
    return reply({"decisions": decided})


@router.post(
    "/{ticket_id}/approve",
    summary="Say yes",
    response_model=Decided,
    responses=problems(*_DECIDING),
    openapi_extra=body_of("Approving"),
)
async def approve(request: Request, gateway: CurrentGateway, caller: Deciding, ticket_id: str) -> Response:
    """For people of the groups that are asked, signed in a moment ago for deciding, with no part in the call. The last
    yes that is needed lets the call go on by itself.
    """
    said = checked(Approving, await json_body(request, gateway))
    return reply(await gateway.approvals.approve(caller, ticket_id, reason=said.reason, binding=said.binding))


@router.post(
    "/{ticket_id}/deny",
    summary="Say no",
    response_model=Decided,
    responses=problems(*_DECIDING),
    openapi_extra=body_of("Denying"),
)
async def deny(request: Request, gateway: CurrentGateway, caller: Deciding, ticket_id: str) -> Response:
    """One no ends the call. Whoever made it reads the reason."""
    said = checked(Denying, await json_body(request, gateway))
    return reply(await gateway.approvals.deny(caller, ticket_id, reason=said.reason, binding=said.binding))


@router.post(
    "/{ticket_id}/break-glass",
    summary="Let a call go on in an emergency",
    response_model=Decided,
    responses=problems(*_DECIDING),
    openapi_extra=body_of("BreakingGlass"),
)
async def break_glass(request: Request, gateway: CurrentGateway, caller: Deciding, ticket_id: str) -> Response:
    """Two different people with the scope `deputize:break-glass` do what nobody who was asked is there to do. Everybody
    who was asked is told, and the log says it loudly.
    """
    said = checked(BreakingGlass, await json_body(request, gateway))
    return reply(await gateway.approvals.break_glass(caller, ticket_id, reason=said.reason, binding=said.binding))
