"""Connection poolers between a gateway and PostgreSQL, with the real PgBouncer of Debian 12, which is below 1.21."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from deputize.interfaces.cli.local import database
from deputize.store.database_checks import check_prepared_statements
from proofs.kit.reserved_port import reserve_port

_PROGRAM = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
_SETTINGS = """
[databases]
* = host={host} port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = plain
auth_file = {folder}/users
pool_mode = {mode}
"""


@contextmanager
def run_pgbouncer(dsn: str, folder: Path, mode: str) -> Iterator[str]:
    """Run PgBouncer in front of a database, and yield the URL through it."""
    assert _PROGRAM is not None
    parts = urlsplit(dsn)
    port = reserve_port()
    (folder / "users").write_text(f'"{parts.username}" "{parts.password}"\n')
    settings = _SETTINGS.format(host=parts.hostname, server_port=parts.port, port=port, folder=folder, mode=mode)
    (folder / "pgbouncer.ini").write_text(settings)
    account = ["-u", "nobody"] if os.geteuid() == 0 else []
    with subprocess.Popen([_PROGRAM, "-q", *account, str(folder / "pgbouncer.ini")], stderr=sys.stderr) as process:
        try:
            yield dsn.replace(f":{parts.port}/", f":{port}/")
        finally:
            process.terminate()


async def wait_for_connection(dsn: str) -> None:
    async with asyncio.timeout(90):
        while True:
            try:
                connection = await asyncpg.connect(dsn)
            except OSError:
                await asyncio.sleep(0.05)
            else:
                await connection.close()
                return


@pytest.mark.skipif(_PROGRAM is None, reason="PgBouncer is not installed")
async def test_a_pooler_that_loses_prepared_statements_is_named(fresh_database: str, reachable_folder: Path) -> None:
    with run_pgbouncer(fresh_database, reachable_folder, "transaction") as dsn:
        await wait_for_connection(dsn)
        with pytest.raises(asyncpg.InvalidSQLStatementNameError) as refusal:
            await check_prepared_statements(dsn)
    message = str(database.explain_error(refusal.value, dsn))
    assert "loses prepared statements" in message
    assert "use PgBouncer 1.21 or newer" in message


@pytest.mark.skipif(_PROGRAM is None, reason="PgBouncer is not installed")
async def test_a_pooler_that_keeps_sessions_is_accepted(fresh_database: str, reachable_folder: Path) -> None:
    with run_pgbouncer(fresh_database, reachable_folder, "session") as dsn:
        await wait_for_connection(dsn)
        await check_prepared_statements(dsn)


async def test_a_database_without_a_pooler_is_accepted(fresh_database: str) -> None:
    await check_prepared_statements(fresh_database)
