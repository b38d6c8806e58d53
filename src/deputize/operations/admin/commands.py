"""Change authority by administrative acts, the only way to do so.

Each is requested by an administrator, executed under the tenant's closed barrier, and recorded in the same commit.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from deputize.acts.act import Prepare, change_authority
from deputize.catalog import registry
from deputize.catalog.compatibility.release_job import judge_release, suggest_number
from deputize.catalog.importers.manifest_job import judge_manifest
from deputize.catalog.registration_rules import admit_contract, build_refusal, check_conflicts
from deputize.catalog.schema_rules import Reason
from deputize.catalog.snapshot import TenantTools, ToolVersion
from deputize.core.caller import PROCESS_ISSUER, Caller
from deputize.core.contract.contract import Contract, LifecycleState
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.contract.handler import NO_DRIVER
from deputize.core.errors import AgentUnknown, ExternalVaultInUse, MalformedRequest, VersionConflict
from deputize.core.patterns import matches_glob
from deputize.execute.drivers.python import build_not_loaded_error
from deputize.govern import kill_switches
from deputize.govern.approvals.confirmation_codes import ListChanges
from deputize.govern.identity import revocations
from deputize.govern.identity.primary_issuers import list_subject_issuers
from deputize.govern.policy import active_policies
from deputize.govern.policy.checks.validate import PolicyFindings
from deputize.govern.policy.policy_parser import PolicyDiagnostic, PolicyFile
from deputize.govern.policy.policy_proposals import PolicyProposal
from deputize.govern.token_authorization import (
    is_tool_visible,
    require_admin,
    require_auditor,
    require_auditor_scope,
    require_full_admin,
    require_full_operator,
)
from deputize.govern.vault import local as local_vault
from deputize.lifecycle.approval.unstarted_call import withdraw_revoked_requests
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.tenant_snapshot import TenantAuthority
from deputize.operations.admin.contract_tests import ContractTests
from deputize.operations.admin.deprecations import DeprecationRequest, build_notice, require_quiet
from deputize.operations.admin.document_changes import describe_contract_change, list_policy_changes
from deputize.operations.admin.policy.check_draft import check_policies
from deputize.operations.admin.policy.two_operators import choose_command, perform_command
from deputize.store.pool import CONNECTION_ERRORS, Connection
from deputize.store.pseudonyms import Pseudonyms

T = TypeVar("T")
# States that stop calls of a version; every other state lets some begin.
_BLOCKING_STATES = frozenset({LifecycleState.DISABLED, LifecycleState.REQUIRES_SETUP, LifecycleState.RETIRED})


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyUpdate:
    digest: str
    epoch: int
    is_new: bool
    warnings: tuple[PolicyDiagnostic, ...] = ()
    # Set if nothing is active yet, because another operator must confirm it.
    proposal: PolicyProposal | None = None


@dataclass(slots=True)
class _CheckedPolicies:
    """What was found about a set of policies before it is activated."""

    findings: PolicyFindings | None = None
    policies: active_policies.ParsedPolicies | None = None
    # Those that are active while it is checked.
    active_files: Sequence[PolicyFile] = ()


class Commands:
    def __init__(
        self,
        runtime: Runtime,
        pseudonyms: Pseudonyms,
        *,
        admits_drafts: bool = False,
        replaces_versions: bool = False,
    ) -> None:
        """Offer the acts. With `replaces_versions`, for development, this process replaces what it registered before
        under the same number; callers never do.
        """
        self._admit = partial(admit_contract, admits_drafts=admits_drafts)
        self._runtime = runtime
        self._replaces_versions = replaces_versions
        self._pseudonyms = pseudonyms
        self._contract_tests = ContractTests(runtime)

    async def register_tool(
        self,
        caller: Caller,
        contract: Contract,
        *,
        state: LifecycleState = LifecycleState.AVAILABLE,
        is_judged: bool = False,
    ) -> Literal["created", "unchanged"]:
        """Admit and register a contract; the same contract again changes nothing.

        Its function, where loaded, may not declare more than the contract says. A contract that was judged on its own
        before (`is_judged`) is compared with the tenant's other tools only.
        """
        check = check_conflicts if is_judged else self._admit

        current_contract: Contract | None = None

        async def prepare(authority: TenantAuthority) -> None:
            nonlocal current_contract
            tools = authority.tools
            current_contract = tools.find_contract(contract.full_name)
            await asyncio.to_thread(self._require_floor, contract)
            await asyncio.to_thread(
                check,
                contract,
                find_owner=tools.find_owner,
                find_fact=tools.find_fact,
                find_contract=partial(self._find_contract, caller.tenant, tools),
            )
            await self._require_right_number(caller.tenant, contract, tools)
            await self._contract_tests.require_fresh_result(caller.tenant, contract, tools)

        async def act(connection: Connection) -> Literal["created", "unchanged"]:
            if self._replaces_versions and caller.issuer == PROCESS_ISSUER:
                return await registry.replace_contract(connection, caller.tenant, contract, by=caller.user)
            return await registry.register_contract(connection, caller.tenant, contract, by=caller.user, state=state)

        try:
            return await self._change_authority(
                caller,
                f"register:{state}",
                f"{contract.full_name}@{contract.version}",
                act,
                contract,
                content=contract.digest,
                is_tightening=lambda registration: registration == "unchanged",
                prepare=prepare,
                list_changes=lambda: (describe_contract_change(current_contract, contract),),
            )
        except VersionConflict as conflict:
            raise await self._suggest_number(caller.tenant, contract, conflict) from conflict

    async def _suggest_number(self, tenant: str, contract: Contract, conflict: VersionConflict) -> VersionConflict:
        entry = (await self._runtime.authority.load_tenant(tenant)).tools.tools.get(contract.full_name)
        if entry is None:
            return conflict
        number = await suggest_number(contract, entry, partial(self._runtime.admin_jobs.run_job, tenant))
        return conflict.replace(details={**conflict.details, "suggested_version": number})

    async def _require_right_number(self, tenant: str, contract: Contract, tools: TenantTools) -> None:
        """Refuse a version whose number announces less than it changes for callers of the registered ones."""
        run_job = partial(self._runtime.admin_jobs.run_job, tenant)
        reasons = await judge_release(contract, tools.tools.get(contract.full_name), run_job)
        if reasons:
            raise build_refusal(contract.full_name, contract.version, reasons)

    def _find_contract(self, tenant: str, tools: TenantTools, name: str) -> Contract | None:
        """Find a registered contract, or one of a function that is loaded for the tenant and registered in its turn."""
        contract = tools.find_contract(name)
        return self._runtime.driver.find_contract(name) if contract is None and self._can_use(tenant) else contract

    def _can_use(self, tenant: str) -> bool:
        """Tell whether the functions of this process are loaded for a tenant."""
        tools = self._runtime.settings.tools
        return tenant == tools.tenant or any(matches_glob(tenant, each) for each in tools.shared_with)

    async def register_manifest(
        self, caller: Caller, manifest: Any
    ) -> tuple[Contract, Literal["created", "unchanged"]]:
        """Register a contract that was sent from outside.

        It may name only functions that are loaded for its tenant, or none: registering a tool must not let anyone
        choose what code runs, nor find out what others run.
        """
        require_full_admin(caller)
        contract = await judge_manifest(manifest, partial(self._runtime.admin_jobs.run_job, caller.tenant))
        if contract.handler.driver == NO_DRIVER:
            return contract, await self.register_tool(caller, contract, is_judged=True)
        # The tools of a server are imported from the server itself and pinned.
        if not self._can_use(caller.tenant) or contract.handler.driver != "python":
            raise build_not_loaded_error(contract)
        await asyncio.to_thread(self._require_floor, contract)
        await asyncio.to_thread(self._runtime.driver.find_tool, contract)
        return contract, await self.register_tool(caller, contract, is_judged=True)

    def _require_floor(self, contract: Contract) -> None:
        """Refuse a contract that is weaker than its function declares: the effects, scopes and marks are facts of the
        code, which a caller who registers a contract must not be able to relabel.
        """
        target = contract.handler.target
        reasons = [
            Reason(
                conjunct="not_weaker_than_function",
                path=each.path,
                reason=f"is {each.contract_value}, but the function {target} declares {each.function_value}",
                fix="declare the same, or something stricter",
            )
            for each in self._runtime.driver.list_weakenings(contract)
        ]
        if reasons:
            raise build_refusal(contract.full_name, contract.version, reasons)

    async def set_state(
        self, caller: Caller, name: str, version: str, state: LifecycleState, *, force: bool = False
    ) -> None:
        """Move a version to another lifecycle state; `retired` is final.

        A deprecated version that was used in the last 24 hours is retired only by force, which an operator confirms.
        """
        notice: DeprecationNotice | None = None
        tool_version: ToolVersion | None = None

        async def prepare(authority: TenantAuthority) -> None:
            nonlocal notice, tool_version
            entry = authority.tools.find_entry(name)
            tool_version = None if entry is None else entry.by_version.get(version)
            if tool_version is not None and state is LifecycleState.DEPRECATED:
                now = self._runtime.clock.now()
                notice = build_notice(authority.tools, name, version, DeprecationRequest(), now)

        async def act(connection: Connection) -> None:
            if notice is not None:
                await registry.deprecate_version(connection, caller.tenant, name, version, notice)
                return
            if state is LifecycleState.RETIRED and tool_version is not None and not force:
                await require_quiet(self._runtime, connection, caller.tenant, tool_version)
            await registry.set_version_state(connection, caller.tenant, name, version, state)

        require_full_admin(caller)
        if state is LifecycleState.RETIRED:
            await self._runtime.deprecated_uses.store_uses(self._runtime.store)
        await self._change_authority(
            caller,
            f"set_state:{state}" + (":forced" if force else ""),
            f"{name}@{version}",
            act,
            prepare=prepare,
            is_tightening=state in _BLOCKING_STATES and not force,
        )

    async def revoke(self, caller: Caller, kind: revocations.RevocationKind, value: str, *, reason: str = "") -> int:
        """Revoke authority; from the returned epoch on, no call starts with it on any gateway.

        The audit entry has the pseudonym of a user, as every entry does, so that they can be erased.
        """
        require_full_admin(caller)
        pseudonym = None
        if kind in ("user", "subject"):
            (pseudonym,) = await self._pseudonyms.get_or_create(self._runtime.store, caller.tenant, (value,))

        async def act(connection: Connection) -> int:
            return await revocations.revoke(connection, caller.tenant, kind, value, reason=reason, by=caller.user)

        epoch = await self._change_authority(
            caller, f"revoke:{kind}", value, act, is_tightening=True, recorded_subject=pseudonym
        )
        # The revocation is committed: what is not withdrawn because the database fails now is void when it is approved.
        with contextlib.suppress(*CONNECTION_ERRORS):
            await withdraw_revoked_requests(self._runtime, caller.tenant)
        return epoch

    async def check_subject(
        self, caller: Caller, kind: revocations.RevocationKind, value: str
    ) -> revocations.SubjectCheck:
        """Tell whether what is to be revoked was ever seen, and which names are like it."""
        require_full_admin(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return await revocations.check_subject(connection, caller.tenant, kind, value)

    def list_subject_issuers(self, caller: Caller) -> list[str]:
        """List the issuers whose subjects may be users of the caller's tenant: a bare name means one of each."""
        return list_subject_issuers(self._runtime.settings.identity.issuers, caller.tenant)

    async def count_ended_grants(self, caller: Caller, kind: revocations.RevocationKind, value: str) -> int | None:
        """Count the delegations that a revocation would end; None for a token: they are not stored by it."""
        if kind == "token":
            return None
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return await revocations.count_ended_grants(connection, caller.tenant, kind, value)

    async def list_revocations(self, caller: Caller, *, before: int | None, limit: int) -> list[dict[str, Any]]:
        """List what the tenant revoked, newest first: who revoked it, when and why."""
        require_admin(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return await revocations.list_revocations(connection, caller.tenant, before=before, limit=limit)

    async def set_switch(
        self, caller: Caller, kind: kill_switches.SwitchKind, value: str, *, off: bool, reason: str = ""
    ) -> int:
        """Turn a kill switch off or on; from the returned epoch on, no call that is off starts on any gateway.

        The tenant's own switch never prevents turning something on again.
        """
        require_full_operator(caller)
        if kind == "tool":
            # An unknown name or an alias would be switched off without any effect.
            value = (await self._runtime.authority.load_tenant(caller.tenant)).tools.get_entry(value).name
        if not value:
            raise MalformedRequest(f"the {kind} to switch is missing", details={"field": "value"})
        if kind == "tenant" and value != caller.tenant:
            raise MalformedRequest("you can switch only your own tenant", details={"field": "value"})

        async def act(connection: Connection) -> int:
            return await kill_switches.set_switch(
                connection, caller.tenant, kind, value, turn_off=off, reason=reason, by=caller.user
            )

        command = f"switch_{'off' if off else 'on'}:{kind}"
        return await change_authority(self._runtime, caller, command, value, act, is_tightening=off)

    async def require_known_agent(self, caller: Caller, name: str) -> None:
        """Refuse a name that no agent of the tenant has: switched off by a mistyped name, the agent would go on."""
        require_full_operator(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            subject = await revocations.check_subject(connection, caller.tenant, "agent", name)
        if subject.is_known is False:
            similar = f"; did you mean {', '.join(subject.similar_names)}?" if subject.similar_names else ""
            raise AgentUnknown(
                f"no agent {name} has acted here or was delegated to{similar}",
                details={"field": "value", "similar": list(subject.similar_names)},
                nothing_happened=True,
            )

    async def list_switches(self, caller: Caller) -> list[kill_switches.KillSwitch]:
        """List what is off, who turned it off, and why; of tools, those that the token may see."""
        require_auditor_scope(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            switches = await kill_switches.load_switches(connection, caller.tenant)
        return [each for each in switches if each.kind != "tool" or is_tool_visible(caller, each.value)]

    async def find_switch(
        self, caller: Caller, kind: kill_switches.SwitchKind, value: str
    ) -> kill_switches.KillSwitch | None:
        """Find the switch of a target that is off, as this gateway applies it now; None if it is on."""
        require_auditor(caller)
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        return authority.switches.find_off(kind, value)

    async def put_secret(self, caller: Caller, name: str, value: str) -> local_vault.PutResult:
        """Store a secret; the next attempt of any call uses it. It is recorded by name and stored encrypted."""
        self._require_local_vault(caller, name)
        keys = await self._runtime.keys.get(caller.tenant)

        async def act(connection: Connection) -> local_vault.PutResult:
            return await local_vault.put_secret(connection, keys, name, value, by=caller.user)

        return await self._change_authority(caller, "put_secret", name, act, content=value)

    async def delete_secret(self, caller: Caller, name: str) -> None:
        self._require_local_vault(caller, name)

        async def act(connection: Connection) -> None:
            await local_vault.delete_secret(connection, caller.tenant, name)

        await self._change_authority(caller, "delete_secret", name, act, is_tightening=True)

    async def list_secrets(self, caller: Caller) -> list[dict[str, Any]]:
        """List the names of the tenant's secrets, and who stored each and when."""
        self._require_local_vault(caller)
        (await self._runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        async with self._runtime.store.read_transaction(caller.tenant) as connection:
            return await local_vault.list_secrets(connection, caller.tenant)

    def _require_local_vault(self, caller: Caller, name: str = "") -> None:
        require_admin(caller)
        vault = self._runtime.settings.vault
        if vault.kind != "local":
            location = {"vault": vault.kind, "mount": vault.mount, "path": f"{caller.tenant}/{name}"}
            raise ExternalVaultInUse("this gateway uses an external vault, which it only reads", details=location)

    async def put_policies(self, caller: Caller, files: Sequence[PolicyFile]) -> PolicyUpdate:
        """Activate a set of policies in place of the current one; without files, the default set. If two operators are
        required, the first one's set is a proposal, and the second one's, if it is the same, activates it.

        Activating the current set again changes nothing.
        """
        require_full_admin(caller)
        # Reload: another gateway may have activated other policies a moment ago.
        authority = await self._runtime.authority.reload_tenant(caller.tenant)
        digest = await active_policies.compute_digest_off_loop(files)
        if digest == authority.policy.digest:
            return PolicyUpdate(digest=digest, epoch=authority.policy.epoch, is_new=False)

        check = _CheckedPolicies()

        async def prepare(authority: TenantAuthority) -> None:
            check.active_files = authority.policy.policies.files
            check.findings = await check_policies(self._runtime, authority, files)
            check.findings.raise_errors()
            check.policies = await active_policies.parse_for_activation(files, authority.tools.fact_types)

        command = await choose_command(self._runtime, caller, digest)

        async def act(connection: Connection) -> int | PolicyProposal:
            assert check.policies is not None
            return await perform_command(connection, caller, command, check.policies)

        result = await self._change_authority(
            caller,
            command,
            digest,
            act,
            prepare=prepare,
            list_changes=lambda: list_policy_changes(check.active_files, files),
        )
        assert check.findings is not None
        warnings = check.findings.warnings
        if isinstance(result, PolicyProposal):
            return PolicyUpdate(
                digest=digest, epoch=authority.policy.epoch, is_new=False, warnings=warnings, proposal=result
            )
        return PolicyUpdate(digest=digest, epoch=result, is_new=True, warnings=warnings)

    async def _change_authority(
        self,
        caller: Caller,
        command: str,
        subject: str,
        act: Callable[[Connection], Awaitable[T]],
        contract: Contract | None = None,
        *,
        prepare: Prepare | None = None,
        content: str = "",
        is_tightening: bool | Callable[[T], bool] = False,
        recorded_subject: str | None = None,
        list_changes: ListChanges | None = None,
    ) -> T:
        require_full_admin(caller)
        return await change_authority(
            self._runtime,
            caller,
            command,
            subject,
            act,
            contract,
            prepare=prepare,
            content=content,
            is_tightening=is_tightening,
            recorded_subject=recorded_subject,
            list_changes=list_changes,
        )
