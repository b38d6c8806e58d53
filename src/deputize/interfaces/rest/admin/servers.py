"""Serve the routes of MCP servers for administrators: their status, their changes, and decisions about changes."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.contract.contract import Effects
from deputize.core.errors import (
    CredentialExpired,
    CredentialMissing,
    DisabledByKillSwitch,
    EgressDenied,
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    ServerChangeNotFound,
    ServerNotFound,
    ToolNotAdmitted,
    UnsealFailed,
    UnsupportedMedia,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
    VaultUnavailable,
    VersionNotInCapability,
)
from deputize.interfaces.rest.admin.server_models import (
    ConfirmedEffectListModel,
    ConfirmEffectsBody,
    ServerChangeDecisionBody,
    ServerChangeDecisionResult,
    ServerChangeListModel,
    ServerChangesQuery,
    ServerListModel,
    ServerModel,
    ServerProbeResult,
    ServerToolListModel,
)
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    CurrentOperator,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.operations.gateway import EffectChoice

router = APIRouter(prefix="/v1/servers", tags=["administration"])


@router.get("", summary="List MCP servers", response_model=ServerListModel, responses=describe_problems(ScopeMissing))
async def list_servers(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List the servers in the settings, with the status that this gateway's last probe found."""
    return make_json_response({"servers": await gateway.servers.list_servers(caller)})


@router.get(
    "/{name}",
    summary="Show an MCP server",
    response_model=ServerModel,
    responses=describe_problems(ServerNotFound, ScopeMissing),
)
async def show_server(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """Show a server with all its pins."""
    return make_json_response(await gateway.servers.get_server(caller, name))


@router.post(
    "/{name}/test",
    summary="Probe an MCP server now",
    response_model=ServerProbeResult,
    responses=describe_problems(
        ServerNotFound,
        ScopeMissing,
        VersionNotInCapability,
        DisabledByKillSwitch,
        UpstreamUnavailable,
        UpstreamTimeout,
        UpstreamRateLimited,
        EgressDenied,
        CredentialMissing,
        CredentialExpired,
        VaultUnavailable,
        UnsealFailed,
    ),
)
async def probe_server(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """Probe a server as the gateway does periodically: new definitions are registered or held for review."""
    return make_json_response(await gateway.servers.probe_server(caller, name))


@router.get(
    "/{name}/changes",
    summary="List changes of an MCP server",
    response_model=ServerChangeListModel,
    responses=describe_problems(ServerNotFound, ScopeMissing),
)
async def list_server_changes(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[ServerChangesQuery, Query()]
) -> Response:
    """List definitions that differ from their pins, with the differences and findings. Hidden characters are shown."""
    state = None if query.state == "all" else query.state
    return make_json_response(
        {"changes": await gateway.servers.list_changes(caller, name, state=state, limit=query.limit)}
    )


@router.post(
    "/{name}/changes/decide",
    summary="Accept or reject a change of an MCP server",
    response_model=ServerChangeDecisionResult,
    responses=describe_problems(
        ServerNotFound,
        ServerChangeNotFound,
        ToolNotAdmitted,
        OperatorConfirmationRequired,
        ParseFailed,
        RequestTooLarge,
        UnsupportedMedia,
        ScopeMissing,
        VersionNotInCapability,
        DisabledByKillSwitch,
    ),
    openapi_extra=describe_body(ServerChangeDecisionBody),
)
async def decide_server_change(
    request: Request, gateway: CurrentGateway, caller: CurrentOperator, name: str
) -> Response:
    """Decide about exactly the content with this digest. An accepted change becomes the next major version."""
    body = validate_body(ServerChangeDecisionBody, await read_json_body(request, gateway))
    return make_json_response(
        await gateway.review.decide_change(caller, name, body.item, body.digest, body.decision, body.reason)
    )


@router.get(
    "/{name}/tools",
    summary="List the tools of an MCP server",
    response_model=ServerToolListModel,
    responses=describe_problems(ServerNotFound, ScopeMissing),
)
async def list_server_tools(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """List the pinned tools with their definitions, what they do and who says so, and what else is proposed."""
    return make_json_response({"tools": await gateway.effects.list_tools(caller, name)})


@router.post(
    "/{name}/effects",
    summary="Confirm what tools of an MCP server do",
    response_model=ConfirmedEffectListModel,
    responses=describe_problems(
        ServerNotFound,
        ServerChangeNotFound,
        ToolNotAdmitted,
        OperatorConfirmationRequired,
        ParseFailed,
        RequestTooLarge,
        UnsupportedMedia,
        ScopeMissing,
        VersionNotInCapability,
        DisabledByKillSwitch,
    ),
    openapi_extra=describe_body(ConfirmEffectsBody),
)
async def confirm_effects(request: Request, gateway: CurrentGateway, caller: CurrentOperator, name: str) -> Response:
    """Confirm the effects of exactly these definitions. A tool whose effects change gets its next minor version."""
    body = validate_body(ConfirmEffectsBody, await read_json_body(request, gateway))
    choices = [EffectChoice(tool=each.tool, digest=each.digest, effects=Effects(each.effects)) for each in body.choices]
    return make_json_response({"tools": await gateway.effects.confirm_effects(caller, name, choices)})
