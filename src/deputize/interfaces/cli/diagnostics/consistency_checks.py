"""Check the consistency rules for `deputize doctor`: that their sources are tools that read."""

from pathlib import Path

from deputize.catalog.registry import ToolRegistry
from deputize.catalog.snapshot import TenantTools
from deputize.core.config_error import ConfigError
from deputize.core.settings import Settings
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.interfaces.cli.render.output import format_count
from deputize.operations.bootstrap import list_tenants
from deputize.operations.views.consistency_sources import list_ignored_sources
from deputize.store.pool import Store


async def check_consistency_rules(settings: Settings, dsn: str | None) -> Finding:
    """Check the sources against the project's files and the registry; without a database, tools of servers are unknown.

    A source that is not compared is a warning: tools come and go.
    """
    rules = settings.consistency
    counts = format_count(len(rules), "rule")
    if dsn is None:
        todo = "start the gateway, then run doctor again: the registry knows which tools there are"
        return Finding(check="consistency", status="skipped", summary=counts, todo=todo)
    try:
        contracts = [
            each.contract
            for each in load_project(settings, Path.cwd(), admits_drafts=settings.database.url is None).tools
        ]
    except ConfigError:
        contracts = []  # reported by the check of the files
    try:
        store = await Store.open(dsn, read_connections=1)
        try:

            async def load_tools(tenant: str) -> TenantTools:
                async with store.read_transaction(tenant) as connection:
                    return await ToolRegistry().refresh(connection, tenant)

            ignored_sources = await list_ignored_sources(rules, list_tenants(settings), load_tools, contracts)
        finally:
            await store.close()
    except database.CONNECTION_ERRORS:
        return Finding(
            check="consistency", status="skipped", summary=counts, todo="fix the database first: it knows the tools"
        )
    if not ignored_sources:
        return Finding(check="consistency", status="good", summary=counts)
    rule, tool, reason = ignored_sources[0]
    return Finding(
        check="consistency",
        status="warning",
        summary=f"{counts}, {format_count(len(ignored_sources), 'source')} not compared",
        todo=f"rule {rule}: {tool}: {reason}; correct tool under [[consistency.sources]], or register a read",
    )
