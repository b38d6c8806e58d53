"""Serve the report of what was observed."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from deputize.core.errors import ConcurrencyLimitReached, MalformedRequest, ScopeMissing
from deputize.interfaces.rest.audit.observation_models import ObservationQuery, ObservationReportModel
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1", tags=["audit"])


@router.get(
    "/observations",
    summary="Report what was observed",
    response_model=ObservationReportModel,
    responses=describe_problems(MalformedRequest, ScopeMissing, ConcurrencyLimitReached),
)
async def report_observations(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[ObservationQuery, Query()]
) -> Response:
    """Report who called what, which calls were unusual and why, where secrets were seen, and a first policy that would
    allow the ordinary calls. Needs an administrator.
    """
    return make_json_response(await gateway.observations.report_calls(caller, query.since))
