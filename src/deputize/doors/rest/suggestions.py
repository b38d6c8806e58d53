"""Drafts of permits, learned from what people decided: shown to administrators, and put in force by nobody here."""

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import ScopeMissing
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, reply
from deputize.doors.rest.document import problems
from deputize.doors.rest.models import Asked
from deputize.doors.rest.policy_models import Moment, PolicyFileSent

# Before the routes of single tickets, one of which would take the last part of its path for an id.
router = APIRouter(prefix="/v1/approvals", tags=["approvals"])


class SuggestionsQuery(Asked):
    since: Moment | None = Field(None, description="What people decided since then; unset, in the last 30 days.")
    days: int = Field(30, ge=1, le=90, description="A permit ends by itself on the day that is so many days away.")


class LearnedFrom(BaseModel):
    """Calls of one caller to one tool that the same rules asked about."""

    tool: str
    version: str
    environment: str
    user: str
    agents: list[str] = Field(description="Who acted for the user, nearest first.")
    task: str | None
    asked_by: list[str] = Field(description="The rules that asked.")
    calls: int = Field(description="How many of them people approved.")
    people: list[str] = Field(description="Who approved them.")
    first_ms: int
    last_ms: int
    tickets: list[str]


class SuggestionShown(LearnedFrom):
    id: str = Field(description="What the rule is called.")
    rule: str = Field(description="The permit, in Cedar.")
    until: int = Field(description="When it ends by itself, in seconds since 1970.")


class WithheldShown(LearnedFrom):
    why: str = Field(description="Why no permit could be as narrow as what was approved.")


class SuggestionsShown(BaseModel):
    since: str
    tickets: int = Field(description="How many decided tickets were looked at; at most the newest 20,000.")
    suggestions: list[SuggestionShown]
    withheld: list[WithheldShown]
    file: PolicyFileSent | None = Field(description="All of them as one file of policies; `null` where there are none.")
    backtest: dict[str, Any] | None = Field(
        description="Which recorded calls would be answered otherwise, with the file beside what is in force."
    )


@router.get(
    "/suggestions",
    summary="Draft permits from what people approve again and again",
    response_model=SuggestionsShown,
    responses=problems(ScopeMissing),
)
async def suggestions(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SuggestionsQuery, Query()]
) -> Response:
    """For administrators: the narrowest permits that would have covered it, tried on recorded calls. Nothing is put in
    force; a person may, with `PUT /v1/policies`.
    """
    return reply(await gateway.suggestions.draft(caller, since=query.since, lasts=timedelta(days=query.days)))
