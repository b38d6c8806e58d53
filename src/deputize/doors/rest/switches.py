"""Kill switches, for administrators: a tenant, an agent or a tool turned off, and on again."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from deputize.core.contract import inward
from deputize.core.errors import ParseFailed, ScopeMissing, SwitchedOff, TooLarge, ToolNotFound, UnsupportedMedia
from deputize.doors.rest.common import CurrentCaller, CurrentGateway, checked, json_body, reply
from deputize.doors.rest.document import body_of, problems
from deputize.doors.rest.models import SwitchAsked, Switches, SwitchTurned

router = APIRouter(prefix="/v1/switches", tags=["administration"])


@router.get("", summary="List what is switched off", response_model=Switches, responses=problems(ScopeMissing))
async def list_switches(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """What is off now, who turned it off when, and why."""
    return reply({"switches": [switch.to_json() for switch in await gateway.commands.switched_off(caller)]})


@router.post(
    "",
    summary="Switch something off or on",
    response_model=SwitchTurned,
    responses=problems(ToolNotFound, SwitchedOff, ParseFailed, TooLarge, UnsupportedMedia, ScopeMissing),
    openapi_extra=body_of("SwitchAsked"),
)
async def turn_switch(request: Request, gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """From the answer on, what is off begins nothing, on any gateway. Your own tenant can be turned on again."""
    asked = checked(SwitchAsked, await json_body(request, gateway))
    value = inward(asked.value) if asked.kind == "tool" else asked.value
    if asked.kind == "tenant" and not value:
        value = caller.tenant
    epoch = await gateway.commands.switch(caller, asked.kind, value, off=asked.off, reason=asked.reason)
    return reply({"kind": asked.kind, "value": value, "off": asked.off, "epoch": epoch})
