"""What was agreed to of a server beside its tools, and where contracts of servers lead."""

from deputize.core.offers import NOTHING, Offers
from deputize.core.servers import CALL_TOOL, READ_RESOURCE, Definition, Kind, address, kind_of, name_in

AGREED = Offers.of(
    [
        ("instructions", {"instructions": ""}),
        ("tool:resource:x", {"name": "resource:x"}),
        ("resource:docs://a", {"uri": "docs://a"}),
        ("template:docs://p/{n}", {"uriTemplate": "docs://p/{n}"}),
        ("prompt:sum", {"name": "sum"}),
    ]
)


def test_an_address_is_agreed_to_by_itself_or_by_a_template() -> None:
    assert AGREED.has_resource("docs://a")
    assert AGREED.has_resource("docs://p/1")
    assert not AGREED.has_resource("docs://b")
    assert not AGREED.has_resource("x")
    assert not NOTHING.has_resource("docs://a")


def test_completions_are_for_what_was_agreed_to() -> None:
    assert AGREED.has_reference({"type": "ref/prompt", "name": "sum"})
    assert AGREED.has_reference({"type": "ref/resource", "uri": "docs://p/{n}"})
    for other in (
        {"type": "ref/prompt", "name": "other"}, {"type": "ref/resource", "uri": "docs://p/1"}, {"type": "ref/prompt"},
        {"type": "ref/tool", "name": "sum"},
    ):  # fmt: skip
        assert not AGREED.has_reference(other)


def test_no_tool_of_a_server_can_pass_for_one_of_its_methods() -> None:
    method, tool = address("shop:resources/read"), address("shop/x:resources/read")
    assert (method.server, method.method, method.name) == ("shop", READ_RESOURCE, READ_RESOURCE)
    assert (tool.server, tool.method, tool.name) == ("shop", CALL_TOOL, "x:resources/read")


def test_items_are_named_by_kind_and_by_the_servers_own_name() -> None:
    resource = Definition.of({"uri": "docs://a", "name": "a"}, Kind.RESOURCE)
    assert (resource.item, kind_of(resource.item), name_in(resource.item)) == (
        "resource:docs://a", Kind.RESOURCE, "docs://a",
    )  # fmt: skip
    assert kind_of("instructions") is None


def test_what_is_told_of_a_resources_content_is_no_part_of_its_definition() -> None:
    said = {"uri": "docs://a", "name": "a", "annotations": {"priority": 1}}
    grown = {**said, "size": 9, "annotations": {"priority": 1, "lastModified": "2026-01-01T00:00:00Z"}}
    assert Definition.of(said, Kind.RESOURCE) == Definition.of(grown, Kind.RESOURCE)
    moved = {**said, "annotations": {"priority": 0}}
    assert Definition.of(said, Kind.RESOURCE).digest != Definition.of(moved, Kind.RESOURCE).digest
    # A tool's words all count, whatever they are called.
    assert Definition.of({"name": "a", "size": 1}).digest != Definition.of({"name": "a"}).digest
