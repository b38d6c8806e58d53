"""Confirm, without a gateway, that a database that went back in time is to be used: all gateways have stopped."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import Settings
from deputize.evidence.audit_entries import TimestampFormatter, encode_act
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.operator_identity import complete_caller, identify_operator
from deputize.store.local_postgres import LocalPostgres
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles
from deputize.store.restore_guard.lineage import DatabaseState
from deputize.store.restore_guard.record_files import LineageRecord, read_records
from deputize.store.restore_guard.recovery import Recovery, begin_lineage, list_tenants, load_state, stop_gateways

_RUNS = load_statements("runs")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class RestoredDatabase:
    """The database of the settings, what it lacks, and who may confirm that it is to be used."""

    settings: Settings
    address: str
    store: Store
    records: list[LineageRecord]
    state: DatabaseState
    is_development: bool

    async def identify_person(self, token: str) -> tuple[Caller | None, str]:
        """Return the operator whose token this is, and the rule that accepts them; in development, who sits there."""
        return await identify_operator(self.settings, self.store, token, is_development=self.is_development)

    async def confirm(self, person: Caller | None, rule: str) -> Recovery | None:
        """Begin a new lineage and record it in every tenant's audit log; None if another operator did meanwhile."""
        if not self.state.is_marked and not self.state.is_known:
            raise ConfigError(
                f"Nothing was changed: the records of this machine are about another database than {self.address}. "
                "Check url under [database] in deputize.toml."
            )
        await stop_gateways(self.store, self.state)
        clock, tenants = Clock(), await list_tenants(self.store)
        callers = {tenant: await complete_caller(self.store, clock, tenant, person) for tenant in tenants}

        async def record(connection: Connection, tenant: str, lineage: str) -> None:
            if tenant not in callers:
                raise ConfigError(f"Nothing was changed, because tenant {tenant} is new: run the command again.")
            caller = callers[tenant]
            entry_id, now = clock.new_id(), TimestampFormatter(clock).now()
            body = encode_act(caller, id=entry_id, time=now, command="recover", subject=lineage, confirmation=rule)
            await connection.execute(_RUNS["insert_audit_entry"], tenant, entry_id, None, body, None)

        # Sums grow from lineage to lineage, so that those of lost lineages count, too.
        known_sum = max((each.epoch_sum for each in self.records), default=0)
        return await begin_lineage(self.store, self.state, self.records, known_sum - self.state.epoch_sum, record)


def run_recovery(settings: Settings, act: Callable[[RestoredDatabase], Awaitable[T]]) -> T:
    """Open the database of the settings, run a command on it, and explain what goes wrong."""
    configured_dsn = database.get_direct_dsn(settings)
    folder = database.locate_lineage(settings)

    async def open_and_act(dsn: str) -> T:
        async with open_store(dsn) as store:
            records = read_records(folder)
            target = RestoredDatabase(
                settings=settings,
                address=database.describe_dsn(dsn),
                store=store,
                records=records,
                state=await load_state(store, records, CheckpointFiles(folder)),
                is_development=configured_dsn is None,
            )
            return await act(target)

    with contextlib.ExitStack() as stack:
        dsn = configured_dsn or database.find_local_dsn(settings.folder) or _start_local(settings.folder, stack)
        database.require_current_schema(dsn)
        try:
            return asyncio.run(open_and_act(dsn))
        except Problem as problem:
            raise ConfigError(f"{problem.message[:1].upper()}{problem.message[1:]}. {problem.advice}") from problem
        except database.CONNECTION_ERRORS as error:
            raise database.explain_error(error, dsn) from error


def _start_local(folder: Path, stack: contextlib.ExitStack) -> str:
    """Start the local database: `deputize dev` does not run on a database that went back."""
    if not (folder / "pg.json").exists():
        raise ConfigError(
            "No database is configured: set url under [database] in deputize.toml, or DEPUTIZE_DATABASE__URL. In "
            "development, deputize dev creates one, and there is none in this project yet."
        )
    return stack.enter_context(LocalPostgres(folder)).dsn


@contextlib.asynccontextmanager
async def open_store(dsn: str) -> AsyncIterator[Store]:
    """Open a database for one command, whatever it lacks."""
    store = await Store.open(dsn, read_connections=2)
    try:
        yield store
    finally:
        await store.close()
