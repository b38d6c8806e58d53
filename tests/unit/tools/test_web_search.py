"""A search engine is asked in one way, and whatever it answers has one shape."""

from collections.abc import Mapping
from typing import Any

import orjson
import pytest

from deputize import ToolFailed, ToolPrecondition, UpstreamUnavailable
from deputize.core.contract.tools import FetchedPage
from deputize.tools.web.search import MAX_RESULTS, SearchResults, search_web

pytestmark = pytest.mark.requirement("EXE-4")

URL = "https://search.example.com/search"


async def search(body: bytes, *, status: int = 200, count: int = 10, url: str = URL) -> tuple[SearchResults, list[str]]:
    asked = []

    async def fetch(address: str, headers: Mapping[str, str], seconds: float) -> FetchedPage:
        asked.append(address)
        return FetchedPage(url=address, status=status, headers={}, body=body)

    return await search_web(fetch, url, "tea & 80 °C#", count, {}, 10), asked


async def find(*results: Any, count: int = 10) -> list[tuple[str, str, str]]:
    found, _ = await search(orjson.dumps({"results": results}), count=count)
    return [(each.title, each.url, each.snippet) for each in found.results]


async def test_the_query_is_one_parameter() -> None:
    _, asked = await search(b'{"results": []}')
    assert asked == [f"{URL}?q=tea+%26+80+%C2%B0C%23&format=json"]
    _, asked = await search(b'{"results": []}', url=f"{URL}?language=en")
    assert asked[0].startswith(f"{URL}?language=en&q=tea")


async def test_results_have_one_shape_and_only_addresses_of_pages() -> None:
    tea = {"title": " Green\n tea ", "url": "https://tea.example/", "content": "<b>Brewed</b> at 80&nbsp;&#176;C\x1b"}
    odd = [
        {"url": "javascript:alert(1)"}, {"url": "file:///etc/passwd"}, {"url": "https://x.example/" + "y" * 500},
        {"url": 7}, {"title": "none"}, "text", None, {"url": "https://x.example/\x07"},
    ]  # fmt: skip
    assert await find(*odd, tea, {"url": "http://b.example/", "title": ["x"]}) == [
        ("Green tea", "https://tea.example/", "Brewed at 80 °C"),
        ("", "http://b.example/", ""),
    ]
    assert len(await find(*[tea] * 30, count=7)) == 7


async def test_an_answer_is_small_enough_to_be_searched_for_injection_attempts_whole() -> None:
    long = {"title": "\U0001f600" * 9_000, "url": "https://x.example/" + "y" * 480, "content": "\U0001f600" * 9_000}
    found = await find(*[long] * 50, count=MAX_RESULTS)
    assert len(found) == MAX_RESULTS
    assert sum(len(part.encode()) for each in found for part in each) < 60_000


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"results": {}}', b"[" * 100_000, b"\xff", b"7"])
async def test_what_is_no_list_of_results_is_a_failure(body: bytes) -> None:
    with pytest.raises(ToolFailed, match="no list of results"):
        await search(body)


@pytest.mark.parametrize(
    ("status", "kind"), [(401, ToolPrecondition), (403, ToolPrecondition), (502, UpstreamUnavailable)]
)
async def test_a_refusal_says_what_the_operator_must_do(status: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=f"the search engine answered with HTTP {status}"):
        await search(b"", status=status)
