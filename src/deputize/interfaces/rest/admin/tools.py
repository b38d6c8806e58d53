"""Serve the routes of tools: list, search and show; for administrators also register and retire."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.contract.contract import Contract
from deputize.core.contract.names import to_full_name
from deputize.core.errors import (
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    ToolDisabled,
    ToolNotAdmitted,
    ToolNotFound,
    ToolRequiresSetup,
    ToolRetired,
    UnsupportedMedia,
    VersionConflict,
    VersionInUse,
    VersionNotFound,
)
from deputize.interfaces.negotiation_request import NegotiationBody, parse_negotiation
from deputize.interfaces.rest.admin.service_level_models import ServiceLevelsModel, ServiceLevelsQuery, ToolHealthReport
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    CurrentOperator,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import (
    DeprecationBody,
    DeprecationResult,
    ExportQuery,
    NegotiationResult,
    SearchQuery,
    SearchResultModel,
    ToolDetailModel,
    ToolExportModel,
    ToolPage,
    ToolRegistrationResult,
    ToolsQuery,
    ToolStateBody,
    ToolStateResult,
    ToolVersions,
    VersionQuery,
    VersionUsageModel,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.operations.gateway import DeprecationRequest

router = APIRouter(prefix="/v1", tags=["tools"])
commands = APIRouter(prefix="/v1", tags=["administration"])

_RESOLUTION_PROBLEMS = (ToolNotFound, VersionNotFound, ToolRetired, ToolDisabled, ToolRequiresSetup)
_BODY_PROBLEMS = (ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing)


@router.get("/tools", summary="List tools", response_model=ToolPage, responses=describe_problems())
async def list_tools(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[ToolsQuery, Query()]) -> Response:
    """List the tools that your token lets you see, sorted by name."""
    listing = await gateway.surface.list_tools(caller, after=query.after, limit=query.limit)
    return make_json_response({"tools": listing.tools, "next_after": listing.next_after})


@router.get("/tools/search", summary="Search tools", response_model=SearchResultModel, responses=describe_problems())
async def search_tools(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SearchQuery, Query()]
) -> Response:
    """Search the tools you see, best match first. No match is an empty list, not an error."""
    return make_json_response(await gateway.surface.search_tools(caller, query.q, limit=query.limit))


@router.get(
    "/tools/{name}",
    summary="Show a tool",
    response_model=ToolDetailModel,
    responses=describe_problems(*_RESOLUTION_PROBLEMS),
)
async def show_tool(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[VersionQuery, Query()]
) -> Response:
    """Show everything needed to call one version."""
    return make_json_response(await gateway.surface.show_tool(caller, name, query.version))


@router.get(
    "/tools/{name}/versions",
    summary="List the versions of a tool",
    response_model=ToolVersions,
    responses=describe_problems(*_RESOLUTION_PROBLEMS),
)
async def list_tool_versions(gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    return make_json_response({"versions": await gateway.surface.list_versions(caller, name)})


@router.get(
    "/tools/{name}/export",
    summary="Export a tool",
    response_model=ToolExportModel,
    responses=describe_problems(*_RESOLUTION_PROBLEMS),
)
async def export_tool(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[ExportQuery, Query()]
) -> Response:
    """Export one version. A call of a definition's name is a call of the tool. As `agent-tool`, administrators also get
    its handler, internal arguments and hooks: a document that can be registered elsewhere.
    """
    return make_json_response(await gateway.exports.export_tool(caller, name, query.version, query.format))


@router.post(
    "/tools/{name}/negotiation",
    summary="Negotiate a version of a tool",
    response_model=NegotiationResult,
    responses=describe_problems(ToolNotFound, ParseFailed, RequestTooLarge, UnsupportedMedia),
    openapi_extra=describe_body(NegotiationBody),
)
async def negotiate_version(request: Request, gateway: CurrentGateway, caller: CurrentCaller, name: str) -> Response:
    """Find the best version that offers what you expect. It makes no call and changes nothing."""
    body = parse_negotiation(await read_json_body(request, gateway))
    return make_json_response(
        await gateway.negotiations.negotiate_version(caller, name, body.version, body.build_expectation())
    )


@commands.post(
    "/tools",
    summary="Register a tool",
    status_code=201,
    response_model=ToolRegistrationResult,
    responses={
        200: {
            "model": ToolRegistrationResult,
            "description": "This version was registered before with the same content.",
        },
        **describe_problems(
            ToolNotAdmitted, VersionConflict, ToolRequiresSetup, OperatorConfirmationRequired, *_BODY_PROBLEMS
        ),
    },
    openapi_extra=describe_body(
        Contract,
        name="Manifest",
        description="A manifest, or a document of Agent Tool 0.2.0, whose handler is loaded by this gateway.",
    ),
)
async def register_tool(request: Request, gateway: CurrentGateway, caller: CurrentOperator) -> Response:
    """Register a version, which never changes; registering it again changes nothing. Needs an administrator."""
    contract, registration = await gateway.commands.register_manifest(caller, await read_json_body(request, gateway))
    result = {
        "name": contract.full_name,
        "version": contract.version,
        "digest": contract.digest,
        "registration": registration,
        "warnings": await gateway.service_levels.list_timeout_warnings(caller, contract),
    }
    return make_json_response(result, status=201 if registration == "created" else 200)


@commands.post(
    "/tools/{name}/versions/{version}/state",
    summary="Retire, disable or release a version",
    response_model=ToolStateResult,
    responses=describe_problems(
        ToolNotFound, VersionNotFound, ToolRetired, VersionInUse, OperatorConfirmationRequired, *_BODY_PROBLEMS
    ),
    openapi_extra=describe_body(ToolStateBody),
)
async def set_tool_state(
    request: Request, gateway: CurrentGateway, caller: CurrentOperator, name: str, version: str
) -> Response:
    """Set a state. Once this returns, no gateway starts a call that the state forbids. Needs an administrator."""
    body = validate_body(ToolStateBody, await read_json_body(request, gateway))
    full_name = to_full_name(name)
    await gateway.commands.set_state(caller, full_name, version, body.state, force=body.force)
    return make_json_response({"name": full_name, "version": version, "state": body.state})


@commands.put(
    "/tools/{name}/versions/{version}/deprecation",
    summary="Deprecate a version",
    response_model=DeprecationResult,
    responses=describe_problems(
        ToolNotFound, VersionNotFound, ToolRetired, OperatorConfirmationRequired, *_BODY_PROBLEMS
    ),
    openapi_extra=describe_body(DeprecationBody),
)
async def deprecate_version(
    request: Request, gateway: CurrentGateway, caller: CurrentOperator, name: str, version: str
) -> Response:
    """Announce the end of a version, or change the announcement. Calls go on until then. Needs an administrator."""
    body = validate_body(DeprecationBody, await read_json_body(request, gateway))
    notice = await gateway.deprecations.deprecate_version(
        caller,
        name,
        version,
        DeprecationRequest(
            removal_at=body.removal_date, successor=body.successor, migration_guide=body.migration_guide
        ),
    )
    return make_json_response(
        {"name": to_full_name(name), "version": version, "state": "deprecated", "deprecation": notice.to_json()}
    )


@commands.delete(
    "/tools/{name}/versions/{version}/deprecation",
    summary="Roll a deprecation back",
    response_model=DeprecationResult,
    responses=describe_problems(ToolNotFound, VersionNotFound, OperatorConfirmationRequired, ScopeMissing),
)
async def roll_back_deprecation(gateway: CurrentGateway, caller: CurrentOperator, name: str, version: str) -> Response:
    """Make a deprecated version available again, also after its removal date. Needs an administrator."""
    await gateway.deprecations.roll_back(caller, name, version)
    return make_json_response(
        {"name": to_full_name(name), "version": version, "state": "available", "deprecation": None}
    )


@commands.get(
    "/tools/{name}/versions/{version}/usage",
    summary="Report who uses a deprecated version",
    response_model=VersionUsageModel,
    responses=describe_problems(ToolNotFound, VersionNotFound, ScopeMissing),
)
async def report_usage(gateway: CurrentGateway, caller: CurrentCaller, name: str, version: str) -> Response:
    """Report who called a deprecated version in the last seven days. Needs an administrator."""
    return make_json_response(await gateway.deprecations.report_usage(caller, name, version))


@commands.get(
    "/tools/{name}/service-levels",
    summary="Report how a tool does against what it promises",
    response_model=ServiceLevelsModel,
    responses=describe_problems(ToolNotFound, VersionNotFound, ScopeMissing),
)
async def report_service_levels(
    gateway: CurrentGateway, caller: CurrentCaller, name: str, query: Annotated[ServiceLevelsQuery, Query()]
) -> Response:
    """Report latency, availability, accuracy and cost of each version that was called in the last days, beside the
    objectives of its contract, and which timeout class fits. Needs an administrator.
    """
    return make_json_response(await gateway.service_levels.report_levels(caller, name, query.version, query.days))


@commands.get(
    "/tool-health",
    summary="Report the health of tools",
    response_model=ToolHealthReport,
    responses=describe_problems(ScopeMissing),
)
async def report_tool_health(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Report a score from 0 to 1 for each tool that was called in the last 15 minutes, the worst first, and what lowers
    it. Needs an administrator.
    """
    return make_json_response(await gateway.tool_health.report_health(caller))
