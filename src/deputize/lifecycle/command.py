"""Administrative acts: the only way authority changes. Each is asked for by an administrator, made under the tenant's
closed barrier, and recorded in the same commit.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeVar

from deputize.catalog import registry
from deputize.catalog.admission import admit
from deputize.catalog.importers.manifest import contract_from
from deputize.core.caller import Caller
from deputize.core.contract import Contract, LifecycleState
from deputize.core.errors import Malformed, SecretsElsewhere
from deputize.execute.drivers.python import not_loaded
from deputize.govern import switches
from deputize.govern.decide import require_admin, require_administering
from deputize.govern.identity import revocations
from deputize.govern.policy import force
from deputize.govern.policy.rules import Mistake, PolicyFile, set_digest
from deputize.govern.vault import local as local_vault
from deputize.lifecycle.barrier import change
from deputize.lifecycle.checking import checked
from deputize.lifecycle.rooms import Rooms
from deputize.store.pool import Connection

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class PoliciesPut:
    digest: str
    epoch: int
    changed: bool
    warnings: tuple[Mistake, ...] = ()


class Commands:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def register(
        self, caller: Caller, contract: Contract, *, state: LifecycleState = LifecycleState.AVAILABLE
    ) -> Literal["created", "unchanged"]:
        """Admits a contract and makes it known; the same contract again changes nothing."""

        async def act(connection: Connection) -> Literal["created", "unchanged"]:
            known = (await self._rooms.authority.of(caller.tenant)).tools
            admit(contract, known=known.owner_of, facts=known.fact, other=known.contract_of)
            return await registry.register(connection, caller.tenant, contract, by=caller.user, state=state)

        return await self._change(
            caller, f"register:{state}", f"{contract.full_name}@{contract.version}", act, contract
        )

    async def declare(self, caller: Caller, declared: Any) -> tuple[Contract, Literal["created", "unchanged"]]:
        """Registers what was sent from outside. It may name only functions that are loaded here for its tenant: whoever
        may register a tool may not thereby choose what code runs, nor learn what others run.
        """
        require_admin(caller)
        contract = contract_from(declared)
        tools = self._rooms.settings.tools
        if caller.tenant != tools.tenant and not any(fnmatchcase(caller.tenant, each) for each in tools.shared_with):
            raise not_loaded(contract)
        if contract.handler.driver != "python":
            # The tools of a server come from the server, pinned, and from nobody else's word.
            raise not_loaded(contract)
        self._rooms.driver.find(contract)
        return contract, await self.register(caller, contract)

    async def set_state(self, caller: Caller, name: str, version: str, state: LifecycleState) -> None:
        """Moves a version through its life; `retired` is the end of it."""

        async def act(connection: Connection) -> None:
            await registry.set_state(connection, caller.tenant, name, version, state)

        await self._change(caller, f"set_state:{state}", f"{name}@{version}", act)

    async def revoke(self, caller: Caller, kind: revocations.Kind, value: str, *, reason: str = "") -> int:
        """From the epoch this answers, nothing begins on the revoked authority, on any gateway."""

        async def act(connection: Connection) -> int:
            return await revocations.revoke(connection, caller.tenant, kind, value, reason=reason, by=caller.user)

        return await self._change(caller, f"revoke:{kind}", value, act)

    async def switch(self, caller: Caller, kind: switches.Kind, value: str, *, off: bool, reason: str = "") -> int:
        """From the epoch this answers, what is off begins nothing on any gateway. Turning something on is never stopped
        by the tenant's own switch, or nobody could.
        """
        require_admin(caller)
        if kind == "tool":
            # A name that nobody has, or an alias, would be off and stop nothing.
            value = (await self._rooms.authority.of(caller.tenant)).tools.entry(value).name
        if not value:
            raise Malformed(f"which {kind} is meant was not said", details={"field": "value"})
        if kind == "tenant" and value != caller.tenant:
            raise Malformed("only your own tenant can be switched", details={"field": "value"})

        async def act(connection: Connection) -> int:
            return await switches.turn(connection, caller.tenant, kind, value, off=off, reason=reason, by=caller.user)

        return await self._change(caller, f"switch_{'off' if off else 'on'}:{kind}", value, act)

    async def switched_off(self, caller: Caller) -> list[switches.Switch]:
        """What is off now, who turned it off, and why."""
        require_admin(caller)
        authority = await self._rooms.authority.look_again(caller.tenant)
        authority.revocations.check(caller)
        return authority.switches.off()

    async def put_secret(self, caller: Caller, name: str, value: str) -> local_vault.Put:
        """The next attempt of any call finds it. Recorded by name; the value is only ever sealed."""
        self._keep_secrets_here(caller, name)
        keys = self._rooms.keys.ready(caller.tenant) or await self._rooms.keys.load(self._rooms.store, caller.tenant)

        async def act(connection: Connection) -> local_vault.Put:
            return await local_vault.put(connection, keys, name, value, by=caller.user)

        return await self._change(caller, "put_secret", name, act)

    async def delete_secret(self, caller: Caller, name: str) -> None:
        self._keep_secrets_here(caller, name)

        async def act(connection: Connection) -> None:
            await local_vault.delete(connection, caller.tenant, name)

        await self._change(caller, "delete_secret", name, act)

    async def secrets(self, caller: Caller) -> list[dict[str, Any]]:
        """The names of the tenant's secrets, and who put each there when."""
        self._keep_secrets_here(caller)
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            return await local_vault.listed(connection, caller.tenant)

    def _keep_secrets_here(self, caller: Caller, name: str = "") -> None:
        require_admin(caller)
        vault = self._rooms.settings.vault
        if vault.kind != "local":
            place = {"vault": vault.kind, "mount": vault.mount, "path": f"{caller.tenant}/{name}"}
            raise SecretsElsewhere("the secrets of this gateway lie in a vault that it only reads", details=place)

    async def put_policies(self, caller: Caller, files: Sequence[PolicyFile]) -> PoliciesPut:
        """Puts a set of policies in force, in place of the one before; without files, the default set. The set that is
        in force already is not put again.
        """
        require_admin(caller)
        # Not from memory: another gateway may have put others a moment ago, and then these are not in force.
        authority = await self._rooms.authority.look_again(caller.tenant)
        digest = set_digest(files or force.default_files())
        if digest == authority.policy.digest:
            return PoliciesPut(digest=digest, epoch=authority.policy.epoch, changed=False)

        findings = await checked(authority, files)
        findings.require()

        async def act(connection: Connection) -> int:
            return await force.put(connection, caller.tenant, files, authority.tools.fact_types, by=caller.user)

        epoch = await self._change(caller, "put_policies", digest, act)
        return PoliciesPut(digest=digest, epoch=epoch, changed=True, warnings=findings.warnings)

    async def _change(
        self,
        caller: Caller,
        command: str,
        subject: str,
        act: Callable[[Connection], Awaitable[T]],
        contract: Contract | None = None,
    ) -> T:
        require_administering(caller)
        return await change(self._rooms, caller, command, subject, act, contract)
