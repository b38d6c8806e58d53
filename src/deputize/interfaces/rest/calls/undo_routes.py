"""Serve undo: the plan of what would be taken back, and its execution."""

from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.errors import (
    CallNotFound,
    ConcurrencyLimitReached,
    ParseFailed,
    Problem,
    QueueFull,
    RequestTooLarge,
    ScopeMissing,
    UndoPlanChanged,
    UndoTooBroad,
    UnsupportedMedia,
)
from deputize.interfaces.rest.approvals.approval_models import ApprovalSummaryModel
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import Moment, RequestModel
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.operations.gateway import UndoSelection

router = APIRouter(prefix="/v1/undo", tags=["calls"])
# Of every route that reads a body and plans.
_PLAN_PROBLEMS: tuple[type[Problem], ...] = (
    ParseFailed, RequestTooLarge, UnsupportedMedia, ConcurrencyLimitReached, UndoTooBroad,
)  # fmt: skip


class UndoPlanRequest(RequestModel):
    """What to take back: a call, a session, or what an agent did since a time."""

    call_id: str | None = Field(None, min_length=1, max_length=64)
    session: str | None = Field(None, min_length=1, max_length=MAX_SESSION_LENGTH)
    agent: str | None = Field(None, min_length=1, max_length=255, description="The agent that made the calls.")
    since: Moment | None = Field(None, description="Only calls that ended since this time; required with `agent`.")

    def to_selection(self) -> UndoSelection:
        return UndoSelection(call_id=self.call_id, session=self.session, agent=self.agent, since=self.since)


class UndoRequest(UndoPlanRequest):
    digest: str = Field(min_length=1, max_length=128, description="The digest of the plan that you saw.")


class EffectModel(BaseModel):
    resource: str
    op: Literal["create", "update", "delete"]
    scope: str = Field(description="Which part of the resource; `*` stands for anything.")


class UndoStepModel(BaseModel):
    """One call of the plan."""

    entry_id: str = Field(description="The id of its outcome in the audit and in the journal.")
    call_id: str
    tool: str
    version: str
    at: str = Field(description="When its outcome was recorded.")
    user: str
    agents: list[str]
    session: str | None
    effects: list[EffectModel] = Field(description="What the call changed.")
    class_: Literal["full", "semantic", "partial", "irreversible"] = Field(
        alias="class", description="How far it can be taken back, as its contract says."
    )
    undo_until: str | None
    verdict: Literal["ready", "done", "blocked"]
    reason: (
        Literal[
            "already_undone", "is_undo", "undo_uncertain", "uncertain", "irreversible", "window_over", "not_kept",
            "not_bound", "no_tool", "changed_since", "concurrent", "not_allowed", "would_fail",
        ]
        | None
    ) = Field(description="Why it is not taken back.")  # fmt: skip
    detail: str | None = Field(description="The reason in words.")
    undo_tool: str | None = Field(description="The tool that takes it back.")
    arguments: dict[str, Any] | None = Field(
        description="What that tool is called with, redacted as in approval requests; null if you may not see it."
    )
    origins: dict[str, Literal["arguments", "result", "before", "contract", "unknown"]] | None = Field(
        description="Where each value is from: the arguments of the call, its result, the state before it, its "
        "contract, or unknown, for calls of earlier releases."
    )
    source_agents: list[str] = Field(
        description="The agents that acted in the call, or in a call that it took back itself: whose words the values "
        "may be, as rules read in `context.undoes.agents`."
    )


class UndoPlanModel(BaseModel):
    """The plan, newest call first: the order in which calls are taken back."""

    digest: str = Field(description="Names everything that is left to do; send it to undo exactly that.")
    is_complete: bool = Field(description="False if there are more calls than one plan holds; the newest are in it.")
    missing_scopes: list[str] = Field(
        description="Scopes that your token lacks to undo what can be: `deputize:undo`, and those of the tools that "
        "take back. Empty for agents, which undo nothing."
    )
    ready: int
    done: int
    blocked: int
    steps: list[UndoStepModel]


class MadeStepModel(BaseModel):
    entry_id: str
    undone_call_id: str
    call_id: str = Field(description="The call that takes it back. It can be undone like any other.")
    tool: str
    state: str
    error: str | None


class UndoRequestRequest(RequestModel):
    call_id: str = Field(min_length=1, max_length=64, description="The call to take back, or the flow.")


class RequestedUndoModel(BaseModel):
    task_id: str | None = Field(description="The request that a person finds; null if nothing can be undone.")
    plan: UndoPlanModel = Field(description="What would be taken back, and what cannot be.")


class OpenUndoRequestModel(BaseModel):
    task_id: str
    call_id: str
    tool: str
    user: str
    agent: str | None = Field(description="The agent that made the call.")
    asked_at: str


class OpenUndoRequestsModel(BaseModel):
    requests: list[OpenUndoRequestModel]


class UndoAnswerModel(BaseModel):
    made: list[MadeStepModel] = Field(description="At most 50; the last one did not succeed if `left` has ready steps.")
    left: UndoPlanModel = Field(description="What is left, with the digest to go on with.")
    approval: ApprovalSummaryModel | None = Field(
        description="What the last step waits for: one approval for all steps that need one. Repeat the request then."
    )


@router.post(
    "/plan",
    summary="Plan an undo",
    response_model=UndoPlanModel,
    responses=describe_problems(*_PLAN_PROBLEMS),
    openapi_extra=describe_body(UndoPlanRequest),
)
async def plan_undo(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Show what would be taken back, in which order, what cannot be and why, and what others changed since. Nothing is
    changed. You see your own calls and those of your agents; auditors see the tenant's, without arguments.
    """
    body = validate_body(UndoPlanRequest, await read_json_body(request, gateway))
    return make_json_response(await gateway.undo.plan_undo(caller, body.to_selection()))


@router.post(
    "",
    summary="Undo calls",
    response_model=UndoAnswerModel,
    responses=describe_problems(*_PLAN_PROBLEMS, ScopeMissing, UndoPlanChanged),
    openapi_extra=describe_body(UndoRequest),
)
async def undo(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Take back what the plan has ready, newest first, each step as a call of yours that policies decide on. It stops
    at the first step that does not succeed; repeat it to go on. If that one needs approval, its request is for the
    steps after it too. Needs the scope `deputize:undo`, and no agent.
    """
    body = validate_body(UndoRequest, await read_json_body(request, gateway))
    return make_json_response(await gateway.undo.execute_undo(caller, body.to_selection(), body.digest))


@router.post(
    "/requests",
    summary="Request an undo",
    response_model=RequestedUndoModel,
    responses=describe_problems(*_PLAN_PROBLEMS, CallNotFound, QueueFull),
    openapi_extra=describe_body(UndoRequestRequest),
)
async def request_undo(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Ask a person to take back a call that you made, as an agent must. Undoing it answers the request."""
    body = validate_body(UndoRequestRequest, await read_json_body(request, gateway))
    return make_json_response(await gateway.undo.requests.request_undo(caller, body.call_id))


@router.get("/requests", summary="List requests to undo", response_model=OpenUndoRequestsModel)
async def list_undo_requests(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List what agents ask to be undone: of your own calls and your agents'; an administrator sees the tenant's."""
    return make_json_response({"requests": await gateway.undo.requests.list_requests(caller)})
