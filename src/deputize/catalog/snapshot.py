"""What tools one tenant has, as of one registry epoch: immutable, in memory, the only thing calls look at.

A newer snapshot shares every tool that did not change with the older one. Contracts are kept as the bytes
that were registered and compiled when a version is first called. Made by `registry.py`, read by the lifecycle.
"""

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
from deputize.catalog.compiled import CompiledTool
from deputize.catalog.exposed import MARK, FactType, facts_in
from deputize.core.contract import Contract, LifecycleState, inward
from deputize.core.errors import (
    Internal,
    Malformed,
    Problem,
    RequiresSetup,
    ToolDisabled,
    ToolNotFound,
    ToolRetired,
    VersionNotFound,
)
from deputize.core.servers import method_of

Visible = Callable[[str], bool]

_S = LifecycleState
CALLABLE = frozenset({_S.AVAILABLE, _S.DEFERRED, _S.DEPRECATED})
# How the canonical bytes of most contracts begin, which spares parsing them.
_NO_ALIASES = b'{"aliases":[]'
_MARKED = MARK.encode()
# What stands in every contract of a method of a server, and spares parsing the others.
_METHOD = b'"method":'
_LONGEST_NAME = 128
_MOST_COMPARED = 500
_MOST_SUGGESTED = 3
_MOST_NEAR = 4
_NEAR = 0.75

# One compiled tool per digest for the whole process, kept for as long as any snapshot holds it.
_compiled: WeakValueDictionary[str, CompiledTool] = WeakValueDictionary()


def everything(name: str) -> bool:
    """The eyes of an administrator."""
    return True


class ToolVersion:
    """One registered version and where it stands in its life."""

    __slots__ = ("_tool", "before", "changed", "digest", "raw", "state", "version")

    def __init__(
        self, *, version: str, digest: str, raw: bytes, state: LifecycleState, changed: int = 0, before: int = 0
    ) -> None:
        self.version = version
        self.digest = digest
        self.raw = raw
        self.state = state
        self.changed = changed
        self.before = before
        self._tool: CompiledTool | None = None

    @property
    def tool(self) -> CompiledTool:
        """Compiled when first asked for. Bytes that do not match their digest are refused, not trusted."""
        if self._tool is None:
            found = _compiled.get(self.digest)
            if found is None:
                if "sha256:" + hashlib.sha256(self.raw).hexdigest() != self.digest:
                    raise Internal("a registered contract does not match its digest")
                found = _compiled[self.digest] = self._compile()
            self._tool = found
        return self._tool

    def _compile(self) -> CompiledTool:
        try:
            return CompiledTool(Contract.model_validate_json(self.raw), self.digest)
        except ValueError as error:
            raise RequiresSetup(
                f"version {self.version} of this tool was registered by another release of the gateway",
                advice="Upgrade this gateway, or register a version of the tool that it understands.",
            ) from error

    @property
    def contract(self) -> Contract:
        return self.tool.contract

    def moved_to(self, state: LifecycleState, *, changed: int = 0, before: int = 0) -> "ToolVersion":
        moved = ToolVersion(
            version=self.version, digest=self.digest, raw=self.raw, state=state, changed=changed, before=before
        )
        moved._tool = self._tool
        return moved


@dataclass(frozen=True)
class ToolEntry:
    """All versions of one tool, highest first."""

    name: str
    versions: tuple[ToolVersion, ...]
    aliases: frozenset[str] = frozenset()

    @classmethod
    def of(cls, name: str, by_version: Mapping[str, ToolVersion]) -> "ToolEntry":
        newest_first = sorted(by_version.values(), key=lambda each: versions.parse(each.version), reverse=True)
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
        """What a caller gets who does not say which version."""
        return self._choose("latest", CALLABLE)

    @cached_property
    def is_public(self) -> bool:
        """A tool that has only drafts does not exist yet for anyone but its author."""
        return any(each.state is not _S.DRAFT for each in self.versions)

    def choose(self, spec: str) -> ToolVersion:
        """The version `spec` asks for, or the problem that says why there is none to call."""
        exact = self.by_version.get(spec)
        if exact is not None:
            if exact.state in CALLABLE:
                return exact
            raise self._refusal(spec, exact)
        try:
            found = self.latest if spec.lower() == "latest" else self._choose(spec, CALLABLE)
            if found is not None:
                return found
            raise self._refusal(spec, self._choose(spec, frozenset(_S) - CALLABLE - {_S.DRAFT}))
        except versions.NotARange as error:
            raise Malformed(str(error), details={"tool": self.name, "versions": self.callable_versions}) from error

    def _choose(self, spec: str, states: frozenset[LifecycleState]) -> ToolVersion | None:
        candidates = [each.version for each in self.versions if each.state in states]
        deprecated = {each.version for each in self.versions if each.state is _S.DEPRECATED}
        chosen = versions.resolve(spec, candidates, deprecated=deprecated)
        return None if chosen is None else self.by_version[chosen]

    @property
    def callable_versions(self) -> list[str]:
        return [each.version for each in self.versions if each.state in CALLABLE]

    def _refusal(self, spec: str, found: ToolVersion | None) -> Problem:
        details = {"tool": self.name, "asked": spec[:_LONGEST_NAME], "versions": self.callable_versions}
        if found is None or found.state is _S.DRAFT:
            return VersionNotFound(f"{self.name} has no version {spec[:_LONGEST_NAME]}", details=details)
        what = f"{self.name} {found.version}"
        match found.state:
            case _S.RETIRED:
                replacement = found.contract.life.replacement
                return ToolRetired(f"{what} was retired", details={**details, "replacement": replacement})
            case _S.REQUIRES_SETUP:
                return RequiresSetup(f"{what} is not set up yet", details=details)
            case _:
                return ToolDisabled(f"{what} is disabled", details=details)


def _is_method(raw: bytes) -> bool:
    if _METHOD not in raw:
        return False
    handler = orjson.loads(raw)["handler"]
    return method_of(handler["driver"], handler["target"]) is not None


@dataclass(frozen=True, kw_only=True)
class TenantTools:
    """Lookup by full name, outward spelling or alias. `epoch` is the registry epoch this was read at."""

    tenant: str
    epoch: int = 0
    tools: Mapping[str, ToolEntry] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tools)

    def __iter__(self) -> Iterator[ToolEntry]:
        return iter(self.tools.values())

    def find(self, name: str) -> ToolEntry | None:
        """The tool a name means in any of its spellings; a real name always beats an alias."""
        found = self.tools.get(name)
        if found is None:
            full = inward(name)
            found = self.tools.get(full) or self.tools.get(self.aliases.get(full, ""))
        return found

    def owner_of(self, name: str) -> str | None:
        """Which tool a name or alias belongs to: what admission asks before it lets another one have it."""
        found = self.find(name)
        return None if found is None else found.name

    def contract_of(self, name: str) -> Contract | None:
        """What is called under a name by whoever does not say which version: what admission asks of tools one names."""
        found = self.find(name)
        return None if found is None or found.latest is None else found.latest.contract

    def fact(self, name: str) -> tuple[FactType, str] | None:
        """The type this tenant's tools give a fact and a tool that does: what admission asks about a new one."""
        return self._facts.get(name)

    @property
    def fact_types(self) -> dict[str, FactType]:
        """Every fact the tools that can still be called expose: what policies are checked against."""
        return {name: kind for name, (kind, _) in self._facts.items()}

    @cached_property
    def _facts(self) -> dict[str, tuple[FactType, str]]:
        found: dict[str, tuple[FactType, str]] = {}
        for entry in self.tools.values():
            for each in entry.versions:
                if each.state is not _S.RETIRED and _MARKED in each.raw:
                    for fact in facts_in(orjson.loads(each.raw)["input_schema"]):
                        found.setdefault(fact.name, (fact.type, entry.name))
        return found

    @cached_property
    def methods(self) -> tuple[ToolEntry, ...]:
        """What stands for a method of an MCP server, and is no tool of it."""
        return tuple(each for each in self.tools.values() if each.versions and _is_method(each.versions[0].raw))

    def resolve(self, name: str, spec: str = "latest", *, visible: Visible = everything) -> ToolVersion:
        """The version to call. A tool hidden from the caller is refused exactly as one that is not there."""
        found = self.find(name)
        if found is None or not found.is_public or not visible(found.name):
            raise self._not_found(name, visible)
        return found.choose(spec)

    def stood_still(self, name: str, version: str, since: int, until: int) -> bool:
        """Whether this version's last change came after `until`, and the one before it not after `since`."""
        entry = self.tools.get(name)
        found = entry.by_version.get(version) if entry else None
        return found is not None and found.changed > until and found.before <= since

    def entry(self, name: str, *, visible: Visible = everything) -> ToolEntry:
        """A tool with all its versions, for showing it."""
        found = self.find(name)
        if found is None or not visible(found.name):
            raise self._not_found(name, visible)
        return found

    def _not_found(self, name: str, visible: Visible) -> ToolNotFound:
        shown = name[:_LONGEST_NAME]
        near = self._near(inward(shown), visible)
        hint = f"; did you mean {near[0]}?" if near else ""
        return ToolNotFound(f"there is no tool {shown}{hint}", details={"tool": shown, "did_you_mean": near})

    def _near(self, name: str, visible: Visible) -> list[str]:
        """Names the caller may see that look like this one, looked for nearby first: a typo stays cheap."""
        namespace, _, word = name.rpartition(".")
        spaces = list(self._namespaces)[:_MOST_COMPARED]
        near = difflib.get_close_matches(namespace, spaces, n=len(spaces) or 1, cutoff=_NEAR)
        # Whoever sees nothing in a namespace must not learn of it by its taking the place of another.
        seen = (names for space in dict.fromkeys((namespace, *near)) if (names := self._seen(space, visible)))
        around = [each for names in islice(seen, _MOST_NEAR) for each in names[:_MOST_COMPARED]]
        close = difflib.get_close_matches(name, around, n=_MOST_SUGGESTED, cutoff=_NEAR)
        if close or not word:
            return close
        elsewhere = (each for each in self.tools if each.endswith(f".{word}"))
        return list(islice((each for each in elsewhere if self._is_seen(each, visible)), _MOST_SUGGESTED))

    def _seen(self, namespace: str, visible: Visible) -> list[str]:
        return [each for each in self._namespaces.get(namespace, ()) if self._is_seen(each, visible)]

    def _is_seen(self, name: str, visible: Visible) -> bool:
        return self.tools[name].is_public and visible(name)

    @cached_property
    def _namespaces(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name in self.tools:
            groups.setdefault(name.partition(".")[0], []).append(name)
        return groups

    def changed(self, epoch: int, entries: Mapping[str, ToolEntry]) -> "TenantTools":
        """A newer snapshot in which these tools are as given and all others are the same objects."""
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
            fresh.__dict__["_namespaces"] = self._namespaces  # no name came, so who lives where is still true
        return fresh
