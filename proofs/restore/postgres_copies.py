"""Copies of a running PostgreSQL: a backup that is restored later, and a standby that is promoted."""

import asyncio
import json
from collections.abc import Mapping
from urllib.parse import urlsplit

from deputize.store.local_postgres import LocalPostgres
from deputize.store.local_postgres_host import choose_account, find_installation, run_as
from proofs.kit.sandbox import Sandbox

_IS_SYNCHRONOUS = "select exists (select from pg_stat_replication where sync_state = 'sync')"
RESTORE_SETTINGS = {
    "restore_command": "false",
    "recovery_target": "immediate",
    "recovery_target_action": "promote",
}

KEEP_LOG_SETTINGS = {"wal_keep_size": "4GB"}


async def copy_postgres(
    sandbox: Sandbox, source: LocalPostgres, name: str, *, port: int, signal_file: str, settings: Mapping[str, str]
) -> LocalPostgres:
    """Copy a server with `pg_basebackup`, and return the copy, not started."""

    def copy() -> LocalPostgres:
        folder = sandbox.folder / name
        folder.mkdir(mode=0o711)
        data = folder / "pg"
        data.mkdir(mode=0o700)
        account = choose_account(data)
        account.set_owner(data, 0o700)
        program = find_installation(account).path("pg_basebackup")
        result = run_as(account, [program, "-d", source.dsn, "-D", str(data), "-X", "stream", "-c", "fast"])
        if result.returncode:
            raise RuntimeError(f"the server was not copied: {result.stderr}")
        (data / signal_file).touch()
        account.set_owner(data / signal_file, 0o600)
        record = {"password": urlsplit(source.dsn).password, "port": port}
        (folder / "pg.json").write_text(json.dumps(record))
        return LocalPostgres(folder, port=port, settings=settings)

    server = await asyncio.to_thread(copy)
    sandbox.add_cleanup(lambda: asyncio.to_thread(server.erase))
    return server


async def make_backup(sandbox: Sandbox, source: LocalPostgres, name: str) -> LocalPostgres:
    """Back the server up; started, the backup takes its place as of now."""
    return await copy_postgres(
        sandbox, source, name, port=source.port, signal_file="recovery.signal", settings=RESTORE_SETTINGS
    )


async def make_base_backup(sandbox: Sandbox, source: LocalPostgres, name: str) -> LocalPostgres:
    """Back the server up; started after `set_moment`, the backup takes its place as of a later moment.

    The log up to there is read where the server left it, which has to keep it (`wal_keep_size`).
    """
    settings = {
        "restore_command": f"cp {source.data}/pg_wal/%f %p",
        "recovery_target_action": "promote",
        **KEEP_LOG_SETTINGS,
    }
    return await copy_postgres(
        sandbox, source, name, port=source.port, signal_file="recovery.signal", settings=settings
    )


def set_moment(backup: LocalPostgres, position: str) -> None:
    """Choose the moment that a base backup is restored to, by its position in the log."""
    with (backup.data / "postgresql.auto.conf").open("a") as file:
        file.write(f"recovery_target_lsn = '{position}'\n")


async def start_standby(sandbox: Sandbox, source: LocalPostgres, name: str, port: int) -> LocalPostgres:
    """Start a synchronous standby, and return once every commit waits for it."""
    parts = urlsplit(source.dsn)
    connection = f"host={parts.hostname} port={parts.port} user={parts.username} password={parts.password}"
    standby = await copy_postgres(
        sandbox, source, name, port=port, signal_file="standby.signal", settings={"primary_conninfo": connection}
    )
    await asyncio.to_thread(standby.start)
    for statement in ("alter system set synchronous_standby_names = '*'", "select pg_reload_conf()"):
        await asyncio.to_thread(source.run_sql, statement)
    async with asyncio.timeout(60):
        while await asyncio.to_thread(source.run_sql, _IS_SYNCHRONOUS) != "t":  # noqa: ASYNC110 -- the server's state
            await asyncio.sleep(0.1)
    return standby


async def promote_standby(standby: LocalPostgres) -> None:
    """Make a standby the primary. It has no standby of its own yet, so its commits wait for none."""
    await asyncio.to_thread(standby.run_sql, "select pg_promote()")
    for statement in ("alter system set synchronous_standby_names = ''", "select pg_reload_conf()"):
        await asyncio.to_thread(standby.run_sql, statement)
