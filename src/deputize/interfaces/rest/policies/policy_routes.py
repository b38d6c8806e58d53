"""Serve the routes of policies for administrators: show, check, backtest and activate; and explain decisions."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from deputize.core.errors import (
    CallNotFound,
    ConcurrencyLimitReached,
    OperatorConfirmationRequired,
    ParseFailed,
    PolicyInvalid,
    Problem,
    RequestTooLarge,
    ScopeMissing,
    ToolNotFound,
    Unavailable,
    UnsupportedMedia,
)
from deputize.core.outcome import build_problem_fields
from deputize.interfaces.asgi_http import hide_internal_error, read_trace_id
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    CurrentOperator,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.interfaces.rest.policies.policy_models import (
    BacktestBody,
    DecisionModel,
    PoliciesBody,
    PoliciesModel,
    PolicyCheckResult,
    PolicyFileModel,
    PolicyPutResult,
    PolicyUsageModel,
    SimulatedDecisionModel,
    SimulationBody,
)
from deputize.operations.gateway import PolicyFile, require_admin_scope

router = APIRouter(prefix="/v1/policies", tags=["policies"])
decisions = APIRouter(prefix="/v1/calls", tags=["calls"])

_BODY_PROBLEMS = (ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing)
# Ten thousand rules are some megabytes; only an administrator may send that much.
_MAX_BODY_BYTES = 16 * 1024 * 1024


@router.get(
    "", summary="Show the active policies", response_model=PoliciesModel, responses=describe_problems(ScopeMissing)
)
async def show_policies(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Show every file and rule of the tenant, and the epoch since which they are active. Needs an auditor."""
    return make_json_response(await gateway.explanations.show_active_policies(caller))


@router.get(
    "/usage",
    summary="Report what rules decided",
    response_model=PolicyUsageModel,
    responses=describe_problems(ScopeMissing),
)
async def report_policy_usage(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Report how many calls each active rule decided in the last day; of very many, in the newest entries of the audit
    alone. `GET /v1/audit?rule=ID` finds the calls. Needs an auditor.
    """
    return make_json_response(await gateway.explanations.report_usage(caller))


@router.put(
    "",
    summary="Activate policies",
    response_model=PolicyPutResult,
    responses={
        202: {"model": PolicyPutResult, "description": "Proposed: another operator must put exactly the same set."},
        **describe_problems(PolicyInvalid, OperatorConfirmationRequired, *_BODY_PROBLEMS),
    },
    openapi_extra=describe_body(PoliciesBody),
)
async def put_policies(request: Request, gateway: CurrentGateway, caller: CurrentOperator) -> Response:
    """Replace the policies. Once this returns, no gateway uses the old ones. Needs an operator, and if the settings
    ask for two, also another one who puts the same set.
    """
    result = await gateway.commands.put_policies(caller, await _read_policy_files(request, gateway, caller))
    warnings = [each.to_json() for each in result.warnings]
    body = {"digest": result.digest, "epoch": result.epoch, "changed": result.is_new, "warnings": warnings}
    if result.proposal is None:
        return make_json_response({**body, "state": "active"})
    expires_at = result.proposal.expires_at.isoformat()
    return make_json_response({**body, "state": "proposed", "expires_at": expires_at}, status=202)


@router.post(
    "/check",
    summary="Check policies",
    response_model=PolicyCheckResult,
    responses=describe_problems(*_BODY_PROBLEMS),
    openapi_extra=describe_body(PoliciesBody),
)
async def check_policies(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Check whether policies can become active with the tenant's tools; change nothing. Needs an administrator."""
    files = await _read_policy_files(request, gateway, caller)
    return make_json_response(await gateway.explanations.check_draft(caller, files))


@router.post(
    "/backtest",
    summary="Backtest a draft",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Lines of JSON: `progress`, and last `result` or `error`.",
            "content": {"application/x-ndjson": {}},
        },
        **describe_problems(PolicyInvalid, ConcurrencyLimitReached, *_BODY_PROBLEMS),
    },
    openapi_extra=describe_body(BacktestBody),
)
async def backtest_policies(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List past calls that the draft would decide differently, by tool and caller. Needs an administrator."""
    body = validate_body(BacktestBody, await _read_admin_body(request, gateway, caller))
    lines = await gateway.backtests.start_backtest(caller, _convert_files(body.files), body.since)
    stream = _stream_lines(lines, request.app.state.shutdown, read_trace_id(request.scope))
    return StreamingResponse(stream, media_type="application/x-ndjson", headers={"cache-control": "no-store"})


@router.post(
    "/simulate",
    summary="Simulate a call",
    response_model=SimulatedDecisionModel,
    responses=describe_problems(ToolNotFound, Unavailable, *_BODY_PROBLEMS),
    openapi_extra=describe_body(SimulationBody),
)
async def simulate_call(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Decide a hypothetical call by the active policies, and say what would allow it; change nothing. Whether a token
    would be enough is not asked. Needs an administrator.
    """
    body = validate_body(SimulationBody, await _read_admin_body(request, gateway, caller))
    return make_json_response(
        await gateway.explanations.explain_case(
            caller, body.model_dump(mode="json", exclude_unset=True, exclude_none=True)
        )
    )


@decisions.get(
    "/{call_id}/decision",
    summary="Explain a call's decision",
    response_model=DecisionModel,
    response_model_exclude_unset=True,
    responses=describe_problems(CallNotFound),
)
async def show_decision(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """Show the caller the rules that matched, and an administrator also the values they read."""
    return make_json_response(await gateway.explanations.explain_decision(caller, call_id))


async def _stream_lines(
    lines: AsyncIterator[dict[str, Any]], shutdown: asyncio.Event, trace_id: str
) -> AsyncIterator[bytes]:
    try:
        async for line in lines:
            if shutdown.is_set():
                raise Unavailable("the gateway is stopping", retry_after_ms=1000)
            yield orjson.dumps(line) + b"\n"
    except Problem as problem:
        yield orjson.dumps({"error": build_problem_fields(problem, trace_id=trace_id)}) + b"\n"
    except Exception as error:  # noqa: BLE001 -- the status has been sent, so the last line reports the error
        yield (
            orjson.dumps({"error": build_problem_fields(hide_internal_error(error, trace_id), trace_id=trace_id)})
            + b"\n"
        )


async def _read_policy_files(
    request: Request, gateway: CurrentGateway, caller: CurrentCaller
) -> tuple[PolicyFile, ...]:
    return _convert_files(validate_body(PoliciesBody, await _read_admin_body(request, gateway, caller)).files)


async def _read_admin_body(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Any:
    require_admin_scope(caller)
    return await read_json_body(request, gateway, max_bytes=_MAX_BODY_BYTES)


def _convert_files(files: Sequence[PolicyFileModel]) -> tuple[PolicyFile, ...]:
    return tuple(PolicyFile(path=file.path, text=file.text) for file in files)
