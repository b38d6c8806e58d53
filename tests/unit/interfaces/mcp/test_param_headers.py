"""A header that repeats an argument says the same as the argument, so that proxies and tools act on one value."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from deputize.core.mcp.headers import read_header_params
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.param_headers import require_param_headers
from deputize.operations.gateway import ToolView

_SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "shard": {"type": "integer", "x-mcp-header": "Shard"},
    },
}
_TOOL = cast("ToolView", SimpleNamespace(digest="sha256:param-headers", input_schema=_SCHEMA))
_REGION, _SHARD = (header.lower().encode() for header in read_header_params(_SCHEMA).values())


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu", "shard": 4}, [(_REGION, b"eu"), (_SHARD, b"4")]),
        ({"region": "eu", "shard": 4}, [(_REGION, b"=?base64?ZXU=?="), (_SHARD, b"4.0")]),
        ({"region": "eu"}, [(_REGION, b"eu"), (b"other", b"x")]),
        ({}, []),
    ],
)
def test_a_header_that_repeats_its_argument_is_accepted(arguments: dict[str, Any], headers: Any) -> None:
    require_param_headers(_TOOL, arguments, headers)


@pytest.mark.parametrize(
    ("arguments", "headers"),
    [
        ({"region": "eu"}, [(_REGION, b"us")]),
        ({"region": "eu", "shard": 4}, [(_REGION, b"eu"), (_SHARD, b"5")]),
        ({"region": "eu"}, []),
        ({}, [(_REGION, b"eu")]),
        ({"region": "eu"}, [(_REGION, b"eu"), (_REGION, b"eu")]),
    ],
)
def test_a_header_that_says_something_else_is_refused(arguments: dict[str, Any], headers: Any) -> None:
    with pytest.raises(RpcError):
        require_param_headers(_TOOL, arguments, headers)
