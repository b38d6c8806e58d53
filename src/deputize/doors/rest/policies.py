"""Policies for whoever writes them: shown, checked, tried on recorded calls, put in force; and why a call went so."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse

from deputize.core.errors import (
    CallNotFound,
    ParseFailed,
    PolicyInvalid,
    Problem,
    ScopeMissing,
    TooLarge,
    Unavailable,
    UnsupportedMedia,
)
from deputize.core.outcome import problem_fields
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.policy_models import (
    BacktestAsked,
    DecisionShown,
    PoliciesAsked,
    PoliciesChecked,
    PoliciesPutShown,
    PoliciesShown,
    PolicyFileSent,
)
from deputize.doors.wire import hide, trace_id_of
from deputize.govern.decide import require_admin
from deputize.govern.policy.force import default_files
from deputize.govern.policy.rules import PolicyFile, set_digest

router = APIRouter(prefix="/v1/policies", tags=["policies"])
decisions = APIRouter(prefix="/v1/calls", tags=["calls"])

_WITH_BODY = (ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing)
# Ten thousand rules are some megabytes; only an administrator may send so much.
_MOST_BYTES = 16 * 1024 * 1024


@router.get("", summary="Show the policies in force", response_model=PoliciesShown, responses=problems(ScopeMissing))
async def show_policies(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators: every file and rule of the tenant, and since which epoch they hold."""
    return reply(await gateway.explaining.in_force(caller))


@router.put(
    "",
    summary="Put policies in force",
    response_model=PoliciesPutShown,
    responses=problems(PolicyInvalid, *_WITH_BODY),
    openapi_extra=body_of("PoliciesAsked"),
)
async def put_policies(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators. From the answer on, no gateway begins a call by the policies before."""
    put = await gateway.commands.put_policies(caller, await _files(request, gateway, caller))
    warnings = [each.told() for each in put.warnings]
    return reply({"digest": put.digest, "epoch": put.epoch, "changed": put.changed, "warnings": warnings})


@router.post(
    "/check",
    summary="Check policies",
    response_model=PoliciesChecked,
    responses=problems(*_WITH_BODY),
    openapi_extra=body_of("PoliciesAsked"),
)
async def check_policies(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators: whether they could take force here, against the tools there are. Changes nothing."""
    files = await _files(request, gateway, caller)
    found = await gateway.explaining.check(caller, files)
    return reply(
        {
            "digest": set_digest(files or default_files()),
            "errors": [each.told() for each in found.errors],
            "warnings": [each.told() for each in found.warnings],
        }
    )


@router.post(
    "/backtest",
    summary="Try a draft on recorded calls",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Lines of JSON: `progress` as it goes on, and last `result`, or `error`.",
            "content": {"application/x-ndjson": {}},
        },
        **problems(PolicyInvalid, *_WITH_BODY),
    },
    openapi_extra=body_of("BacktestAsked"),
)
async def backtest_policies(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """For administrators: every recorded call that the draft would answer otherwise, by tool and caller."""
    asked = checked(BacktestAsked, await _body(request, gateway, caller))
    lines = await gateway.backtests.begin(caller, _read(asked.files), asked.since)
    stream = _stream(lines, request.app.state.closing, trace_id_of(request.scope))
    return StreamingResponse(stream, media_type="application/x-ndjson", headers={"cache-control": "no-store"})


@decisions.get(
    "/{call_id}/decision",
    summary="Why a call was answered as it was",
    response_model=DecisionShown,
    response_model_exclude_unset=True,
    responses=problems(CallNotFound),
)
async def show_decision(gateway: CurrentGateway, caller: CurrentCaller, call_id: str) -> Response:
    """The rules that spoke, for who made the call; what they were told, for administrators."""
    return reply(await gateway.explaining.decision(caller, call_id))


async def _stream(lines: AsyncIterator[dict[str, Any]], closing: asyncio.Event, trace_id: str) -> AsyncIterator[bytes]:
    try:
        async for line in lines:
            if closing.is_set():
                raise Unavailable("the gateway is stopping", retry_after_ms=1000)
            yield orjson.dumps(line) + b"\n"
    except Problem as problem:
        yield orjson.dumps({"error": problem_fields(problem, trace_id=trace_id)}) + b"\n"
    except Exception as error:  # noqa: BLE001 -- the door: the status line is long sent, so the last line tells it
        yield orjson.dumps({"error": problem_fields(hide(error, trace_id), trace_id=trace_id)}) + b"\n"


async def _files(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> tuple[PolicyFile, ...]:
    return _read(checked(PoliciesAsked, await _body(request, gateway, caller)).files)


async def _body(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Any:
    require_admin(caller)
    return await json_body(request, gateway, most=_MOST_BYTES)


def _read(files: Sequence[PolicyFileSent]) -> tuple[PolicyFile, ...]:
    return tuple(PolicyFile(path=file.path, text=file.text) for file in files)
