"""Find the sources of consistency rules that are not compared: tools that are not registered, or that write.

Tools come and go, so such a source is not an error: the others are compared with each other.
"""

from collections.abc import Awaitable, Callable, Iterable

import structlog

from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.contract import Contract
from deputize.core.contract.effects import MutationClass
from deputize.core.errors import Problem
from deputize.core.settings.consistency import ConsistencyRule
from deputize.govern.consistency_rules import describe_ignored_sources

LoadTools = Callable[[str], Awaitable[TenantTools]]
log = structlog.get_logger(__name__)


async def list_ignored_sources(
    rules: tuple[ConsistencyRule, ...],
    tenants: Iterable[str],
    load_tools: LoadTools,
    contracts: Iterable[Contract] = (),
) -> list[tuple[str, str, str]]:
    """List the ignored sources as rule, tool and reason. `contracts` are known beside those that are registered."""
    classes_by_tool: dict[str, set[MutationClass]] = {}
    names = {source.tool for rule in rules for source in rule.sources}
    for contract in contracts:
        classes_by_tool.setdefault(contract.full_name, set()).add(contract.mutation_class)
    for tenant in tenants:
        tools = (await load_tools(tenant)).tools
        for name in names & set(tools):
            for version in tools[name].by_version.values():
                try:
                    mutation_class = (await version.load_tool()).contract.mutation_class
                except Problem:
                    continue  # this release cannot read the contract, so it cannot be called
                classes_by_tool.setdefault(name, set()).add(mutation_class)
    return list(describe_ignored_sources(rules, classes_by_tool))


async def log_ignored_sources(
    rules: tuple[ConsistencyRule, ...], tenants: Iterable[str], load_tools: LoadTools
) -> None:
    """Log at start which sources are not compared."""
    for rule, tool, reason in await list_ignored_sources(rules, tenants, load_tools):
        log.warning("source_not_compared", rule=rule, tool=tool, reason=reason)
