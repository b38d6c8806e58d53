"""Where each tool stands for whoever asks: the route and its shapes."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract import Effects
from deputize.doors.asking import MAX_TOOL_LENGTH
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, reply
from deputize.doors.rest.document import problems
from deputize.doors.rest.models import Digest
from deputize.lifecycle.standing import Selection

router = APIRouter(prefix="/v1", tags=["tools"])


class SurfaceQuery(BaseModel):
    after: str = Field("", max_length=MAX_TOOL_LENGTH, description="The last name of the page before.")
    limit: int = Field(100, ge=1, le=500, description="Most tools in one page.")
    namespace: list[str] = Field(default_factory=list, max_length=50, description="Exclude all but these namespaces.")
    tag: list[str] = Field(default_factory=list, max_length=50, description="Exclude tools with none of these tags.")
    worst: Effects | None = Field(None, description="Exclude tools whose effects are worse than this.")


class SurfaceRule(BaseModel):
    id: str
    where: str
    reason: str


class SurfaceReason(BaseModel):
    code: Literal[
        "permitted", "needs_approval", "decided_per_call", "deferred_until_discovered", "policy_blocked",
        "role_not_allowed", "setup_required", "feature_disabled", "outside_selection",
    ]  # fmt: skip
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


class SurfaceShown(BaseModel):
    """Where each tool stands for one caller; tools that the token hides are not there at all."""

    scope: SurfaceScope
    policy_digest: Digest
    created_at: str
    tools: list[SurfaceTool]
    next_after: str | None


@router.get("/surface", summary="Show where each tool stands", response_model=SurfaceShown, responses=problems())
async def show_surface(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SurfaceQuery, Query()]
) -> Response:
    """Loaded, deferred, blocked or excluded, each with its reason, for you, here and now."""
    selection = Selection(namespaces=frozenset(query.namespace), tags=frozenset(query.tag), worst=query.worst)
    return reply(await gateway.surface.standings(caller, selection, after=query.after, limit=query.limit))
