"""What one caller sees: the tools of its tenant that its token does not hide. Lists, search and 'did you mean' read
here and nowhere else, so nobody learns of a tool by its absence.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from deputize.catalog.search import SearchIndex
from deputize.catalog.snapshot import TenantTools, ToolEntry, ToolVersion
from deputize.core.caller import Caller
from deputize.core.contract import LifecycleState, outward
from deputize.govern.decide import visible
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.standing import Selection, Status, standing


@dataclass(frozen=True, kw_only=True, slots=True)
class Listing:
    tools: list[dict[str, Any]]
    next_after: str | None


class Surface:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms
        self._indexes: dict[str, SearchIndex] = {}

    async def page(self, caller: Caller, *, after: str = "", limit: int = 100) -> Listing:
        """In order of name, a page at a time."""
        tools = await self._tools(caller)
        names = sorted(each.name for each in tools if each.name > after and each.latest and visible(caller, each.name))
        page = names[:limit]
        return Listing(
            tools=[brief(tools.resolve(name)) for name in page],
            next_after=page[-1] if len(names) > limit else None,
        )

    async def standings(
        self, caller: Caller, selection: Selection, *, after: str = "", limit: int = 100
    ) -> dict[str, Any]:
        """The surface itself: where each tool stands for this caller, in order of name, a page at a time."""
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        shown = {
            each.name: found
            for each in authority.tools
            if each.name > after and visible(caller, each.name) and (found := _shown(each)) is not None
        }
        names = sorted(shown)
        tools = []
        for place, name in enumerate(names[:limit], start=1):
            found = shown[name]
            if place % _TOOLS_AT_ONCE == 0:
                await asyncio.sleep(0)
            stands = standing(self._rooms, authority, caller, found, selection)
            tools.append({"name": name, "version": found.version, "digest": found.digest, **stands.to_json()})
        return {
            "scope": {
                "tenant": caller.tenant,
                "user": caller.user,
                "agents": caller.agents,
                "session": caller.session,
                "task": caller.task,
            },
            "policy_digest": authority.policy.digest,
            "created_at": self._rooms.stamps.now(),
            "tools": tools,
            "next_after": tools[-1]["name"] if len(names) > limit else None,
        }

    async def loaded(self, caller: Caller) -> list[ToolVersion]:
        """Every tool that stands as loaded for this caller, for whoever shows them to a model."""
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        found = []
        for place, each in enumerate(authority.tools, start=1):
            if each.latest is None or not visible(caller, each.name):
                continue
            if place % _TOOLS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if standing(self._rooms, authority, caller, each.latest, Selection()).status is Status.LOADED:
                found.append(each.latest)
        return found

    async def methods(self, caller: Caller) -> list[tuple[ToolVersion, bool]]:
        """Everything this caller sees that stands for a method of an MCP server, and whether it stands as loaded."""
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        found = []
        for each in authority.tools.methods:
            shown = _shown(each) if visible(caller, each.name) else None
            if shown is not None:
                stands = standing(self._rooms, authority, caller, shown, Selection())
                found.append((shown, stands.status is Status.LOADED))
        return found

    async def found(self, caller: Caller, name: str, version: str = "latest") -> ToolVersion | None:
        """The version a call by this name would go to; None where it would be refused for that."""
        rooms = self._rooms.authority
        tools = (rooms.known(caller.tenant) or await rooms.of(caller.tenant)).tools
        entry = tools.find(name)
        if entry is None or not visible(caller, entry.name):
            return None
        return entry.latest if version == "latest" else entry.by_version.get(version)

    async def search(self, caller: Caller, query: str, *, limit: int = 10) -> dict[str, Any]:
        """Ranked among what this caller sees; the index follows the tenant's snapshot."""
        tools = await self._tools(caller)
        index = self._indexes.setdefault(caller.tenant, SearchIndex())
        index.follow(tools)
        seen = {each.name for each in tools if each.latest and visible(caller, each.name)}
        found = index.search(query, seen, limit=limit).to_json()
        matches = [{**match, **brief(tools.resolve(match["name"]))} for match in found["matches"]]
        return {**found, "matches": matches}

    async def show(self, caller: Caller, name: str, version: str = "latest") -> dict[str, Any]:
        """Everything a caller needs to call one version of a tool."""
        tools = await self._tools(caller)
        found = tools.resolve(name, version, visible=lambda each: visible(caller, each))
        contract = found.tool.contract
        declared = contract.model_dump(mode="json", exclude={"handler"})
        return {
            **brief(found),
            "contract": {**declared, "input_schema": found.tool.model_schema},
        }

    async def versions(self, caller: Caller, name: str) -> list[dict[str, Any]]:
        tools = await self._tools(caller)
        entry = tools.entry(name, visible=lambda each: visible(caller, each))
        return [brief(each) for each in entry.versions if each.state is not LifecycleState.DRAFT]

    async def _tools(self, caller: Caller) -> TenantTools:
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        return authority.tools


def brief(found: ToolVersion) -> dict[str, Any]:
    contract = found.tool.contract
    return {
        "name": contract.full_name,
        "outward_name": outward(contract.full_name),
        "version": contract.version,
        "digest": found.tool.digest,
        "state": found.state,
        "title": contract.title,
        "description": contract.description,
        "effects": contract.effects,
        "mutation_class": contract.mutation_class,
        "timeout_class": contract.timeout.timeout_class,
        "scopes": contract.auth.scopes,
        "input_schema": found.tool.model_schema,
        "examples": contract.examples,
    }


def _shown(entry: ToolEntry) -> ToolVersion | None:
    """The version a caller would get, or else the newest that would be refused for the state it is in."""
    waiting = (each for each in entry.versions if each.state in _WAITING)
    return entry.latest or next(waiting, None)


# Where the rules about a tool were not asked yet, looking at it takes its time; others have their turn in between.
_TOOLS_AT_ONCE = 10
_WAITING = frozenset({LifecycleState.DISABLED, LifecycleState.REQUIRES_SETUP})
