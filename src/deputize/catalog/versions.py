"""SemVer 2.0.0: reading, ordering and choosing versions. Pure; for the registry and for ranges in tokens.

A range is `1.2.3` (exactly that), `^1.2`, `~1.2.3`, `1.x`, `1.2.x`, `1`, `1.2`, `*` or `latest`. One set of
rules serves both questions asked of it: which version a caller gets, and whether a token covers a version.
"""

import re
from collections.abc import Container, Iterable
from dataclasses import dataclass
from functools import lru_cache

# Identifiers of a pre-release compare as (0, number, "") or (1, 0, text): numbers come before words.
Identifier = tuple[int, int, str]

_NUMBER = r"(?:0|[1-9][0-9]{0,8})"
_PRE_PART = r"(?:0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)"
_TAIL = rf"(?:-({_PRE_PART}(?:\.{_PRE_PART})*))?(?:\+([0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*))?"
_VERSION = re.compile(rf"({_NUMBER})\.({_NUMBER})\.({_NUMBER}){_TAIL}")
_PARTIAL = re.compile(rf"({_NUMBER})(?:\.({_NUMBER}|[xX*]))?(?:\.([xX*]))?")
_ANYTHING = frozenset({"*", "x", "X"})
_LONGEST = 64

HOW_TO_ASK = "write 1.2.3, ^1.2, ~1.2.3, 1.x, * or latest"


class NotAVersion(ValueError):
    """The text is no SemVer version."""


class NotARange(ValueError):
    """The text is no way to ask for versions."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """Compares as SemVer says; build metadata, which has no precedence there, breaks ties."""

    major: int
    minor: int
    patch: int
    is_release: bool = True
    pre: tuple[Identifier, ...] = ()
    build: str = ""


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` up to but without `high`; where there is no `high`, without end."""

    low: Version
    high: Version | None
    exact: bool = False

    def covers(self, version: Version) -> bool:
        if self.exact:
            return version == self.low
        return self.low <= version and (self.high is None or version < self.high)


@lru_cache(maxsize=8192)
def parse(text: str) -> Version:
    match = _VERSION.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        raise NotAVersion(f"{text[:_LONGEST]!r} is not a version; write MAJOR.MINOR.PATCH, as in 1.4.0 or 2.0.0-rc.1")
    major, minor, patch, pre, build = match.groups()
    identifiers = tuple(_identifier(part) for part in pre.split(".")) if pre else ()
    return Version(int(major), int(minor), int(patch), not pre, identifiers, build or "")


def _identifier(part: str) -> Identifier:
    return (0, int(part), "") if part.isdigit() else (1, 0, part)


def _floor(major: int, minor: int = 0, patch: int = 0) -> Version:
    """Lower than every version of these numbers, their pre-releases included."""
    return Version(major, minor, patch, False)


@lru_cache(maxsize=8192)
def parse_range(text: str) -> Range:
    """Read a range; pre-releases of its upper end are outside it, as `^1` must never mean 2.0.0-rc.1."""
    if len(text) > _LONGEST:
        raise _not_a_range(text)
    if text in _ANYTHING or text.lower() == "latest":
        return Range(_floor(0), None)
    if text[:1] == "^":
        numbers, low = _start(text[1:])
        return Range(low, _next_caret(numbers))
    if text[:1] == "~":
        numbers, low = _start(text[1:])
        return Range(low, _next_of(numbers[:2]))
    if _VERSION.fullmatch(text):
        return Range(parse(text), None, True)
    numbers, low = _start(text)
    return Range(_floor(low.major, low.minor, low.patch), _next_of(numbers))


def _start(text: str) -> tuple[tuple[int, ...], Version]:
    """The numbers that were given, and the lowest release they allow."""
    if _VERSION.fullmatch(text):
        version = parse(text)
        return (version.major, version.minor, version.patch), version
    partial = _PARTIAL.fullmatch(text)
    if partial is None:
        raise _not_a_range(text)
    numbers = tuple(int(part) for part in partial.groups()[:2] if part and part not in _ANYTHING)
    major, minor = (*numbers, 0)[:2]
    return numbers, Version(major, minor, 0)


def _not_a_range(text: str) -> NotARange:
    return NotARange(f"{text[:_LONGEST]!r} is no way to ask for a version; {HOW_TO_ASK}")


def _next_of(numbers: tuple[int, ...]) -> Version:
    major, minor, patch = (*numbers[:-1], numbers[-1] + 1, 0, 0)[:3]
    return _floor(major, minor, patch)


def _next_caret(numbers: tuple[int, ...]) -> Version:
    """One more in the leftmost number that is not zero, which is the one a breaking change moves."""
    for place, number in enumerate(numbers):
        if number:
            return _next_of(numbers[: place + 1])
    return _next_of(numbers)


def in_range(versions: str, version: str) -> bool:
    """Whether a range covers a version; a range nobody can read covers nothing."""
    try:
        return parse_range(versions).covers(parse(version))
    except ValueError:
        return False


def resolve(spec: str, candidates: Iterable[str], *, deprecated: Container[str] = ()) -> str | None:
    """The version a caller who asks for `spec` gets: the highest release that is not deprecated.

    Deprecated releases come second, pre-releases last: those are chosen when asked for exactly, or when the
    range holds nothing else. Raises `NotARange` for a spec that cannot be read.
    """
    asked = parse_range(spec)
    if asked.exact:
        return spec if spec in candidates else None
    best: tuple[bool, bool, Version] | None = None
    chosen = None
    for text in candidates:
        version = parse(text)
        if asked.covers(version):
            rank = (version.is_release, text not in deprecated, version)
            if best is None or rank > best:
                best, chosen = rank, text
    return chosen
