"""Take over the edited files of a project while its development gateway runs.

The person at the terminal of `deputize dev` is the operator, as at its start. The edit loop of the command line decides
what that person has to confirm first; only a development gateway has this. Policies that were active when the gateway
stopped are those confirmed last: a start holds back others. Tools are used as their files have them.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import orjson

from deputize.catalog.builtin_contracts import RESULTS_READ
from deputize.core.caller import Caller, operator_caller
from deputize.core.contract.authority_change import list_authority_reasons
from deputize.core.contract.contract import Contract, Effects
from deputize.core.contract.tools import ProjectTool
from deputize.core.errors import RegistryProblem
from deputize.govern.policy.checks.validate import PolicyFindings
from deputize.govern.policy.policy_parser import PolicyFile, compute_set_digest
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.commands import Commands
from deputize.operations.admin.policy.check_draft import check_policies

# As canonical JSON has them; only where they are is a contract read.
_OWN_DRIVERS: Final = (b'"driver":"python"', b'"driver":"flow"')


class ProjectEdits:
    """Replace the functions and contracts of tools, and the policies, without a restart."""

    def __init__(
        self,
        runtime: Runtime,
        commands: Commands,
        complete_caller: Callable[[Caller], Awaitable[Caller]],
        tenants: Sequence[str],
    ) -> None:
        self._runtime = runtime
        self._commands = commands
        self._complete_caller = complete_caller
        self._tenants = tenants
        # The tools that have more authority than when the gateway stopped, by name, and in what.
        self.authority_changes: dict[str, list[str]] = {}
        # Whether the policy files were left because other policies are active.
        self.holds_policies = False

    async def note_authority_changes(self, tools: Sequence[ProjectTool]) -> None:
        """Note which tools have more authority than what is registered: the terminal names them.

        Agent and person share one account, so their files hold nothing back. At the first start nothing is registered.
        """
        own_tenant = self._runtime.settings.tools.tenant
        if (await self._runtime.authority.load_tenant(own_tenant)).tools.tools:
            for tool in tools:
                if reasons := await self.list_authority_reasons(tool.contract):
                    self.authority_changes[tool.contract.full_name] = reasons

    async def list_authority_reasons(self, contract: Contract) -> list[str]:
        """List in what a tool has more authority than what calls use now."""
        return list_authority_reasons(await self.find_contract(contract.full_name, contract.version), contract)

    async def hide_removed_tools(self, tools: Sequence[ProjectTool], reasons: Mapping[str, str]) -> None:
        """Hide the registered functions and flows that these tools lack: no list has them, and calls learn why."""
        own_tenant = self._runtime.settings.tools.tenant
        names = {each.contract.full_name for each in tools}
        targets = {each.contract.handler.target for each in tools}
        removed_tools: dict[str, str] = {}
        for name, entry in (await self._runtime.authority.load_tenant(own_tenant)).tools.tools.items():
            raw = entry.versions[0].raw if entry.versions else b""
            if name in names or name == RESULTS_READ.full_name or not any(each in raw for each in _OWN_DRIVERS):
                continue
            handler = orjson.loads(raw)["handler"]
            if handler["driver"] in ("python", "flow") and handler["target"] not in targets:
                removed_tools[name] = reasons.get(name, f"the project's files no longer have {handler['target']}")
        self._runtime.authority.set_removed_tools(own_tenant, removed_tools)

    async def hold_policies(self, tenant: str, files: Sequence[PolicyFile]) -> bool:
        """Tell whether policy files differ from what the tenant activated last, and remember that they were left."""
        active_policies = (await self._runtime.authority.load_tenant(tenant)).policy
        is_held = not active_policies.is_default and active_policies.digest != compute_set_digest(files)
        self.holds_policies = self.holds_policies or is_held
        return is_held

    def set_unloaded_tools(self, reasons: Mapping[str, str]) -> None:
        """Say to callers why tools of the files are not in use: by a name, or by `namespace.` of a whole file."""
        self._runtime.authority.set_unloaded_tools(self._runtime.settings.tools.tenant, reasons)

    async def find_contract(self, name: str, version: str) -> Contract | None:
        """Find the registered contract of a version, or else the one that calls of the tool use now."""
        tools = (await self._runtime.authority.load_tenant(self._runtime.settings.tools.tenant)).tools
        entry = tools.tools.get(name)
        registered_version = None if entry is None else entry.by_version.get(version)
        return tools.find_contract(name) if registered_version is None else registered_version.contract

    async def replace_tools(self, old: Sequence[ProjectTool], new: Sequence[ProjectTool]) -> list[RegistryProblem]:
        """Use the new tools in place of the old ones, all or none; return the reasons if they were refused.

        The functions come first and stay beside those they replace, so that a call finds the function of its contract
        whichever of both it was validated under.
        """
        known_digests = {tool.contract.digest for tool in old}
        changed_contracts = [tool.contract for tool in new if tool.contract.digest not in known_digests]
        self._runtime.driver.replace_functions(new)
        problems = await self._register_all(changed_contracts)
        if problems:
            self._runtime.driver.replace_functions(old)
            names = {each.full_name for each in changed_contracts}
            await self._register_all([tool.contract for tool in old if tool.contract.full_name in names])
        return problems

    async def _register_all(self, contracts: Sequence[Contract]) -> list[RegistryProblem]:
        operator = await self._complete_caller(operator_caller(self._runtime.settings.tools.tenant))
        problems: list[RegistryProblem] = []
        # Tools that only read come first: other tools may name them as their status.
        for contract in sorted(contracts, key=lambda each: each.effects is not Effects.READ):
            try:
                await self._commands.register_tool(operator, contract)
            except RegistryProblem as problem:
                problems.append(problem)
        return problems

    async def load_active_policies(self, files: Sequence[PolicyFile] = ()) -> tuple[PolicyFile, ...]:
        """Load the policies that are active: those of the first tenant whose policies differ from the files.

        The project's own tenant comes first, and counts if none differs.
        """
        own_tenant = self._runtime.settings.tools.tenant
        own_policies = (await self._runtime.authority.load_tenant(own_tenant)).policy
        digest = compute_set_digest(files)
        if own_policies.digest == digest:
            for tenant in self._tenants:
                policies = (await self._runtime.authority.load_tenant(tenant)).policy
                if policies.digest != digest:
                    return tuple(policies.policies.files)
        return tuple(own_policies.policies.files)

    async def check_policies(self, files: Sequence[PolicyFile]) -> PolicyFindings:
        """Check policies as if they were activated now."""
        authority = await self._runtime.authority.load_tenant(self._runtime.settings.tools.tenant)
        return await check_policies(self._runtime, authority, files)

    async def activate_policies(self, files: Sequence[PolicyFile]) -> None:
        """Activate policies for every tenant of the settings; raise `PolicyInvalid` if they do not fit one of them."""
        for tenant in self._tenants:
            await self._commands.put_policies(await self._complete_caller(operator_caller(tenant)), files)
