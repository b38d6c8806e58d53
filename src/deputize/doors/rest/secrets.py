"""Secrets of tools, for administrators: put there, listed by name, taken away. No route shows a value."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.errors import (
    CredentialMissing,
    ParseFailed,
    ScopeMissing,
    SealBroken,
    SecretsElsewhere,
    TooLarge,
    UnsupportedMedia,
)
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.models import SecretAsked, SecretDeleted, SecretNamed, SecretPut, Secrets

router = APIRouter(prefix="/v1/secrets", tags=["administration"])


@router.get("", summary="List secrets", response_model=Secrets, responses=problems(ScopeMissing, SecretsElsewhere))
async def list_secrets(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Their names, and who put each there when; never their values."""
    return reply({"secrets": await gateway.commands.secrets(caller)})


@router.post(
    "",
    summary="Put a secret",
    status_code=201,
    response_model=SecretPut,
    responses={
        200: {"model": SecretPut, "description": "There was one of this name; it is replaced."},
        **problems(SecretsElsewhere, SealBroken, ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing),
    },
    openapi_extra=body_of("SecretAsked"),
)
async def put_secret(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """Sealed with the tenant's key. The next attempt of any call that needs it finds it."""
    asked = checked(SecretAsked, await json_body(request, gateway))
    put = await gateway.commands.put_secret(caller, asked.name, asked.value.get_secret_value())
    return reply({"name": asked.name, "put": put}, status=201 if put == "created" else 200)


@router.delete(
    "",
    summary="Delete a secret",
    response_model=SecretDeleted,
    responses=problems(CredentialMissing, SecretsElsewhere, ScopeMissing),
)
async def delete_secret(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SecretNamed, Query()]
) -> Response:
    """From the answer on, calls that need it fail before they do anything."""
    await gateway.commands.delete_secret(caller, query.name)
    return reply({"name": query.name, "deleted": True})
