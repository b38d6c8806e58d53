"""Serve the caller's surface: each tool with its availability and the reason."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract.availability import AvailabilityCode
from deputize.core.contract.contract import Effects
from deputize.interfaces.call_request import MAX_TOOL_LENGTH
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.models import Digest
from deputize.interfaces.rest.openapi import describe_problems
from deputize.operations.gateway import ToolSelection

router = APIRouter(prefix="/v1", tags=["tools"])


class SurfaceQuery(BaseModel):
    after: str = Field("", max_length=MAX_TOOL_LENGTH, description="The last name of the previous page.")
    limit: int = Field(100, ge=1, le=500, description="The maximum number to return.")
    namespace: list[str] = Field(default_factory=list, max_length=50, description="Exclude other namespaces.")
    tag: list[str] = Field(default_factory=list, max_length=50, description="Exclude tools with none of these tags.")
    worst: Effects | None = Field(None, description="Exclude tools whose effects are worse than this.")


class SurfaceRule(BaseModel):
    id: str
    where: str = Field(description="File and line; empty for agents.")
    reason: str


class SurfaceReason(BaseModel):
    code: AvailabilityCode
    message: str
    rules: list[SurfaceRule]


class SurfaceTool(BaseModel):
    name: str
    version: str
    digest: Digest
    status: Literal["loaded", "deferred", "blocked", "excluded"]
    reason: SurfaceReason


class SurfaceScope(BaseModel):
    tenant: str
    user: str
    agents: list[str]
    session: str | None
    task: str | None


class SurfaceModel(BaseModel):
    """The availability of each tool for one caller. Tools that the token hides are left out."""

    scope: SurfaceScope
    policy_digest: Digest
    created_at: str
    tools: list[SurfaceTool]
    next_after: str | None


class AgentToolSurfaceModel(BaseModel):
    """A page of a surface as objects of Agent Tool 0.2.0."""

    schema_version: Literal["0.2.0"]
    tool_surface: dict[str, Any]
    deferred_tool_ref: list[dict[str, Any]]


@router.get(
    "/surface", summary="Show the availability of tools", response_model=SurfaceModel, responses=describe_problems()
)
async def show_surface(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SurfaceQuery, Query()]
) -> Response:
    """Show for each tool whether it is loaded, deferred, blocked or excluded for you now, and why."""
    return make_json_response(
        await gateway.surface.list_availability(caller, _build_selection(query), after=query.after, limit=query.limit)
    )


@router.get(
    "/surface/export", summary="Export a surface", response_model=AgentToolSurfaceModel, responses=describe_problems()
)
async def export_surface(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SurfaceQuery, Query()]
) -> Response:
    """Export a page of your surface as objects of Agent Tool 0.2.0, with a reference for each deferred tool."""
    return make_json_response(
        await gateway.exports.export_surface(caller, _build_selection(query), after=query.after, limit=query.limit)
    )


def _build_selection(query: SurfaceQuery) -> ToolSelection:
    return ToolSelection(namespaces=frozenset(query.namespace), tags=frozenset(query.tag), max_effects=query.worst)
