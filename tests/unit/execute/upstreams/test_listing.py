"""What servers declare, page by page and within bounds."""

from typing import Any

import pytest

from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp import MODERN
from deputize.core.servers import Kind
from deputize.execute.upstreams.listing import MOST_TEMPLATES, MOST_TOOLS, listed
from deputize.execute.upstreams.messages import Introduction, Refused

WHO = Introduction(protocol=MODERN, title="t", version="1", instructions="", has_tools=True, tells_changes=False)
SCHEMA = {"type": "object"}


def tool(name: Any = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "description": "Does a thing.", "inputSchema": SCHEMA, **more}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


async def of(*pages: dict[str, Any]) -> Any:
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
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
        tool(name="a\0b"),
        tool(annotations=nested(246)),
        tool(inputSchema={"type": "object", "properties": nested(900)}),
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
    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        raise AssertionError

    without = Introduction(protocol=MODERN, title="", version="", instructions="", has_tools=False, tells_changes=False)
    assert (await listed(without, page)).tools == ()


async def beside(resources: Any = (), templates: Any = (), prompts: Any = (), **able: bool) -> Any:
    """What is found beside tools of a server that has all of it, unless `able` says otherwise."""
    told = {"has_resources": True, "has_prompts": True, "completes": True, **able}
    who = Introduction(
        protocol=MODERN, title="t", version="1", instructions="", has_tools=False, tells_changes=False, **told
    )
    pages = {
        "resources/list": {"resources": list(resources)},
        "resources/templates/list": {"resourceTemplates": list(templates or ())},
        "prompts/list": {"prompts": list(prompts)},
    }

    async def page(method: str, cursor: str | None) -> dict[str, Any]:
        if method == "resources/templates/list" and templates is None:
            raise Refused(-32601, "no such method")
        return pages[method]

    return await listed(who, page, resources=True, prompts=True)


RESOURCE = {"uri": "docs://a", "name": "a"}
TEMPLATE = {"uriTemplate": "docs://{a}", "name": "a"}


async def test_beside_tools_there_is_what_the_server_can_and_the_operator_wants() -> None:
    found = await beside([RESOURCE], [TEMPLATE], [{"name": "sum", "arguments": [{"name": "page"}]}])
    assert {each.item for each in found.others} == {
        "method:resources/read", "method:prompts/get", "method:completion/complete", "resource:docs://a",
        "template:docs://{a}", "prompt:sum",
    }  # fmt: skip
    assert found.digests_by_item.keys() == {each.item for each in found.others}
    without = await beside(has_resources=False, has_prompts=False)
    assert (without.others, without.refused) == ((), ())

    async def nobody_asks(method: str, cursor: str | None) -> dict[str, Any]:
        raise AssertionError(method)

    who = Introduction(
        protocol=MODERN, title="", version="", instructions="", has_tools=False, tells_changes=False, has_resources=True
    )
    assert (await listed(who, nobody_asks)).others == ()


async def test_a_server_without_templates_has_resources_all_the_same() -> None:
    found = await beside([RESOURCE], None)
    assert "resource:docs://a" in {each.item for each in found.others}


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
async def test_what_is_no_definition_is_told_and_left_out_beside_tools_too(parts: Any) -> None:
    found = await beside(**parts)
    assert {each.kind for each in found.others} == {Kind.METHOD}
    assert len(found.refused) == 1


async def test_a_list_beside_tools_that_is_too_long_is_left_out_as_a_whole() -> None:
    found = await beside([{"uri": f"docs://{number}", "name": "n"} for number in range(MOST_TOOLS + 1)], [TEMPLATE])
    assert {each.kind for each in found.others} == {Kind.METHOD, Kind.TEMPLATE}
    assert len(found.refused) == 1
    many = [{"uriTemplate": f"docs://{number}/{{a}}", "name": "n"} for number in range(MOST_TEMPLATES + 1)]
    assert {each.kind for each in (await beside([RESOURCE], many)).others} == {Kind.METHOD, Kind.RESOURCE}
