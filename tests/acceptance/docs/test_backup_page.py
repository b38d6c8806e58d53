"""The page about backups keeps its word: what it configures archives and restores, and its commands rehearse both.

Servers are started and stopped by the test, because the page leaves that to whoever runs PostgreSQL. pgBackRest and
Patroni are not run: a script of the name of `patronictl` promotes the standby as a person would.
"""

import asyncio
import json
import os
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deputize.store.local_postgres import LocalPostgres
from deputize.store.local_postgres_host import choose_account, find_installation, run_as
from proofs.kit.child_process import CommandResult
from proofs.kit.gateway import create_issuer, start_gateway
from proofs.kit.helper_servers import start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox
from proofs.kit.write_load import run_load
from proofs.restore.postgres_copies import start_standby
from tests.support.gateway_lab import wait_until

PAGE = (Path(__file__).resolve().parents[3] / "docs/how-to/back-up-and-restore.md").read_text(encoding="utf-8")
pytestmark = [pytest.mark.nightly, pytest.mark.requirement("EXE-6")]
LEASE_SECONDS = 3.0
SWITCHOVER = """#!{python}
import sys
from pathlib import Path
from deputize.store.local_postgres import LocalPostgres
if sys.argv[1:] != ["switchover", "--force"]:
    sys.exit("unknown words")
primary, standby = (LocalPostgres(Path(each)) for each in {folders})
primary.kill()
for statement in ("select pg_promote()", "alter system set synchronous_standby_names = ''", "select pg_reload_conf()"):
    standby.start().run_sql(statement)
"""


def read_settings(backup: Path, first: str) -> dict[str, str]:
    """Read the block of settings of PostgreSQL that begins with a name, with the folder of this test."""
    (block,) = (each for each in re.findall(r"```ini\n(.*?)```", PAGE, re.DOTALL) if each.startswith(first))
    lines = (line.partition(" = ") for line in block.splitlines())
    return {name: value.strip("'").replace("/backup", str(backup)) for name, _, value in lines}


def read_command(program: str) -> list[str]:
    """Read the words of a command that the page types, without variables and its address."""
    (line,) = re.findall(rf"^ *\$ (?:\S+=\S+ )?({re.escape(program)}.*)$", PAGE, re.MULTILINE)
    return shlex.split(line)


async def test_what_the_page_archives_is_restored_as_it_says_and_rehearsed_by_its_command() -> None:
    async with Sandbox() as sandbox:
        backup, account = sandbox.folder / "backup", choose_account(sandbox.folder)
        for folder in (backup, backup / "wal"):
            folder.mkdir()
            account.set_owner(folder, 0o700)
        archive = read_settings(backup, "archive_mode = on\narchive_command = 'test")
        live = await sandbox.start_postgres(settings=archive)
        issuer, ledger = create_issuer(), await start_ledger(sandbox)
        gateway = await start_gateway(
            sandbox, live.dsn, issuer, tools="effects.py", env={"PROOF_LEDGER": ledger.url},
            settings=f"[timing]\nlease_seconds = {LEASE_SECONDS}",
        )  # fmt: skip
        token, url = issuer.issue_token("writer"), gateway.url

        async def write(name: str) -> None:
            async with run_load([url], token, name=name, callers=2, per_second=20):
                await asyncio.sleep(1)

        await write("before")
        program, *words = read_command("pg_basebackup")
        words = [each.replace("/backup", str(backup)) for each in words]
        copied = await asyncio.to_thread(
            run_as, account, [find_installation(account).path(program), *words, "-d", live.dsn]
        )
        assert copied.returncode == 0, copied.stderr
        await write("kept")
        moment = live.run_sql("select clock_timestamp()")
        http = HttpConnection.for_url(url, token=issuer.issue_token("admin", scopes=("deputize:admin",)))
        assert (await http.post("/v1/revocations", {"kind": "subject", "value": "bot"})).status == 201
        http.close()
        await write("lost")
        segment = live.run_sql("select pg_walfile_name(pg_switch_wal())")

        async def is_archived() -> bool:
            return (backup / "wal" / segment).exists()

        await wait_until(is_archived)
        scratch = make_scratch_server(sandbox, live, backup, moment)
        sandbox.add_cleanup(lambda: asyncio.to_thread(scratch.erase))
        await asyncio.to_thread(scratch.start)
        # The leases that were copied with it end.
        await asyncio.sleep(2 * LEASE_SECONDS)

        told = await run_deputize(sandbox, read_command("deputize drill restore"), gateway.folder, scratch.dsn)

    assert told.code == 0, told.stdout + told.stderr
    assert "went back in time" in told.stdout + told.stderr
    assert re.search(r"acme .*1 revocation", told.stdout), told.stdout
    assert "The master key opens the keys of 1 tenant" in told.stdout


def make_scratch_server(sandbox: Sandbox, live: LocalPostgres, backup: Path, moment: str) -> LocalPostgres:
    """Do what the page says to restore: copy the base backup, and add a signal file and settings."""
    folder, account = sandbox.folder / "scratch", choose_account(sandbox.folder)
    folder.mkdir(mode=0o711)
    (backup / "base").rename(folder / "pg")
    (folder / "pg" / "recovery.signal").touch()
    account.set_owner(folder / "pg" / "recovery.signal", 0o600)
    settings = read_settings(backup, "restore_command") | {"recovery_target_time": moment}
    with (folder / "pg" / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
    port = sandbox.pick_free_port()
    (folder / "pg.json").write_text(json.dumps({"password": urlsplit(live.dsn).password, "port": port}))
    return LocalPostgres(folder, port=port)


async def test_the_command_of_the_page_rehearses_a_failover_on_a_cluster() -> None:
    async with Sandbox() as sandbox:
        primary = await sandbox.start_postgres()
        standby = await start_standby(sandbox, primary, "standby", port=sandbox.pick_free_port())
        primary.run_sql("create database drill", database="postgres")
        login, _, place = primary.dsn_for("drill").partition("@")
        host = place.partition("/")[0]
        dsn = f"{login}@{host},127.0.0.1:{standby.port}/drill?target_session_attrs=read-write"
        folders = [str(primary.folder), str(standby.folder)]
        programs, project = sandbox.folder / "bin", sandbox.folder / "project"
        for each in (programs, project):
            each.mkdir()
        (project / "deputize.toml").touch()
        (programs / "patronictl").write_text(SWITCHOVER.format(python=sys.executable, folders=folders))
        (programs / "patronictl").chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"

        told = await run_deputize(sandbox, read_command("deputize drill failover"), project, dsn, PATH=path)

    assert told.code == 0, told.stdout + told.stderr
    assert "of which the new primary lacks 0" in told.stdout
    assert "No acknowledged call was lost, and none was done twice" in told.stdout


async def run_deputize(sandbox: Sandbox, words: list[str], folder: Path, url: str, **env: str) -> CommandResult:
    command = [sys.executable, "-m", *words]
    return await sandbox.run_command(command, cwd=folder, env={"DEPUTIZE_DRILL_URL": url, **env})
