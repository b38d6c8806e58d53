"""Parse, compare and select SemVer 2.0.0 versions, for the registry and for version ranges in tokens.

A range is `1.2.3` (exactly that), `^1.2`, `~1.2.3`, `1.x`, `1.2.x`, `1`, `1.2`, `*` or `latest`. The same rules decide
which version a caller gets and whether a token covers a version.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

# Identifiers of a pre-release are (0, number, "") or (1, 0, text), so that numbers sort before words.
Identifier = tuple[int, int, str]

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_PRE_PART = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_TAIL = rf"(?:-({_PRE_PART}(?:\.{_PRE_PART})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
_VERSION = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER}){_TAIL}")
_PARTIAL = re.compile(rf"({_NUMBER})(?:\.({_NUMBER}|[xX*]))?(?:\.([xX*]))?")
_WILDCARDS = frozenset({"*", "x", "X"})
_LONGEST = 64

# The version of an imported tool that declares none.
FIRST_VERSION = "1.0.0"
RANGE_SYNTAX = "write 1.2.3, ^1.2, ~1.2.3, 1.x, * or latest"


class InvalidVersion(ValueError):
    """The text is not a SemVer version."""


class InvalidVersionRange(ValueError):
    """The text is not a version range."""


@dataclass(frozen=True, slots=True, order=True)
class SemVer:
    """A version that compares by SemVer precedence; build metadata, which has none, breaks ties."""

    major: int
    minor: int
    patch: int
    is_release: bool = True
    pre: tuple[Identifier, ...] = ()
    build: str = ""


@dataclass(frozen=True, slots=True)
class VersionRange:
    """The versions from `low` up to, but without, `high`; without an upper bound if `high` is None."""

    low: SemVer
    high: SemVer | None
    is_exact: bool = False

    def has_version(self, version: SemVer) -> bool:
        if self.is_exact:
            return version == self.low
        return self.low <= version and (self.high is None or version < self.high)


@lru_cache(maxsize=8192)
def parse_version(text: str) -> SemVer:
    """Parse a version; raise `InvalidVersion` if it is not SemVer."""
    match = _VERSION.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise InvalidVersion(
            f"{text[:_LONGEST]!r} is not a version; write MAJOR.MINOR.PATCH, as in 1.4.0 or 2.0.0-rc.1"
        )
    major, minor, patch, pre, build = match.groups()
    identifiers = tuple(_parse_identifier(part) for part in pre.split(".")) if pre else ()
    return SemVer(int(major), int(minor), int(patch), not pre, identifiers, build or "")


def _parse_identifier(part: str) -> Identifier:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def _make_floor(major: int, minor: int = 0, patch: int = 0) -> SemVer:
    """Return the lowest version with these numbers, below all of their pre-releases."""
    return SemVer(major, minor, patch, False)


@lru_cache(maxsize=8192)
def parse_range(text: str) -> VersionRange:
    """Parse a range. Pre-releases of its upper bound are outside it: `^1` never means 2.0.0-rc.1."""
    if len(text) > _LONGEST:
        raise _build_range_error(text)
    if text in _WILDCARDS or text.lower() == "latest":
        return VersionRange(_make_floor(0), None)
    if text[:1] == "^":
        numbers, low = _parse_start(text[1:])
        return VersionRange(low, _increment_caret(numbers))
    if text[:1] == "~":
        numbers, low = _parse_start(text[1:])
        return VersionRange(low, _increment_last(numbers[:2]))
    if _VERSION.fullmatch(text):
        return VersionRange(parse_version(text), None, True)
    numbers, low = _parse_start(text)
    return VersionRange(_make_floor(low.major, low.minor, low.patch), _increment_last(numbers))


def _parse_start(text: str) -> tuple[tuple[int, ...], SemVer]:
    """Parse the numbers that were written, and the lowest release they allow."""
    if _VERSION.fullmatch(text):
        version = parse_version(text)
        return (version.major, version.minor, version.patch), version
    partial = _PARTIAL.fullmatch(text)
    if partial is None:
        raise _build_range_error(text)
    numbers = tuple(int(part) for part in partial.groups()[:2] if part and part not in _WILDCARDS)
    major, minor = (*numbers, 0)[:2]
    return numbers, SemVer(major, minor, 0)


def _build_range_error(text: str) -> InvalidVersionRange:
    return InvalidVersionRange(f"{text[:_LONGEST]!r} is not a version range; {RANGE_SYNTAX}")


def _increment_last(numbers: tuple[int, ...]) -> SemVer:
    major, minor, patch = (*numbers[:-1], numbers[-1] + 1, 0, 0)[:3]
    return _make_floor(major, minor, patch)


def _increment_caret(numbers: tuple[int, ...]) -> SemVer:
    """Increment the leftmost number that is not zero, which is the one a breaking change increments."""
    for place, number in enumerate(numbers):
        if number:
            return _increment_last(numbers[: place + 1])
    return _increment_last(numbers)


def is_in_range(range_text: str, version: str) -> bool:
    """Tell whether a range covers a version; an invalid range covers none."""
    try:
        return parse_range(range_text).has_version(parse_version(version))
    except ValueError:
        return False


def rank_versions(spec: str, candidates: Iterable[str], *, deprecated_versions: Container[str] = ()) -> list[str]:
    """List the versions that `spec` covers, the best first: releases that are not deprecated, the highest first.

    Deprecated releases come second, pre-releases last. An exact version is covered only by itself. Raises
    `InvalidVersionRange` if `spec` is invalid.
    """
    version_range = parse_range(spec)
    if version_range.is_exact:
        return [each for each in candidates if each == spec]

    def rank(text: str) -> tuple[bool, bool, SemVer]:
        version = parse_version(text)
        return version.is_release, text not in deprecated_versions, version

    return sorted(
        (each for each in candidates if version_range.has_version(parse_version(each))), key=rank, reverse=True
    )


def resolve_version(spec: str, candidates: Iterable[str], *, deprecated_versions: Container[str] = ()) -> str | None:
    """Select the best version that `spec` covers, or None. Raises `InvalidVersionRange` if `spec` is invalid."""
    return next(iter(rank_versions(spec, candidates, deprecated_versions=deprecated_versions)), None)
