"""Serve the routes of revocations for administrators: revoke tokens, delegations, users and agents, and list them."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, Field

from deputize.core.errors import MalformedRequest, ParseFailed, RequestTooLarge, ScopeMissing, UnsupportedMedia
from deputize.core.subject import parse_subject, qualify_subject
from deputize.interfaces.rest.common import (
    CurrentCaller,
    CurrentGateway,
    make_json_response,
    read_json_body,
    validate_body,
)
from deputize.interfaces.rest.models import RequestModel, RevocationBody, RevocationKind
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/revocations", tags=["administration"])


class RevocationResult(BaseModel):
    kind: RevocationKind
    value: str = Field(description="What was revoked; a subject of one issuer is `issuer=ISSUER NAME`.")
    issuers: list[str] | None = Field(
        description="The issuers whose user or subject of this name was revoked; null for other kinds."
    )
    epoch: int = Field(description="The revocation epoch from which on no call starts with the authority.")
    ended_grants: int | None = Field(
        description="How many delegations it ended that were active until then; null for a token, for which that is "
        "not known."
    )
    is_known: bool | None = Field(
        alias="known", description="Whether anyone of this name made a call or has a delegation; null for a token."
    )
    similar_names: list[str] = Field(alias="similar", description="Known names like an unknown one.")


class RevocationsQuery(RequestModel):
    before: int | None = Field(None, ge=0, le=2**53 - 1, description="List revocations older than this epoch.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class RevocationModel(BaseModel):
    kind: RevocationKind
    value: str
    reason: str
    revoked_by: str
    revoked_at: str
    epoch: int


class RevocationPage(BaseModel):
    revocations: list[RevocationModel]
    next_before: int | None = Field(description="Pass this as `before` for the next page; null on the last page.")


@router.post(
    "",
    summary="Revoke a token, a delegation, a user or an agent",
    status_code=201,
    response_model=RevocationResult,
    responses=describe_problems(ParseFailed, RequestTooLarge, UnsupportedMedia, ScopeMissing),
    openapi_extra=describe_body(RevocationBody),
)
async def revoke(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Revoke authority. Once this returns, no gateway starts a call with it, and its calls that waited for approval are
    withdrawn. Needs an administrator.
    """
    body = validate_body(RevocationBody, await read_json_body(request, gateway))
    value = body.value.lower() if body.kind == "grant" else body.value
    issuers = gateway.commands.list_subject_issuers(caller) if body.kind in ("user", "subject") else None
    if body.issuer is not None:
        if issuers is None:
            raise MalformedRequest("only users and subjects are revoked by issuer", details={"field": "issuer"})
        value, issuers = qualify_subject(body.issuer, value), [body.issuer]
    elif issuers is not None and (issuer := parse_subject(value)[0]) is not None:
        issuers = [issuer]
    # Before it is revoked, which makes it known and ends the grants.
    subject = await gateway.commands.check_subject(caller, body.kind, value)
    ended_grants = await gateway.commands.count_ended_grants(caller, body.kind, value)
    epoch = await gateway.commands.revoke(caller, body.kind, value, reason=body.reason)
    return make_json_response(
        {
            "kind": body.kind,
            "value": value,
            "issuers": issuers,
            "epoch": epoch,
            "ended_grants": ended_grants,
            "known": subject.is_known,
            "similar": list(subject.similar_names),
        },
        status=201,
    )


@router.get("", summary="List revocations", response_model=RevocationPage, responses=describe_problems(ScopeMissing))
async def list_revocations(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[RevocationsQuery, Query()]
) -> Response:
    """List what was revoked, newest first: by whom, when and why. Needs an administrator."""
    revocations = await gateway.commands.list_revocations(caller, before=query.before, limit=query.limit)
    next_before = revocations[-1]["epoch"] if len(revocations) == query.limit else None
    return make_json_response({"revocations": revocations, "next_before": next_before})
