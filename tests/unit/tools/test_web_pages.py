"""Pages of the web become text: as a reader sees them, whatever their author did to them."""

import gzip
import time

import pytest

from deputize import SemanticViolation, ToolPrecondition
from deputize.core.contract.tools import FetchedPage
from deputize.tools.web.declarations import require_normal_url
from deputize.tools.web.html_text import read_html
from deputize.tools.web.pages import MAX_PAGE, Page, fetch_page, read_text

pytestmark = pytest.mark.requirement("EXE-4")

URL = "https://docs.example.com/a/b"
# Each is repeated to 300,000 characters; an analysis that begins anew at each would take minutes.
ENDLESS = (
    "<", "<!--", "<a ", "<! ", "<? ", "<a b='", '<a b="', "</ ", "&", "&#1", "<![CDATA[", "<script>", "<script></scrip",
    "<b>", "<div>", "<ul><li>", "<table><tr><td>", "<template>", "<svg>", "<a a=b ", "<pre> ", "\n", " ", "<title>",
    "<a href=x>y", "<base href=x>", "<p\n", "<a href='x&", "&lt", "\0",
)  # fmt: skip


def make_page(body: bytes, media_type: str = "text/html") -> FetchedPage:
    return FetchedPage(url=URL, status=200, headers={"content-type": media_type}, body=body)


def read(body: bytes, content_type: str) -> str:
    return read_text(make_page(body, content_type), content_type.partition(";")[0]).text


def test_text_headings_lists_tables_and_links_are_kept() -> None:
    found = read_html(
        """<!doctype html><html><head><title> Prices
        &amp; more</title><style>p { color: red }</style></head><body><nav><a href="/">Home</a></nav>
        <h2>Tea</h2><p>One  <b>two</b>
        three<br>four; 5 < 6. See <a href="more?x=1&amp;y=2#top">this</a> and <a href="/">home</a>.</p>
        <ul><li>a<li>b <a href="javascript:alert(1)">c</a></ul>
        <table><tr><th>k<th>v<tr><td>1<td>2</table><pre>  x
    y</pre><script>if (a < b) "</p>"</script><img alt="A cat" src=x><!-- gone --><template>gone</template></body>""",
        URL,
    )
    assert found.title == "Prices & more"
    assert found.text == (
        "Home [1]\n\n## Tea\n\nOne two three\nfour; 5 < 6. See this [2] and home [1].\n\n- a\n- b c\n\n"
        "k | v\n1 | 2\n\n  x\n    y\n\n(image: A cat)"
    )
    assert found.links == ("https://docs.example.com/", "https://docs.example.com/a/more?x=1&y=2")


def test_links_are_relative_to_the_base_that_a_page_names() -> None:
    markup = '<base href="https://cdn.example.com/x/"><base href="/no"><a href="y">y</a><a href="https://[">z</a>'
    assert read_html(markup, URL).links == ("https://cdn.example.com/x/y",)


def test_links_before_a_base_do_not_decide_where_those_after_it_lead() -> None:
    found = read_html('<a href="y">1</a><base href="https://cdn.example.com/"><a href="y">2</a><a href="y">3</a>', URL)
    assert found.links == ("https://docs.example.com/a/y", "https://cdn.example.com/y")
    assert found.text == "1 [1]2 [2]3 [2]"


def test_links_below_a_long_base_are_read_in_linear_time() -> None:
    base = f'<base href="https://docs.example.com/{"a/" * 1_000}">'
    links = "".join(f"<a href=../{number:x}>y</a>" for number in range(60_000))
    began = time.process_time()
    found = read_html(base + links, URL)
    assert time.process_time() - began < 5
    assert len(found.links) == 5_000
    assert found.text.startswith("y [1]y [2]")


@pytest.mark.parametrize("part", ENDLESS)
def test_an_endless_page_is_read_in_linear_time(part: str) -> None:
    began = time.process_time()
    read_html(part * (300_000 // len(part)), URL)
    assert time.process_time() - began < 5


def test_elements_nested_a_hundred_thousand_deep_are_read() -> None:
    found = read_html("<div><p><span>" * 100_000 + "deep" + "</span></p></div>" * 100_000, URL)
    assert found.text == "deep"


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        ("caf\u00e9".encode("cp1252"), "text/plain; charset=iso-8859-1", "caf\u00e9"),
        ("\u65e5\u672c".encode("shift_jis"), 'text/plain; charset="Shift_JIS"', "\u65e5\u672c"),
        ("\ufeffcaf\u00e9".encode("utf-16-le"), "text/plain; charset=utf-8", "caf\u00e9"),
        (b"<meta charset='windows-1251'><p>" + "\u0416".encode("cp1251"), "text/html", "\u0416"),
        (b"<meta charset=utf-16><p>plain", "text/html", "plain"),
        (b"caf\xe9", "text/plain", "caf\ufffd"),
        (b"caf\xe9", "text/plain; charset=utf-8", "caf\ufffd"),
        # Codecs that are none of text, do not exist, or take quadratic time.
        (b"abc-", "text/plain; charset=punycode", "abc-"),
        (b"a\\u0041", "text/plain; charset=unicode_escape", "a\\u0041"),
        (b"abc", "text/plain; charset=iso-8859-12", "abc"),
        (b"&#" + b"9" * 5_000 + b";", "text/html", "\ufffd"),
        (b"a\x1b[31mb\x07\r\nc", "text/plain", "a[31mb\nc"),
        (b'{"a": "<b>"}', "application/problem+json", '{"a": "<b>"}'),
    ],
)
def test_a_page_is_decoded_as_it_says_or_as_utf_8(body: bytes, content_type: str, text: str) -> None:
    assert read(body, content_type) == text


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"%PDF-1.7", "application/pdf"),
        (b"\x89PNG", "image/png"),
        (b"PK", "application/octet-stream"),
        (b"\x7fELF\0\0", "text/html"),
        (gzip.compress(b"x" * 1_000_000), "application/gzip"),
    ],
)
def test_what_is_no_text_is_refused_with_its_type(body: bytes, content_type: str) -> None:
    with pytest.raises(ToolPrecondition, match=f"its type is {content_type}") as refusal:
        read(body, content_type)
    assert refusal.value.details["media_type"] == content_type


async def fetch_all(body: bytes, limit: int) -> list[Page]:
    async def fetch(url: str, headers: object, seconds: float) -> FetchedPage:
        return make_page(body)

    parts = [await fetch_page(fetch, URL, 0, limit, 10)]
    while (offset := parts[-1].next_offset) is not None:
        parts.append(await fetch_page(fetch, URL, offset, limit, 10))
    return parts


async def test_a_long_page_comes_in_parts_with_the_links_of_each() -> None:
    body = "".join(f'<p>word <a href="/{number}">x</a></p>' for number in range(1, 101)).encode()
    parts = await fetch_all(body, 300)
    assert "".join(each.text for each in parts) == read_html(body.decode(), URL).text
    assert {each.trust for each in parts} == {"untrusted"}
    assert [link.url for link in parts[0].links][:2] == ["https://docs.example.com/1", "https://docs.example.com/2"]
    assert all(f"[{link.number}]" in part.text for part in parts for link in part.links)

    async def fetch(url: str, headers: object, seconds: float) -> FetchedPage:
        return make_page(b"short")

    with pytest.raises(ToolPrecondition, match="only 5 characters"):
        await fetch_page(fetch, URL, 6, 300, 10)


async def test_a_part_is_searched_for_injection_attempts_whole() -> None:
    links = "".join(f'<a href="/{chr(0x1F600) * 400}{number}">\U0001f600</a>' for number in range(500))
    (part, *_) = await fetch_all((links + "\U0001f600" * 20_000).encode(), MAX_PAGE)
    size = len(part.text.encode()) + sum(len(each.url.encode()) + 40 for each in part.links)
    assert size < 65_536


@pytest.mark.parametrize(
    "url",
    [
        "https://a.example:443/", "http://a.example:80/x", "https://a.example/x/../y", "https://a.example/./y",
        "https://a.example/%2e%2E/y", "https://a.example/..", "https://a.example/..?x", "https://a.example/%61dmin",
        "https://a.example/%zz", "https://a.example/%",
    ],
)  # fmt: skip
def test_another_spelling_of_an_address_is_refused(url: str) -> None:
    with pytest.raises(SemanticViolation, match="normal form"):
        require_normal_url(url)


@pytest.mark.parametrize(
    "url", ["https://a.example/", "https://a.example:8443/a..b/.hidden?x=..%2F%20&y=[1]", "http://a.example:8080//a"]
)
def test_an_address_in_normal_form_is_accepted(url: str) -> None:
    require_normal_url(url)
