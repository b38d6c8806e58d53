"""Where a call over MCP comes from: the tool use before the request, and what the client states in `_meta`."""

from typing import Any

import pytest

from deputize.core.call import CallOrigin
from deputize.core.errors import MalformedRequest
from deputize.core.mcp.constants import FLOW_ID, PARENT_CALL_ID
from deputize.interfaces.mcp.call_origin import TOOL_USE_META, parse_call_origin
from deputize.interfaces.mcp.request import McpClient, McpRequest

pytestmark = pytest.mark.requirement("GOV-5")

PARENT = "0198C0DE-0000-7000-8000-000000000001"


def _parse(request_id: str | int | None, **meta: Any) -> CallOrigin | None:
    client = McpClient(version="2025-06-18")
    return parse_call_origin(McpRequest(id=request_id, method="tools/call", params={}, meta=meta, client=client))


@pytest.mark.parametrize(
    ("request_id", "meta", "native_call_id"),
    [
        (7, {}, "7"),
        ("a-1", {}, "a-1"),
        (7, {TOOL_USE_META: "toolu_1"}, "toolu_1"),
        ("x" * 200, {}, "x" * 200),
    ],
)
def test_the_native_id_is_the_tool_use_or_the_request(
    request_id: str | int, meta: dict[str, Any], native_call_id: str
) -> None:
    assert _parse(request_id, **meta) == CallOrigin(native_call_id=native_call_id)


@pytest.mark.parametrize("request_id", [None, "", "x" * 201, True])
def test_an_id_that_cannot_be_recorded_is_left_out(request_id: Any) -> None:
    assert _parse(request_id) is None


def test_parent_and_flow_are_what_the_client_states() -> None:
    origin = _parse(7, **{PARENT_CALL_ID: PARENT, FLOW_ID: "f-1"})
    assert origin == CallOrigin(native_call_id="7", parent_call_id=PARENT.lower(), flow_id="f-1")


@pytest.mark.parametrize("meta", [{PARENT_CALL_ID: "not-a-call"}, {PARENT_CALL_ID: 7}, {FLOW_ID: ""}, {FLOW_ID: ["f"]}])
def test_what_is_no_id_is_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(MalformedRequest):
        _parse(7, **meta)
