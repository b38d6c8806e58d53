"""A shop's database in a PostgreSQL that writes down every statement, and what is looked at there from outside."""

import asyncio
import inspect
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import asyncpg
from asyncpg import introspection

from deputize.store.local_postgres import LocalPostgres
from deputize.tools.sql import changing, database, reading, validation
from proofs.sql_bounds.judge import Traces, read_statement
from tests.support.sql_shop import STATE, SqlShop, make_sql_shop

LOG_SETTINGS: Final = {
    "logging_collector": "on", "log_destination": "jsonlog", "log_statement": "all", "log_rotation_age": "0",
    "log_rotation_size": "0", "track_functions": "all",
}  # fmt: skip
LOGINS: Final = ("shop_reader", "shop_writer")
# The login that reads may read it, and no setting names it: only the tools stand before it.
_HIDDEN: Final = """
create schema hidden;
create table hidden.notes as select 1 as id, 'hidden' as name;
grant usage on schema hidden to shop_reader;
grant select on hidden.notes to shop_reader;
revoke all on products, order_lines from shop_writer;
"""
_LOOKS: Final = 300
_PAUSE_SECONDS: Final = 0.1


@dataclass(kw_only=True, slots=True)
class Arena:
    """The shop, with a connection of its administrator that watches."""

    shop: SqlShop
    watcher: asyncpg.Connection
    log: Path
    stolen_file: Path
    heard: list[object] = field(default_factory=list)

    async def read_state(self) -> tuple[str, bool, int]:
        """Read everything that others would notice."""
        return await self.watcher.fetchval(STATE), self.stolen_file.exists(), len(self.heard)

    async def collect_traces(self, offset: int, changed_states: int) -> Traces:
        """Wait until the sessions of the logins have ended, and collect what they did since a place of the log."""
        sessions_left = await self._count_sessions()
        ((calls, scans),) = await self.watcher.fetch(
            """
            select (select coalesce(sum(calls), 0) from pg_stat_user_functions)::bigint, (
              select coalesce(sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0)), 0) from pg_stat_user_tables
              where schemaname = 'hidden')::bigint
            """
        )
        return Traces(
            changed_states=changed_states, sessions_left=sessions_left, own_functions_called=calls,
            other_tables_scanned=scans, statements=tuple(await self._read_log(offset)),
        )  # fmt: skip

    async def _count_sessions(self) -> int:
        sql = "select count(*) from pg_stat_activity where usename = any ($1)"
        count = 0
        for _ in range(_LOOKS):
            count = await self.watcher.fetchval(sql, LOGINS)
            if count == 0:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        return count

    async def _read_log(self, offset: int) -> list[str]:
        """Read the statements of the logins from the log, once the collector has written all of it."""
        marker = f"select '{uuid.uuid4()}'"
        await self.watcher.execute(marker)
        content = b""
        for _ in range(_LOOKS):
            content = self.log.read_bytes()[offset:]
            if marker.encode() in content:
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            raise TimeoutError("the log of the server was not written to its end")
        lines = [json.loads(line) for line in content.splitlines() if line.startswith(b"{")]
        statements = (read_statement(each["message"]) for each in lines if each.get("user") in LOGINS)
        return [each for each in statements if each is not None]


@asynccontextmanager
async def open_arena(postgres: LocalPostgres, folder: Path) -> AsyncIterator[Arena]:
    """Make the shop in a server with `LOG_SETTINGS`."""
    # The server writes there as well, if it can be made to.
    folder.chmod(0o777)
    with make_sql_shop(postgres) as shop:
        postgres.run_sql(_HIDDEN, database=shop.name)
        watcher = await asyncpg.connect(shop.administrator)
        ((data, log),) = await watcher.fetch("select current_setting('data_directory'), pg_current_logfile('jsonlog')")
        arena = Arena(shop=shop, watcher=watcher, log=Path(data) / log, stolen_file=folder / "stolen")
        await watcher.add_listener("orders", lambda *event: arena.heard.append(event))
        try:
            yield arena
        finally:
            await watcher.close()


def list_own_statements() -> frozenset[str]:
    """List the statements with which the tools and the driver look at the catalog, each a constant of its module."""
    texts = {
        value
        for module in (changing, database, reading, validation, introspection)
        for name, value in inspect.getmembers(module)
        if isinstance(value, str) and "select" in value.lower()
    }
    texts |= {
        "select set_config(name, value, true) from unnest($1::text[], $2::text[]) as each (name, value)",
        "select pg_current_xact_id_if_assigned()::text",
        # The driver, before and after it reads the catalog.
        "SELECT current_setting('jit') AS cur, set_config('jit', 'off', false) AS new",
        "SELECT set_config('jit', $1, false)",
    }
    return frozenset(" ".join(each.split()) for each in texts)
