"""Everything a server declares, page by page and within bounds, as definitions that can be named.

What is no definition at all is left out and told beside the rest: one bad entry hides no other, and nothing vanishes.

Above: `servers.py`. Below: `http.py` and `stdio.py`, which ask.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.canonical import NotCanonical
from deputize.core.errors import UpstreamUnavailable
from deputize.core.servers import Definition, Discovered
from deputize.execute.upstreams.headers import wishes_wrongly
from deputize.execute.upstreams.messages import Introduction

MOST_TOOLS: Final = 1_000
MOST_PAGES: Final = 100
MOST_BYTES: Final = 4_194_304
_LONGEST_NAME: Final = 128
_LONGEST_TEXT: Final = 32_768
_LARGEST: Final = 262_144

# Asks for one page: its cursor, or None for the first.
Page = Callable[[str | None], Awaitable[dict[str, Any]]]


async def listed(introduction: Introduction, page: Page) -> Discovered:
    """All the server's tools, in its order."""
    entries = await _entries(page) if introduction.has_tools else []
    found = [_definition(entry) for entry in entries]
    return Discovered(
        protocol=introduction.protocol,
        title=introduction.title,
        version=introduction.version,
        instructions=introduction.instructions,
        tools=tuple(each for each in found if isinstance(each, Definition)),
        refused=tuple(each for each in found if isinstance(each, str)),
    )


async def _entries(page: Page) -> list[Any]:
    entries: list[Any] = []
    size, cursor, seen = 0, None, set[str]()
    for _ in range(MOST_PAGES):
        result = await page(cursor)
        tools = result.get("tools")
        if not isinstance(tools, list):
            raise UpstreamUnavailable("the server lists its tools in a way that is none")
        entries += tools
        size += len(orjson.dumps(tools))
        if len(entries) > MOST_TOOLS or size > MOST_BYTES:
            raise UpstreamUnavailable(f"the server declares more than {MOST_TOOLS} tools or {MOST_BYTES} bytes of them")
        cursor = result.get("nextCursor")
        if not cursor:
            return entries
        if not isinstance(cursor, str) or cursor in seen:
            raise UpstreamUnavailable("the server's list of tools leads in a circle")
        seen.add(cursor)
    raise UpstreamUnavailable(f"the server's list of tools has more than {MOST_PAGES} pages")


def _definition(entry: Any) -> Definition | str:
    """The definition, or why it is none."""
    if not isinstance(entry, dict):
        return "an entry is no object"
    name = entry.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME:
        return f"a name is no text of 1 to {_LONGEST_NAME} characters"
    shown = ascii(name)
    for field in ("description", "title"):
        if not isinstance(entry.get(field, ""), str | None) or len(entry.get(field) or "") > _LONGEST_TEXT:
            return f"{shown}: its {field} is no text of at most {_LONGEST_TEXT} characters"
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return f"{shown}: its inputSchema is no schema of an object"
    if wishes_wrongly(schema):
        return f"{shown}: its inputSchema wants arguments in headers (x-mcp-header) in a way that the protocol forbids"
    if not isinstance(entry.get("outputSchema", {}), dict | None):
        return f"{shown}: its outputSchema is no object"
    if not isinstance(entry.get("annotations", {}), dict | None):
        return f"{shown}: its annotations are no object"
    if len(orjson.dumps(entry)) > _LARGEST:
        return f"{shown}: it is larger than {_LARGEST} bytes"
    try:
        return Definition.of(entry)
    except NotCanonical:
        return f"{shown}: it says what JSON cannot say exactly"
