"""Content that tools return beside their payload: every kind is rendered, and what no kind allows is refused."""

import pytest

from deputize import Content
from deputize.core.content import MAX_BYTES, MAX_ITEMS, is_safe_uri, render_content
from deputize.interfaces.mcp.render import render_content_block

pytestmark = pytest.mark.requirement("INV-10")


def test_each_kind_becomes_the_content_block_of_mcp() -> None:
    items = [
        Content.plain("hello"),
        Content.image(b"png"),
        Content.audio(b"wav"),
        Content.file("a b.csv", b"1,2", "text/csv"),
        Content.link("https://example.org/7", "seven"),
        Content.diff("-a\n+b\n"),
        Content.log("done\n", name="build"),
    ]
    assert [render_content_block(each) for each in render_content(items)] == [
        {"type": "text", "text": "hello"},
        {"type": "image", "data": "cG5n", "mimeType": "image/png"},
        {"type": "audio", "data": "d2F2", "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "file:///a%20b.csv", "blob": "MSwy", "mimeType": "text/csv"}},
        {"type": "resource_link", "uri": "https://example.org/7", "name": "seven"},
        {"type": "text", "text": "-a\n+b\n"},
        {"type": "text", "text": "done\n"},
    ]


@pytest.mark.parametrize(
    "items",
    [
        ["a text"],
        [Content(kind="video", data=b"")],  # type: ignore[arg-type]  # what a tool must not say
        [Content(kind="image", text="not bytes")],
        [Content.link("https://example.org", "a\x00b")],
        [Content.link("javascript:alert(1)", "x")],
        [Content.plain("x")] * (MAX_ITEMS + 1),
        [Content.file("a", bytes(MAX_BYTES)), Content.plain("x")],
    ],
    ids=["no content", "kind", "body", "name", "uri", "count", "size"],
)
def test_what_no_kind_allows_is_refused(items: list[Content]) -> None:
    with pytest.raises(ValueError, match=r"content|name|uri"):
        render_content(items)


@pytest.mark.parametrize(
    "uri", ["data:text/html,x", "JavaScript:x", "/relative", "https:", "https://a b", "a\u202e:b", ""]
)
def test_a_link_has_to_lead_somewhere(uri: str) -> None:
    assert not is_safe_uri(uri)


@pytest.mark.parametrize("uri", ["https://example.org/?q=1", "file:///a", "git+ssh://host/repo", "urn:isbn:1"])
def test_links_of_any_other_scheme_are_allowed(uri: str) -> None:
    assert is_safe_uri(uri)
