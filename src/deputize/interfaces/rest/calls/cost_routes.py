"""Serve the report of what calls cost."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from deputize.core.errors import MalformedRequest
from deputize.interfaces.rest.calls.cost_models import CostQuery, CostReportModel
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1", tags=["calls"])


@router.get(
    "/cost",
    summary="Report what calls cost",
    response_model=CostReportModel,
    responses=describe_problems(MalformedRequest),
)
async def report_costs(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[CostQuery, Query()]
) -> Response:
    """Report costs by component and tool, version, caller, task or day: of your own calls, or of the tenant's for an
    administrator. Each currency is reported by itself.
    """
    report = await gateway.cost_report.report_costs(caller, by=query.by, since=query.since, limit=query.limit)
    return make_json_response(report)
