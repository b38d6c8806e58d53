"""`resources/list`, `resources/templates/list` and `resources/read`: what was agreed to of servers, for who may have
it.

Lists are what somebody agreed to and is still there, of servers whose `read_resource` stands as loaded for the caller.
They decide nothing: every read is one call of that contract. Nobody is told of changes, for there is no session to tell
in; so nothing can be subscribed to. Above: `door.py`. Below: `offered.py`, `reading.py`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from deputize.core.errors import NotOffered
from deputize.core.mcp import INVALID_PARAMS
from deputize.core.offers import Said
from deputize.core.servers import READ_RESOURCE, Kind
from deputize.core.uris import LONGEST_URI
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.listing import TTL_MS, page_of
from deputize.doors.mcp.offered import Source, address_shown, source_of, sources
from deputize.doors.mcp.reading import read, refuse
from deputize.doors.mcp.turn import Turn

# What is shown of a definition. Icons are left out: a client would fetch them from wherever the server says.
_SHOWN: Final = ("name", "title", "description", "mimeType", "annotations")


async def list_resources(turn: Turn) -> dict[str, Any]:
    return await _listed(turn, "resources", Kind.RESOURCE, "uri")


async def list_templates(turn: Turn) -> dict[str, Any]:
    return await _listed(turn, "resourceTemplates", Kind.TEMPLATE, "uriTemplate")


async def read_resource(turn: Turn) -> dict[str, Any]:
    uri = turn.asked.params.get("uri")
    if not isinstance(uri, str) or not 0 < len(uri) <= LONGEST_URI:
        raise RpcError(INVALID_PARAMS, f"uri must be an address of 1 to {LONGEST_URI} characters")
    try:
        source, own = source_of(uri, await sources(turn, READ_RESOURCE))
    except NotOffered as problem:
        raise await refuse(turn, problem, uri=uri) from problem
    result = await read(turn, source, {"uri": own}, uri=uri)
    # Each read is decided anew, so none of it is to be kept; and what was asked back is no result yet.
    return result if "resultType" in result else with_hints(turn, result, 0)


async def _listed(turn: Turn, key: str, kind: Kind, where: str) -> dict[str, Any]:
    among = await sources(turn, READ_RESOURCE)

    def shown(name: str, source: Source, said: Said) -> dict[str, Any]:
        return {where: address_shown(name, source, among), **{each: said[each] for each in _SHOWN if each in said}}

    return await listed(turn, key, where, kind, among, shown)


async def listed(
    turn: Turn,
    key: str,
    where: str,
    kind: Kind,
    among: list[Source],
    shown: Callable[[str, Source, Said], dict[str, Any]],
) -> dict[str, Any]:
    """A page of everything of a kind, in order of what it is asked for by."""

    def everything() -> list[dict[str, Any]]:
        entries = [shown(name, source, said) for source in among for name, said in source.shown(kind).items()]
        return sorted(entries, key=lambda each: str(each[where]))

    # Each address is held against what all other servers have, and how much that is, they say: beside the loop.
    entries = await asyncio.to_thread(everything) if len(among) > 1 else everything()
    page = page_of(key, [each[where] for each in entries], entries, turn.asked.params.get("cursor"))
    return with_hints(turn, page, TTL_MS)


def with_hints(turn: Turn, result: dict[str, Any], ttl_ms: int) -> dict[str, Any]:
    """Since 2026-07-28 an answer says how long it holds, and for whom."""
    return {**result, "ttlMs": ttl_ms, "cacheScope": "private"} if turn.asked.client.modern else result
