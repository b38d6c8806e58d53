"""Serve reconciliation tasks to administrators: calls whose outcome is unknown, and the outcomes they establish.

The routes are `/v1/reconciliation-tasks`. `/v1/tickets`, their path in 0.1, stays as a deprecated alias with the same
handlers.
"""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
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

TASKS_PATH = "/v1/reconciliation-tasks"
_RESOLUTION_PROBLEMS = (
    HumanTaskNotFound, HumanTaskClosed, ToolNotFound, ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing,
    VersionNotInCapability, OperatorConfirmationRequired, DisabledByKillSwitch,
)  # fmt: skip


async def list_reconciliation_tasks(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[ReconciliationTasksQuery, Query()]
) -> Response:
    """Newest first; open ones, unless `state` names another state."""
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    tasks = await gateway.reconciliation_tasks.list_tasks(caller, state=state, before=before, limit=query.limit)
    next_before = tasks[-1]["ticket_id"] if len(tasks) == query.limit else None
    return make_json_response({"tickets": tasks, "next_before": next_before})


def _build_router(prefix: str, id_name: str, *, alias_of: str | None = None) -> APIRouter:
    """Build the routes under a path. An alias is deprecated, and its description names the path to use instead."""
    router = APIRouter(prefix=prefix, tags=["administration"], deprecated=True if alias_of else None)
    description = None if alias_of is None else f"Deprecated alias: use `{alias_of}` instead."
    router.get(
        "",
        summary="List reconciliation tasks",
        description=description,
        response_model=ReconciliationTaskPage,
        responses=describe_problems(ScopeMissing),
    )(list_reconciliation_tasks)

    @router.get(
        f"/{{{id_name}}}",
        summary="Show a reconciliation task",
        description=description,
        response_model=ReconciliationTaskModel,
        responses=describe_problems(HumanTaskNotFound, ScopeMissing),
    )
    async def show_reconciliation_task(
        gateway: CurrentGateway, caller: CurrentCaller, task_id: Annotated[str, Path(alias=id_name)]
    ) -> Response:
        return make_json_response(await gateway.reconciliation_tasks.show_task(caller, task_id))

    @router.post(
        f"/{{{id_name}}}/resolve",
        summary="Resolve a reconciliation task",
        description=description,
        response_model=ReconciliationTaskModel,
        responses=describe_problems(*_RESOLUTION_PROBLEMS),
        openapi_extra=describe_body("ReconciliationTaskBody"),
    )
    async def resolve_reconciliation_task(
        request: Request,
        gateway: CurrentGateway,
        caller: CurrentOperator,
        task_id: Annotated[str, Path(alias=id_name)],
    ) -> Response:
        """Settles the call with the outcome you established. Repeating the call with its key returns that outcome.

        It is recorded as an operator's word, so it needs one, as changes of policies do.
        """
        body = validate_body(ReconciliationTaskBody, await read_json_body(request, gateway))
        return make_json_response(
            await gateway.reconciliation_tasks.resolve_task(caller, task_id, body.outcome, body.reason)
        )

    return router


router = _build_router(TASKS_PATH, "task_id")
deprecated_router = _build_router("/v1/tickets", "ticket_id", alias_of=TASKS_PATH)
