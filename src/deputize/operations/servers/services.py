"""Register the operations of HTTP services, at startup, from the pinned documents of the project.

The settings and the document are what the operator reviewed, so they decide: a changed operation gets a new version,
and one that is no longer served is retired. A tool that an administrator retired stays retired. Only at startup, as for
the settings of MCP servers: gateways with different settings side by side would undo each other's changes.
"""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import orjson
import structlog

from deputize.acts.act import change_authority, record_act
from deputize.catalog import registry
from deputize.catalog.importers.mcp import increment_major
from deputize.catalog.importers.openapi.document import MAX_DOCUMENT_BYTES
from deputize.catalog.importers.openapi.service_job import ServiceContracts, build_service_off_loop
from deputize.catalog.registration_rules import check_conflicts
from deputize.catalog.snapshot import TenantTools, ToolEntry
from deputize.core.caller import Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.serialized_contract import SerializedContract
from deputize.core.errors import ToolNotAdmitted
from deputize.core.settings import ServiceSettings
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.servers.versions import (
    bump_minor_version,
    choose_previous_state,
    register_version,
    retire_tool,
)
from deputize.store.pool import Connection

log = structlog.get_logger(__name__)
# Processor time for one document. The largest that was tried, with 1,223 operations, takes a tenth of it.
MAX_BUILD_SECONDS: Final = 60
# The drivers of operations of services.
_DRIVERS: Final = ("http", "grpc", "command")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ServiceChanges:
    """The versions to register and the tools to retire, as found beside these tools."""

    contracts: Sequence[SerializedContract]
    retired_names: Sequence[str]
    tools: TenantTools


async def register_service(runtime: Runtime, by: Caller, service: ServiceSettings) -> int:
    """Register what the service's document declares; return how many tools changed."""
    document = await asyncio.to_thread(_read_document, service)
    changes = await _list_changes(runtime, by.tenant, service, document, await runtime.authority.load_tenant(by.tenant))
    if not changes.contracts and not changes.retired_names:
        return 0

    async def prepare(authority: TenantAuthority) -> None:
        # Check again: another gateway with these settings may have been first.
        nonlocal changes
        if authority.tools is not changes.tools:
            changes = await _list_changes(runtime, by.tenant, service, document, authority)
        await asyncio.to_thread(_check_conflicts, changes)

    async def apply_changes(connection: Connection) -> int:
        for name in changes.retired_names:
            await retire_tool(runtime, connection, by, name, changes.tools)
        new_tools = [each for each in changes.contracts if each.contract.full_name not in changes.tools.tools]
        await registry.register_contracts(connection, by.tenant, new_tools, by=by.user)
        for each in new_tools:
            subject = f"{each.contract.full_name}@{each.contract.version}"
            await record_act(runtime, connection, by, "register:available", subject, each.contract)
        for contract in (each.contract for each in changes.contracts):
            if entry := changes.tools.tools.get(contract.full_name):
                state = choose_previous_state(entry.versions[0], contract)
                await register_version(runtime, connection, by, contract, changes.tools, previous_state=state)
        if changes.retired_names:
            await connection.execute(registry.SQL["raise_registry_epoch"], by.tenant)
        return len(changes.retired_names) + len(changes.contracts)

    return await change_authority(
        runtime, by, "import_service", service.name, apply_changes, prepare=prepare, content=service.sha256
    )


def _check_conflicts(changes: _ServiceChanges) -> None:
    """Check that contracts, which were admitted when they were built, fit beside each other and the tenant's tools."""
    tools = changes.tools
    new_contracts = {each.contract.full_name: each.contract for each in changes.contracts}

    def find_contract(name: str) -> Contract | None:
        return new_contracts.get(name) or tools.find_contract(name)

    for each in changes.contracts:
        check_conflicts(
            each.contract,
            find_owner=tools.find_owner,
            find_fact=tools.find_fact,
            find_contract=find_contract,
        )


def _read_document(service: ServiceSettings) -> bytes:
    """Read the pinned document, or raise `ToolNotAdmitted` if it is not the one that was reviewed."""
    advice = f"Review it, and run deputize services import {service.document} --name {service.name}."
    try:
        with service.document.open("rb") as file:
            content = file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise ToolNotAdmitted(
            f"the document {service.document} of the service {service.name} cannot be read ({error.strerror})",
            advice=advice,
        ) from None
    if hashlib.sha256(content).hexdigest() != service.sha256:
        raise ToolNotAdmitted(
            f"the document {service.document} of the service {service.name} has another digest than sha256 in "
            "deputize.toml",
            advice=advice,
        )
    return content


async def _list_changes(
    runtime: Runtime, tenant: str, service: ServiceSettings, document: bytes, authority: TenantAuthority
) -> _ServiceChanges:
    tools = authority.tools
    names = await asyncio.to_thread(_collect_names, service, tools)
    entries = {name: tools.tools[f"{service.name}.{name}"] for name in names.values()}
    run_job = partial(runtime.definition_jobs.run_job, tenant, seconds=MAX_BUILD_SECONDS)
    service_contracts = await build_service_off_loop(
        service, document, names, {name: entry.versions[0].version for name, entry in entries.items()}, run_job
    )
    if service_contracts.refusals:
        first = service_contracts.refusals[0]
        log.info("operations_refused", service=service.name, count=len(service_contracts.refusals), first=first.key)
    return await asyncio.to_thread(_compare, service, service_contracts, entries, tools)


def _collect_names(service: ServiceSettings, tools: TenantTools) -> dict[str, str]:
    """Collect the short names in the service's namespace by operation; names of other tools cannot be assigned."""
    names: dict[str, str] = {}
    for full_name, entry in tools.tools.items():
        namespace, _, short_name = full_name.partition(".")
        if namespace == service.name and entry.versions:
            handler = orjson.loads(entry.versions[0].raw)["handler"]
            owner, _, key = handler["target"].partition("/")
            is_ours = handler["driver"] in _DRIVERS and owner == service.name
            # The NUL prefix cannot collide with an operation.
            names[key if is_ours else f"\0{short_name}"] = short_name
    return names


def _compare(
    service: ServiceSettings, service_contracts: ServiceContracts, entries: Mapping[str, ToolEntry], tools: TenantTools
) -> _ServiceChanges:
    contracts: list[SerializedContract] = []
    for each in service_contracts.contracts.values():
        entry = entries.get(each.contract.name)
        if entry is None:
            contracts.append(each)
        elif entry.versions[0].digest != each.digest:
            raised = _raise_version(entry.versions[0].contract, each.contract)
            contracts.append(SerializedContract.from_contract(raised))
    served_names = {each.contract.name for each in service_contracts.contracts.values()}
    retired_names = [
        f"{service.name}.{name}"
        for name, entry in entries.items()
        if name not in served_names
        and entry.versions[0].contract.handler.driver in _DRIVERS
        and any(version.state is not LifecycleState.RETIRED for version in entry.versions)
    ]
    return _ServiceChanges(contracts=contracts, retired_names=retired_names, tools=tools)


def _raise_version(before: Contract, after: Contract) -> Contract:
    """Number a changed contract: a major version if callers or the service see a difference, else a minor one."""
    is_same_request = (before.input_schema, before.output_schema, before.handler.request, before.handler.command) == (
        after.input_schema,
        after.output_schema,
        after.handler.request,
        after.handler.command,
    )
    version = bump_minor_version(before.version) if is_same_request else increment_major(before.version)
    return after.model_copy(update={"version": version})
