"""Serve human tasks to administrators: unknown outcomes, and what else a person has to do."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.errors import (
    DisabledByKillSwitch,
    HumanTaskClosed,
    HumanTaskNotFound,
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    ToolNotFound,
    UnsupportedMedia,
    VersionNotInCapability,
)
from deputize.interfaces.rest.approvals.human_task_models import (
    HumanTaskBody,
    HumanTaskModel,
    HumanTaskPage,
    HumanTasksQuery,
)
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    CurrentOperator,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/human-tasks", tags=["administration"])
_RESOLUTION_PROBLEMS = (
    HumanTaskNotFound, HumanTaskClosed, ToolNotFound, ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing,
    VersionNotInCapability, OperatorConfirmationRequired, DisabledByKillSwitch,
)  # fmt: skip


@router.get(
    "",
    summary="List human tasks",
    response_model=HumanTaskPage,
    responses=describe_problems(ScopeMissing),
)
async def list_human_tasks(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[HumanTasksQuery, Query()]
) -> Response:
    """Newest first; open ones, unless `state` names another state."""
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    tasks = await gateway.human_tasks.list_tasks(caller, state=state, kind=query.kind, before=before, limit=query.limit)
    next_before = tasks[-1]["task_id"] if len(tasks) == query.limit else None
    return make_json_response({"tasks": tasks, "next_before": next_before})


@router.get(
    "/{task_id}",
    summary="Show a human task",
    response_model=HumanTaskModel,
    responses=describe_problems(HumanTaskNotFound, ScopeMissing),
)
async def show_human_task(gateway: CurrentGateway, caller: CurrentCaller, task_id: str) -> Response:
    return make_json_response(await gateway.human_tasks.show_task(caller, task_id))


@router.post(
    "/{task_id}/resolve",
    summary="Resolve a human task",
    response_model=HumanTaskModel,
    responses=describe_problems(*_RESOLUTION_PROBLEMS),
    openapi_extra=describe_body(HumanTaskBody),
)
async def resolve_human_task(
    request: Request, gateway: CurrentGateway, caller: CurrentOperator, task_id: str
) -> Response:
    """The outcome of a task of kind `reconcile` settles its call: repeating it with its key returns that outcome. Any
    other changes no call.

    It is recorded as an operator's word, so it needs one, as switching something on does.
    """
    body = validate_body(HumanTaskBody, await read_json_body(request, gateway))
    return make_json_response(await gateway.human_tasks.resolve_task(caller, task_id, body.outcome, body.reason))
