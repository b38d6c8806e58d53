"""Judge the number of a new version by what it changes for callers of its neighbours.

A version that breaks callers gets a new major number, one that adds something a new minor number. Below 1.0.0 the
minor number takes the place of the major one, as in the range `^0.2`. Pre-releases promise nothing: a version is
compared with the highest release below it and the lowest above it.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from deputize.catalog.compatibility.changes import ChangeLevel, ContractChange
from deputize.catalog.compatibility.contract_changes import compare_contracts
from deputize.catalog.schema_rules import Reason
from deputize.catalog.versions import parse_version
from deputize.core.contract.contract import Contract

CONJUNCT: Final = "version_compatible"


def measure_bump(old: str, new: str) -> ChangeLevel:
    """Return the greatest change that the step from one version number to a higher one announces."""
    before, after = parse_version(old), parse_version(new)
    if before.major != after.major:
        return ChangeLevel.MAJOR
    if before.minor != after.minor:
        return ChangeLevel.MINOR if before.major else ChangeLevel.MAJOR
    if before.major or before.patch == after.patch:
        return ChangeLevel.PATCH
    return ChangeLevel.MINOR if before.minor else ChangeLevel.MAJOR


def suggest_version(version: str, level: ChangeLevel) -> str:
    """Return the next version number that announces a change."""
    number = parse_version(version)
    if level is ChangeLevel.MAJOR and number.major:
        return f"{number.major + 1}.0.0"
    if (level is ChangeLevel.MAJOR and number.minor) or (level is ChangeLevel.MINOR and number.major):
        return f"{number.major}.{number.minor + 1}.0"
    return f"{number.major}.{number.minor}.{number.patch + 1}"


def get_level(changes: Iterable[ContractChange]) -> ChangeLevel:
    """Return the level of the greatest change."""
    return max((each.level for each in changes), default=ChangeLevel.PATCH)


def find_neighbours(version: str, version_numbers: Iterable[str]) -> tuple[str | None, str | None]:
    """Find the highest release below a version and the lowest one above it."""
    number = parse_version(version)
    releases = sorted((each for each in version_numbers if parse_version(each).is_release), key=parse_version)
    below = [each for each in releases if parse_version(each) < number]
    above = [each for each in releases if parse_version(each) > number]
    return (below[-1] if below else None), (above[0] if above else None)


def find_release_reasons(
    contract: Contract, *, older: Contract | None = None, newer: Contract | None = None
) -> Iterator[Reason]:
    """Yield each reason why a contract's version number is wrong beside the releases around it."""
    if older is not None:
        yield from _judge_step(older, contract)
    if newer is not None:
        yield from _judge_later_step(contract, newer)


def _judge_step(older: Contract, contract: Contract) -> Iterator[Reason]:
    changes = compare_contracts(older, contract)
    level = get_level(changes)
    bump = measure_bump(older.version, contract.version)
    right_version = suggest_version(older.version, level)
    if level > bump:
        reason = f"announces a {bump.label} change from {older.version}, but this is a {level.label} one"
        yield _make_reason("/version", reason, f"register it as {right_version} or higher, or undo these changes")
        fix = f"undo it, or register the tool as {right_version}"
        yield from (_make_reason(each.path, each.reason, fix) for each in changes if each.level > bump)
    elif contract.breaking_changes and bump is not ChangeLevel.MAJOR:
        right_version = suggest_version(older.version, ChangeLevel.MAJOR)
        reason = f"is true, but {contract.version} announces a {bump.label} change from {older.version}"
        yield _make_reason("/breaking_changes", reason, f"register it as {right_version}, or set it to false")
    elif level is ChangeLevel.MAJOR and not contract.breaking_changes and parse_version(older.version).major:
        first = next(each for each in changes if each.level is level)
        reason = f"is false, but this version breaks callers of {older.version}: {first.path} {first.reason}"
        fix = "set it to true, and say in changelog what callers have to change"
        yield _make_reason("/breaking_changes", reason, fix)


def _judge_later_step(contract: Contract, newer: Contract) -> Iterator[Reason]:
    """Judge the step to a release that is registered already: callers of this version may be given that one."""
    bump = measure_bump(contract.version, newer.version)
    changes = [each for each in compare_contracts(contract, newer) if each.level > bump]
    if changes:
        reason = f"is below {newer.version}, which is registered and would break its callers: "
        fix = f"register it with a number above {newer.version}"
        yield _make_reason("/version", reason + _format_change(changes[0]), fix)


def _format_change(change: ContractChange) -> str:
    return f"{change.path} {change.reason}"


def _make_reason(path: str, reason: str, fix: str) -> Reason:
    return Reason(conjunct=CONJUNCT, path=path, reason=reason, fix=fix)
