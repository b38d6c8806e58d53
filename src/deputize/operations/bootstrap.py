"""Register the tools and apply the policies that the settings name, at startup, with an administrator's commands.

Only `deputize serve` and `deputize dev` do so. A worker, which anybody can start who reads the settings, changes
nothing: it compares its files with what is active.
"""

from collections.abc import Awaitable, Callable, Sequence

import structlog

from deputize.core.caller import Caller, operator_caller
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Effects
from deputize.core.contract.flow import MAX_FLOW_DEPTH
from deputize.core.contract.tools import ProjectTool
from deputize.core.errors import PolicyInvalid, RegistryProblem, VersionConflict
from deputize.core.settings import Settings
from deputize.govern.policy.files import read_files
from deputize.govern.policy.policy_parser import compute_set_digest
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import Authority
from deputize.operations.admin.project_edits import ProjectEdits
from deputize.operations.gateway import Gateway
from deputize.operations.servers.services import register_service

log = structlog.get_logger(__name__)


async def bootstrap_gateway(
    gateway: Gateway,
    tools: Sequence[ProjectTool],
    complete: Callable[[Caller], Awaitable[Caller]],
    *,
    holds_changes: bool = False,
) -> None:
    """Register the tools and apply the policies. With `holds_changes`, leave other policies than the last."""
    settings = gateway.settings
    if holds_changes and gateway.project_edits is not None:
        await gateway.project_edits.note_authority_changes(tools)
    operator = await complete(operator_caller(settings.tools.tenant))
    for tool in _sort_tools(tools):
        try:
            registration = await gateway.commands.register_tool(operator, tool.contract)
        except RegistryProblem as problem:
            gateway.startup_problems.append(problem)
            continue
        if registration == "created":
            for text in await gateway.service_levels.list_timeout_warnings(operator, tool.contract):
                log.warning("timeout_too_short", tool=tool.contract.full_name, reason=text)
    if settings.policy.files:
        await _apply_policies(gateway, complete, gateway.project_edits if holds_changes else None)


def _sort_tools(tools: Sequence[ProjectTool]) -> list[ProjectTool]:
    """Sort tools so that each comes after those it names: reads, which may be another's status, then what changes data,
    then flows, inner ones first.
    """
    flows = {each.contract.full_name: each.contract for each in tools if each.contract.flow is not None}

    def measure_depth(name: str, depth: int = 1) -> int:
        flow = flows[name].flow if name in flows else None
        if flow is None or depth > MAX_FLOW_DEPTH:
            return depth
        names = {call.tool for step in flow.walk() for call in step.calls}
        return max((measure_depth(each, depth + 1) for each in names), default=depth)

    return sorted(
        tools,
        key=lambda each: (
            measure_depth(each.contract.full_name) if each.contract.flow is not None else 0,
            each.contract.effects is not Effects.READ,
        ),
    )


async def register_services(
    gateway: Gateway, runtime: Runtime, complete: Callable[[Caller], Awaitable[Caller]]
) -> None:
    """Register the operations of the HTTP services; one whose document cannot be used keeps what it had."""
    for service in gateway.settings.services:
        operator = await complete(operator_caller(service.tenant or gateway.settings.tools.tenant))
        try:
            count = await register_service(runtime, operator, service)
        except RegistryProblem as problem:
            gateway.startup_problems.append(problem)
            continue
        log.info("service_registered", service=service.name, changed_tools=count)


async def _apply_policies(
    gateway: Gateway, complete: Callable[[Caller], Awaitable[Caller]], edits: ProjectEdits | None
) -> None:
    """Apply the policy files to every tenant in the settings; other tenants put their own policies."""
    settings = gateway.settings
    files = read_files(settings.policy.files)
    for tenant in list_tenants(settings):
        if edits is not None and await edits.hold_policies(tenant, files):
            continue
        operator = await complete(operator_caller(tenant))
        try:
            await gateway.commands.put_policies(operator, files)
        except PolicyInvalid as invalid:
            if tenant != settings.tools.tenant:
                # The policies do not fit the tools of this tenant; that must not stop the gateway for the others.
                gateway.startup_problems.append(invalid)
                continue
            errors = invalid.details["errors"]
            error_text = "\n".join(f"  {each['file']}:{each['line']}: {each['message']}" for each in errors)
            raise ConfigError(f"The policies in policy.files are invalid. Fix these errors:\n{error_text}") from None


async def compare_files(gateway: Gateway, authority: Authority, tools: Sequence[ProjectTool]) -> None:
    """Compare the project's files with what is active. What is active decides; differences are reported."""
    settings = gateway.settings
    registered_tools = (await authority.load_tenant(settings.tools.tenant)).tools
    for tool in tools:
        contract = tool.contract
        entry = registered_tools.tools.get(contract.full_name)
        version = None if entry is None else entry.by_version.get(contract.version)
        if version is None:
            gateway.file_differences.append(
                f"{contract.full_name} {contract.version} is not registered, so it cannot be called: restart "
                "deputize serve or deputize dev with these files to register it."
            )
        elif version.digest != contract.digest:
            gateway.startup_problems.append(
                VersionConflict(f"{contract.full_name} {contract.version} is registered with other content")
            )
    if not settings.policy.files:
        return
    digest = compute_set_digest(read_files(settings.policy.files))
    for tenant in list_tenants(settings):
        if (await authority.load_tenant(tenant)).policy.digest != digest:
            gateway.file_differences.append(
                f"The policy files differ from the policies that are active for the tenant {tenant}, and those decide: "
                "restart deputize serve or deputize dev to activate the files, or use deputize policy put."
            )


def list_tenants(settings: Settings) -> list[str]:
    tenants = {each.tenant for each in settings.identity.issuers} | {each.tenant for each in settings.servers}
    tenants |= {each.tenant for each in settings.services}
    return sorted({settings.tools.tenant, *(tenant for tenant in tenants if tenant)})
