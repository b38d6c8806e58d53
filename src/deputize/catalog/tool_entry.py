"""Hold all versions of one tool, and select the one to call."""

import asyncio
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final
from weakref import WeakValueDictionary

import orjson

from deputize.catalog import versions
from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.deprecation import DeprecationNotice, format_time
from deputize.core.contract.publication import EndOfLife
from deputize.core.errors import (
    InternalError,
    MalformedRequest,
    Problem,
    ToolDisabled,
    ToolRequiresSetup,
    ToolRetired,
    VersionNotFound,
)

_S = LifecycleState
CALLABLE: Final = frozenset({_S.AVAILABLE, _S.DEFERRED, _S.DEPRECATED})
# The canonical bytes of a contract without aliases begin with this, so it need not be parsed for them.
_NO_ALIASES = b'{"aliases":[]'
LONGEST_NAME: Final = 128
_CLOCK: Final = Clock()
# Compiling a contract takes up to 1 µs for each byte.
_SMALL_CONTRACT = 16_384

# One compiled tool per digest in this process, for as long as a snapshot refers to it.
_tools_by_digest: WeakValueDictionary[str, CompiledTool] = WeakValueDictionary()


class ToolVersion:
    """One registered version of a tool and its lifecycle state."""

    __slots__ = ("_tool", "changed_epoch", "deprecation", "digest", "previous_epoch", "raw", "state", "version")

    def __init__(
        self,
        *,
        version: str,
        digest: str,
        raw: bytes,
        state: LifecycleState,
        changed_epoch: int = 0,
        previous_epoch: int = 0,
        notice: DeprecationNotice | None = None,
    ) -> None:
        self.version = version
        self.digest = digest
        self.raw = raw
        self.state = state
        self.changed_epoch = changed_epoch
        self.previous_epoch = previous_epoch
        self._tool: CompiledTool | None = None
        # The notice of a deprecated version: as announced, or else as its contract says; None in every other state.
        self.deprecation = (notice or _read_notice(raw)) if state is _S.DEPRECATED else None

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
        if self.is_large and (self._tool is None or "digest" not in self._tool.contract.__dict__):
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
        self,
        state: LifecycleState,
        *,
        changed_epoch: int = 0,
        previous_epoch: int = 0,
        notice: DeprecationNotice | None = None,
    ) -> "ToolVersion":
        copy = ToolVersion(
            version=self.version,
            digest=self.digest,
            raw=self.raw,
            state=state,
            changed_epoch=changed_epoch,
            previous_epoch=previous_epoch,
            notice=notice,
        )
        copy._tool = self._tool
        return copy


def _read_notice(raw: bytes) -> DeprecationNotice:
    """Read the end of life that a contract declares itself; an empty notice if this release cannot read it."""
    try:
        return DeprecationNotice.from_contract(EndOfLife.model_validate(orjson.loads(raw)["life"]))
    except (ValueError, KeyError, TypeError):
        return DeprecationNotice()


@dataclass(frozen=True)
class ToolEntry:
    """All versions of one tool, highest first. The clock says whether the removal date of one has passed."""

    name: str
    versions: tuple[ToolVersion, ...]
    aliases: frozenset[str] = frozenset()
    clock: Clock = _CLOCK

    @classmethod
    def from_versions(cls, name: str, by_version: Mapping[str, ToolVersion], clock: Clock = _CLOCK) -> "ToolEntry":
        newest_first = sorted(by_version.values(), key=lambda each: versions.parse_version(each.version), reverse=True)
        aliases = (
            alias
            for each in newest_first
            if each.state not in (_S.DRAFT, _S.RETIRED) and not each.raw.startswith(_NO_ALIASES)
            for alias in orjson.loads(each.raw).get("aliases", ())
        )
        return cls(name, tuple(newest_first), frozenset(aliases), clock)

    @cached_property
    def by_version(self) -> Mapping[str, ToolVersion]:
        return MappingProxyType({each.version: each for each in self.versions})

    @property
    def latest(self) -> ToolVersion | None:
        """The version that a call without a version uses."""
        if self.removal_times and self.clock.epoch_ms() >= self.removal_times[0]:
            return next(iter(self._rank_versions("latest", self._list_callable())), None)
        return self._latest

    @cached_property
    def _latest(self) -> ToolVersion | None:
        """The version that a call without a version uses as long as no removal date has passed."""
        return next(
            iter(self._rank_versions("latest", (each for each in self.versions if each.state in CALLABLE))), None
        )

    @cached_property
    def removal_times(self) -> tuple[float, ...]:
        """The removal dates of the versions, in milliseconds since 1970, the earliest first."""
        notices = (each.deprecation for each in self.versions)
        return tuple(sorted(each.removal_ms for each in notices if each is not None and each.removal_at is not None))

    def is_removed(self, version: ToolVersion) -> bool:
        """Tell whether a deprecated version's removal date has passed."""
        return version.deprecation is not None and version.deprecation.removal_ms <= self.clock.epoch_ms()

    def is_callable(self, version: ToolVersion) -> bool:
        """Tell whether calls of a version are accepted now, by its state and its removal date."""
        return version.state in CALLABLE and not self.is_removed(version)

    def _list_callable(self) -> list[ToolVersion]:
        return [each for each in self.versions if self.is_callable(each)]

    @cached_property
    def is_public(self) -> bool:
        """True if any version is more than a draft; a tool with drafts only is hidden from callers."""
        return any(each.state is not _S.DRAFT for each in self.versions)

    def resolve_version(self, spec: str, ranges: Sequence[str] | None = None) -> ToolVersion:
        """Return the callable version that `spec` selects, or raise the Problem that says why there is none.

        `ranges` are those of the caller's token: of a range, the best version that they cover is selected. If they
        cover none, the best of all is, and its authorization says so.
        """
        exact = self.by_version.get(spec)
        if exact is not None:
            if self.is_callable(exact):
                return exact
            raise self._build_refusal(spec, exact)
        try:
            version = self.find_version(spec, ranges) or self.find_version(spec)
            if version is not None:
                return version
            refused_versions = [each for each in self.versions if not self.is_callable(each) and each.state != _S.DRAFT]
            raise self._build_refusal(spec, next(iter(self._rank_versions(spec, refused_versions)), None))
        except versions.InvalidVersionRange as error:
            raise MalformedRequest(
                str(error), details={"tool": self.name, "versions": self.callable_versions}
            ) from error

    def find_version(self, spec: str = "latest", ranges: Sequence[str] | None = None) -> ToolVersion | None:
        """Find the best callable version in `spec` and in any of the ranges; None if there is none."""
        if spec.lower() == "latest" and (ranges is None or self._is_covered(self.latest, ranges)):
            return self.latest
        return next(iter(self.rank_versions(spec, ranges)), None)

    def rank_versions(self, spec: str, ranges: Sequence[str] | None = None) -> list[ToolVersion]:
        """List the callable versions in `spec` and in any of the ranges, the best first."""
        return [
            each
            for each in self._rank_versions(spec, self._list_callable())
            if ranges is None or self._is_covered(each, ranges)
        ]

    def _is_covered(self, version: ToolVersion | None, ranges: Sequence[str]) -> bool:
        return version is not None and any(versions.is_in_range(each, version.version) for each in ranges)

    def _rank_versions(self, spec: str, tool_versions: Iterable[ToolVersion]) -> list[ToolVersion]:
        candidates = [each.version for each in tool_versions]
        deprecated_versions = {each.version for each in self.versions if each.state is _S.DEPRECATED}
        ranked_numbers = versions.rank_versions(spec, candidates, deprecated_versions=deprecated_versions)
        return [self.by_version[each] for each in ranked_numbers]

    @property
    def callable_versions(self) -> list[str]:
        return [each.version for each in self._list_callable()]

    def _build_refusal(self, spec: str, version: ToolVersion | None) -> Problem:
        details = {"tool": self.name, "asked": spec[:LONGEST_NAME], "versions": self.callable_versions}
        if version is None or version.state is _S.DRAFT:
            return VersionNotFound(f"{self.name} has no version {spec[:LONGEST_NAME]}", details=details)
        label = f"{self.name} {version.version}"
        match version.state:
            case _S.DEPRECATED:
                return _build_removal_refusal(label, version.deprecation or DeprecationNotice(), details)
            case _S.RETIRED:
                replacement = version.contract.life.replacement
                return ToolRetired(f"{label} was retired", details={**details, "replacement": replacement})
            case _S.REQUIRES_SETUP:
                return ToolRequiresSetup(f"{label} is not set up yet", details=details)
            case _:
                return ToolDisabled(f"{label} is disabled", details=details)


def _build_removal_refusal(label: str, notice: DeprecationNotice, details: dict[str, Any]) -> ToolRetired:
    instead = f"; use {notice.successor} instead" if notice.successor else ""
    return ToolRetired(
        f"{label} was deprecated, and calls of it are refused since {format_time(notice.removal_at)}{instead}",
        details={**details, "replacement": notice.successor, "deprecation": notice.to_json()},
        nothing_happened=True,
    )
