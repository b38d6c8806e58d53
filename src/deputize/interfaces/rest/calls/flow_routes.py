"""Serve the route of flows: show one as it is now."""

from typing import Any, Literal
from uuid import UUID

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.contract.contract import MutationClass
from deputize.core.errors import CallNotFound, MalformedRequest, UnsealFailed
from deputize.core.states import State
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/flows", tags=["calls"])


class StepCallModel(BaseModel):
    step: str = Field(description="The path: the step, with the number of its round or element and of its fallback.")
    call_id: UUID
    state: State
    mutation_class: MutationClass | None = Field(description="What it may change; null if it was refused.")
    error: dict[str, Any] | None = Field(description="The code, number, slug and message of its error.")


class FlowStepModel(BaseModel):
    name: str
    tool: str | None = Field(description="The tool it calls; null for a step that consists of others.")
    status: Literal["waiting", "running", "succeeded", "skipped", "failed", "discarded", "compensated"]
    calls: list[StepCallModel] = Field(description="The calls that were made for it, with their ids.")


class CompensatedModel(BaseModel):
    step: str = Field(description="The path of the call; of a flow within this one, after the path of that flow.")
    call_id: UUID
    entry_id: UUID = Field(description="The entry of the journal.")
    tool: str | None
    compensation_class: Literal["full", "semantic", "partial"] = Field(alias="class")
    undo_call_id: UUID = Field(description="The call that took it back.")


class LeftModel(BaseModel):
    step: str
    call_id: UUID
    entry_id: UUID | None = Field(description="Null if what the call did is not in the journal.")
    tool: str | None
    reason: str = Field(description="Why it stays, as in the plan of an undo; `not_tried` if a later one stays.")
    detail: str


class CompensationModel(BaseModel):
    state: Literal["compensating", "compensated", "incomplete", "not_needed"]
    compensated: list[CompensatedModel] = Field(description="What was taken back, in that order.")
    left: list[LeftModel] = Field(description="What stays, newest first.")
    task_id: UUID | None = Field(description="The task of a person, if something stays.")


class FlowModel(BaseModel):
    call_id: UUID
    tool: str
    version: str
    state: State = Field(description="The state of the flow's own call; `queued` while it waits for its steps.")
    steps: list[FlowStepModel]
    compensation: CompensationModel | None = Field(
        description="What of a failed flow was taken back, and what is left."
    )
    flow: dict[str, Any] = Field(description="The definition, as the contract has it.")


@router.get(
    "/{call_id}",
    summary="Show a flow",
    response_model=FlowModel,
    responses=describe_problems(CallNotFound, MalformedRequest, UnsealFailed),
)
async def show_flow(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Show how far each step of a flow is, and the calls that were made for it."""
    return make_json_response(await gateway.flows.show_flow(caller, call_id))
