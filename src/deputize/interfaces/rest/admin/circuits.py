"""Serve the circuit breakers of external services for administrators."""

from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import ScopeMissing
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/circuits", tags=["administration"])

StateName = Literal["closed", "open", "half_open"]


class CircuitModel(BaseModel):
    service: str = Field(description="The external service that contracts name, such as an MCP server.")
    state: StateName = Field(description="`open` while calls are refused, `half_open` while a few try it again.")
    since: str | None = Field(description="When it changed to this state; null if it never did.")
    retry_at: str | None = Field(description="When an open circuit lets the first call try the service again.")
    reason: str | None = Field(description="The error of the last call that opened it.")
    failures: int = Field(description="Failures that a closed circuit has counted and that may open it.")


class CircuitTransitionModel(BaseModel):
    service: str
    before: StateName
    state: StateName
    at: str
    reason: str | None


class CircuitListModel(BaseModel):
    circuits: Annotated[list[CircuitModel], Field(description="Those that have counted failures in the last day.")]
    transitions: Annotated[list[CircuitTransitionModel], Field(description="The last changes of state, newest first.")]


@router.get(
    "", summary="List circuit breakers", response_model=CircuitListModel, responses=describe_problems(ScopeMissing)
)
async def list_circuits(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List the circuit breakers of external services, as all gateways share them, and their history."""
    return make_json_response(await gateway.circuits.list_circuits(caller))
