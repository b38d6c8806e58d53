"""Serve the routes of legal holds for administrators: place, list and remove."""

from typing import Literal
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import (
    HoldNotFound,
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    UnsupportedMedia,
)
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    CurrentOperator,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import HoldBody
from deputize.interfaces.rest.openapi import describe_body, describe_problems
from deputize.operations.gateway import HoldRequest

router = APIRouter(prefix="/v1/holds", tags=["administration"])


class HoldModel(BaseModel):
    hold_id: UUID
    kind: Literal["subject", "call", "period"]
    user: str | None = Field(description="The user whose data is held.")
    call_id: UUID | None = Field(description="The call whose data is held.")
    from_: str | None = Field(alias="from", description="What happened from this time on is held.")
    to: str | None = Field(description="What happened before this time is held; null if the period has no end yet.")
    reason: str
    placed_by: str
    placed_at: str


class HoldList(BaseModel):
    holds: list[HoldModel] = Field(description="Newest first.")


class HoldRemoval(BaseModel):
    hold_id: UUID
    state: Literal["removed"]


@router.post(
    "",
    summary="Place a legal hold",
    status_code=201,
    response_model=HoldModel,
    responses=describe_problems(ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing),
    openapi_extra=describe_body(HoldBody),
)
async def place_hold(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Hold the data of a user, of a call or of a period. Once this returns, it is neither erased nor deleted by
    retention. Needs an administrator.
    """
    body = validate_body(HoldBody, await read_json_body(request, gateway))
    hold_request = HoldRequest(
        reason=body.reason,
        user=body.user,
        issuer=body.issuer,
        call_id=body.call_id,
        from_at=body.from_,
        to_at=body.to,
    )
    return make_json_response(await gateway.legal_holds.place_hold(caller, hold_request), status=201)


@router.get("", summary="List legal holds", response_model=HoldList, responses=describe_problems(ScopeMissing))
async def list_holds(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List what is held, by whom, since when and why. Needs an administrator."""
    return make_json_response({"holds": await gateway.legal_holds.list_holds(caller)})


@router.delete(
    "/{hold_id}",
    summary="Remove a legal hold",
    response_model=HoldRemoval,
    responses=describe_problems(HoldNotFound, OperatorConfirmationRequired, ScopeMissing),
)
async def remove_hold(gateway: CurrentGateway, caller: CurrentOperator, hold_id: str) -> Response:
    """Remove a hold. What it covered may be erased again, and is deleted when its retention is over. Needs an
    operator.
    """
    await gateway.legal_holds.remove_hold(caller, hold_id)
    return make_json_response({"hold_id": hold_id, "state": "removed"})
