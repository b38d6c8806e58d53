"""Decide which recorded calls a caller may reach: to read, cancel, retry or roll one back, or to see its approval.

A user made the calls of all their agents, an agent those of its own delegation. And a token reaches only calls that it
could make: of tools it may see, with effects up to its ceiling, and with the scopes that they need. An administrator
reaches all calls of the tools that the token may see. An auditor reaches what is recorded of them, but neither their
arguments nor their results. A call out of reach is answered like one that is not there.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import asyncpg

from deputize.core.caller import Caller
from deputize.core.contract.contract import Effects
from deputize.core.grant_constraints import load_constraints
from deputize.core.value_types import frozen
from deputize.govern.token_authorization import is_tool_visible, list_visible_tools
from deputize.lifecycle.recording.stored_call import is_recorded_maker
from deputize.lifecycle.runtime import Runtime


async def may_reach(runtime: Runtime, caller: Caller, row: asyncpg.Record, *, for_auditor: bool = False) -> bool:
    """Tell whether the caller may reach the call of a row, which has who made it, `tool`, `version` and class.

    `for_auditor` is for what is recorded of a call in the audit too: there, an auditor reaches everyone's. A row of the
    journal has no class: the contract of its version says it.
    """
    if for_auditor and caller.is_auditor:
        return is_tool_visible(caller, row["tool"])
    is_own = caller.is_admin or caller.is_maker_of(row["caller_user"], row["caller_agent"])
    return is_own and await is_within_token(runtime, caller, row["tool"], row.get("version"), row.get("mutation_class"))


async def is_within_token(
    runtime: Runtime, caller: Caller, tool: str, version: str | None = None, mutation_class: str | None = None
) -> bool:
    """Tell whether a token covers the calls of a tool. The scopes of a version that was removed are not known."""
    if not is_tool_visible(caller, tool):
        return False
    # The token of a person who signed in to the console has the scopes of the console.
    if caller.is_admin or caller.console:
        return True
    contract = None
    tools = (await runtime.authority.load_tenant(caller.tenant)).tools
    if tool in tools.tools:
        entry = tools.tools[tool]
        tool_version = entry.latest if version is None else entry.by_version.get(version)
        contract = None if tool_version is None else (await tool_version.load_tool()).contract
    if mutation_class is None and contract is not None:
        mutation_class = contract.mutation_class
    classes = _list_classes(caller)
    if (classes is not None and mutation_class not in classes) or tool in _list_constrained_tools(caller):
        return False
    return contract is None or caller.scopes.issuperset(contract.auth.required_scopes)


async def may_read_entry(
    runtime: Runtime, caller: Caller, entry: Mapping[str, Any], *, for_auditor: bool = False
) -> bool:
    """Tell whether the caller may read an audit entry. A refusal tells why the token was not enough, and a decision or
    a command is the caller's own act: each is shown for every tool that the token may see.

    `for_auditor` is for readers of the audit: there, an auditor reads the entries of everyone's calls.
    """
    is_auditor = for_auditor and caller.is_auditor
    if not (is_auditor or caller.is_admin or is_recorded_maker(caller, entry["caller"])):
        return False
    if "tool" not in entry:
        return caller.capabilities is None
    tool = entry["tool"]
    if is_auditor or entry["kind"] in ("refusal", "decision", "command"):
        return is_tool_visible(caller, tool)
    return await is_within_token(runtime, caller, tool, entry.get("version"), entry.get("mutation_class"))


async def may_read_result(
    runtime: Runtime, caller: Caller, tool: str, maker_user: str, maker_agent: str | None
) -> bool:
    """Tell whether the caller may read the stored result of a call: its maker, their user, and those whom the maker
    delegated to. `maker_agent` is None if it is not known by which delegation the call was made.
    """
    if maker_agent is None:
        is_allowed = maker_user == caller.user and not caller.agents
    elif caller.is_maker_of(maker_user, maker_agent):
        is_allowed = True
    else:
        # The arguments cannot be compared with the constraints of a delegation by which they were not sent.
        is_allowed = caller.is_delegate_of(maker_user, maker_agent) and tool not in _list_tools_in_constraints(caller)
    return is_allowed and await is_within_token(runtime, caller, tool)


@frozen
class CallFilter:
    """What a list of calls is limited to, as its statement takes it; None limits nothing."""

    user: str | None
    agent: str | None
    tools: Sequence[str] | None
    classes: Sequence[str] | None
    hidden_tools: Sequence[str]


async def list_reachable(
    runtime: Runtime, caller: Caller, fetch: Callable[[CallFilter], Awaitable[list[asyncpg.Record]]]
) -> list[asyncpg.Record]:
    """Fetch a page of calls that the caller may reach. `fetch` is repeated without the tools whose scopes the token
    lacks, as often as it finds another one, so that no page is shorter than it could be.
    """
    hidden_tools: set[str] = set()
    covered: dict[tuple[str, str], bool] = {}
    while True:
        rows = await fetch(_build_filter(caller, hidden_tools))
        for row in rows:
            key = (row["tool"], row["version"])
            if key not in covered:
                covered[key] = await is_within_token(runtime, caller, *key, row["mutation_class"])
        new_tools = {tool for (tool, _), is_covered in covered.items() if not is_covered} - hidden_tools
        if not new_tools:
            return rows
        hidden_tools |= new_tools


def _build_filter(caller: Caller, hidden_tools: set[str]) -> CallFilter:
    return CallFilter(
        user=None if caller.is_admin else caller.user,
        agent=None if caller.is_admin or not caller.agents else caller.agent_key,
        tools=list_visible_tools(caller),
        classes=None if caller.is_admin else _list_classes(caller),
        hidden_tools=sorted(hidden_tools | (set() if caller.is_admin else _list_constrained_tools(caller))),
    )


def _list_classes(caller: Caller) -> list[str] | None:
    if caller.ceiling is None:
        return None
    effects = list(Effects)
    return [each.mutation_class.value for each in effects[: effects.index(caller.ceiling) + 1]]


def _list_constrained_tools(caller: Caller) -> set[str]:
    """List the tools whose arguments a token constrains. Recorded arguments cannot be compared; those of the delegation
    itself were, when the calls were made.
    """
    if caller.grants:
        return set()
    return _list_tools_in_constraints(caller)


def _list_tools_in_constraints(caller: Caller) -> set[str]:
    return {tool for text in caller.constraints for tool in load_constraints(text).arguments}
