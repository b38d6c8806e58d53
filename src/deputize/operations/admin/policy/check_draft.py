"""Check policies against the tools of a tenant."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

import orjson

from deputize.catalog.policy_facts import iter_facts
from deputize.catalog.snapshot import TenantTools
from deputize.core.contract.contract import LifecycleState
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
        checked_files, tools.fact_types, known_names, run_job, unseen_servers=servers - known_names["Namespace"].keys()
    )


def _collect_names(tools: TenantTools) -> dict[str, dict[str, set[str]]]:
    """Collect the names that rules may refer to, by entity type, with the facts of their tools."""
    names: dict[str, dict[str, set[str]]] = {"Tool": {}, "Namespace": {}, "Server": {}, "Tenant": {}}
    for entry in tools:
        places = [("Tool", entry.name), ("Namespace", entry.name.partition(".")[0]), ("Tenant", tools.tenant)]
        facts, servers = set[str](), set[str]()
        for version in entry.versions:
            contract = orjson.loads(version.raw)
            servers.add(contract.get("external_service") or contract.get("provider") or "")
            if version.state is not LifecycleState.RETIRED:
                facts.update(fact.name for fact in iter_facts(contract["input_schema"]))
        for kind, name in (*places, *(("Server", each) for each in servers)):
            names[kind].setdefault(name, set()).update(facts)
    names["Tenant"].setdefault(tools.tenant, set())
    return names
