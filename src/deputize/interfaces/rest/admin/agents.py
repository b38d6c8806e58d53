"""Serve the list of agents."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.models import RequestModel
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/agents", tags=["identity"])


class AgentsQuery(RequestModel):
    after: str = Field("", max_length=1024, description="List agents after this name.")
    limit: int = Field(50, ge=1, le=100, description="The maximum number to return.")


class LastCallModel(BaseModel):
    time: str
    call_id: str | None
    tool: str | None
    user: str | None = Field(description="For whom it acted; null if they were erased.")
    outcome: str | None
    dry_run: bool = Field(description="Whether nothing was executed.")


class AgentSwitchModel(BaseModel):
    by: str = Field(description="Who switched the agent off.")
    since: str
    reason: str


class AgentModel(BaseModel):
    name: str
    users: list[str] = Field(description="The people whose delegations it has or had.")
    active_grants: int = Field(description="How many of its delegations have not expired.")
    last_call: LastCallModel | None = Field(description="The newest audit entry that names it and that you may see.")
    is_revoked: bool = Field(alias="revoked", description="Whether the agent itself was revoked.")
    switched_off: AgentSwitchModel | None = Field(description="The kill switch of the agent; null if it is on.")


class AgentPage(BaseModel):
    agents: list[AgentModel]
    next_after: str | None = Field(description="Pass this as `after` for the next page; null on the last page.")


@router.get("", summary="List agents", response_model=AgentPage, responses=describe_problems())
async def list_agents(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[AgentsQuery, Query()]
) -> Response:
    """List agents by name: those you delegated to and those that acted for you, or all for an auditor."""
    agents = await gateway.agents.list_agents(caller, after=query.after, limit=query.limit)
    next_after = agents[-1]["name"] if len(agents) == query.limit else None
    return make_json_response({"agents": agents, "next_after": next_after})
