"""Test listing of a server's definitions, page by page and within limits."""

from typing import Any

import pytest

from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp.constants import MODERN_VERSION
from deputize.core.mcp.servers import DefinitionKind
from deputize.execute.upstreams.discovery import MOST_TEMPLATES, MOST_TOOLS, list_definitions
from deputize.execute.upstreams.jsonrpc import ServerInfo, UpstreamRpcError

SERVER_INFO = ServerInfo(
    protocol=MODERN_VERSION, title="t", version="1", instructions="", has_tools=True, announces_changes=False
)
SCHEMA = {"type": "object"}


def make_tool(name: Any = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does a thing.", "inputSchema": SCHEMA, **more}


def make_nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def discover_pages(*pages: dict[str, Any]) -> Any:
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        return pages[0 if cursor is None else int(cursor)]

    return await list_definitions(SERVER_INFO, page)


async def test_pages_are_one_list_in_the_servers_order() -> None:
    found = await discover_pages({"tools": [make_tool("b")], "nextCursor": "1"}, {"tools": [make_tool("a")]})
    assert [each.name for each in found.tools] == ["b", "a"]
    assert found.rejections == ()


@pytest.mark.parametrize(
    "entry",
    [
        "text",
        make_tool(name=""),
        make_tool(name=7),
        make_tool(name="x" * 200),
        {"name": "a"},
        make_tool(inputSchema=[]),
        make_tool(inputSchema={"type": "string"}),
        make_tool(outputSchema="no"),
        make_tool(annotations=[]),
        make_tool(description=7),
        make_tool(description="x" * 40_000),
        make_tool(inputSchema={"type": "object", "description": "x" * 300_000}),
        make_tool(name="a\0b"),
        make_tool(annotations=make_nested(246)),
        make_tool(inputSchema={"type": "object", "properties": make_nested(900)}),
    ],
)
async def test_an_invalid_definition_is_reported_and_others_are_kept(entry: Any) -> None:
    found = await discover_pages({"tools": [entry, make_tool("good")]})
    assert [each.name for each in found.tools] == ["good"]
    assert len(found.rejections) == 1


@pytest.mark.parametrize(
    "page",
    [
        {"tools": "none"},
        {},
        {"tools": [], "nextCursor": "0"},
        {"tools": [], "nextCursor": 7},
        {"tools": [make_tool(str(number)) for number in range(MOST_TOOLS + 1)]},
        {"tools": [make_tool(str(number), note="x" * 100_000) for number in range(50)]},
    ],
)
async def test_lists_without_end_or_bounds_are_refused_whole(page: dict[str, Any]) -> None:
    with pytest.raises(UpstreamUnavailable):
        await discover_pages(page)


async def test_a_server_that_says_it_has_no_tools_is_not_asked_for_them() -> None:
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        raise AssertionError

    without = ServerInfo(
        protocol=MODERN_VERSION, title="", version="", instructions="", has_tools=False, announces_changes=False
    )
    assert (await list_definitions(without, page)).tools == ()


async def discover_resources(resources: Any = (), templates: Any = (), prompts: Any = (), **capabilities: bool) -> Any:
    """List what a server has besides tools; it has every capability unless `capabilities` disables it."""
    told = {"has_resources": True, "has_prompts": True, "has_completions": True, **capabilities}
    who = ServerInfo(
        protocol=MODERN_VERSION,
        title="t",
        version="1",
        instructions="",
        has_tools=False,
        announces_changes=False,
        **told,
    )
    pages = {
        "resources/list": {"resources": list(resources)},
        "resources/templates/list": {"resourceTemplates": list(templates or ())},
        "prompts/list": {"prompts": list(prompts)},
    }

    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        if method == "resources/templates/list" and templates is None:
            raise UpstreamRpcError(-32601, "no such method")
        return pages[method]

    return await list_definitions(who, page, resources=True, prompts=True)


RESOURCE = {"uri": "docs://a", "name": "a"}
TEMPLATE = {"uriTemplate": "docs://{a}", "name": "a"}


async def test_beside_tools_there_is_what_the_server_can_and_the_operator_wants() -> None:
    found = await discover_resources([RESOURCE], [TEMPLATE], [{"name": "sum", "arguments": [{"name": "page"}]}])
    assert {each.item for each in found.other_definitions} == {
        "method:resources/read", "method:prompts/get", "method:completion/complete", "resource:docs://a",
        "template:docs://{a}", "prompt:sum",
    }  # fmt: skip
    assert found.digests_by_item.keys() == {each.item for each in found.other_definitions}
    without = await discover_resources(has_resources=False, has_prompts=False)
    assert (without.other_definitions, without.rejections) == ((), ())

    async def fail_if_requested(method: str, cursor: str | None) -> dict[str, Any]:
        raise AssertionError(method)

    who = ServerInfo(
        protocol=MODERN_VERSION,
        title="",
        version="",
        instructions="",
        has_tools=False,
        announces_changes=False,
        has_resources=True,
    )
    assert (await list_definitions(who, fail_if_requested)).other_definitions == ()


async def test_a_server_without_templates_has_resources_all_the_same() -> None:
    found = await discover_resources([RESOURCE], None)
    assert "resource:docs://a" in {each.item for each in found.other_definitions}


@pytest.mark.parametrize(
    "parts",
    [
        {"resources": ["text"]},
        {"resources": [{"uri": "docs://a"}]},
        {"resources": [{**RESOURCE, "uri": "no address"}]},
        {"resources": [{**RESOURCE, "uri": "docs://" + "a" * 1100}]},
        {"resources": [{**RESOURCE, "annotations": []}]},
        {"resources": [{**RESOURCE, "mimeType": 7}]},
        {"templates": [{**TEMPLATE, "uriTemplate": "{+anything}"}]},
        {"templates": [{**TEMPLATE, "uriTemplate": "docs://{"}]},
        {"prompts": [{"name": "a\0b"}]},
        {"prompts": [{"name": "a", "arguments": {}}]},
        {"prompts": [{"name": "a", "arguments": [{"title": "b"}]}]},
    ],
)
async def test_an_invalid_resource_definition_is_reported_and_left_out(parts: Any) -> None:
    found = await discover_resources(**parts)
    assert {each.kind for each in found.other_definitions} == {DefinitionKind.METHOD}
    assert len(found.rejections) == 1


async def test_a_list_beside_tools_that_is_too_long_is_left_out_as_a_whole() -> None:
    found = await discover_resources(
        [{"uri": f"docs://{number}", "name": "n"} for number in range(MOST_TOOLS + 1)], [TEMPLATE]
    )
    assert {each.kind for each in found.other_definitions} == {DefinitionKind.METHOD, DefinitionKind.TEMPLATE}
    assert len(found.rejections) == 1
    many = [{"uriTemplate": f"docs://{number}/{{a}}", "name": "n"} for number in range(MOST_TEMPLATES + 1)]
    assert {each.kind for each in (await discover_resources([RESOURCE], many)).other_definitions} == {
        DefinitionKind.METHOD,
        DefinitionKind.RESOURCE,
    }
