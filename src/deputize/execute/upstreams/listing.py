"""Everything a server declares, page by page and within bounds, as definitions that can be named.

What is no definition at all is left out and told beside the rest: one bad entry hides no other, and nothing vanishes.

Above: `servers.py`. Below: `http.py` and `stdio.py`, which ask.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.canonical import NotCanonical
from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp import METHOD_NOT_FOUND
from deputize.core.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, Definition, Discovered, Kind
from deputize.core.uris import BadTemplate, compiled
from deputize.execute.upstreams.headers import wishes_wrongly
from deputize.execute.upstreams.messages import Introduction, Refused

MOST_TOOLS: Final = 1_000
# Every address that is read is held against all of them.
MOST_TEMPLATES: Final = 100
MOST_PAGES: Final = 100
MOST_BYTES: Final = 4_194_304
_LONGEST_NAME: Final = 128
_LONGEST_TEXT: Final = 32_768
_LARGEST: Final = 262_144
# Addresses are part of keys in the database, which have room for no more.
_LONGEST_ADDRESS: Final = 1024
_ADDRESS: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f]*\Z")

# Asks for one page of a list: by which method, and its cursor, or None for the first.
Page = Callable[[str, str | None], Awaitable[dict[str, Any]]]


class _TooMuch(Exception):
    """A list that goes on for too long. Of tools, it is the server that cannot be used; of all else, that list."""


async def listed(
    introduction: Introduction, page: Page, *, resources: bool = False, prompts: bool = False
) -> Discovered:
    """All the server's tools, in its order, and of what else it has what is asked for."""
    tools = await _tools(page) if introduction.has_tools else []
    others: list[Definition | str] = []
    if resources and introduction.has_resources:
        others += [_method(READ_RESOURCE)]
        others += await _others(page, "resources/list", "resources", Kind.RESOURCE)
        others += await _others(page, "resources/templates/list", "resourceTemplates", Kind.TEMPLATE, MOST_TEMPLATES)
    if prompts and introduction.has_prompts:
        others += [_method(GET_PROMPT), *await _others(page, "prompts/list", "prompts", Kind.PROMPT)]
    if others and introduction.completes:
        others.append(_method(COMPLETE))
    return Discovered(
        protocol=introduction.protocol,
        title=introduction.title,
        version=introduction.version,
        instructions=introduction.instructions,
        tools=tuple(each for each in tools if isinstance(each, Definition)),
        refused=tuple(each for each in (*tools, *others) if isinstance(each, str)),
        others=tuple(each for each in others if isinstance(each, Definition)),
    )


async def _tools(page: Page) -> list[Definition | str]:
    try:
        entries = await _entries(page, "tools/list", "tools")
    except _TooMuch as much:
        raise UpstreamUnavailable(str(much)) from much
    # Beside the loop: there may be megabytes of it, and somebody else's call waits.
    return await asyncio.to_thread(lambda: [_definition(entry) for entry in entries])


def _method(name: str) -> Definition:
    return Definition.of({"name": name}, Kind.METHOD)


async def _others(page: Page, method: str, key: str, kind: Kind, most: int = MOST_TOOLS) -> list[Definition | str]:
    """What is over the most is left out as a whole: half a list would pass for all of it."""
    try:
        entries = await _entries(page, method, key, most)
    except _TooMuch as much:
        return [str(much)]
    except Refused as refused:
        if refused.code != METHOD_NOT_FOUND:
            raise
        return []  # it has resources and no templates, say
    return await asyncio.to_thread(lambda: [_other(entry, kind) for entry in entries])


async def _entries(page: Page, method: str, key: str, most: int = MOST_TOOLS) -> list[Any]:
    entries: list[Any] = []
    size, cursor, seen = 0, None, set[str]()
    for _ in range(MOST_PAGES):
        result = await page(method, cursor)
        found = result.get(key)
        if not isinstance(found, list):
            raise UpstreamUnavailable(f"the server lists its {key} in a way that is none")
        entries += found
        size += sum(map(_size, found))
        if len(entries) > most or size > MOST_BYTES:
            raise _TooMuch(f"the server declares more than {most} {key} or {MOST_BYTES} bytes of them")
        cursor = result.get("nextCursor")
        if not cursor:
            return entries
        if not isinstance(cursor, str) or cursor in seen:
            raise UpstreamUnavailable(f"the server's list of {key} leads in a circle")
        seen.add(cursor)
    raise _TooMuch(f"the server's list of {key} has more than {MOST_PAGES} pages")


def _definition(entry: Any) -> Definition | str:
    """The definition, or why it is none."""
    if not isinstance(entry, dict):
        return "an entry is no object"
    name = entry.get("name")
    if not _is_name(name):
        return f"a name is no text of 1 to {_LONGEST_NAME} characters"
    shown = ascii(name)
    wrong = _wrong_text(entry)
    if wrong is not None:
        return f"{shown}: {wrong}"
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return f"{shown}: its inputSchema is no schema of an object"
    if wishes_wrongly(schema):
        return f"{shown}: its inputSchema wants arguments in headers (x-mcp-header) in a way that the protocol forbids"
    if not isinstance(entry.get("outputSchema", {}), dict | None):
        return f"{shown}: its outputSchema is no object"
    if not isinstance(entry.get("annotations", {}), dict | None):
        return f"{shown}: its annotations are no object"
    return _named(entry, Kind.TOOL, shown)


def _other(entry: Any, kind: Kind) -> Definition | str:
    """A resource, a template or a prompt, or why it is none."""
    if not isinstance(entry, dict):
        return f"an entry of its {kind}s is no object"
    if not _is_name(entry.get("name")):
        return f"the name of a {kind} is no text of 1 to {_LONGEST_NAME} characters"
    shown = ascii(entry["name"])
    wrong = _wrong_text(entry, "mimeType")
    if wrong is None and kind is Kind.PROMPT:
        wrong = _wrong_arguments(entry.get("arguments"))
    elif wrong is None:
        wrong = _wrong_address(entry.get("uri" if kind is Kind.RESOURCE else "uriTemplate"), kind)
    if wrong is None and not isinstance(entry.get("annotations", {}), dict | None):
        wrong = "its annotations are no object"
    return _named(entry, kind, shown) if wrong is None else f"{kind} {shown}: {wrong}"


def _named(entry: dict[str, Any], kind: Kind, shown: str) -> Definition | str:
    if _size(entry) > _LARGEST:
        return f"{shown}: it is larger than {_LARGEST} bytes, or nests deeper than anything that is read here"
    try:
        return Definition.of(entry, kind)
    except NotCanonical:
        return f"{shown}: it says what JSON cannot say exactly"


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _LONGEST_NAME and "\0" not in name


def _wrong_text(entry: dict[str, Any], *more: str) -> str | None:
    for field in ("description", "title", *more):
        if not isinstance(entry.get(field, ""), str | None) or len(entry.get(field) or "") > _LONGEST_TEXT:
            return f"its {field} is no text of at most {_LONGEST_TEXT} characters"
    return None


def _wrong_address(address: Any, kind: Kind) -> str | None:
    if not isinstance(address, str) or not _ADDRESS.match(address) or len(address.encode()) > _LONGEST_ADDRESS:
        return f"its address is none, or takes more than {_LONGEST_ADDRESS} bytes"
    if kind is Kind.TEMPLATE:
        try:
            compiled(address)
        except BadTemplate as bad:
            return f"its uriTemplate cannot be matched: {bad}"
    return None


def _wrong_arguments(arguments: Any) -> str | None:
    if arguments is None:
        return None
    if not isinstance(arguments, list) or not all(isinstance(each, dict) for each in arguments):
        return "its arguments are no list of objects"
    if not all(isinstance(each.get("name"), str) for each in arguments):
        return "an argument has no name"
    return None


def _size(entry: Any) -> int:
    """How many bytes it takes; more than any may where it nests deeper than can be written, inside something else."""
    try:
        return len(orjson.dumps([[[[[[[[entry]]]]]]]]))
    except TypeError:
        return _LARGEST + 1
