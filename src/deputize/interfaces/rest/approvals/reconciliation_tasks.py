"""Serve reconciliation tasks to administrators: calls whose outcome is unknown, and the outcomes they establish."""

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
from deputize.interfaces.rest.approvals.reconciliation_task_models import (
    ReconciliationTaskBody,
    ReconciliationTaskModel,
    ReconciliationTaskPage,
    ReconciliationTasksQuery,
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

router = APIRouter(prefix="/v1/reconciliation-tasks", tags=["administration"])
_RESOLUTION_PROBLEMS = (
    HumanTaskNotFound, HumanTaskClosed, ToolNotFound, ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing,
    VersionNotInCapability, OperatorConfirmationRequired, DisabledByKillSwitch,
)  # fmt: skip


@router.get(
    "",
    summary="List reconciliation tasks",
    response_model=ReconciliationTaskPage,
    responses=describe_problems(ScopeMissing),
)
async def list_reconciliation_tasks(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[ReconciliationTasksQuery, Query()]
) -> Response:
    """Newest first; open ones, unless `state` names another state."""
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    tasks = await gateway.reconciliation_tasks.list_tasks(caller, state=state, before=before, limit=query.limit)
    next_before = tasks[-1]["task_id"] if len(tasks) == query.limit else None
    return make_json_response({"tasks": tasks, "next_before": next_before})


@router.get(
    "/{task_id}",
    summary="Show a reconciliation task",
    response_model=ReconciliationTaskModel,
    responses=describe_problems(HumanTaskNotFound, ScopeMissing),
)
async def show_reconciliation_task(gateway: CurrentGateway, caller: CurrentCaller, task_id: str) -> Response:
    return make_json_response(await gateway.reconciliation_tasks.show_task(caller, task_id))


@router.post(
    "/{task_id}/resolve",
    summary="Resolve a reconciliation task",
    response_model=ReconciliationTaskModel,
    responses=describe_problems(*_RESOLUTION_PROBLEMS),
    openapi_extra=describe_body("ReconciliationTaskBody"),
)
async def resolve_reconciliation_task(
    request: Request, gateway: CurrentGateway, caller: CurrentOperator, task_id: str
) -> Response:
    """Settles the call with the outcome you established. Repeating the call with its key returns that outcome.

    It is recorded as an operator's word, so it needs one, as changes of policies do.
    """
    body = validate_body(ReconciliationTaskBody, await read_json_body(request, gateway))
    return make_json_response(
        await gateway.reconciliation_tasks.resolve_task(caller, task_id, body.outcome, body.reason)
    )
