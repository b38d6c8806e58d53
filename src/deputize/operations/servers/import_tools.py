"""Register what a server offers: the first probe registers, every later one only compares with the pins.

    first probe   tools without a flag are registered and pinned, all in one commit; flagged ones wait for review
    later         what was changed, added or removed becomes an open change; what matches its pin again closes it
    at startup    tools that the operator now describes differently are registered anew (`settings_sync.py`)

Several gateways may probe at once: everything is decided again under the tenant's barrier, and only the first of them
finds something to do. `catalog/drift/` compares the definitions; `monitor.py` runs the probes.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import asyncpg
import orjson
import structlog

from deputize.acts.act import change_authority, commit_act, record_act
from deputize.catalog import registry
from deputize.catalog.drift.drift_job import judge_off_loop
from deputize.catalog.drift.verdicts import DriftStatus, DriftVerdict
from deputize.catalog.importers.manifest_job import JobRunner
from deputize.catalog.importers.server_contracts import build_contracts_off_loop
from deputize.catalog.registration_rules import check_conflicts
from deputize.catalog.snapshot import TenantTools
from deputize.core.caller import Caller, operator_caller
from deputize.core.contract.contract import Contract
from deputize.core.contract.serialized_contract import SerializedContract
from deputize.core.errors import ToolNotAdmitted
from deputize.core.mcp.servers import DiscoveredServer
from deputize.core.settings import McpServerSettings
from deputize.lifecycle.runtime import Runtime
from deputize.operations.servers.pins import (
    SQL,
    ServerPins,
    build_rejection_flags,
    collect_registered_names,
    encode_flags,
    is_registered,
    list_known_names,
    load_pins,
)
from deputize.store.pool import Connection

log = structlog.get_logger(__name__)
# A removed definition has no content; its row still has a name.
NO_DIGEST = ""
# Processor time for what one server declares. The largest lists that are read take about half of it.
MAX_JUDGE_SECONDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class PendingServerChange:
    """One definition that waits for review, as a row of `server_changes`."""

    item: str
    digest: str
    definition: bytes | None
    kind: str
    flags: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeResult:
    """The result of one probe: the tools it registered, and how many changes it opened."""

    registered_tools: tuple[str, ...]
    change_count: int
    server_pins: ServerPins


@dataclass(frozen=True, kw_only=True, slots=True)
class _Offers:
    """What definitions would be registered as beside these tools, and why the others cannot be, by item."""

    contracts: Mapping[str, SerializedContract]
    rejections: Mapping[str, ToolNotAdmitted]
    tools: TenantTools


class ToolImporter:
    def __init__(self, runtime: Runtime, complete_caller: Callable[[Caller], Awaitable[Caller]]) -> None:
        self._runtime = runtime
        self._complete_caller = complete_caller

    async def import_tools(self, tenant: str, server: McpServerSettings, discovery: DiscoveredServer) -> ProbeResult:
        """Register or hold everything that a probe of a server found."""
        runtime = self._runtime
        tools = (await runtime.authority.load_tenant(tenant)).tools
        async with runtime.store.read_transaction(tenant) as connection:
            server_pins = await load_pins(connection, tenant, server.name)
            known_names = await list_known_names(connection, tenant, server.name, tools)
        run_job = partial(runtime.definition_jobs.run_job, tenant, seconds=MAX_JUDGE_SECONDS)
        verdicts = await judge_off_loop(server, server_pins.pins, discovery, known_names, run_job)
        offers = await _build_offers(server, verdicts, tools, server_pins, run_job)
        by = await self._complete_caller(operator_caller(tenant))
        registered_tools: tuple[str, ...] = ()
        if not server_pins.was_probed and server.review == "changes":
            new_tools = await self._register_first_import(by, server, verdicts, offers)
            if new_tools is None:
                # Another gateway was first; compare with what it pinned.
                return await self.import_tools(tenant, server, discovery)
            registered_tools = new_tools
            async with runtime.store.read_transaction(tenant) as connection:
                server_pins = await load_pins(connection, tenant, server.name)
            verdicts = tuple(each for each in verdicts if each.item not in server_pins.pins)
        change_count = await self._open_changes(by, server, verdicts, server_pins, offers)
        if change_count is None:
            # An administrator decided meanwhile, so this was compared with old pins.
            return await self.import_tools(tenant, server, discovery)
        return ProbeResult(registered_tools=registered_tools, change_count=change_count, server_pins=server_pins)

    async def _register_first_import(
        self, by: Caller, server: McpServerSettings, verdicts: Sequence[DriftVerdict], offers: _Offers
    ) -> tuple[str, ...] | None:
        """Register and pin the definitions without flags; None if another gateway did so meanwhile."""
        clean_verdicts = [each for each in verdicts if each.status is DriftStatus.ADDED]
        new_versions = {
            each.item: offers.contracts[each.item] for each in clean_verdicts if each.item in offers.contracts
        }

        async def register_and_pin(connection: Connection) -> tuple[str, ...] | None:
            if (await load_pins(connection, by.tenant, server.name)).was_probed:
                return None
            # Under the barrier: check again for conflicts with what was registered since.
            current_tools = (await self._runtime.authority.load_tenant(by.tenant)).tools
            if current_tools.epoch != offers.tools.epoch:
                for new in new_versions.values():
                    check_conflicts(
                        new.contract,
                        find_owner=current_tools.find_owner,
                        find_fact=current_tools.find_fact,
                        find_contract=current_tools.find_contract,
                    )
            await registry.register_contracts(connection, by.tenant, list(new_versions.values()), by=by.user)
            for each in clean_verdicts:
                new_version = new_versions.get(each.item)
                contract = None if new_version is None else new_version.contract
                if contract is not None or not is_registered(each.item):
                    await pin_definition(connection, by, server.name, each, contract)
                if contract is not None:
                    await record_act(
                        self._runtime, connection, by, "register:available", f"{contract.full_name}@{contract.version}",
                        contract,
                    )  # fmt: skip
            return tuple(each.contract.full_name for each in new_versions.values())

        if not clean_verdicts:
            return ()
        return await change_authority(self._runtime, by, "import_server", server.name, register_and_pin)

    async def _open_changes(
        self,
        by: Caller,
        server: McpServerSettings,
        verdicts: Sequence[DriftVerdict],
        server_pins: ServerPins,
        offers: _Offers,
    ) -> int | None:
        """Open new changes and close obsolete ones; return how many were opened.

        None if the pins changed meanwhile, so that this was compared with old ones.
        """
        pending_changes = await asyncio.to_thread(_build_changes, verdicts, offers.rejections)
        changes_by_key = {(each.item, each.digest): each for each in pending_changes}
        async with self._runtime.store.read_transaction(by.tenant) as connection:
            rows = await connection.fetch(SQL["list_active_changes"], by.tenant, server.name)
        rows_by_key = {(row["item"], row["digest"]): row for row in rows}
        new_changes = [each for key, each in changes_by_key.items() if _is_news(each, rows_by_key.get(key))]
        stale_keys = [key for key, row in rows_by_key.items() if row["state"] == "open" and key not in changes_by_key]
        if not new_changes and not stale_keys:
            return 0

        async def write_changes(connection: Connection) -> int | None:
            if (await load_pins(connection, by.tenant, server.name)).digests != server_pins.digests:
                return None
            change_count = 0
            for each in new_changes:
                values = (each.item, each.digest, each.definition, each.kind, each.flags)
                if await connection.fetchval(SQL["open_change"], by.tenant, server.name, *values):
                    change_count += 1
                    subject = _format_subject(server, each.item, each.digest)
                    await record_act(self._runtime, connection, by, f"hold:{each.kind}", subject)
            for item, digest in stale_keys:
                if await connection.fetchval(SQL["mark_change_gone"], by.tenant, server.name, item, digest):
                    await record_act(self._runtime, connection, by, "hold_over", _format_subject(server, item, digest))
            return change_count

        change_count = await commit_act(self._runtime, by, "look_at_server", server.name, write_changes, ())
        if change_count:
            log.warning("server_changes_held", tenant=by.tenant, server=server.name, count=change_count)
        return change_count


def _is_news(change: PendingServerChange, row: asyncpg.Record | None) -> bool:
    """Tell whether a change is not recorded yet, or is open with another kind or other flags."""
    if row is None:
        return True
    return row["state"] == "open" and (row["kind"], row["flags"]) != (change.kind, change.flags)


async def pin_definition(
    connection: Connection, by: Caller, server: str, verdict: DriftVerdict, contract: Contract | None
) -> None:
    assert verdict.digest is not None
    assert verdict.declaration is not None
    await connection.execute(
        SQL["upsert_pin"], by.tenant, server, verdict.item, verdict.digest, orjson.dumps(dict(verdict.declaration)),
        None if contract is None else contract.full_name, None if contract is None else contract.version, by.user,
    )  # fmt: skip


async def _build_offers(
    server: McpServerSettings,
    verdicts: Sequence[DriftVerdict],
    tools: TenantTools,
    server_pins: ServerPins,
    run_job: JobRunner,
) -> _Offers:
    """Build the contract of each definition that differs from its pin, and check it beside the tenant's other tools."""
    definitions = [
        each.definition for each in verdicts if each.status is not DriftStatus.SAME and each.definition is not None
    ]
    if not definitions:
        return _Offers(contracts={}, rejections={}, tools=tools)
    registered_names = await asyncio.to_thread(
        collect_registered_names, server.name, tools, server_pins.confirmed_effects
    )
    built_contracts = await build_contracts_off_loop(server, definitions, registered_names, run_job)
    conflicts = await asyncio.to_thread(_find_conflicts, built_contracts.contracts, tools)
    return _Offers(
        contracts={item: each for item, each in built_contracts.contracts.items() if item not in conflicts},
        rejections={**built_contracts.rejections, **conflicts},
        tools=tools,
    )


def _find_conflicts(contracts: Mapping[str, SerializedContract], tools: TenantTools) -> dict[str, ToolNotAdmitted]:
    """Find the contracts whose names or facts belong to other tools, by item."""
    conflicts = {}
    for item, each in contracts.items():
        try:
            check_conflicts(
                each.contract,
                find_owner=tools.find_owner,
                find_fact=tools.find_fact,
                find_contract=tools.find_contract,
            )
        except ToolNotAdmitted as problem:
            conflicts[item] = problem
    return conflicts


def _build_changes(
    verdicts: Iterable[DriftVerdict], rejections: Mapping[str, ToolNotAdmitted]
) -> list[PendingServerChange]:
    """Build a change for everything that differs from its pin, with the reason if it could not be registered."""
    changes = []
    for each in verdicts:
        if each.status is DriftStatus.SAME:
            continue
        rejection = rejections.get(each.item)
        extra_flags = [] if rejection is None else build_rejection_flags(rejection)
        is_flagged = each.status is DriftStatus.ADDED and bool(extra_flags)
        changes.append(
            PendingServerChange(
                item=each.item,
                digest=NO_DIGEST if each.digest is None else each.digest,
                definition=None if each.declaration is None else orjson.dumps(dict(each.declaration)),
                kind=DriftStatus.FLAGGED if is_flagged else each.status,
                flags=encode_flags(each.flags, extra_flags),
            )
        )
    return changes


def _format_subject(server: McpServerSettings, item: str, digest: str) -> str:
    return f"{server.name} {item} {digest}".rstrip()
