"""Drills of a restore and a failover, with real copies of a real PostgreSQL."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import asyncpg
import pytest

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE
from deputize.core.config_error import ConfigError
from deputize.core.settings import DatabaseSettings, Settings
from deputize.interfaces.cli.local.drills import drill_failover, drill_restore
from deputize.store.local_postgres import LocalPostgres
from deputize.store.local_postgres_host import find_free_port
from proofs.kit.sandbox import Sandbox
from proofs.restore.postgres_copies import start_standby
from tests.integration.conftest import serve_gateway
from tests.integration.operations.test_restored_database import remember_in
from tests.support import shop_tools
from tests.support.gateway_lab import wait_until

pytestmark = pytest.mark.requirement("EXE-6")


@pytest.fixture
def copy_database(postgres: LocalPostgres) -> Iterator[Callable[[str], str]]:
    """Copy a database as a backup of now has it, restored beside it."""
    names: list[str] = []

    def copy(dsn: str) -> str:
        name = dsn.rsplit("/", 1)[1]
        names.append(f"{name}_copy{len(names)}")
        for statement in (
            f"alter database {name} allow_connections false",
            f"select pg_terminate_backend(pid) from pg_stat_activity where datname = '{name}'",
            f"create database {names[-1]} template {name}",
            f"alter database {name} allow_connections true",
        ):
            postgres.run_sql(statement, database="postgres")
        # The gateway of the copy's time is gone.
        postgres.run_sql("update deputize.leases set expires_at = now()", database=names[-1])
        return postgres.dsn_for(names[-1])

    yield copy
    for name in names:
        postgres.run_sql(f"drop database {name} with (force)", database="postgres")


async def test_a_drill_reports_what_a_restored_copy_lacks(
    fresh_database: str, copy_database: Callable[[str], str], tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        assert (await gateway.call("shop.rename_user", {"id": 1, "name": "x"}, key="before")).status_code == 200
        slow = asyncio.create_task(gateway.call("shop.slow_note", {"name": "drill"}, key="open"))
        await shop_tools.start_events.setdefault("drill", asyncio.Event()).wait()
        copy, other_copy = [await asyncio.to_thread(copy_database, fresh_database) for _ in range(2)]
        admin = gateway.token("ada", scopes=(ADMIN_SCOPE,))
        revocation = {"kind": "agent", "value": "bot"}

        async def is_revoked() -> bool:
            return (await gateway.post("/v1/revocations", revocation, token=admin)).status_code == 201

        # The copy took its connections.
        await wait_until(is_revoked)
        settings = gateway.settings
        with pytest.raises(ConfigError, match=r"is the live database of deputize\.toml"):
            await asyncio.to_thread(drill_restore, settings, fresh_database)
        alias = fresh_database.replace("127.0.0.1", "localhost")
        with pytest.raises(ConfigError, match=r"is the live database of deputize\.toml"):
            await asyncio.to_thread(drill_restore, settings, alias)

        report = await asyncio.to_thread(drill_restore, settings, copy)

        assert report.is_live_compared
        assert report.loss is not None
        assert (report.unknown_calls, report.void_approvals, report.key_problem) == (1, 0, None)
        (tenant,) = (each for each in report.tenants if each.tenant == "dev")
        assert tenant.lost_entries is not None
        assert tenant.lost_entries >= 1
        assert tenant.lost_acts is not None
        assert tenant.lost_acts["revocation"] == 1
        project = tmp_path / "project"
        project.mkdir()
        (project / "deputize.toml").write_text("")
        env = os.environ | {
            "DEPUTIZE_DATABASE__URL": fresh_database,
            "DEPUTIZE_DATABASE__LINEAGE_FOLDER": str(tmp_path / "lineage"),
            "DEPUTIZE_KEYS__MASTER_FILE": str(settings.keys.master_file),
            "DEPUTIZE_DRILL_URL": other_copy,
        }
        command = [sys.executable, "-m", "deputize", "drill", "restore"]
        run = partial(subprocess.run, command, cwd=project, env=env, capture_output=True, text=True, check=False)
        told, again = [await asyncio.to_thread(run) for _ in range(2)]
        assert (told.returncode, "1 call UNKNOWN, 0 approval requests void" in told.stdout) == (0, True), told
        assert "1 revocation" in told.stdout
        assert (again.returncode, "is no copy of the database" in again.stderr) == (2, True), again
        # The live database goes on, in the lineage that it was in.
        shop_tools.release_events.setdefault("drill", asyncio.Event()).set()
        assert (await slow).json()["state"] == "succeeded"
        live, restored = await asyncpg.connect(fresh_database), await asyncpg.connect(copy)
        count = "select count(*) from deputize.lineages"
        assert [await each.fetchval(count) for each in (live, restored)] == [1, 2]
        for each in (live, restored):
            await each.close()


async def test_a_drill_refuses_a_database_that_is_no_copy_and_one_in_use(
    fresh_database: str, make_database: Callable[[], str], tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(tmp_path / "lineage")) as gateway:
        other = make_database()
        connection = await asyncpg.connect(other)
        # All databases of the tests come from one template.
        await connection.execute("update deputize.lineages set id = gen_random_uuid()")
        await connection.close()
        with pytest.raises(ConfigError, match="is no copy of the database"):
            await asyncio.to_thread(drill_restore, gateway.settings, other)
        live = gateway.settings.model_copy(update={"database": DatabaseSettings.model_validate({"url": other})})
        with pytest.raises(ConfigError, match="gateways or workers are alive"):
            await asyncio.to_thread(drill_restore, live, fresh_database)


@pytest.mark.nightly
async def test_a_failover_drill_loses_nothing_with_a_synchronous_standby() -> None:
    async with Sandbox() as sandbox:
        primary = await sandbox.start_postgres()
        standby = await start_standby(sandbox, primary, "standby", port=find_free_port("127.0.0.1"))
        login, _, place = primary.dsn_for("postgres").partition("@")
        dsn = f"{login}@{place.partition('/')[0]},127.0.0.1:{standby.port}/drill?target_session_attrs=read-write"
        primary.run_sql("create database drill", database="postgres")
        free = "alter system set synchronous_standby_names = ''"

        def promote() -> None:
            primary.kill()
            standby.run_sql("select pg_promote()")
            standby.run_sql(free)
            standby.run_sql("select pg_reload_conf()")

        report = await asyncio.to_thread(
            drill_failover, open_gateway, Settings(), dsn, promote="", rate=20, limit_seconds=60, report_steady=promote
        )
    assert report.was_promoted
    assert report.had_synchronous_standby
    assert report.acknowledged > 20
    assert (report.lost, report.done_twice) == ([], [])
    assert report.repeated <= sum(report.refused.values())
    assert report.seconds_without_calls > 0


async def test_a_failover_drill_refuses_a_database_that_has_calls(fresh_database: str) -> None:
    with pytest.raises(ConfigError, match=r"has a schema deputize.*create an empty database"):
        await asyncio.to_thread(
            drill_failover,
            open_gateway,
            Settings(),
            fresh_database,
            promote="",
            rate=20,
            limit_seconds=60,
            report_steady=pytest.fail,
        )
