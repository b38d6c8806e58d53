"""Serve draft permits that are derived from past approvals, for administrators. No route activates them."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import ConcurrencyLimitReached, ScopeMissing
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.models import Moment, RequestModel
from deputize.interfaces.rest.openapi import describe_problems
from deputize.interfaces.rest.policies.policy_models import PolicyFileModel

# Registered before the routes of single requests, one of which would match this path as an id.
router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


class SuggestionsQuery(RequestModel):
    since: Moment | None = Field(None, description="Use approvals since this time; by default, the last 30 days.")
    days: int = Field(30, ge=1, le=90, description="The number of days after which a permit expires.")


class SuggestionSourceModel(BaseModel):
    """Calls of one caller to one tool for which the same rules required approval."""

    tool: str
    version: str
    environment: str
    user: str
    agents: list[str] = Field(description="The agents that acted for the user, nearest first.")
    task: str | None
    required_by: list[str] = Field(description="The rules that required approval.")
    calls: int = Field(description="The number of approved calls.")
    people: list[str] = Field(description="The approvers.")
    first_ms: int
    last_ms: int
    approval_ids: list[str]


class SuggestionModel(SuggestionSourceModel):
    id: str = Field(description="The id of the rule.")
    rule: str = Field(description="The permit, in Cedar.")
    until: int = Field(description="When it expires, in seconds since 1970.")


class WithheldSuggestionModel(SuggestionSourceModel):
    why: str = Field(description="Why no permit is as narrow as what was approved.")


class SuggestionReportModel(BaseModel):
    since: str
    request_count: int = Field(
        description="The number of decided requests that were analyzed; at most the newest 20,000."
    )
    suggestions: list[SuggestionModel]
    withheld: list[WithheldSuggestionModel]
    file: PolicyFileModel | None = Field(description="All suggestions as one policy file; `null` if there are none.")
    backtest: dict[str, Any] | None = Field(
        description="The past calls that would be decided differently with the file added to the active policies."
    )


@router.get(
    "/suggestions",
    summary="Suggest permits from repeated approvals",
    response_model=SuggestionReportModel,
    responses=describe_problems(ScopeMissing, ConcurrencyLimitReached),
)
async def suggest_permits(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SuggestionsQuery, Query()]
) -> Response:
    """Draft the narrowest permits that cover repeated approvals, and backtest them. Nothing is activated: use
    `PUT /v1/policies` for that. Needs an administrator.
    """
    return make_json_response(
        await gateway.suggestions.draft_permits(caller, since=query.since, lifetime=timedelta(days=query.days))
    )
