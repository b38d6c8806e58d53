"""What was lent, and taking it back."""

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract import Effects
from deputize.core.errors import GrantNotFound
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, reply
from deputize.doors.rest.document import problems
from deputize.doors.rest.models import Asked

router = APIRouter(prefix="/v1/grants", tags=["identity"])


class GrantsQuery(Asked):
    before: UUID | None = Field(None, description="Delegations older than this one.")
    limit: int = Field(50, ge=1, le=200, description="How many at most.")


class ToolLent(BaseModel):
    tool_id: str
    version_range: str


class GrantShown(BaseModel):
    """What was lent, to whom and until when; never the token."""

    grant_id: UUID
    parent: UUID | None = Field(description="The delegation this one was made from.")
    user: str = Field(description="Whose authority it is.")
    agents: list[str] = Field(description="Who acts, the nearest first.")
    scopes: list[str]
    tools: list[ToolLent] | None = Field(description="The tools it is limited to; null limits none.")
    ceiling: Effects | None
    task: str | None
    constraints: dict[str, Any] | None
    state: Literal["active", "ended", "revoked"]
    created_at: str
    not_after: str


class GrantPage(BaseModel):
    grants: list[GrantShown]
    next_before: UUID | None = Field(description="Give this as `before` to go on; null at the end.")


class GrantRevoked(BaseModel):
    grant_id: UUID
    state: Literal["revoked"]
    epoch: int = Field(description="From this revocation epoch on, nothing begins on it or on what was made from it.")


@router.get("", summary="List delegations", response_model=GrantPage, responses=problems())
async def list_grants(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[GrantsQuery, Query()]
) -> Response:
    """Newest first; what you lent and what came of it, or for an administrator everything in the tenant."""
    before = None if query.before is None else str(query.before)
    found = await gateway.delegations.page(caller, before=before, limit=query.limit)
    last = found[-1]["grant_id"] if len(found) == query.limit else None
    return reply({"grants": found, "next_before": last})


@router.get("/{grant_id}", summary="Show a delegation", response_model=GrantShown, responses=problems(GrantNotFound))
async def show_grant(gateway: CurrentGateway, caller: CurrentCaller, grant_id: str) -> Response:
    return reply(await gateway.delegations.show(caller, grant_id))


@router.delete(
    "/{grant_id}", summary="Take a delegation back", response_model=GrantRevoked, responses=problems(GrantNotFound)
)
async def revoke_grant(gateway: CurrentGateway, caller: CurrentCaller, grant_id: str) -> Response:
    """For whoever lent it, and administrators. From the answer on, no token of it, or of any made from it, begins
    anything on any gateway.
    """
    epoch = await gateway.delegations.revoke(caller, grant_id)
    return reply({"grant_id": grant_id.lower(), "state": "revoked", "epoch": epoch})
