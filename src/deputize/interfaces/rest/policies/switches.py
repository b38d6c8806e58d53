"""Serve the routes of kill switches for administrators: turn a tenant, an agent or a tool off and on."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from deputize.core.contract.names import to_full_name
from deputize.core.errors import (
    AgentUnknown,
    DisabledByKillSwitch,
    OperatorConfirmationRequired,
    ParseFailed,
    RequestTooLarge,
    ScopeMissing,
    ToolNotFound,
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
from deputize.interfaces.rest.models import SwitchBody, SwitchList, SwitchResult
from deputize.interfaces.rest.openapi import describe_body, describe_problems

router = APIRouter(prefix="/v1/switches", tags=["administration"])


@router.get("", summary="List kill switches", response_model=SwitchList, responses=describe_problems(ScopeMissing))
async def list_switches(gateway: CurrentGateway, caller: CurrentCaller) -> Response:
    """List what is off, and who turned it off when and why."""
    return make_json_response(
        {"switches": [switch.to_json() for switch in await gateway.commands.list_switches(caller)]}
    )


@router.post(
    "",
    summary="Set a kill switch",
    response_model=SwitchResult,
    responses=describe_problems(
        AgentUnknown,
        ToolNotFound,
        DisabledByKillSwitch,
        OperatorConfirmationRequired,
        ParseFailed,
        RequestTooLarge,
        UnsupportedMedia,
        ScopeMissing,
    ),
    openapi_extra=describe_body(SwitchBody),
)
async def turn_switch(request: Request, gateway: CurrentGateway, caller: CurrentOperator) -> Response:
    """Turn something off or on. Once this returns, nothing that is off starts a call on any gateway. You can turn your
    own tenant on again. Needs the scope `deputize:operate` or an administrator.
    """
    body = validate_body(SwitchBody, await read_json_body(request, gateway))
    value = to_full_name(body.value) if body.kind == "tool" else body.value
    if body.kind == "tenant" and not value:
        value = caller.tenant
    if body.kind == "agent" and body.off and value and not body.unknown:
        await gateway.commands.require_known_agent(caller, value)
    epoch = await gateway.commands.set_switch(caller, body.kind, value, off=body.off, reason=body.reason)
    return make_json_response({"kind": body.kind, "value": value, "off": body.off, "epoch": epoch})
