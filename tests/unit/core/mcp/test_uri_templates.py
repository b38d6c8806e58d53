"""Which addresses a template stands for, and which try to be others than they look."""

import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.mcp.uri_templates import (
    MAX_EXPRESSIONS,
    MAX_URI_LENGTH,
    BadTemplate,
    can_expand_to,
    compile_template,
    is_safe_uri,
)

SEGMENTS = (
    st.text(min_size=1, max_size=20).filter(lambda each: each not in (".", "..")).map(lambda e: quote(e, safe=""))
)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("test://t/{id}/data", "test://t/123/data"),
        ("test://t/{id}/data", "test://t/a%20b/data"),
        ("users://{email}", "users://ana@example.com"),
        ("a://{x}-{y}", "a://1-2-3"),
        ("file:///{+path}", "file:///a/b.txt"),
        ("file:///{+path}.md", "file:///a/b.md"),
        ("repo://r{/path*}", "repo://r/a/b"),
        ("repo://r{/path*}", "repo://r"),
        ("a://b{?q,lang}", "a://b?q=x&lang=en"),
        ("a://b{?q}", "a://b"),
        ("a://b?fixed=1{&q}", "a://b?fixed=1&q=2"),
        ("a://b{#part}", "a://b#top"),
        ("a://b{.form}", "a://b.json"),
        ("a://b{;v}", "a://b;v=1"),
        ("a://{x:3}/{list*}", "a://abc/a,b"),
    ],
)
def test_a_template_stands_for_what_it_expands_to(template: str, uri: str) -> None:
    assert can_expand_to(template, uri)


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("test://t/{id}/data", "test://t//data"),
        ("test://t/{id}/data", "test://t/1/2/data"),
        ("test://t/{id}/data", "test://t/1/data/more"),
        ("test://t/{id}/data", "test://t/../data"),
        ("test://t/{id}/data", "test://t/%2e%2e/data"),
        ("test://t/{id}/data", "test://t/%252e%252e/data"),
        ("test://t/{id}/data", "test://t/..%2f..%2fetc/data"),
        ("test://t/{id}/data", "test://t/..%5c..%5cetc/data"),
        ("test://t/{id}/data", "test://t/a%00b/data"),
        ("test://t/{id}/data", "test://t/a%0d%0ab/data"),
        ("test://t/{id}/data", "test://t/a b/data"),
        ("test://t/{id}/data", "test://t/a%zz/data"),
        ("test://t/{id}/data", "test://t/1?x/data"),
        ("test://t/{id}/data", "TEST://t/1/data"),
        ("file:///{+path}", "file:///a/../../etc/passwd"),
        ("file:///{+path}", "file:///"),
        ("a://b{?q}", "a://b?q=../../x"),
        ("a://b/{id}", "a://b/" + "x" * MAX_URI_LENGTH),
        ("a://b/{id}", "a://b/\u0661"),
    ],
)
def test_it_stands_for_nothing_else_and_nothing_climbs(template: str, uri: str) -> None:
    assert not can_expand_to(template, uri)


@pytest.mark.parametrize(
    "template", ["a://{", "a://}", "a://{a b}", "a://{=x}", "{+anything}", "{scheme}://x", "x" * 9, "a:" + "{x}" * 9]
)
def test_what_is_no_template_stands_for_nothing(template: str) -> None:
    with pytest.raises(BadTemplate):
        compile_template(template)
    assert not can_expand_to(template, template)
    assert not can_expand_to(template, "a://x")


@given(SEGMENTS, SEGMENTS)
def test_whatever_fills_a_segment_is_matched_unless_it_climbs_or_is_no_text(one: str, two: str) -> None:
    uri = f"shop://orders/{one}/lines/{two}"
    assert can_expand_to("shop://orders/{order}/lines/{line}", uri) == is_safe_uri(uri)
    assert not can_expand_to("shop://orders/{order}", uri)


def test_no_template_makes_matching_slow() -> None:
    template, uri = "a:" + "{+x}" * MAX_EXPRESSIONS + "!", "a:" + "x" * (MAX_URI_LENGTH - 2)
    began = time.thread_time()
    assert not can_expand_to(template, uri)
    assert time.thread_time() - began < 2
