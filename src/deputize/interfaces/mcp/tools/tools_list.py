"""Serve `tools/list`: the tools that are loaded for the caller, sorted by name, in pages.

A tool version is rendered once. A list is cached for a moment, for callers of the same authority under the same
policies. A list decides nothing: every call is authorized anew.
"""

import base64
import binascii
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Final, NamedTuple

import orjson

from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract
from deputize.core.contract.names import to_outward_name
from deputize.core.event_loop.loop_pace import LoopPace
from deputize.core.mcp.constants import INVALID_PARAMS
from deputize.core.mcp.servers import parse_mcp_method
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.tools.tool_definitions import render_tool
from deputize.operations.gateway import Gateway, ToolView

PAGE_SIZE: Final = 250
TTL_MS: Final = 5000
_CACHE_SECONDS = 2.0
_MAX_LISTS = 64
_MAX_TOOLS = 5000


class ToolList(NamedTuple):
    """The tools of one caller: their sorted names, and each as it is rendered."""

    names: list[str]
    tools: list[orjson.Fragment]
    expires_at: float


class ToolLists:
    """The lists of all callers. `builtin_tools` stand in every list."""

    def __init__(self, builtin_tools: dict[str, dict[str, Any]]) -> None:
        self._builtin_tools = [(name, orjson.Fragment(orjson.dumps(tool))) for name, tool in builtin_tools.items()]
        self._rendered_tools: OrderedDict[tuple[Hashable, ...], orjson.Fragment] = OrderedDict()
        self._lists: OrderedDict[Any, ToolList] = OrderedDict()

    async def get_page(self, gateway: Gateway, caller: Caller, cursor: Any, *, modern: bool) -> dict[str, Any]:
        """Return the page of a caller's list after a cursor."""
        tool_list = await self._get_list(gateway, caller, modern=modern)
        return build_page("tools", tool_list.names, tool_list.tools, cursor)

    async def _get_list(self, gateway: Gateway, caller: Caller, *, modern: bool) -> ToolList:
        epochs, now = await gateway.surface.load_epochs(caller.tenant), gateway.clock.monotonic()
        # Everything of a caller that the surface depends on. A caller without a cache key is not cached.
        key = (caller.decision_cache_key, caller.capabilities, caller.ceiling, caller.grants, epochs, modern)
        cache_entry = self._lists.get(key) if caller.decision_cache_key else None
        if cache_entry is not None and cache_entry.expires_at > now:
            return cache_entry
        # Server methods, such as resources/read, are not listed as tools too.
        tool_versions = [
            each for each in await gateway.surface.list_loaded_tools(caller) if not _is_method(each.contract)
        ]
        is_key_optional = await gateway.surface.is_key_optional(caller.tenant)
        entries, pace = list(self._builtin_tools), LoopPace(gateway.clock)
        for each in tool_versions:
            await pace.take_turn()
            tool = self._render_tool(each, modern=modern, is_key_optional=is_key_optional)
            entries.append((to_outward_name(each.contract.full_name), tool))
        entries.sort(key=lambda each: each[0])
        tool_list = ToolList([name for name, _ in entries], [tool for _, tool in entries], now + _CACHE_SECONDS)
        if caller.decision_cache_key:
            self._lists[key] = tool_list
            self._lists.move_to_end(key)
            while len(self._lists) > _MAX_LISTS:
                self._lists.popitem(last=False)
        return tool_list

    def _render_tool(self, tool_version: ToolView, *, modern: bool, is_key_optional: bool) -> orjson.Fragment:
        key = (tool_version.digest, tool_version.state.value, tool_version.deprecation, modern, is_key_optional)
        fragment = self._rendered_tools.get(key)
        if fragment is None:
            fragment = self._rendered_tools[key] = orjson.Fragment(
                orjson.dumps(render_tool(tool_version, modern=modern, is_key_optional=is_key_optional))
            )
            while len(self._rendered_tools) > _MAX_TOOLS:
                self._rendered_tools.popitem(last=False)
        return fragment


def build_page(key: str, names: Sequence[str], entries: Sequence[Any], cursor: Any) -> dict[str, Any]:
    """Build the page of a sorted list after a cursor, which names the last entry of the page before."""
    start = 0 if cursor is None else bisect_right(names, _decode_cursor(cursor))
    end = start + PAGE_SIZE
    page: dict[str, Any] = {key: entries[start:end]}
    if end < len(names):
        page["nextCursor"] = base64.urlsafe_b64encode(names[end - 1].encode()).decode()
    return page


def _is_method(contract: Contract) -> bool:
    return parse_mcp_method(contract.handler.driver, contract.handler.target) is not None


def _decode_cursor(cursor: Any) -> str:
    try:
        if not isinstance(cursor, str) or len(cursor) > 2000:
            raise ValueError
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except (ValueError, binascii.Error):
        raise RpcError(INVALID_PARAMS, "cursor was not issued by this server") from None
