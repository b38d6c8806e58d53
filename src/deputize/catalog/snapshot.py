"""Hold one tenant's tools as of one registry epoch: immutable, in memory, the only source for calls.

A newer snapshot shares every unchanged tool with the older one. Contracts are kept as the registered bytes and
compiled on the first call of a version. `registry.py` builds snapshots; the lifecycle reads them.
"""

import bisect
import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice

import orjson

from deputize.catalog.policy_facts import POLICY_KEYWORD, FactType, iter_facts
from deputize.catalog.tool_entry import LONGEST_NAME, ToolEntry, ToolVersion
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.names import to_full_name
from deputize.core.errors import ToolNotFound
from deputize.core.mcp.servers import parse_mcp_method

__all__ = ["TenantTools", "ToolEntry", "ToolVersion", "VisibilityCheck", "is_always_visible"]

VisibilityCheck = Callable[[str], bool]
# The version ranges that a token names for a tool; None if it limits none.
ListRanges = Callable[[str], Sequence[str] | None]

_S = LifecycleState
_POLICY_KEYWORD_BYTES = POLICY_KEYWORD.encode()
# Every contract of an MCP method contains this, so the others need not be parsed.
_METHOD_KEY = b'"method":'
_MAX_COMPARED = 500
_MAX_SUGGESTED = 3
_MAX_NEAR = 4
_NEAR = 0.75
_UNLOADED_ADVICE = "Correct and save the file: deputize dev loads it then, and its terminal shows every reason."


def is_always_visible(name: str) -> bool:
    """Return True for every name, as for an administrator."""
    return True


def _list_no_ranges(name: str) -> None:
    return None


def _is_method(raw: bytes) -> bool:
    if _METHOD_KEY not in raw:
        return False
    handler = orjson.loads(raw)["handler"]
    return parse_mcp_method(handler["driver"], handler["target"]) is not None


@dataclass(frozen=True, kw_only=True)
class TenantTools:
    """A tenant's tools, found by full name, outward name or alias. `epoch` is the registry epoch they were read at."""

    tenant: str
    epoch: int = 0
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    # In development only: why a tool of the project's files is not in use, by its name, or by `namespace.` of a file.
    unloaded_tools: Mapping[str, str] = field(default_factory=dict)
    # In development only: tools that the project's files no longer have, by name, and why. They are in no list.
    removed_tools: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[ToolEntry]:
        if not self.removed_tools:
            return iter(self.tools.values())
        return (each for each in self.tools.values() if each.name not in self.removed_tools)

    def find_entry(self, name: str) -> ToolEntry | None:
        """Find a tool by full name, outward name or alias; a real name wins over an alias."""
        entry = self.tools.get(name)
        if entry is None:
            full = to_full_name(name)
            entry = self.tools.get(full) or self.tools.get(self.aliases.get(full, ""))
        return entry

    def find_owner(self, name: str) -> str | None:
        """Find which tool a name or alias belongs to, for admission."""
        entry = self.find_entry(name)
        return None if entry is None else entry.name

    def find_contract(self, name: str) -> Contract | None:
        """Find the contract that a call without a version uses, for admission."""
        entry = self.find_entry(name)
        return None if entry is None or entry.latest is None else entry.latest.contract

    def find_fact(self, name: str) -> tuple[FactType, str] | None:
        """Find the type of a fact in this tenant and a tool that declares it, for admission."""
        return self._facts.get(name)

    @property
    def fact_types(self) -> dict[str, FactType]:
        """The types of all facts of tools that are not retired; policies are checked against them."""
        return {name: kind for name, (kind, _) in self._facts.items()}

    @cached_property
    def _facts(self) -> dict[str, tuple[FactType, str]]:
        facts: dict[str, tuple[FactType, str]] = {}
        for entry in self.tools.values():
            for each in entry.versions:
                if each.state is not _S.RETIRED and _POLICY_KEYWORD_BYTES in each.raw:
                    for fact in iter_facts(orjson.loads(each.raw)["input_schema"]):
                        facts.setdefault(fact.name, (fact.type, entry.name))
        return facts

    @cached_property
    def methods(self) -> tuple[ToolEntry, ...]:
        """The entries that stand for methods of MCP servers, such as `resources/read`, not for their tools."""
        return tuple(each for each in self.tools.values() if each.versions and _is_method(each.versions[0].raw))

    def resolve_version(
        self,
        name: str,
        spec: str = "latest",
        *,
        visible: VisibilityCheck = is_always_visible,
        list_ranges: ListRanges = _list_no_ranges,
    ) -> ToolVersion:
        """Return the version to call: the best one in `spec` that the token's ranges cover, if they cover any.

        A tool hidden from the caller gives the same error as an unknown one.
        """
        entry = self.find_entry(name)
        if entry is None or not entry.is_public or not visible(entry.name) or entry.name in self.removed_tools:
            raise self._build_not_found(name, visible)
        return entry.resolve_version(spec, list_ranges(entry.name))

    def count_removed(self, now_ms: int) -> int:
        """Count the versions whose removal date has passed: while it stays the same, so does what can be called."""
        return bisect.bisect_right(self._removal_times, now_ms)

    @cached_property
    def _removal_times(self) -> list[float]:
        return sorted(moment for entry in self.tools.values() for moment in entry.removal_times)

    def is_unchanged_between(self, name: str, version: str, since: int, until: int) -> bool:
        """Tell whether a version did not change after `since` and up to `until`, though it changed later."""
        entry = self.tools.get(name)
        tool_version = entry.by_version.get(version) if entry else None
        return tool_version is not None and tool_version.changed_epoch > until and tool_version.previous_epoch <= since

    def get_entry(self, name: str, *, visible: VisibilityCheck = is_always_visible) -> ToolEntry:
        """Return a tool with all its versions, for display."""
        entry = self.find_entry(name)
        if entry is None or not visible(entry.name):
            raise self._build_not_found(name, visible)
        return entry

    def _build_not_found(self, name: str, visible: VisibilityCheck) -> ToolNotFound:
        short_name = name[:LONGEST_NAME]
        full_name = to_full_name(short_name)
        reason = self.unloaded_tools.get(full_name) or self.unloaded_tools.get(f"{full_name.partition('.')[0]}.")
        if reason is not None and visible(full_name):
            return ToolNotFound(
                f"{short_name} is not loaded: {reason}", details={"tool": short_name}, advice=_UNLOADED_ADVICE
            )
        suggestions = self._suggest_names(full_name, visible)
        hint = f"; did you mean {suggestions[0]}?" if suggestions else ""
        if full_name in self.removed_tools and visible(full_name):
            return ToolNotFound(
                f"there is no tool {short_name} any more: {self.removed_tools[full_name]}{hint}",
                details={"tool": short_name, "did_you_mean": suggestions},
            )
        return ToolNotFound(
            f"there is no tool {short_name}{hint}", details={"tool": short_name, "did_you_mean": suggestions}
        )

    def _suggest_names(self, name: str, visible: VisibilityCheck) -> list[str]:
        """Suggest similar names that the caller may see; similar namespaces are searched first to limit the work."""
        namespace, _, word = name.rpartition(".")
        spaces = list(self._namespaces)[:_MAX_COMPARED]
        near = difflib.get_close_matches(namespace, spaces, n=len(spaces) or 1, cutoff=_NEAR)
        # A namespace in which the caller sees nothing must not displace another, or it could be inferred.
        visible_groups = (
            names for space in dict.fromkeys((namespace, *near)) if (names := self._list_visible(space, visible))
        )
        candidates = [each for names in islice(visible_groups, _MAX_NEAR) for each in names[:_MAX_COMPARED]]
        close = difflib.get_close_matches(name, candidates, n=_MAX_SUGGESTED, cutoff=_NEAR)
        if close or not word:
            return close
        elsewhere = (each for each in self.tools if each.endswith(f".{word}"))
        return list(islice((each for each in elsewhere if self._is_visible_tool(each, visible)), _MAX_SUGGESTED))

    def _list_visible(self, namespace: str, visible: VisibilityCheck) -> list[str]:
        return [each for each in self._namespaces.get(namespace, ()) if self._is_visible_tool(each, visible)]

    def _is_visible_tool(self, name: str, visible: VisibilityCheck) -> bool:
        return name not in self.removed_tools and self.tools[name].is_public and visible(name)

    @cached_property
    def _namespaces(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self.tools:
            groups.setdefault(name.partition(".")[0], []).append(name)
        return groups

    def replace_entries(self, epoch: int, entries: Mapping[str, ToolEntry]) -> "TenantTools":
        """Build a newer snapshot with these entries; all other tools stay the same objects."""
        if not entries:
            return replace(self, epoch=epoch)
        aliases = dict(self.aliases)
        for name, entry in entries.items():
            old = self.tools.get(name)
            for alias in (old.aliases if old else frozenset()) - entry.aliases:
                if aliases.get(alias) == name:
                    del aliases[alias]
            aliases.update(dict.fromkeys(entry.aliases, name))
        fresh = replace(self, epoch=epoch, tools={**self.tools, **entries}, aliases=aliases)
        if "_namespaces" in self.__dict__ and len(fresh) == len(self):
            fresh.__dict__["_namespaces"] = self._namespaces  # no name was added, so the grouping is still right
        return fresh
