"""MCP servers, for administrators: how each stands, what changed in it, and their decisions about that."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.errors import (
    ChangeNotFound,
    CredentialExpired,
    CredentialMissing,
    EgressDenied,
    NotAdmitted,
    NotInCapability,
    ParseFailed,
    ScopeMissing,
    SealBroken,
    ServerNotFound,
    SwitchedOff,
    TooLarge,
    UnsupportedMedia,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
    VaultUnavailable,
)
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.server_models import (
    ChangeDecided,
    ChangeDone,
    ChangesListed,
    ChangesQuery,
    ServerShown,
    ServersListed,
    ServerTested,
)

router = APIRouter(prefix="/v1/servers", tags=["administration"])


@router.get("", summary="List MCP servers", response_model=ServersListed, responses=problems(ScopeMissing))
async def list_servers(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Those of the settings, each as this gateway last found it."""
    return reply({"servers": await gateway.servers.listed(caller)})


@router.get(
    "/{name}",
    summary="Show an MCP server",
    response_model=ServerShown,
    responses=problems(ServerNotFound, ScopeMissing),
)
async def show_server(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """With everything that was agreed to of what it says."""
    return reply(await gateway.servers.show(caller, name))


@router.post(
    "/{name}/test",
    summary="Look at an MCP server now",
    response_model=ServerTested,
    responses=problems(
        ServerNotFound, ScopeMissing, NotInCapability, SwitchedOff, UpstreamUnavailable, UpstreamTimeout,
        UpstreamRateLimited, EgressDenied, CredentialMissing, CredentialExpired, VaultUnavailable, SealBroken,
    ),
)  # fmt: skip
async def look_at_server(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """A look like those the gateway takes by itself: new things are registered or held by the same rules."""
    return reply(await gateway.servers.test(caller, name))


@router.get(
    "/{name}/changes",
    summary="List what an MCP server says otherwise than agreed",
    response_model=ChangesListed,
    responses=problems(ServerNotFound, ScopeMissing),
)
async def list_changes(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[ChangesQuery, Query()]
) -> Response:
    """Each with what differs and what is odd about it, everything hidden made visible."""
    state = None if query.state == "all" else query.state
    return reply({"changes": await gateway.servers.changes(caller, name, state=state, limit=query.limit)})


@router.post(
    "/{name}/changes/decide",
    summary="Accept or reject a change of an MCP server",
    response_model=ChangeDone,
    responses=problems(
        ServerNotFound, ChangeNotFound, NotAdmitted, ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing,
        NotInCapability, SwitchedOff,
    ),
    openapi_extra=body_of("ChangeDecided"),
)  # fmt: skip
async def decide_change(request: Request, gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """About exactly the content that the digest names. What is accepted is registered as the next major version."""
    asked = checked(ChangeDecided, await json_body(request, gateway))
    return reply(await gateway.review.decide(caller, name, asked.item, asked.digest, asked.decision, asked.reason))
