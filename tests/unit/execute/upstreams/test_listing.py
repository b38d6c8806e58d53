"""What servers declare, page by page and within bounds."""

from typing import Any

import pytest

from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp import MODERN
from deputize.execute.upstreams.listing import MOST_TOOLS, listed
from deputize.execute.upstreams.messages import Introduction

WHO = Introduction(protocol=MODERN, title="t", version="1", instructions="", has_tools=True, tells_changes=False)
SCHEMA = {"type": "object"}


def tool(name: Any = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does a thing.", "inputSchema": SCHEMA, **more}


async def of(*pages: dict[str, Any]) -> Any:
    async def page(cursor: str | None) -> dict[str, Any]:
        return pages[0 if cursor is None else int(cursor)]

    return await listed(WHO, page)


async def test_pages_are_one_list_in_the_servers_order() -> None:
    found = await of({"tools": [tool("b")], "nextCursor": "1"}, {"tools": [tool("a")]})
    assert [each.name for each in found.tools] == ["b", "a"]
    assert found.refused == ()


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        tool(name=""),
        tool(name=7),
        tool(name="x" * 200),
        {"name": "a"},
        tool(inputSchema=[]),
        tool(inputSchema={"type": "string"}),
        tool(outputSchema="no"),
        tool(annotations=[]),
        tool(description=7),
        tool(description="x" * 40_000),
        tool(inputSchema={"type": "object", "description": "x" * 300_000}),
    ],
)
async def test_what_is_no_definition_is_told_and_hides_no_other(entry: Any) -> None:
    found = await of({"tools": [entry, tool("good")]})
    assert [each.name for each in found.tools] == ["good"]
    assert len(found.refused) == 1


@pytest.mark.parametrize(
    "page",
    [
        {"tools": "none"},
        {},
        {"tools": [], "nextCursor": "0"},
        {"tools": [], "nextCursor": 7},
        {"tools": [tool(str(number)) for number in range(MOST_TOOLS + 1)]},
        {"tools": [tool(str(number), note="x" * 100_000) for number in range(50)]},
    ],
)
async def test_lists_without_end_or_bounds_are_refused_whole(page: dict[str, Any]) -> None:
    with pytest.raises(UpstreamUnavailable):
        await of(page)


async def test_a_server_that_says_it_has_no_tools_is_not_asked_for_them() -> None:
    async def page(cursor: str | None) -> dict[str, Any]:
        raise AssertionError

    without = Introduction(protocol=MODERN, title="", version="", instructions="", has_tools=False, tells_changes=False)
    assert (await listed(without, page)).tools == ()
