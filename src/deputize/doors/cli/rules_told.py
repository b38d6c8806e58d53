"""What a gateway that starts will say about calls, and by whom: the first thing to know of one that refuses some."""

from collections.abc import Iterator
from typing import Any

from deputize.core.settings import Settings
from deputize.doors.cli.output import counted
from deputize.govern.policy.files import read_files
from deputize.govern.policy.rules import examine

Told = tuple[str, dict[str, Any], str]
"""An event's name, its facts for programs, and a sentence for people."""


def rules_told(settings: Settings) -> Iterator[Told]:
    policy, limits = settings.policy, settings.limits
    if policy.engine != "authzen":
        yield _policies(policy.files)
    if policy.engine != "cedar":
        yield "decision_point", {"url": policy.authzen_url}, f"decision point {policy.authzen_url}"
    if limits.rules:
        names = [rule.name for rule in limits.rules]
        where = "in this process" if limits.redis_url is None else "in Redis"
        told = f"{counted(len(names), 'limit')}, counted {where}: {', '.join(names)}"
        yield "limits", {"limits": names, "shared": limits.redis_url is not None}, told


def _policies(patterns: tuple[str, ...]) -> Told:
    files = read_files(patterns)
    paths = [file.path for file in files]
    if not paths:
        return "policies", {"files": []}, "policies as put last, or the default set; see deputize policy show"
    rules, _ = examine(files)
    return "policies", {"files": paths, "rules": len(rules)}, f"{counted(len(rules), 'rule')} from {', '.join(paths)}"
