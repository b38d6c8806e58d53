"""Serve `resources/list`, `resources/templates/list` and `resources/read` from the pinned resources of MCP servers.

Lists show what is pinned and still present, of servers whose `read_resource` contract is loaded for the caller. They
decide nothing: every read is one call of that contract. There are no subscriptions, since there is no session in which
to notify a client.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from deputize.core.errors import ResourceNotFound
from deputize.core.mcp.constants import INVALID_PARAMS
from deputize.core.mcp.resources import Declaration
from deputize.core.mcp.servers import READ_RESOURCE, DefinitionKind
from deputize.core.mcp.uri_templates import MAX_URI_LENGTH
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.reads.sources import ServerSource, load_sources, qualify_uri, resolve_resource
from deputize.interfaces.mcp.reads.upstream_reads import build_refusal, read_upstream
from deputize.interfaces.mcp.tools.tools_list import TTL_MS, build_page

# The fields of a definition that are shown. Icons are not: a client would fetch them from URLs the server chose.
_RESOURCE_FIELDS: Final = ("name", "title", "description", "mimeType", "annotations")


async def list_resources(context: McpContext) -> dict[str, Any]:
    """Serve `resources/list`."""
    return await _list_kind(context, "resources", DefinitionKind.RESOURCE, "uri")


async def list_templates(context: McpContext) -> dict[str, Any]:
    """Serve `resources/templates/list`."""
    return await _list_kind(context, "resourceTemplates", DefinitionKind.TEMPLATE, "uriTemplate")


async def read_resource(context: McpContext) -> dict[str, Any]:
    """Serve `resources/read`."""
    uri = context.request.params.get("uri")
    if not isinstance(uri, str) or not 0 < len(uri) <= MAX_URI_LENGTH:
        raise RpcError(INVALID_PARAMS, f"uri must be a URI of 1 to {MAX_URI_LENGTH} characters")
    try:
        source, own_uri = resolve_resource(uri, await load_sources(context, READ_RESOURCE))
    except ResourceNotFound as problem:
        raise await build_refusal(context, problem, uri=uri) from problem
    result = await read_upstream(context, source, {"uri": own_uri}, uri=uri)
    # Each read is authorized anew, so a client must not cache it; and an input request is not a result yet.
    return result if "resultType" in result else add_cache_hints(context, result, 0)


async def _list_kind(context: McpContext, key: str, kind: DefinitionKind, key_field: str) -> dict[str, Any]:
    candidates = await load_sources(context, READ_RESOURCE)

    def describe_resource(name: str, source: ServerSource, definition: Declaration) -> dict[str, Any]:
        return {
            key_field: qualify_uri(name, source, candidates),
            **{each: definition[each] for each in _RESOURCE_FIELDS if each in definition},
        }

    return await build_list_page(context, key, key_field, kind, candidates, describe_resource)


async def build_list_page(
    context: McpContext,
    key: str,
    key_field: str,
    kind: DefinitionKind,
    candidates: list[ServerSource],
    describe: Callable[[str, ServerSource, Declaration], dict[str, Any]],
) -> dict[str, Any]:
    """Build one page of the definitions of a kind, sorted by the field they are requested by."""

    def build_entries() -> list[dict[str, Any]]:
        entries = [
            describe(name, source, definition)
            for source in candidates
            for name, definition in source.list_definitions(kind).items()
        ]
        return sorted(entries, key=lambda each: str(each[key_field]))

    # Every URI is compared with those of all other servers, which decide how many there are: so in a thread.
    entries = await asyncio.to_thread(build_entries) if len(candidates) > 1 else build_entries()
    page = build_page(key, [each[key_field] for each in entries], entries, context.request.params.get("cursor"))
    return add_cache_hints(context, page, TTL_MS)


def add_cache_hints(context: McpContext, result: dict[str, Any], ttl_ms: int) -> dict[str, Any]:
    """Add how long a client may cache a result, which it is told since 2026-07-28."""
    return {**result, "ttlMs": ttl_ms, "cacheScope": "private"} if context.request.client.is_modern else result
