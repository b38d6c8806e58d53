"""Serve what calls did in the last hour, minute by minute."""

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import ScopeMissing
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/activity", tags=["audit"])


class ActivityMinuteModel(BaseModel):
    minute: str = Field(description="When the minute began.")
    calls: int = Field(description="Calls that reached their tools and ended.")
    errors: int = Field(description="Those that failed, timed out, or whose outcome is unknown.")
    refusals: int = Field(description="Calls that were refused; of very many in the hour, the newest are counted.")
    p95_seconds: float | None = Field(description="The latency that 95% of them kept; null without calls.")


class ActivityModel(BaseModel):
    minutes: list[ActivityMinuteModel] = Field(description="The last 60 minutes, oldest first.")
    has_all_refusals: bool = Field(description="False if there were more refusals than were counted.")


@router.get("", summary="Report the last hour", response_model=ActivityModel, responses=describe_problems(ScopeMissing))
async def report_activity(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Report the calls of your tenant by minute. Needs an auditor or an administrator."""
    return make_json_response(await gateway.activity.report_minutes(caller))
