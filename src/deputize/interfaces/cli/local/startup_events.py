"""Describe what a starting gateway loaded: policies, limits and MCP servers."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from deputize.core.settings import Settings
from deputize.govern.policy.files import read_files
from deputize.govern.policy.policy_parser import parse_with_diagnostics
from deputize.interfaces.cli.render.output import format_count

StartupEvent = tuple[str, dict[str, Any], str]
"""An event's name, its facts for programs, and a message for people."""


def describe_rules(settings: Settings, *, are_policies_held: bool = False) -> Iterator[StartupEvent]:
    """Describe what decides about calls: policies, a decision point, limits and consistency rules."""
    policy, limits = settings.policy, settings.limits
    if policy.engine != "authzen" and are_policies_held:
        message = "active policies as confirmed last; the files have others: deputize policy show"
        yield "policies", {"files": [], "held": True}, message
    elif policy.engine != "authzen":
        yield _describe_policies(policy.files)
    if policy.engine != "cedar":
        yield "decision_point", {"url": policy.authzen_url}, f"decision point {policy.authzen_url}"
    if limits.rules:
        names = [rule.name for rule in limits.rules]
        where = "in this process" if limits.redis_url is None else "in Redis"
        message = f"{format_count(len(names), 'limit')}, counted {where}: {', '.join(names)}"
        yield "limits", {"limits": names, "shared": limits.redis_url is not None}, message
    if settings.consistency:
        names = [rule.name for rule in settings.consistency]
        message = f"{format_count(len(names), 'consistency rule')}: {', '.join(names)}"
        yield "consistency_rules", {"rules": names}, message


def _describe_policies(patterns: tuple[str, ...]) -> StartupEvent:
    files = read_files(patterns)
    paths = [file.path for file in files]
    if not paths:
        return "policies", {"files": []}, "active policies as last put, or the default set: deputize policy show"
    rules, _ = parse_with_diagnostics(files)
    return (
        "policies",
        {"files": paths, "rules": len(rules)},
        f"{format_count(len(rules), 'rule')} from {', '.join(paths)}",
    )


def describe_servers(servers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[bool, StartupEvent]]:
    """Describe each MCP server of the settings, with whether it needs no attention."""
    for each in servers:
        name, tools = each["name"], format_count(each["tools"], "tool")
        facts = {key: each[key] for key in ("name", "status", "tools", "changes", "why")}
        if each["changes"]:
            message = f"{format_count(each['changes'], 'change')} to review: deputize servers review {name}"
            yield False, ("server", facts, f"{tools} from server {name}; {message}")
        elif each["status"] == "connected":
            yield True, ("server", facts, f"{tools} from server {name}")
        elif each["status"] == "unavailable":
            yield False, ("server", facts, f"server {name} is not available and will be retried: {each['why']}")
        else:
            yield False, ("server", facts, f"server {name} is still connecting: see deputize servers list")
