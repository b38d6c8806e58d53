"""What a client brings back when it comes again about a call that waits for people (`requestState`).

It names the call, and is signed for exactly this caller, tool and arguments, and for an hour: changed, borrowed or old,
it is refused. It opens nothing that its caller could not ask for with `calls_get`. Every gateway of a database reads
it.
"""

import base64
import binascii
import hmac
from collections.abc import Mapping
from typing import Any, Final

from deputize.core.caller import Caller
from deputize.core.canonical import NotCanonical, canonical
from deputize.core.clock import Clock
from deputize.core.mcp import INVALID_PARAMS
from deputize.doors.mcp.faces import RpcError

PURPOSE: Final = "mcp request state"
SECONDS: Final = 3600
_LONGEST = 400


def sealed(key: bytes, clock: Clock, caller: Caller, tool: str, arguments: Mapping[str, Any], call_id: str) -> str:
    body = f"{clock.epoch_ms() // 1000 + SECONDS}.{call_id}"
    return base64.urlsafe_b64encode(body.encode() + b"." + _signed(key, caller, tool, arguments, body)).decode()


def opened(key: bytes, clock: Clock, caller: Caller, tool: str, arguments: Mapping[str, Any], state: Any) -> str:
    """The call it names."""
    try:
        if not isinstance(state, str) or len(state) > _LONGEST:
            raise ValueError
        said = base64.b64decode(state, altchars=b"-_", validate=True)
        # Other letters may stand for the same bytes; they were not given out.
        if base64.urlsafe_b64encode(said).decode() != state:
            raise ValueError
        until, call_id, signature = said.split(b".", 2)
        body = f"{int(until)}.{call_id.decode('ascii')}"
        if not hmac.compare_digest(signature, _signed(key, caller, tool, arguments, body)):
            raise ValueError
    except (ValueError, binascii.Error, NotCanonical):
        raise RpcError(INVALID_PARAMS, "requestState was not given out for this request") from None
    if int(until) < clock.epoch_ms() // 1000:
        raise RpcError(INVALID_PARAMS, "requestState has expired: make the call again without it")
    return call_id.decode("ascii")


def _signed(key: bytes, caller: Caller, tool: str, arguments: Mapping[str, Any], body: str) -> bytes:
    said = {
        "who": [caller.tenant, caller.issuer, *caller.subjects],
        "tool": tool,
        "arguments": dict(arguments),
        "body": body,
    }
    return hmac.digest(key, b"tools/call\0" + canonical(said), "sha256")
