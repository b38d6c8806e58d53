"""Negotiate which version of a tool a caller should use: the best one that offers what the caller expects."""

from functools import partial
from typing import Any

from deputize.catalog.compatibility.negotiation import Match, MissingPart
from deputize.catalog.compatibility.negotiation_job import VersionMatch, match_versions
from deputize.catalog.snapshot import TenantTools, ToolEntry
from deputize.catalog.versions import InvalidVersionRange
from deputize.core.caller import Caller
from deputize.core.contract.expectation import AgentExpectation
from deputize.core.errors import MalformedRequest
from deputize.govern.token_authorization import is_tool_visible, list_version_ranges
from deputize.lifecycle.runtime import Runtime

# Calls of the same tenant wait for no more negotiations than these.
_MAX_WAITING = 4
_RANK = {match: rank for rank, match in enumerate(reversed(Match))}


class Negotiations:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def negotiate_version(
        self, caller: Caller, name: str, spec: str, expectation: AgentExpectation
    ) -> dict[str, Any]:
        """Find the best version in a range that offers what the caller expects, and what is missing in it.

        Only versions that can be called and that the token's own ranges cover count. Whether policies allow a call
        is decided when it is made.
        """
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        entry = authority.tools.get_entry(name, visible=partial(_is_public, caller, authority.tools))
        try:
            candidates = entry.rank_versions(spec, list_version_ranges(caller, entry.name))
        except InvalidVersionRange as error:
            raise MalformedRequest(str(error), details={"field": "version"}) from error
        if not candidates:
            return self._build_answer(entry, _build_unoffered_match(entry, spec), [])
        await self._runtime.request_limits.count_negotiation(caller)
        run_job = partial(self._runtime.jobs.run_job, caller.tenant, most_waiting=_MAX_WAITING)
        matches = await match_versions(expectation, candidates, run_job)
        return self._build_answer(entry, max(matches, key=lambda each: _RANK[each.match]), matches)

    def _build_answer(self, entry: ToolEntry, best: VersionMatch, matches: list[VersionMatch]) -> dict[str, Any]:
        version = entry.by_version.get(best.version)
        return {
            "tool": entry.name,
            "match": best.match,
            "version": None if version is None else version.version,
            "digest": None if version is None else version.digest,
            "state": None if version is None else version.state,
            "deprecation": None if version is None or version.deprecation is None else version.deprecation.to_json(),
            "missing": [each.to_json() for each in best.missing_parts],
            "versions": [{"version": each.version, "match": each.match} for each in matches],
        }


def _is_public(caller: Caller, tools: TenantTools, name: str) -> bool:
    return is_tool_visible(caller, name) and tools.tools[name].is_public


def _build_unoffered_match(entry: ToolEntry, spec: str) -> VersionMatch:
    version_numbers = ", ".join(entry.callable_versions) or "none"
    part = MissingPart(
        path="/version", is_required=True, reason=f"{spec} covers no version for you; callable: {version_numbers}"
    )
    return VersionMatch(version="", match=Match.INCOMPATIBLE, missing_parts=(part,))
