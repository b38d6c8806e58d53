"""Compare two versions of tools for their callers: of two files, or of two contracts that a gateway showed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from deputize.catalog.compatibility.changes import ContractChange
from deputize.catalog.compatibility.contract_changes import compare_contracts
from deputize.catalog.compatibility.version_numbers import (
    find_release_reasons,
    get_level,
    measure_bump,
    suggest_version,
)
from deputize.catalog.versions import parse_version
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract

# A gateway does not show where a tool runs, which callers do not depend on.
_HIDDEN_HANDLER = {"target": "hidden"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDiff:
    """What a new version of one tool is to its callers, and why it would be refused, if it would be."""

    name: str
    old: str
    new: str
    level: str
    announced_level: str
    refusal: str | None
    changes: tuple[ContractChange, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "old": self.old,
            "new": self.new,
            "level": self.level,
            "announced": self.announced_level,
            "refusal": self.refusal,
            "changes": [{"level": each.level.label, "path": each.path, "reason": each.reason} for each in self.changes],
        }


def diff_contracts(old: Contract, new: Contract) -> ToolDiff:
    """Compare two versions of a tool; the old one comes first."""
    if parse_version(new.version) < parse_version(old.version):
        raise ConfigError(
            f"{new.full_name} {new.version} is older than {old.version}: name the old version first, then the new one."
        )
    changes = compare_contracts(old, new)
    level = get_level(changes)
    is_same_number = old.version == new.version
    return ToolDiff(
        name=new.full_name,
        old=old.version,
        new=new.version,
        level=level.label if changes else "none",
        announced_level="none" if is_same_number else measure_bump(old.version, new.version).label,
        refusal=_find_refusal(old, new, is_changed=bool(changes)),
        changes=changes,
    )


def _find_refusal(old: Contract, new: Contract, *, is_changed: bool) -> str | None:
    """Find the reason why the new version would be refused beside the old one."""
    if old.version == new.version:
        reason = f"the number is the same, and a registered version never changes; register it as {_suggest(old, new)}"
        return reason if is_changed else None
    first = next(find_release_reasons(new, older=old), None)
    return None if first is None else f"{first.path.lstrip('/')} {first.reason}; {first.fix}"


def _suggest(old: Contract, new: Contract) -> str:
    return suggest_version(old.version, get_level(compare_contracts(old, new)))


def diff_files(old: Iterable[Contract], new: Iterable[Contract]) -> tuple[list[ToolDiff], list[str], list[str]]:
    """Compare the tools that two files have in common; return also the names that only one of them has."""
    old_tools, new_tools = _get_newest(old), _get_newest(new)
    common_names = sorted(old_tools.keys() & new_tools.keys())
    diffs = [diff_contracts(old_tools[name], new_tools[name]) for name in common_names]
    return diffs, sorted(old_tools.keys() - new_tools.keys()), sorted(new_tools.keys() - old_tools.keys())


def parse_shown_contract(tool: Mapping[str, Any]) -> Contract:
    """Read the contract that a gateway shows of a tool."""
    try:
        return Contract.model_validate({**tool["contract"], "handler": _HIDDEN_HANDLER})
    except (KeyError, TypeError, ValueError):
        raise ConfigError(
            "The gateway's answer is not a contract that this release can read: use the release that the gateway runs."
        ) from None


def _get_newest(contracts: Iterable[Contract]) -> dict[str, Contract]:
    return {each.full_name: each for each in sorted(contracts, key=lambda each: parse_version(each.version))}
