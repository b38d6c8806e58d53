"""What tools there are, and for administrators what becomes of them."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.contract import inward
from deputize.core.errors import (
    NotAdmitted,
    ParseFailed,
    RequiresSetup,
    ScopeMissing,
    SearchFailed,
    TooLarge,
    ToolDisabled,
    ToolNotFound,
    ToolRetired,
    UnsupportedMedia,
    VersionConflict,
    VersionNotFound,
)
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.models import (
    RevocationAsked,
    RevocationMade,
    SearchFound,
    SearchQuery,
    StateAsked,
    ToolDetail,
    ToolPage,
    ToolRegistered,
    ToolsQuery,
    ToolState,
    ToolVersions,
    VersionQuery,
)

router = APIRouter(prefix="/v1", tags=["tools"])
commands = APIRouter(prefix="/v1", tags=["administration"])

_UNRESOLVED = (ToolNotFound, VersionNotFound, ToolRetired, ToolDisabled, RequiresSetup)
_WITH_BODY = (ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing)


@router.get("/tools", summary="List tools", response_model=ToolPage, responses=problems())
async def list_tools(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[ToolsQuery, Query()]) -> Response:
    """In order of name, the tools this token lets you see."""
    listing = await gateway.surface.page(caller, after=query.after, limit=query.limit)
    return reply({"tools": listing.tools, "next_after": listing.next_after})


@router.get("/tools/search", summary="Search tools", response_model=SearchFound, responses=problems(SearchFailed))
async def search_tools(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SearchQuery, Query()]
) -> Response:
    """Best match first; finding nothing is an answer too."""
    return reply(await gateway.surface.search(caller, query.q, limit=query.limit))


@router.get("/tools/{name}", summary="Show a tool", response_model=ToolDetail, responses=problems(*_UNRESOLVED))
async def show_tool(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[VersionQuery, Query()]
) -> Response:
    """Everything needed to call one version of it."""
    return reply(await gateway.surface.show(caller, name, query.version))


@router.get(
    "/tools/{name}/versions", summary="List versions", response_model=ToolVersions, responses=problems(*_UNRESOLVED)
)
async def list_versions(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    return reply({"versions": await gateway.surface.versions(caller, name)})


@commands.post(
    "/tools",
    summary="Register a tool",
    status_code=201,
    response_model=ToolRegistered,
    responses={
        200: {"model": ToolRegistered, "description": "It was registered already, exactly like this."},
        **problems(NotAdmitted, VersionConflict, RequiresSetup, *_WITH_BODY),
    },
    openapi_extra=body_of("Manifest", described="A manifest whose handler names a function loaded in this gateway."),
)
async def register_tool(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators. A registered version never changes; the same again changes nothing."""
    contract, registered = await gateway.commands.declare(caller, await json_body(request, gateway))
    shown = {
        "name": contract.full_name,
        "version": contract.version,
        "digest": contract.digest,
        "registered": registered,
    }
    return reply(shown, status=201 if registered == "created" else 200)


@commands.post(
    "/tools/{name}/versions/{version}/state",
    summary="Retire, disable or release a version",
    response_model=ToolState,
    responses=problems(ToolNotFound, VersionNotFound, ToolRetired, *_WITH_BODY),
    openapi_extra=body_of("StateAsked"),
)
async def set_state(
    request: Request, gateway: CurrentGateway, caller: CurrentCaller, name: str, version: str
) -> Response:
    """For administrators. From the answer on, no gateway begins a call that this forbids."""
    asked = checked(StateAsked, await json_body(request, gateway))
    full_name = inward(name)
    await gateway.commands.set_state(caller, full_name, version, asked.state)
    return reply({"name": full_name, "version": version, "state": asked.state})


@commands.post(
    "/revocations",
    summary="Revoke a token, a delegation, a user or an agent",
    status_code=201,
    response_model=RevocationMade,
    responses=problems(*_WITH_BODY),
    openapi_extra=body_of("RevocationAsked"),
)
async def revoke(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators. From the answer on, nothing begins on the revoked authority, on any gateway."""
    asked = checked(RevocationAsked, await json_body(request, gateway))
    epoch = await gateway.commands.revoke(caller, asked.kind, asked.value, reason=asked.reason)
    return reply({"kind": asked.kind, "value": asked.value, "epoch": epoch}, status=201)
