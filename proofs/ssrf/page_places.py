"""The tools `web.*`, used as an agent uses them: pages are read, and each link and result that comes is followed."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from typing import Any
from urllib.parse import urlsplit

from deputize.catalog.importers.python import ATTRIBUTE
from deputize.catalog.schemas import compile_schema
from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import Problem, SchemaViolation
from deputize.core.settings import WebSettings
from deputize.execute.page_client import PageClient
from deputize.tools.web.declarations import declare_fetch, declare_search
from proofs.ssrf.hostile_pages import build_page, list_hostile_answers, list_hostile_pages, list_links
from proofs.ssrf.places import Place
from proofs.ssrf.sites import ATTACKER_HOST, ATTACKER_URL, Sites

_SECONDS = 3.0
_MAX_BYTES = 1_048_576
_HOPS = 3
_FOLLOWED = 20
_PAGE_CODE = (
    "execute/page_client.py Egress", "execute/page_client.py egress.exchange", "execute/page_client.py httpx2",
)  # fmt: skip
_CONTEXT = ToolContext(
    call_id="1", tenant="dev", user="ana", agent="bot", session=None, key="k", attempt=1, seconds_left=30.0,
    traceparent=None, credential=None,
)  # fmt: skip


async def _call(function: Callable[..., Awaitable[Any]], **arguments: Any) -> Any:
    """Call a tool after the checks of its arguments, as a gateway does."""
    tool: PythonTool = getattr(function, ATTRIBUTE)
    if not compile_schema(tool.contract.input_schema).is_valid(arguments):
        raise SchemaViolation("the arguments do not match the schema", nothing_happened=True)
    if tool.validate is not None:
        tool.validate(**arguments)
    return await function(**arguments, context=_CONTEXT)


async def read_page(url: str, hops: int = _HOPS) -> None:
    """Read a page, go where it redirects, and follow its links. The operator listed every host, and nothing private."""
    hosts = [ATTACKER_HOST, "*.attacker.test"]
    with suppress(ValueError):
        # Settings cannot list an IPv6 address.
        hosts += [each for each in (urlsplit(url).hostname,) if each and ":" not in each]
    fetch = declare_fetch(PageClient(hosts, max_bytes=_MAX_BYTES).get, _SECONDS)
    try:
        page = await _call(fetch, url=url)
    except Problem as problem:
        location = (problem.details or {}).get("location")
        if location is None or not hops:
            raise
        return await read_page(location, hops - 1)
    for link in page.links[:_FOLLOWED] if hops else ():
        with suppress(Problem):
            await read_page(link.url, 0)


async def search_and_follow(url: str) -> None:
    """Ask the search engine in the settings, which may be private, and read each page that it found."""
    address = WebSettings(search_url=url).search_url or ""
    engine = PageClient((), (urlsplit(address).netloc,), max_bytes=_MAX_BYTES)
    found = await _call(declare_search(engine.get, address, _SECONDS, None), query="tea")
    for result in found.results:
        with suppress(Problem):
            await read_page(result.url, 0)


class PagePlaces:
    """Pages of an attacker that lead to a URL."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._numbers = count()

    async def follow_link(self, url: str) -> None:
        """Read a page with a link to a URL, in one of many ways to write one."""
        links = list_links(url)
        page = build_page(f"<body>{links[next(self._numbers) % len(links)]}<a href='{url}'>y</a>")
        await read_page(self._sites.publish(ATTACKER_URL, lambda _: page))


def list_web_places(sites: Sites) -> list[Place]:
    """List the tools `web.*`, and what their answers lead to."""
    pages = tuple(sites.serve(kind, response) for kind, response in list_hostile_pages())
    answers = tuple(sites.serve(kind, response) for kind, response in list_hostile_answers())
    return [
        Place(name="web.fetch", covers=_PAGE_CODE, attempt=read_page, is_named=False, own_cases=pages),
        Place(name="web.fetch links", covers=_PAGE_CODE, attempt=PagePlaces(sites).follow_link, is_named=False),
        Place(name="web.search", covers=_PAGE_CODE, attempt=search_and_follow, own_cases=answers),
    ]
