"""Tools that want their arguments in headers in ways the protocol forbids are told, and not used."""

from typing import Any

import pytest

from deputize.core.mcp import MODERN, VERSION_UNSUPPORTED
from deputize.execute.upstreams.listing import listed
from deputize.execute.upstreams.messages import Introduction, Refused, speaks_ours

WHO = Introduction(protocol=MODERN, title="t", version="1", instructions="", has_tools=True, tells_changes=False)


def tool(name: str, **properties: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does a thing.", "inputSchema": {"type": "object", "properties": properties}}


@pytest.mark.parametrize(
    "properties",
    [
        {"a": {"type": "string", "x-mcp-header": ""}},
        {"a": {"type": "object", "x-mcp-header": "A"}},
        {"a": {"type": "array", "x-mcp-header": "A"}},
        {"a": {"type": "string", "x-mcp-header": "has a space"}},
        {"a": {"type": "string", "x-mcp-header": "Région"}},
        {"a": {"type": "string", "x-mcp-header": "Same"}, "b": {"type": "string", "x-mcp-header": "same"}},
    ],
)
async def test_a_tool_with_a_forbidden_wish_is_told_and_hides_no_other(properties: dict[str, Any]) -> None:
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        return {"tools": [tool("bad", **properties), tool("good", a={"type": "string", "x-mcp-header": "A"})]}

    found = await listed(WHO, page)
    assert [each.name for each in found.tools] == ["good"]
    assert len(found.refused) == 1
    assert "x-mcp-header" in found.refused[0]


def test_only_a_server_that_says_it_speaks_the_version_it_refused_is_asked_again() -> None:
    def refused(**data: Any) -> Refused:
        return Refused(VERSION_UNSUPPORTED, "not this one", data)

    assert speaks_ours(refused(supported=[MODERN]))
    assert not speaks_ours(refused(supported=["2025-11-25"]))
    assert not speaks_ours(refused(supported=MODERN))
    assert not speaks_ours(Refused(-32601, "no such method", {"supported": [MODERN]}))
