"""What was agreed to of a server beside its tools, and where contracts of servers lead."""

from deputize.core.mcp.resources import NO_PINNED_RESOURCES, PinnedResources
from deputize.core.mcp.servers import (
    CALL_TOOL,
    READ_RESOURCE,
    Definition,
    DefinitionKind,
    parse_item_kind,
    parse_item_name,
    parse_mcp_target,
)

PINS = PinnedResources.from_pins(
    [
        ("instructions", {"instructions": ""}),
        ("tool:resource:x", {"name": "resource:x"}),
        ("resource:docs://a", {"uri": "docs://a"}),
        ("template:docs://p/{n}", {"uriTemplate": "docs://p/{n}"}),
        ("prompt:sum", {"name": "sum"}),
    ]
)


def test_an_address_is_agreed_to_by_itself_or_by_a_template() -> None:
    assert PINS.has_resource("docs://a")
    assert PINS.has_resource("docs://p/1")
    assert not PINS.has_resource("docs://b")
    assert not PINS.has_resource("x")
    assert not NO_PINNED_RESOURCES.has_resource("docs://a")


def test_completions_are_for_what_was_agreed_to() -> None:
    assert PINS.has_reference({"type": "ref/prompt", "name": "sum"})
    assert PINS.has_reference({"type": "ref/resource", "uri": "docs://p/{n}"})
    for other in (
        {"type": "ref/prompt", "name": "other"}, {"type": "ref/resource", "uri": "docs://p/1"}, {"type": "ref/prompt"},
        {"type": "ref/tool", "name": "sum"},
    ):  # fmt: skip
        assert not PINS.has_reference(other)


def test_no_tool_of_a_server_can_pass_for_one_of_its_methods() -> None:
    method, tool = parse_mcp_target("shop:resources/read"), parse_mcp_target("shop/x:resources/read")
    assert (method.server, method.method, method.name) == ("shop", READ_RESOURCE, READ_RESOURCE)
    assert (tool.server, tool.method, tool.name) == ("shop", CALL_TOOL, "x:resources/read")


def test_items_are_named_by_kind_and_by_the_servers_own_name() -> None:
    resource = Definition.from_declaration({"uri": "docs://a", "name": "a"}, DefinitionKind.RESOURCE)
    assert (resource.item, parse_item_kind(resource.item), parse_item_name(resource.item)) == (
        "resource:docs://a", DefinitionKind.RESOURCE, "docs://a",
    )  # fmt: skip
    assert parse_item_kind("instructions") is None


def test_content_metadata_of_a_resource_is_not_part_of_its_definition() -> None:
    said = {"uri": "docs://a", "name": "a", "annotations": {"priority": 1}}
    grown = {**said, "size": 9, "annotations": {"priority": 1, "lastModified": "2026-01-01T00:00:00Z"}}
    assert Definition.from_declaration(said, DefinitionKind.RESOURCE) == Definition.from_declaration(
        grown, DefinitionKind.RESOURCE
    )
    moved = {**said, "annotations": {"priority": 0}}
    assert (
        Definition.from_declaration(said, DefinitionKind.RESOURCE).digest
        != Definition.from_declaration(moved, DefinitionKind.RESOURCE).digest
    )
    # A tool's words all count, whatever they are called.
    assert (
        Definition.from_declaration({"name": "a", "size": 1}).digest
        != Definition.from_declaration({"name": "a"}).digest
    )
