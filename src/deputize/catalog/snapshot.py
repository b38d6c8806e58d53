"""Hold one tenant's tools as of one registry epoch: immutable, in memory, the only source for calls.

A newer snapshot shares every unchanged tool with the older one. Contracts are kept as the registered bytes and
compiled on the first call of a version. `registry.py` builds snapshots; the lifecycle reads them.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from weakref import WeakValueDictionary

import orjson

from deputize.catalog import versions
from deputize.catalog.compiled_tool import CompiledTool
from deputize.catalog.policy_facts import POLICY_KEYWORD, FactType, iter_facts
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.names import to_full_name
from deputize.core.errors import (
    InternalError,
    MalformedRequest,
    Problem,
    ToolDisabled,
    ToolNotFound,
    ToolRequiresSetup,
    ToolRetired,
    VersionNotFound,
)
from deputize.core.mcp.servers import parse_mcp_method

VisibilityCheck = Callable[[str], bool]

_S = LifecycleState
CALLABLE = frozenset({_S.AVAILABLE, _S.DEFERRED, _S.DEPRECATED})
# The canonical bytes of a contract without aliases begin with this, so it need not be parsed for them.
_NO_ALIASES = b'{"aliases":[]'
_POLICY_KEYWORD_BYTES = POLICY_KEYWORD.encode()
# Every contract of an MCP method contains this, so the others need not be parsed.
_METHOD_KEY = b'"method":'
_LONGEST_NAME = 128
# Compiling a contract takes up to 1 µs for each byte.
_SMALL_CONTRACT = 16_384
_MOST_COMPARED = 500
_MOST_SUGGESTED = 3
_MOST_NEAR = 4
_NEAR = 0.75

# One compiled tool per digest in this process, for as long as a snapshot refers to it.
_tools_by_digest: WeakValueDictionary[str, CompiledTool] = WeakValueDictionary()


def is_always_visible(name: str) -> bool:
    """Return True for every name, as for an administrator."""
    return True


class ToolVersion:
    """One registered version of a tool and its lifecycle state."""

    __slots__ = ("_tool", "changed_epoch", "digest", "previous_epoch", "raw", "state", "version")

    def __init__(
        self,
        *,
        version: str,
        digest: str,
        raw: bytes,
        state: LifecycleState,
        changed_epoch: int = 0,
        previous_epoch: int = 0,
    ) -> None:
        self.version = version
        self.digest = digest
        self.raw = raw
        self.state = state
        self.changed_epoch = changed_epoch
        self.previous_epoch = previous_epoch
        self._tool: CompiledTool | None = None

    @property
    def tool(self) -> CompiledTool:
        """The compiled tool, compiled on first use. Bytes that do not match their digest are rejected."""
        if self._tool is None:
            compiled_tool = _tools_by_digest.get(self.digest)
            if compiled_tool is None:
                if "sha256:" + hashlib.sha256(self.raw).hexdigest() != self.digest:
                    raise InternalError("a registered contract does not match its digest")
                compiled_tool = _tools_by_digest[self.digest] = self._compile_tool()
            self._tool = compiled_tool
        return self._tool

    @property
    def is_large(self) -> bool:
        """True if the contract is too large to look through on the event loop."""
        return len(self.raw) > _SMALL_CONTRACT

    async def load_tool(self) -> CompiledTool:
        """Return the compiled tool; compile a large one, and compute its contract's digest, in a thread."""
        if self._tool is None and self.is_large:
            await asyncio.to_thread(lambda: self.tool.contract.digest)
        return self.tool

    def _compile_tool(self) -> CompiledTool:
        try:
            return CompiledTool(Contract.model_validate_json(self.raw), self.digest)
        except ValueError as error:
            raise ToolRequiresSetup(
                f"version {self.version} of this tool was registered by an incompatible release of the gateway",
                advice="Upgrade this gateway, or register a version of the tool that it understands.",
            ) from error

    @property
    def contract(self) -> Contract:
        return self.tool.contract

    def copy_with_state(
        self, state: LifecycleState, *, changed_epoch: int = 0, previous_epoch: int = 0
    ) -> "ToolVersion":
        copy = ToolVersion(
            version=self.version,
            digest=self.digest,
            raw=self.raw,
            state=state,
            changed_epoch=changed_epoch,
            previous_epoch=previous_epoch,
        )
        copy._tool = self._tool
        return copy


@dataclass(frozen=True)
class ToolEntry:
    """All versions of one tool, highest first."""

    name: str
    versions: tuple[ToolVersion, ...]
    aliases: frozenset[str] = frozenset()

    @classmethod
    def from_versions(cls, name: str, by_version: Mapping[str, ToolVersion]) -> "ToolEntry":
        newest_first = sorted(by_version.values(), key=lambda each: versions.parse_version(each.version), reverse=True)
        aliases = (
            alias
            for each in newest_first
            if each.state not in (_S.DRAFT, _S.RETIRED) and not each.raw.startswith(_NO_ALIASES)
            for alias in orjson.loads(each.raw).get("aliases", ())
        )
        return cls(name, tuple(newest_first), frozenset(aliases))

    @cached_property
    def by_version(self) -> Mapping[str, ToolVersion]:
        return MappingProxyType({each.version: each for each in self.versions})

    @cached_property
    def latest(self) -> ToolVersion | None:
        """The version that a call without a version uses."""
        return self._find_version("latest", CALLABLE)

    @cached_property
    def is_public(self) -> bool:
        """True if any version is more than a draft; a tool with drafts only is hidden from callers."""
        return any(each.state is not _S.DRAFT for each in self.versions)

    def resolve_version(self, spec: str) -> ToolVersion:
        """Return the callable version that `spec` selects, or raise the Problem that says why there is none."""
        exact = self.by_version.get(spec)
        if exact is not None:
            if exact.state in CALLABLE:
                return exact
            raise self._build_refusal(spec, exact)
        try:
            version = self.latest if spec.lower() == "latest" else self._find_version(spec, CALLABLE)
            if version is not None:
                return version
            raise self._build_refusal(spec, self._find_version(spec, frozenset(_S) - CALLABLE - {_S.DRAFT}))
        except versions.InvalidVersionRange as error:
            raise MalformedRequest(
                str(error), details={"tool": self.name, "versions": self.callable_versions}
            ) from error

    def _find_version(self, spec: str, states: frozenset[LifecycleState]) -> ToolVersion | None:
        candidates = [each.version for each in self.versions if each.state in states]
        deprecated_versions = {each.version for each in self.versions if each.state is _S.DEPRECATED}
        version_number = versions.resolve_version(spec, candidates, deprecated_versions=deprecated_versions)
        return None if version_number is None else self.by_version[version_number]

    @property
    def callable_versions(self) -> list[str]:
        return [each.version for each in self.versions if each.state in CALLABLE]

    def _build_refusal(self, spec: str, version: ToolVersion | None) -> Problem:
        details = {"tool": self.name, "asked": spec[:_LONGEST_NAME], "versions": self.callable_versions}
        if version is None or version.state is _S.DRAFT:
            return VersionNotFound(f"{self.name} has no version {spec[:_LONGEST_NAME]}", details=details)
        label = f"{self.name} {version.version}"
        match version.state:
            case _S.RETIRED:
                replacement = version.contract.life.replacement
                return ToolRetired(f"{label} was retired", details={**details, "replacement": replacement})
            case _S.REQUIRES_SETUP:
                return ToolRequiresSetup(f"{label} is not set up yet", details=details)
            case _:
                return ToolDisabled(f"{label} is disabled", details=details)


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

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[ToolEntry]:
        return iter(self.tools.values())

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
        self, name: str, spec: str = "latest", *, visible: VisibilityCheck = is_always_visible
    ) -> ToolVersion:
        """Return the version to call. A tool hidden from the caller gives the same error as an unknown one."""
        entry = self.find_entry(name)
        if entry is None or not entry.is_public or not visible(entry.name):
            raise self._build_not_found(name, visible)
        return entry.resolve_version(spec)

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
        short_name = name[:_LONGEST_NAME]
        suggestions = self._suggest_names(to_full_name(short_name), visible)
        hint = f"; did you mean {suggestions[0]}?" if suggestions else ""
        return ToolNotFound(
            f"there is no tool {short_name}{hint}", details={"tool": short_name, "did_you_mean": suggestions}
        )

    def _suggest_names(self, name: str, visible: VisibilityCheck) -> list[str]:
        """Suggest similar names that the caller may see; similar namespaces are searched first to limit the work."""
        namespace, _, word = name.rpartition(".")
        spaces = list(self._namespaces)[:_MOST_COMPARED]
        near = difflib.get_close_matches(namespace, spaces, n=len(spaces) or 1, cutoff=_NEAR)
        # A namespace in which the caller sees nothing must not displace another, or it could be inferred.
        visible_groups = (
            names for space in dict.fromkeys((namespace, *near)) if (names := self._list_visible(space, visible))
        )
        candidates = [each for names in islice(visible_groups, _MOST_NEAR) for each in names[:_MOST_COMPARED]]
        close = difflib.get_close_matches(name, candidates, n=_MOST_SUGGESTED, cutoff=_NEAR)
        if close or not word:
            return close
        elsewhere = (each for each in self.tools if each.endswith(f".{word}"))
        return list(islice((each for each in elsewhere if self._is_visible_tool(each, visible)), _MOST_SUGGESTED))

    def _list_visible(self, namespace: str, visible: VisibilityCheck) -> list[str]:
        return [each for each in self._namespaces.get(namespace, ()) if self._is_visible_tool(each, visible)]

    def _is_visible_tool(self, name: str, visible: VisibilityCheck) -> bool:
        return self.tools[name].is_public and visible(name)

    @cached_property
    def _namespaces(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self.tools:
            groups.setdefault(name.partition(".")[0], []).append(name)
        return groups

    def replace_entries(self, epoch: int, entries: Mapping[str, ToolEntry]) -> "TenantTools":
        """Build a newer snapshot with these entries; all other tools stay the same objects."""
        if not entries:
            return TenantTools(tenant=self.tenant, epoch=epoch, tools=self.tools, aliases=self.aliases)
        aliases = dict(self.aliases)
        for name, entry in entries.items():
            old = self.tools.get(name)
            for alias in (old.aliases if old else frozenset()) - entry.aliases:
                if aliases.get(alias) == name:
                    del aliases[alias]
            aliases.update(dict.fromkeys(entry.aliases, name))
        fresh = TenantTools(tenant=self.tenant, epoch=epoch, tools={**self.tools, **entries}, aliases=aliases)
        if "_namespaces" in self.__dict__ and len(fresh) == len(self):
            fresh.__dict__["_namespaces"] = self._namespaces  # no name was added, so the grouping is still right
        return fresh
