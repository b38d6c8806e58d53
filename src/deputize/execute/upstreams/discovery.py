"""List the definitions that an MCP server declares, page by page and within limits.

An invalid entry is left out and reported as a rejection, so that it hides no other and does not disappear unnoticed.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import orjson

from deputize.core.canonical import NotCanonical
from deputize.core.errors import UpstreamUnavailable
from deputize.core.mcp.constants import METHOD_NOT_FOUND
from deputize.core.mcp.headers import has_invalid_header_params
from deputize.core.mcp.servers import COMPLETE, GET_PROMPT, READ_RESOURCE, Definition, DefinitionKind, DiscoveredServer
from deputize.core.mcp.uri_templates import BadTemplate, compile_template
from deputize.execute.upstreams.jsonrpc import ServerInfo, UpstreamRpcError

MOST_TOOLS: Final = 1_000
# Every URI that is read is matched against all of them.
MOST_TEMPLATES: Final = 100
MOST_PAGES: Final = 100
MOST_BYTES: Final = 4_194_304
_MAX_NAME_LENGTH: Final = 128
_MAX_TEXT_LENGTH: Final = 32_768
_LARGEST_ENTRY: Final = 262_144
# URIs are part of database keys, which have no room for longer ones.
_MAX_URI_LENGTH: Final = 1024
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[^\s\x00-\x1f\x7f]*\Z")

# Fetch one page of a list by method and cursor; the cursor of the first page is None.
FetchPage = Callable[[str, str | None], Awaitable[dict[str, Any]]]


class _ListTooLong(Exception):
    """A list exceeds its limit. Too many tools make the server unusable; any other list is left out."""


async def list_definitions(
    info: ServerInfo, fetch_page: FetchPage, *, resources: bool = False, prompts: bool = False
) -> DiscoveredServer:
    """List the server's tools in its order and, if requested, its resources and prompts."""
    tools = await _list_tools(fetch_page) if info.has_tools else []
    others: list[Definition | str] = []
    if resources and info.has_resources:
        others += [_make_method(READ_RESOURCE)]
        others += await _list_others(fetch_page, "resources/list", "resources", DefinitionKind.RESOURCE)
        others += await _list_others(
            fetch_page, "resources/templates/list", "resourceTemplates", DefinitionKind.TEMPLATE, MOST_TEMPLATES
        )
    if prompts and info.has_prompts:
        others += [
            _make_method(GET_PROMPT),
            *await _list_others(fetch_page, "prompts/list", "prompts", DefinitionKind.PROMPT),
        ]
    if others and info.has_completions:
        others.append(_make_method(COMPLETE))
    return DiscoveredServer(
        protocol=info.protocol,
        title=info.title,
        version=info.version,
        instructions=info.instructions,
        tools=tuple(each for each in tools if isinstance(each, Definition)),
        rejections=tuple(each for each in (*tools, *others) if isinstance(each, str)),
        other_definitions=tuple(each for each in others if isinstance(each, Definition)),
    )


async def _list_tools(fetch_page: FetchPage) -> list[Definition | str]:
    try:
        entries = await _fetch_entries(fetch_page, "tools/list", "tools")
    except _ListTooLong as error:
        raise UpstreamUnavailable(str(error)) from error
    # Parsing megabytes in the event loop would delay other calls.
    return await asyncio.to_thread(lambda: [_parse_tool(entry) for entry in entries])


def _make_method(name: str) -> Definition:
    return Definition.from_declaration({"name": name}, DefinitionKind.METHOD)


async def _list_others(
    fetch_page: FetchPage, method: str, key: str, kind: DefinitionKind, most: int = MOST_TOOLS
) -> list[Definition | str]:
    """List definitions other than tools. A list over its limit is left out whole, because half would look complete."""
    try:
        entries = await _fetch_entries(fetch_page, method, key, most)
    except _ListTooLong as too_long:
        return [str(too_long)]
    except UpstreamRpcError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        return []  # such as a server with resources but without templates
    return await asyncio.to_thread(lambda: [_parse_other(entry, kind) for entry in entries])


async def _fetch_entries(fetch_page: FetchPage, method: str, key: str, most: int = MOST_TOOLS) -> list[Any]:
    entries: list[Any] = []
    size, cursor, used_cursors = 0, None, set[str]()
    for _ in range(MOST_PAGES):
        result = await fetch_page(method, cursor)
        page_entries = result.get(key)
        if not isinstance(page_entries, list):
            raise UpstreamUnavailable(f"the server answered {method} without a list of {key}")
        entries += page_entries
        size += sum(map(_measure_size, page_entries))
        if len(entries) > most or size > MOST_BYTES:
            raise _ListTooLong(f"the server declares more than {most} {key}, or more than {MOST_BYTES} bytes of them")
        cursor = result.get("nextCursor")
        if not cursor:
            return entries
        if not isinstance(cursor, str) or cursor in used_cursors:
            raise UpstreamUnavailable(f"the server's list of {key} repeats a page cursor")
        used_cursors.add(cursor)
    raise _ListTooLong(f"the server's list of {key} has more than {MOST_PAGES} pages")


def _parse_tool(entry: Any) -> Definition | str:
    """Parse a tool, or return why it is invalid."""
    if not isinstance(entry, dict):
        return "an entry is not an object"
    name = entry.get("name")
    if not _is_valid_name(name):
        return f"a name is not a string of 1 to {_MAX_NAME_LENGTH} characters"
    label = ascii(name)
    fault = _check_text(entry)
    if fault is not None:
        return f"{label}: {fault}"
    schema = entry.get("inputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return f"{label}: inputSchema is not the schema of an object"
    if has_invalid_header_params(schema):
        return f"{label}: inputSchema uses x-mcp-header in a way that the protocol forbids"
    if not isinstance(entry.get("outputSchema", {}), dict | None):
        return f"{label}: outputSchema is not an object"
    if not isinstance(entry.get("annotations", {}), dict | None):
        return f"{label}: annotations is not an object"
    return _build_definition(entry, DefinitionKind.TOOL, label)


def _parse_other(entry: Any, kind: DefinitionKind) -> Definition | str:
    """Parse a resource, resource template or prompt, or return why it is invalid."""
    if not isinstance(entry, dict):
        return f"an entry of the {kind}s is not an object"
    if not _is_valid_name(entry.get("name")):
        return f"the name of a {kind} is not a string of 1 to {_MAX_NAME_LENGTH} characters"
    label = ascii(entry["name"])
    fault = _check_text(entry, "mimeType")
    if fault is None and kind is DefinitionKind.PROMPT:
        fault = _check_arguments(entry.get("arguments"))
    elif fault is None:
        fault = _check_uri(entry.get("uri" if kind is DefinitionKind.RESOURCE else "uriTemplate"), kind)
    if fault is None and not isinstance(entry.get("annotations", {}), dict | None):
        fault = "annotations is not an object"
    return _build_definition(entry, kind, label) if fault is None else f"{kind} {label}: {fault}"


def _build_definition(entry: dict[str, Any], kind: DefinitionKind, label: str) -> Definition | str:
    if _measure_size(entry) > _LARGEST_ENTRY:
        return f"{label}: it is larger than {_LARGEST_ENTRY} bytes or nested too deep"
    try:
        return Definition.from_declaration(entry, kind)
    except NotCanonical:
        return f"{label}: it contains a value without an exact JSON form"


def _is_valid_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= _MAX_NAME_LENGTH and "\0" not in name


def _check_text(entry: dict[str, Any], *extra_fields: str) -> str | None:
    for field in ("description", "title", *extra_fields):
        if not isinstance(entry.get(field, ""), str | None) or len(entry.get(field) or "") > _MAX_TEXT_LENGTH:
            return f"{field} is not a string of at most {_MAX_TEXT_LENGTH} characters"
    return None


def _check_uri(uri: Any, kind: DefinitionKind) -> str | None:
    if not isinstance(uri, str) or not _URI.match(uri) or len(uri.encode()) > _MAX_URI_LENGTH:
        return f"its URI is invalid or longer than {_MAX_URI_LENGTH} bytes"
    if kind is DefinitionKind.TEMPLATE:
        try:
            compile_template(uri)
        except BadTemplate as error:
            return f"uriTemplate cannot be matched: {error}"
    return None


def _check_arguments(arguments: Any) -> str | None:
    if arguments is None:
        return None
    if not isinstance(arguments, list) or not all(isinstance(each, dict) for each in arguments):
        return "arguments is not a list of objects"
    if not all(isinstance(each.get("name"), str) for each in arguments):
        return "an argument has no name"
    return None


def _measure_size(entry: Any) -> int:
    """Measure an entry in bytes; one nested too deep to serialize counts as larger than the limit."""
    try:
        return len(orjson.dumps([[[[[[[[entry]]]]]]]]))
    except TypeError:
        return _LARGEST_ENTRY + 1
