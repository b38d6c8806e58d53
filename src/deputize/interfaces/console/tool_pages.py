"""Show the tools that a person may see, and one tool: its contract, versions, service levels and latest callers."""

from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from deputize.core.display_text import to_display_text
from deputize.core.settings.urls import TOOLS_PAGE_PATH
from deputize.interfaces.console.call_view import build_rows
from deputize.interfaces.console.charts import format_milliseconds
from deputize.interfaces.console.entry_query import format_address
from deputize.interfaces.console.pages import ConsolePages
from deputize.interfaces.console.switch_pages import build_off_path, build_switch
from deputize.interfaces.console.view import EFFECT_BADGES, build_badge, build_value_view, format_line
from deputize.operations.gateway import AuditQuery, ConsoleSession, EntryFilter

_PAGE_SIZE: Final = 100
_MAX_MATCHES: Final = 50
_NEWEST: Final = 5
_LEVEL_DAYS: Final = 7
_MAX_ARGUMENTS: Final = 100
# What the page shows in places of its own.
_SHOWN_FIELDS: Final = frozenset(
    {"namespace", "name", "title", "description", "version", "effects", "output_schema", "examples"}
)


class ToolPages(ConsolePages):
    """The handlers of /console/tools."""

    section_path = TOOLS_PAGE_PATH

    async def list_tools(self, request: Request, session: ConsoleSession) -> Response:
        """List by name, or what matches a search, best first."""
        surface, text = self._get_gateway().surface, request.query_params.get("q", "").strip()[:200]
        next_path = None
        if text:
            tools = (await surface.search_tools(session.caller, text, limit=_MAX_MATCHES))["matches"]
        else:
            after = request.query_params.get("after", "")[:300]
            listing = await surface.list_tools(session.caller, after=after, limit=_PAGE_SIZE)
            tools = listing.tools
            if listing.next_after is not None:
                next_path = format_address(TOOLS_PAGE_PATH, {"after": listing.next_after})
        return self._render_page(
            "tools.html",
            session,
            has_script=True,
            search_text=text,
            text=format_line(text),
            tools=[_build_tool(each) for each in tools],
            next_path=next_path,
        )

    async def show_tool(self, request: Request, session: ConsoleSession) -> Response:
        gateway, caller = self._get_gateway(), session.caller
        tool = await gateway.surface.show_tool(caller, str(request.path_params["name"]))
        versions = await gateway.surface.list_versions(caller, tool["name"])
        levels = None
        if caller.is_admin:
            levels = await gateway.service_levels.report_levels(caller, tool["name"], None, _LEVEL_DAYS)
        circuit = await self._find_circuit(session, tool["contract"])
        page = await gateway.audit_search.search(
            caller,
            AuditQuery(filter=EntryFilter(tool=tool["name"], of_calls=True)),
            before=None,
            limit=_NEWEST,
            is_page=True,
        )
        contract = tool["contract"]
        return self._render_page(
            "tool.html",
            session,
            has_script=True,
            tool=_build_tool(tool),
            provider=format_line(contract["provider"]),
            arguments=_list_arguments(tool["input_schema"]),
            contract=[
                build_value_view(name, value)
                for name, value in contract.items()
                if name not in _SHOWN_FIELDS and value not in (None, "", [], {}, False)
            ],
            versions=[_build_tool(each) for each in versions],
            levels=[] if levels is None else [_build_level(each) for each in levels["versions"]],
            circuit=circuit,
            off_path=build_off_path("tool", tool["name"]) if caller.can_operate else None,
            switch=await self._find_switch(session, tool["name"]),
            rows=build_rows(page["entries"]),
        )

    async def _find_switch(self, session: ConsoleSession, name: str) -> dict[str, Any] | None:
        """Find out for an auditor whether a tool is switched off, and by whom."""
        if not session.caller.is_auditor:
            return None
        gateway = self._get_gateway()
        switch = await gateway.commands.find_switch(session.caller, "tool", name)
        return None if switch is None else build_switch(switch, now=gateway.clock.now())

    async def _find_circuit(self, session: ConsoleSession, contract: Mapping[str, Any]) -> str:
        """Find the state of the circuit of the service behind a tool; empty if it has counted no failures."""
        service = contract["external_service"]
        if service is None or not session.caller.is_admin:
            return ""
        circuits = (await self._get_gateway().circuits.list_circuits(session.caller))["circuits"]
        return next(
            (
                f"{each['state'].replace('_', ' ')}, {each['failures']} failures counted"
                for each in circuits
                if each["service"] == service
            ),
            "",
        )


def _build_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": format_line(tool["name"]),
        "title": format_line(tool["title"] or ""),
        "description": to_display_text(str(tool["description"] or ""), 400),
        "version": format_line(tool["version"]),
        "state": format_line(str(tool["state"])),
        "digest": format_line(tool["digest"]),
        "effects": build_badge(EFFECT_BADGES, str(tool["effects"])),
        "timeout_class": format_line(str(tool["timeout_class"])),
        "scopes": [format_line(each) for each in tool["scopes"]],
        "is_deprecated": tool["deprecation"] is not None,
        "keeps_credential": tool.get("credential_lifetime") == "program",
    }


def _list_arguments(schema: Mapping[str, Any]) -> list[dict[str, Any]]:
    """List the arguments that a schema names; the contract has all of it."""
    parts = list(schema.get("properties", {}).items())[:_MAX_ARGUMENTS]
    return [
        {
            "name": format_line(name),
            "type": format_line(_name_type(part)),
            "is_required": name in schema.get("required", ()),
            "description": to_display_text(str(part.get("description") or ""), 400) if isinstance(part, dict) else "",
        }
        for name, part in parts
    ]


def _name_type(part: Any) -> str:
    """Name the type of a part of a schema, where few words do."""
    if not isinstance(part, dict):
        return "anything"
    if "enum" in part:
        return "one of " + ", ".join(str(each) for each in part["enum"])
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_name_type(each) for each in part["anyOf"]))
    kinds = part.get("type", "see the contract")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


def _build_level(level: Mapping[str, Any]) -> dict[str, Any]:
    seconds = level["latency"]
    return {
        "version": format_line(level["version"]),
        "calls": f"{level['calls']:,}",
        "errors": f"{level['calls'] - level['ends']['successes']:,}",
        **{
            name: "–" if seconds[f"{name}_seconds"] is None else format_milliseconds(seconds[f"{name}_seconds"] * 1000)
            for name in ("p50", "p95", "p99")
        },
        "advice": format_line(level["timeout"].get("text") or ""),
    }
