"""Check policies against the tools of a tenant."""

import asyncio
from collections.abc import Sequence

import orjson

from deputize.catalog.snapshot import TenantTools
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.checks.validate import PolicyFindings, validate_policies
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.lifecycle.authority import TenantAuthority


async def check_policies(authority: TenantAuthority, files: Sequence[PolicyFile]) -> PolicyFindings:
    """Check policies in a thread: ten thousand rules take long."""
    tools = authority.tools
    return await asyncio.to_thread(
        lambda: validate_policies(files or load_default_files(), tools.fact_types, known_names=_collect_names(tools))
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
