"""Show a caller the tools of its tenant that its token does not hide.

Lists, search and 'did you mean' all read here, so that no answer reveals a hidden tool.
"""

import contextlib
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from deputize.catalog.search import SearchIndex
from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.catalog.versions import InvalidVersionRange
from deputize.core.bounded_dict import BoundedDict
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.names import to_outward_name
from deputize.core.errors import ServerNotFound
from deputize.core.event_loop.loop_pace import LoopPace
from deputize.core.mcp.servers import parse_mcp_target
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.runtime import Runtime
from deputize.operations.views.tool_status import ToolSelection, determine_availability
from deputize.operations.views.tool_view import ServerMethodView, ToolView

# Search indexes are large, and can be built again from a tenant's tools.
_MAX_INDEXES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolListPage:
    tools: list[dict[str, Any]]
    next_after: str | None


class Surface:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._indexes: BoundedDict[str, SearchIndex] = BoundedDict(_MAX_INDEXES)

    async def list_tools(self, caller: Caller, *, after: str = "", limit: int = 100) -> ToolListPage:
        """List tools by name, a page at a time."""
        tools = await self._load_tools(caller)
        versions = {
            each.name: version
            for each in tools
            if each.name > after and (version := find_latest(caller, each)) is not None
        }
        names = sorted(versions)
        page = names[:limit]
        return ToolListPage(
            tools=[summarize_tool(versions[name]) for name in page],
            next_after=page[-1] if len(names) > limit else None,
        )

    async def list_availability(
        self, caller: Caller, selection: ToolSelection, *, after: str = "", limit: int = 100
    ) -> dict[str, Any]:
        """List the status of each tool for this caller, by name, a page at a time."""
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        versions: dict[str, ToolVersion] = {}
        pace = LoopPace(self._runtime.clock)
        for each in authority.tools:
            await pace.take_turn()
            if each.name > after and is_tool_visible(caller, each.name):
                version = _select_version(caller, each)
                if version is not None:
                    versions[each.name] = version
        names = sorted(versions)
        tools = []
        for name in names[:limit]:
            version = versions[name]
            await pace.take_turn()
            await version.load_tool()
            availability = determine_availability(self._runtime, authority, caller, version, selection)
            tools.append(
                {"name": name, "version": version.version, "digest": version.digest, **availability.to_json(caller)}
            )
        return {
            "scope": {
                "tenant": caller.tenant,
                "user": caller.user,
                "agents": caller.agents,
                "session": caller.session,
                "task": caller.task,
            },
            "policy_digest": authority.policy.digest,
            "created_at": self._runtime.stamps.now(),
            "tools": tools,
            "next_after": tools[-1]["name"] if len(names) > limit else None,
        }

    async def load_epochs(self, tenant: str) -> Hashable:
        """Load a value that differs once the tenant's tools, policies or revocations have changed, also by a date."""
        authority = await self._runtime.authority.load_tenant(tenant)
        return authority.epochs, authority.tools.count_removed(self._runtime.clock.epoch_ms())

    async def list_loaded_tools(self, caller: Caller) -> list[ToolView]:
        """List every tool that is loaded for this caller, to be shown to a model."""
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        versions = []
        pace = LoopPace(self._runtime.clock)
        for each in authority.tools:
            await pace.take_turn()
            version = find_latest(caller, each)
            if version is None:
                continue
            await version.load_tool()
            if determine_availability(self._runtime, authority, caller, version, ToolSelection()).is_listed:
                versions.append(ToolView(version))
        return versions

    async def is_key_optional(self, tenant: str) -> bool:
        """Tell whether a policy allows irreversible calls without an idempotency key, as those that observe do."""
        return (await self._runtime.authority.load_tenant(tenant)).policy.policies.is_key_optional

    async def list_server_methods(self, caller: Caller) -> list[ServerMethodView]:
        """List the methods of MCP servers that this caller may know of, such as `resources/read`."""
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        methods = []
        for each in authority.tools.methods:
            version = _select_version(caller, each) if is_tool_visible(caller, each.name) else None
            if version is not None:
                availability = determine_availability(self._runtime, authority, caller, version, ToolSelection())
                methods.append(
                    self._build_method_view(caller.tenant, version.contract, is_loaded=availability.is_listed)
                )
        return methods

    def _build_method_view(self, tenant: str, contract: Contract, *, is_loaded: bool) -> ServerMethodView:
        target = parse_mcp_target(contract.handler.target)
        state = self._runtime.server_states.get_state(tenant, target.server)
        return ServerMethodView(
            server=target.server,
            method=target.method,
            tool=contract.full_name,
            is_loaded=is_loaded,
            pins=self._runtime.upstreams.get_pinned_resources(tenant, target.server),
            present_items=None if state is None else state.digests,
        )

    async def find_tool(self, caller: Caller, name: str, version: str = "latest") -> ToolView | None:
        """Find the version that a call by this name would run; None if the call would be refused for its name."""
        authority = self._runtime.authority
        tools = (authority.get_tenant(caller.tenant) or await authority.load_tenant(caller.tenant)).tools
        entry = tools.find_entry(name)
        if entry is None or not is_tool_visible(caller, entry.name):
            return None
        tool_version = entry.by_version.get(version)
        if tool_version is None:
            with contextlib.suppress(InvalidVersionRange):
                ranges = list_version_ranges(caller, entry.name)
                tool_version = entry.find_version(version, ranges) or entry.find_version(version)
        return None if tool_version is None else ToolView(tool_version)

    async def search_tools(self, caller: Caller, query: str, *, limit: int = 10) -> dict[str, Any]:
        """Rank the tools that this caller sees; the index follows the tenant's snapshot."""
        tools = await self._load_tools(caller)
        index = self._indexes.get(caller.tenant) or self._indexes.put(caller.tenant, SearchIndex())
        await index.update(tools)
        versions = {each.name: version for each in tools if (version := find_latest(caller, each)) is not None}
        result = index.search(query, set(versions), limit=limit).to_json()
        matches = [{**match, **summarize_tool(versions[match["name"]])} for match in result["matches"]]
        return {**result, "matches": matches}

    async def show_tool(self, caller: Caller, name: str, version: str = "latest") -> dict[str, Any]:
        """Show what a caller needs to call one version of a tool."""
        tools = await self._load_tools(caller)
        tool_version = tools.resolve_version(
            name,
            version,
            visible=lambda each: is_tool_visible(caller, each),
            list_ranges=lambda each: list_version_ranges(caller, each),
        )
        contract = tool_version.tool.contract
        contract_fields = contract.model_dump(mode="json", exclude={"handler"})
        return {
            **summarize_tool(tool_version),
            "contract": {**contract_fields, "input_schema": tool_version.tool.model_schema},
            "credential_lifetime": self._find_credential_lifetime(caller.tenant, contract),
        }

    def _find_credential_lifetime(self, tenant: str, contract: Contract) -> str | None:
        """Find how long the tool's credential is held: a program has it in its environment for as long as it runs."""
        if contract.auth.credential == "none":
            return None
        if contract.handler.driver == "mcp":
            server = parse_mcp_target(contract.handler.target).server
            with contextlib.suppress(ServerNotFound):
                if self._runtime.upstreams.get_settings(tenant, server).command:
                    return "program"
        return "call"

    async def list_versions(self, caller: Caller, name: str) -> list[dict[str, Any]]:
        tools = await self._load_tools(caller)
        entry = tools.get_entry(name, visible=lambda each: is_tool_visible(caller, each))
        return [summarize_tool(each) for each in entry.versions if each.state is not LifecycleState.DRAFT]

    async def _load_tools(self, caller: Caller) -> TenantTools:
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        return authority.tools


def summarize_tool(version: ToolVersion) -> dict[str, Any]:
    contract = version.tool.contract
    return {
        "name": contract.full_name,
        "outward_name": to_outward_name(contract.full_name),
        "version": contract.version,
        "digest": version.tool.digest,
        "state": version.state,
        "title": contract.title,
        "description": contract.description,
        "effects": contract.effects,
        "mutation_class": contract.mutation_class,
        "timeout_class": contract.timeout.timeout_class,
        "scopes": contract.auth.required_scopes,
        "input_schema": version.tool.model_schema,
        "examples": contract.examples,
        "deprecation": None if version.deprecation is None else version.deprecation.to_json(),
    }


def find_latest(caller: Caller, entry: ToolEntry) -> ToolVersion | None:
    """Find the version that a call without a version would run; None if there is none or the tool is hidden.

    If the token's ranges cover no callable version, the latest of all is shown, which the token may not call.
    """
    if not is_tool_visible(caller, entry.name):
        return None
    return entry.find_version(ranges=list_version_ranges(caller, entry.name)) or entry.latest


def _select_version(caller: Caller, entry: ToolEntry) -> ToolVersion | None:
    """Return the version a caller would get, or else the newest one that is unavailable in its state."""
    candidates = (each for each in entry.versions if each.state in _UNAVAILABLE_STATES)
    return find_latest(caller, entry) or next(candidates, None)


_UNAVAILABLE_STATES = frozenset({LifecycleState.DISABLED, LifecycleState.REQUIRES_SETUP})
