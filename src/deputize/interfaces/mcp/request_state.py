"""Issue and verify the `requestState` that a client brings back about a call that waits for approval.

It names the call and is signed for this caller, tool and arguments, for one hour; a changed, borrowed or expired one is
refused. It grants nothing that the caller could not get with `calls_get`. Every gateway on the database verifies it.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Any, Final, Protocol

from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonicalize
from deputize.core.clock import Clock
from deputize.core.mcp.constants import INVALID_PARAMS
from deputize.interfaces.mcp.errors import RpcError

_KEY_PURPOSE: Final = "mcp request state"
TTL_SECONDS: Final = 3600
_MAX_LENGTH = 400


class StateSigner(Protocol):
    """What this module needs of a gateway."""

    @property
    def clock(self) -> Clock: ...

    def sign(self, purpose: str, message: bytes) -> bytes: ...


def issue_request_state(
    gateway: StateSigner, caller: Caller, tool: str, arguments: Mapping[str, Any], call_id: str
) -> str:
    """Issue the state that a client brings back with the same request."""
    body = f"{gateway.clock.epoch_ms() // 1000 + TTL_SECONDS}.{call_id}"
    return base64.urlsafe_b64encode(body.encode() + b"." + _sign(gateway, caller, tool, arguments, body)).decode()


def verify_request_state(
    gateway: StateSigner, caller: Caller, tool: str, arguments: Mapping[str, Any], state: Any
) -> str:
    """Return the id of the call that a state names; raise if it was not issued for this request, or has expired."""
    try:
        if not isinstance(state, str) or len(state) > _MAX_LENGTH:
            raise ValueError
        data = base64.b64decode(state, altchars=b"-_", validate=True)
        # Other base64 texts may decode to the same bytes; only the issued one counts.
        if base64.urlsafe_b64encode(data).decode() != state:
            raise ValueError
        until, call_id, signature = data.split(b".", 2)
        body = f"{int(until)}.{call_id.decode('ascii')}"
        if not hmac.compare_digest(signature, _sign(gateway, caller, tool, arguments, body)):
            raise ValueError
    except (ValueError, binascii.Error, NotCanonical):
        raise RpcError(INVALID_PARAMS, "requestState was not issued for this request") from None
    if int(until) < gateway.clock.epoch_ms() // 1000:
        raise RpcError(INVALID_PARAMS, "requestState has expired: make the call again without it")
    return call_id.decode("ascii")


def _sign(gateway: StateSigner, caller: Caller, tool: str, arguments: Mapping[str, Any], body: str) -> bytes:
    payload = {
        "who": [caller.tenant, caller.issuer, *caller.subjects],
        "tool": tool,
        "arguments": dict(arguments),
        "body": body,
    }
    return gateway.sign(_KEY_PURPOSE, b"tools/call\0" + canonicalize(payload))
