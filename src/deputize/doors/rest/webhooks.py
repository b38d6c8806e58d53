"""Callbacks, for administrators: the key that receivers check with, and what could not be delivered."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from deputize.core.errors import DeliveryNotFound, NotInCapability, ScopeMissing, SealBroken, SwitchedOff
from deputize.doors.rest.call_models import DeadLetters, DeadLettersQuery, DeliveryDue, KeyQuery, WebhookKey
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, reply
from deputize.doors.rest.document import problems

router = APIRouter(prefix="/v1/webhooks", tags=["administration"])


@router.get(
    "/key", summary="Show a signing key", response_model=WebhookKey, responses=problems(ScopeMissing, SwitchedOff)
)
async def show_key(gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[KeyQuery, Query()]) -> Response:
    """What a receiver needs to check signatures. That it was shown is on record."""
    return reply(await gateway.webhooks.key(caller, query.name))


@router.get(
    "/deadletters",
    summary="List deliveries that were given up",
    response_model=DeadLetters,
    responses=problems(ScopeMissing, SealBroken),
)
async def list_dead_letters(
    gateway: CurrentGateway, caller: CurrentCaller, query: Annotated[DeadLettersQuery, Query()]
) -> Response:
    """Newest first. Of each address only the host is shown."""
    return reply({"deadletters": await gateway.webhooks.dead_letters(caller, query.limit)})


@router.post(
    "/deadletters/{delivery_id}/retry",
    summary="Try a delivery again",
    status_code=202,
    response_model=DeliveryDue,
    responses=problems(DeliveryNotFound, ScopeMissing, NotInCapability, SwitchedOff),
)
async def retry_delivery(gateway: CurrentGateway, caller: CurrentCaller, delivery_id: str) -> Response:
    """With as many attempts as a new one, and under the same `webhook-id`."""
    return reply(await gateway.webhooks.retry(caller, delivery_id), status=202)
