"""Tell where a call over MCP comes from: the id of the tool use or of the request, its parent call and its flow."""

from typing import Final

from deputize.core.call import MAX_SESSION_LENGTH, CallOrigin
from deputize.core.mcp.constants import FLOW_ID, PARENT_CALL_ID
from deputize.interfaces.call_request import parse_origin
from deputize.interfaces.mcp.request import McpRequest

TOOL_USE_META: Final = "claudecode/toolUseId"


def parse_call_origin(request: McpRequest) -> CallOrigin | None:
    """Parse the origin of a call. An id of the protocol that is too long to be recorded is left out."""
    meta = request.meta
    native_call_id = meta.get(TOOL_USE_META, request.id)
    if type(native_call_id) is int:
        native_call_id = str(native_call_id)
    if type(native_call_id) is not str or not 0 < len(native_call_id) <= MAX_SESSION_LENGTH:
        native_call_id = None
    if PARENT_CALL_ID not in meta and FLOW_ID not in meta:
        return None if native_call_id is None else CallOrigin(native_call_id=native_call_id)
    fields = {
        "native_call_id": native_call_id,
        "parent_call_id": meta.get(PARENT_CALL_ID),
        "flow_id": meta.get(FLOW_ID),
    }
    return parse_origin(fields)
