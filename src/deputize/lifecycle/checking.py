"""Whether policies may take force for a tenant: checked against the tools it has."""

import asyncio
from collections.abc import Sequence

import orjson

from deputize.catalog.snapshot import TenantTools
from deputize.govern.policy.check import Findings, check
from deputize.govern.policy.force import default_files
from deputize.govern.policy.rules import PolicyFile
from deputize.lifecycle.authority import TenantAuthority


async def checked(authority: TenantAuthority, files: Sequence[PolicyFile]) -> Findings:
    """In a thread: ten thousand rules take their time."""
    tools = authority.tools
    return await asyncio.to_thread(lambda: check(files or default_files(), tools.fact_types, known=_names(tools)))


def _names(tools: TenantTools) -> dict[str, set[str]]:
    """What rules may be about, by kind of thing."""
    known: dict[str, set[str]] = {"Tool": set(), "Namespace": set(), "Server": set(), "Tenant": {tools.tenant}}
    for entry in tools:
        known["Tool"].add(entry.name)
        known["Namespace"].add(entry.name.partition(".")[0])
        for version in entry.versions:
            contract = orjson.loads(version.raw)
            known["Server"].add(contract.get("external_service") or contract.get("provider") or "")
    return known
