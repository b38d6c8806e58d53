"""Serve the routes of erasures for administrators: erase a user, and tell how far an erasure is."""

from typing import Literal
from uuid import UUID

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import (
    ErasureNotFound,
    LegalHoldActive,
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
from deputize.interfaces.rest.models import ErasureBody
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/erasures", tags=["administration"])


class ErasureModel(BaseModel):
    erasure_id: UUID = Field(description="Calls and grants show it as `erased=ID` in place of the user.")
    state: Literal["in_progress", "done"] = Field(
        description="An erasure takes at least a minute, and until the user's open calls have ended."
    )
    calls_left: int = Field(description="Calls of the user that are open, or not erased yet.")
    requested_at: str
    ended_at: str | None


class ErasureResult(ErasureModel):
    revoked_grants: int = Field(description="How many delegations of the user ended.")
    unlinked_servers: list[str] = Field(description="MCP servers at which the user had linked an account.")


@router.post(
    "",
    summary="Erase a user",
    status_code=202,
    response_model=ErasureResult,
    responses=describe_problems(
        ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing, OperatorConfirmationRequired, LegalHoldActive
    ),
    openapi_extra=describe_body(ErasureBody),
)
async def erase_user(request: Request, gateway: CurrentGateway, caller: CurrentOperator) -> Response:
    """Erase what is stored about a user. Audit entries stay valid, and nothing leads from them to the name. It cannot
    be undone. A legal hold forbids it. Needs an operator.
    """
    body = validate_body(ErasureBody, await read_json_body(request, gateway))
    return make_json_response(await gateway.erasures.erase_user(caller, body.user, issuer=body.issuer), status=202)


@router.get(
    "/{erasure_id}",
    summary="Show an erasure",
    response_model=ErasureModel,
    responses=describe_problems(ErasureNotFound, ScopeMissing),
)
async def show_erasure(gateway: CurrentGateway, caller: CurrentCaller, erasure_id: str) -> Response:
    """Tell how far an erasure is. Needs an administrator."""
    return make_json_response(await gateway.erasures.describe_erasure(caller, erasure_id))
