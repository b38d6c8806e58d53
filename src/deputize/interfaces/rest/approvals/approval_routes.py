"""Serve the routes of approval requests: list, show, approve, deny and break glass.

Tokens for the console are accepted here. `gateway.approvals` decides who may approve. In development, the code that
only the gateway's terminal shows proves that the approver sits there.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Security
from fastapi.responses import Response
from fastapi.security import HTTPAuthorizationCredentials

from deputize.core.caller import Caller
from deputize.core.errors import (
    ApprovalExpired,
    ApprovalRequestChanged,
    HumanTaskClosed,
    HumanTaskNotFound,
    MalformedRequest,
    NotAnApprover,
    ParseFailed,
    Problem,
    RequestTooLarge,
    UnsealFailed,
    UnsupportedMedia,
)
from deputize.interfaces.asgi_http import parse_headers
from deputize.interfaces.rest.approvals.approval_models import (
    ApprovalDecisionResult,
    ApprovalModel,
    ApprovalPage,
    ApprovalsQuery,
    ApproveBody,
    BreakGlassBody,
    DecisionBatchBody,
    DecisionBatchResult,
    DenyBody,
)
from deputize.interfaces.rest.common import (
    BEARER_SCHEME,
    CurrentGateway,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/approvals", tags=["approvals"])

_DECISION_PROBLEMS: tuple[type[Problem], ...] = (
    NotAnApprover,
    HumanTaskNotFound,
    HumanTaskClosed,
    ApprovalRequestChanged,
    ApprovalExpired,
    UnsealFailed,
    ParseFailed,
    RequestTooLarge,
    UnsupportedMedia,
)


async def _get_reader(
    request: Request,
    gateway: CurrentGateway,
    _: Annotated[HTTPAuthorizationCredentials | None, Security(BEARER_SCHEME)],
) -> Caller:
    return await gateway.authenticate(parse_headers(request.scope).get(b"authorization"), for_console=True)


ApprovalReader = Annotated[Caller, Depends(_get_reader)]


async def _get_decider(
    gateway: CurrentGateway,
    caller: ApprovalReader,
    approval_id: str,
    deputize_code: Annotated[
        str | None,
        Header(max_length=64, description="In development: the code that the gateway's terminal shows."),
    ] = None,
) -> Caller:
    if deputize_code is None:
        return caller
    return await gateway.approvals.verify_terminal_code(caller, approval_id, deputize_code)


ApprovalDecider = Annotated[Caller, Depends(_get_decider)]


def _require_binding(value: Any) -> Any:
    """Return a body that says which version of the request its sender saw, or raise `MalformedRequest`."""
    if isinstance(value, dict) and value.get("binding") is None:
        raise MalformedRequest(
            "binding is missing, so nothing was approved: it says which version of the request you saw",
            details={"field": "binding"},
            advice="Read the approval request first (GET /v1/approvals/{approval_id}), then send its binding.",
        )
    return value


@router.get("", summary="List approval requests", response_model=ApprovalPage, responses=describe_problems())
async def list_approvals(
    gateway: CurrentGateway, caller: ApprovalReader, query: Annotated[ApprovalsQuery, Query()]
) -> Response:
    """List approval requests, newest first: with a token for the console, those of your groups; with any other token,
    those of your own calls; for an administrator, the tenant's.
    """
    before = None if query.before is None else str(query.before)
    state = None if query.state == "all" else query.state
    approvals = await gateway.approvals.list_requests(caller, state=state, before=before, limit=query.limit)
    next_before = approvals[-1]["approval_id"] if len(approvals) == query.limit else None
    return make_json_response({"approvals": approvals, "next_before": next_before})


@router.get(
    "/{approval_id}",
    summary="Show an approval request",
    response_model=ApprovalModel,
    responses=describe_problems(HumanTaskNotFound, UnsealFailed),
)
async def show_approval(gateway: CurrentGateway, caller: ApprovalReader, approval_id: str) -> Response:
    """Show a request by its id or by that of its call, to its approvers, its caller and administrators."""
    return make_json_response(await gateway.approvals.get_request(caller, approval_id))


@router.post(
    "/batch",
    summary="Decide several equal requests",
    response_model=DecisionBatchResult,
    responses=describe_problems(*_DECISION_PROBLEMS),
    openapi_extra=describe_body(DecisionBatchBody),
)
async def decide_approvals(request: Request, gateway: CurrentGateway, caller: ApprovalReader) -> Response:
    """Decide requests whose calls differ only in the arguments you name; if they differ in others, none is decided.
    Each is decided by itself, and listed with its result.
    """
    body = validate_body(DecisionBatchBody, await read_json_body(request, gateway))
    approval_ids = [str(each) for each in body.approval_ids]
    decisions = await gateway.approvals.decide_many(
        caller,
        approval_ids,
        body.decision,
        reason=body.reason,
        vary=body.vary,
        bindings={str(approval_id): binding for approval_id, binding in body.bindings.items()},
    )
    return make_json_response({"decisions": decisions})


@router.post(
    "/{approval_id}/approve",
    summary="Approve a request",
    response_model=ApprovalDecisionResult,
    responses=describe_problems(*_DECISION_PROBLEMS),
    openapi_extra=describe_body(ApproveBody),
)
async def approve(request: Request, gateway: CurrentGateway, caller: ApprovalDecider, approval_id: str) -> Response:
    """Approve a call. Approvers are in a group that may decide now, signed in to the console recently, and have no part
    in the call. The last approval needed starts the call.
    """
    body = validate_body(ApproveBody, _require_binding(await read_json_body(request, gateway)))
    return make_json_response(
        await gateway.approvals.approve(caller, approval_id, reason=body.reason, binding=body.binding)
    )


@router.post(
    "/{approval_id}/deny",
    summary="Deny a request",
    response_model=ApprovalDecisionResult,
    responses=describe_problems(*_DECISION_PROBLEMS),
    openapi_extra=describe_body(DenyBody),
)
async def deny(request: Request, gateway: CurrentGateway, caller: ApprovalDecider, approval_id: str) -> Response:
    """Deny a call. One denial ends it; the caller reads the reason."""
    body = validate_body(DenyBody, await read_json_body(request, gateway))
    return make_json_response(
        await gateway.approvals.deny(caller, approval_id, reason=body.reason, binding=body.binding)
    )


@router.post(
    "/{approval_id}/break-glass",
    summary="Break glass for a request",
    response_model=ApprovalDecisionResult,
    responses=describe_problems(*_DECISION_PROBLEMS),
    openapi_extra=describe_body(BreakGlassBody),
)
async def break_glass(request: Request, gateway: CurrentGateway, caller: ApprovalDecider, approval_id: str) -> Response:
    """Override a missing approval in an emergency. It needs two people with the scope `deputize:break-glass`. Every
    approver is notified, and a warning is logged.
    """
    body = validate_body(BreakGlassBody, _require_binding(await read_json_body(request, gateway)))
    return make_json_response(
        await gateway.approvals.break_glass(caller, approval_id, reason=body.reason, binding=body.binding)
    )
