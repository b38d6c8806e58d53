"""Check policies against the tools of a tenant."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import orjson

from deputize.catalog.snapshot import TenantTools
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.checks.validate import PolicyFindings
from deputize.govern.policy.policy_job import parse_off_loop, validate_off_loop
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority

# Twenty thousand rules, the most that a set may have, take about ten seconds.
MAX_CHECK_SECONDS: Final = 30


async def check_policies(runtime: Runtime, authority: TenantAuthority, files: Sequence[PolicyFile]) -> PolicyFindings:
    """Check policies against the tenant's tools; its parsed rules are in the cache then."""
    tools, checked_files = authority.tools, files or load_default_files()
    run_job = partial(runtime.admin_jobs.run_job, tools.tenant, seconds=MAX_CHECK_SECONDS)
    await parse_off_loop(checked_files, run_job)
    known_names = await asyncio.to_thread(_collect_names, tools)
    servers = {each.name for each in runtime.upstreams.list_servers(tools.tenant)}
    return await validate_off_loop(
        checked_files, tools.fact_types, known_names, run_job, unseen_servers=servers - known_names["Namespace"]
    )


def _collect_names(tools: TenantTools) -> dict[str, set[str]]:
    """Collect the names that rules may refer to, by entity type."""
    names: dict[str, set[str]] = {"Tool": set(), "Namespace": set(), "Server": set(), "Tenant": {tools.tenant}}
    for entry in tools:
        names["Tool"].add(entry.name)
        names["Namespace"].add(entry.name.partition(".")[0])
        for version in entry.versions:
            contract = orjson.loads(version.raw)
            names["Server"].add(contract.get("external_service") or contract.get("provider") or "")
    return names
