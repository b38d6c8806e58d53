"""Serve the routes of tools' secrets for administrators: list names, store and delete. No route returns a value."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from deputize.core.errors import (
    CredentialMissing,
    ExternalVaultInUse,
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    UnsealFailed,
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
from deputize.interfaces.rest.models import (
    SecretBody,
    SecretDeletionResult,
    SecretList,
    SecretNameQuery,
    SecretPutResult,
)
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/secrets", tags=["administration"])


@router.get(
    "", summary="List secrets", response_model=SecretList, responses=describe_problems(ScopeMissing, ExternalVaultInUse)
)
async def list_secrets(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List names, and who stored each when; never values."""
    return make_json_response({"secrets": await gateway.commands.list_secrets(caller)})


@router.post(
    "",
    summary="Store a secret",
    status_code=201,
    response_model=SecretPutResult,
    responses={
        200: {"model": SecretPutResult, "description": "The secret of this name was replaced."},
        **describe_problems(
            ExternalVaultInUse,
            UnsealFailed,
            OperatorConfirmationRequired,
            ParseFailed,
            RequestTooLarge,
            UnsupportedMedia,
            ScopeMissing,
        ),
    },
    openapi_extra=describe_body(SecretBody),
)
async def put_secret(request: Request, gateway: CurrentGateway, caller: CurrentOperator) -> Response:
    """Store a secret, encrypted with the tenant's key. The next attempt of a call that needs it uses it."""
    body = validate_body(SecretBody, await read_json_body(request, gateway))
    result = await gateway.commands.put_secret(caller, body.name, body.value.get_secret_value())
    return make_json_response({"name": body.name, "put": result}, status=201 if result == "created" else 200)


@router.delete(
    "",
    summary="Delete a secret",
    response_model=SecretDeletionResult,
    responses=describe_problems(CredentialMissing, ExternalVaultInUse, ScopeMissing),
)
async def delete_secret(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[SecretNameQuery, Query()]
) -> Response:
    """Delete a secret. Once this returns, calls that need it fail before they do anything."""
    await gateway.commands.delete_secret(caller, query.name)
    return make_json_response({"name": query.name, "deleted": True})
