"""Serve the routes of delegations: list, show and revoke."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract.contract import Effects
from deputize.core.errors import GrantNotFound
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.models import RequestModel
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/grants", tags=["identity"])


class GrantsQuery(RequestModel):
    before: UUID | None = Field(None, description="List delegations older than this one.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class GrantToolModel(BaseModel):
    tool_id: str
    version_range: str


class GrantModel(BaseModel):
    """A delegation: its authority, its agents and its end; never the token."""

    grant_id: UUID
    parent: UUID | None = Field(description="The delegation this one was made from.")
    user: str = Field(description="The user whose authority it is.")
    agents: list[str] = Field(description="The agents that act, nearest first.")
    scopes: list[str]
    tools: list[GrantToolModel] | None = Field(description="The tools it is limited to; null is no limit.")
    ceiling: Effects | None
    task: str | None
    constraints: dict[str, Any] | None
    state: Literal["active", "ended", "revoked"]
    created_at: str
    not_after: str


class RevokingEndsModel(BaseModel):
    """What revoking a delegation would end."""

    grants: int = Field(description="Delegations that have not expired: it, and those made from it, with their tokens.")
    waiting_calls: int | None = Field(
        description="Calls that wait for approval; null if more than 1,000 of the tenant wait."
    )


class ShownGrantModel(GrantModel):
    revoking_ends: RevokingEndsModel


class GrantPage(BaseModel):
    grants: list[GrantModel]
    next_before: UUID | None = Field(description="Pass this as `before` for the next page; null on the last page.")


class GrantRevocationResult(BaseModel):
    grant_id: UUID
    state: Literal["revoked"]
    epoch: int = Field(description="The revocation epoch from which on it starts no call.")


@router.get("", summary="List delegations", response_model=GrantPage, responses=describe_problems())
async def list_grants(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[GrantsQuery, Query()]
) -> Response:
    """List delegations, newest first: those you made and those made from them, or all for an auditor."""
    before = None if query.before is None else str(query.before)
    grants = await gateway.delegations.list_grants(caller, before=before, limit=query.limit)
    next_before = grants[-1]["grant_id"] if len(grants) == query.limit else None
    return make_json_response({"grants": grants, "next_before": next_before})


@router.get(
    "/{grant_id}",
    summary="Show a delegation",
    response_model=ShownGrantModel,
    responses=describe_problems(GrantNotFound),
)
async def show_grant(gateway: CurrentGateway, caller: CurrentCaller, grant_id: str) -> Response:
    """Show a delegation that you made, or any as an administrator, and what revoking it would end."""
    return make_json_response(await gateway.delegations.show_grant(caller, grant_id))


@router.delete(
    "/{grant_id}",
    summary="Revoke a delegation",
    response_model=GrantRevocationResult,
    responses=describe_problems(GrantNotFound),
)
async def revoke_grant(gateway: CurrentGateway, caller: CurrentCaller, grant_id: str) -> Response:
    """Revoke a delegation that you made; an administrator may revoke any. Once this returns, no token of it, or of
    delegations made from it, starts a call on any gateway.
    """
    epoch = await gateway.delegations.revoke_grant(caller, grant_id)
    return make_json_response({"grant_id": grant_id.lower(), "state": "revoked", "epoch": epoch})
