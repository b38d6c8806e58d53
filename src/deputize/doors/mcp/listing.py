"""`tools/list`: what the caller's surface shows as loaded, in order of name, a page at a time.

A tool is rendered once per version; a list is kept for a moment, for whoever asks again with the same standing under
the same rules. What is listed decides nothing: every call is decided anew. Above: `door.py`. Below: `shown.py` and the
surface.
"""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import orjson

from deputize.catalog.snapshot import ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract import Contract, outward
from deputize.core.mcp import INVALID_PARAMS
from deputize.core.servers import method_of
from deputize.doors.mcp.faces import RpcError
from deputize.doors.mcp.shown import tool_shown
from deputize.lifecycle.gateway import Gateway

PAGE: Final = 250
TTL_MS: Final = 5000
_KEPT_SECONDS = 2.0
_MOST_LISTS = 64
_MOST_TOOLS = 5000


class Listed(NamedTuple):
    """Every tool of one caller: its names, in order, and each as it is shown."""

    names: list[str]
    tools: list[orjson.Fragment]
    until: float


class Lists:
    """`own` are tools of the door itself, which stand in every list."""

    def __init__(self, own: dict[str, dict[str, Any]]) -> None:
        self._own = [(name, orjson.Fragment(orjson.dumps(tool))) for name, tool in own.items()]
        self._rendered: OrderedDict[tuple[str, str, bool], orjson.Fragment] = OrderedDict()
        self._lists: OrderedDict[Any, Listed] = OrderedDict()

    async def page(self, gateway: Gateway, caller: Caller, cursor: Any, *, modern: bool) -> dict[str, Any]:
        listed = await self._of(gateway, caller, modern=modern)
        return page_of("tools", listed.names, listed.tools, cursor)

    async def _of(self, gateway: Gateway, caller: Caller, *, modern: bool) -> Listed:
        rooms = gateway.lifecycle.rooms
        epochs, now = (await rooms.authority.of(caller.tenant)).epochs, rooms.clock.monotonic()
        # Everything the surface looks at of a caller. One whose standing has no name is asked about anew.
        key = (caller.standing, caller.capabilities, caller.ceiling, caller.grants, epochs, modern)
        known = self._lists.get(key) if caller.standing else None
        if known is not None and known.until > now:
            return known
        # What has a method of its own is not shown as a tool as well.
        loaded = [each for each in await gateway.surface.loaded(caller) if not _is_method(each.contract)]
        shown = sorted(
            [*self._own, *((outward(each.contract.full_name), self._shown(each, modern=modern)) for each in loaded)],
            key=lambda each: each[0],
        )
        fresh = Listed([name for name, _ in shown], [tool for _, tool in shown], now + _KEPT_SECONDS)
        if caller.standing:
            self._lists[key] = fresh
            self._lists.move_to_end(key)
            while len(self._lists) > _MOST_LISTS:
                self._lists.popitem(last=False)
        return fresh

    def _shown(self, found: ToolVersion, *, modern: bool) -> orjson.Fragment:
        key = (found.digest, found.state.value, modern)
        known = self._rendered.get(key)
        if known is None:
            known = self._rendered[key] = orjson.Fragment(orjson.dumps(tool_shown(found, modern=modern)))
            while len(self._rendered) > _MOST_TOOLS:
                self._rendered.popitem(last=False)
        return known


def page_of(key: str, names: Sequence[str], entries: Sequence[Any], cursor: Any) -> dict[str, Any]:
    """One page of a list, after whatever its cursor says was shown last. The names are in order."""
    start = 0 if cursor is None else bisect_right(names, _after(cursor))
    end = start + PAGE
    page: dict[str, Any] = {key: entries[start:end]}
    if end < len(names):
        page["nextCursor"] = base64.urlsafe_b64encode(names[end - 1].encode()).decode()
    return page


def _is_method(contract: Contract) -> bool:
    return method_of(contract.handler.driver, contract.handler.target) is not None


def _after(cursor: Any) -> str:
    try:
        if not isinstance(cursor, str) or len(cursor) > 2000:
            raise ValueError
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise RpcError(INVALID_PARAMS, "cursor is none that was given out here") from None
