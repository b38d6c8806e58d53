"""Serve the routes of webhooks for administrators: signing keys, and deliveries that failed."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from deputize.core.errors import (
    DeliveryNotFound,
    DisabledByKillSwitch,
    OperatorConfirmationRequired,
    ScopeMissing,
    UnsealFailed,
    VersionNotInCapability,
)
from deputize.interfaces.rest.calls.call_models import (
    DeadLetterList,
    DeadLettersQuery,
    DeliveryRetryResult,
    WebhookKeyModel,
    WebhookKeyQuery,
)
from deputize.interfaces.rest.common import CurrentCaller, CurrentGateway, CurrentOperator, make_json_response
from deputize.interfaces.rest.openapi import describe_problems

router = APIRouter(prefix="/v1/webhooks", tags=["administration"])


@router.get(
    "/key",
    summary="Show a signing key",
    response_model=WebhookKeyModel,
    responses=describe_problems(
        ScopeMissing, VersionNotInCapability, OperatorConfirmationRequired, DisabledByKillSwitch
    ),
)
async def show_webhook_key(
    gateway: CurrentGateway, caller: CurrentOperator, query: Annotated[WebhookKeyQuery, Query()]
) -> Response:
    """Return the key with which a receiver verifies signatures. Callbacks to each host have a key of their own. Needs
    an operator; each use is audited.
    """
    return make_json_response(await gateway.webhooks.show_key(caller, query.name, query.host))


@router.get(
    "/deadletters",
    summary="List dead letters",
    response_model=DeadLetterList,
    responses=describe_problems(ScopeMissing, UnsealFailed),
)
async def list_dead_letters(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[DeadLettersQuery, Query()]
) -> Response:
    """List deliveries that failed for good, newest first. Only the host of each URL is shown."""
    return make_json_response({"deadletters": await gateway.webhooks.list_dead_letters(caller, query.limit)})


@router.post(
    "/deadletters/{delivery_id}/retry",
    summary="Retry a delivery",
    status_code=202,
    response_model=DeliveryRetryResult,
    responses=describe_problems(DeliveryNotFound, ScopeMissing, VersionNotInCapability, DisabledByKillSwitch),
)
async def retry_delivery(gateway: CurrentGateway, caller: CurrentCaller, delivery_id: str) -> Response:
    """Retry with as many attempts as a new delivery, under the same `webhook-id`."""
    return make_json_response(await gateway.webhooks.retry_delivery(caller, delivery_id), status=202)
