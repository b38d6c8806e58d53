"""A database that lacks a checkpoint which is saved outside of it went back in time."""

import asyncio
from pathlib import Path

import asyncpg
import pytest

from deputize.app import open_gateway
from deputize.interfaces.cli.diagnostics.lineage_checks import check_lineage
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles, SavedCheckpoint
from deputize.store.restore_guard.lineage import WentBackError
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.integration.operations.test_restored_database import remember_in, wait_for_readiness
from tests.support.restored_database import confirm_recovery, drop_connections

pytestmark = pytest.mark.requirement("GOV-5")


async def wait_for_file(gateway: HttpGateway, folder: Path, *, ended_lineage: str = "") -> tuple[str, SavedCheckpoint]:
    """Make a call, and wait until a checkpoint of the lineage is in a file."""
    assert (await gateway.call("shop.get_user", {"id": 1})).status_code == 200
    async with asyncio.timeout(60):
        while True:
            for path in (folder / "checkpoints").glob("*"):
                saved = CheckpointFiles(folder).get(path.name, "dev")
                if saved is not None and path.name != ended_lineage:
                    return path.name, saved
            await asyncio.sleep(0.05)


async def lose_logs(dsn: str) -> None:
    """Make the database lack every checkpoint, as a restore to before the first one does."""
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        # Nobody appends beside it or after it: what a restore lost is not followed by anything.
        await connection.execute(
            "update deputize.log_sequencer set owner = gen_random_uuid(), epoch = epoch + 1, expires_at = 'infinity'"
        )
        # Of all tenants, as a restore does: the last checkpoint that was committed may be of any of them.
        await connection.execute("delete from deputize.log_checkpoints")
        await connection.execute("delete from deputize.log_leaves")
    await drop_connections(connection)
    await connection.close()


async def test_a_log_that_lost_a_checkpoint_stops_the_gateway_until_a_person_confirms(
    fresh_database: str, tmp_path: Path
) -> None:
    folder = tmp_path / "lineage"
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(folder)) as gateway:
        lineage, saved = await wait_for_file(gateway, folder)
        checkpoint = await gateway.get("/log/dev/checkpoint", token=gateway.token("root", scopes=(ADMIN,)))
        assert checkpoint.status_code == 200
        assert f"\n{saved.size}\n".encode() in saved.note
        settings = gateway.settings
        finding = await check_lineage(settings, fresh_database)
        assert (finding.status, "compared" in finding.summary) == ("good", True)
        await lose_logs(fresh_database)
        ready = await wait_for_readiness(gateway, 503)
        while "lacks the checkpoint" not in ready.text:
            ready = await gateway.http.get("/readyz")
        assert (await gateway.call("shop.get_user", {"id": 1})).status_code == 503
        finding = await check_lineage(settings, fresh_database)
        assert (finding.status, "went back in time" in finding.summary) == ("broken", True)

    with pytest.raises(WentBackError, match=r"the log of tenant [a-z]+ lacks the checkpoint over"):
        async with open_gateway(settings, development=True):
            raise AssertionError("a gateway on a database that went back must not open")

    await confirm_recovery(settings)
    connection = await asyncpg.connect(fresh_database)
    await connection.execute("update deputize.log_sequencer set owner = null, expires_at = now()")
    await connection.close()
    async with serve_gateway(fresh_database, tmp_path, change=remember_in(folder)) as gateway:
        await wait_for_readiness(gateway, 200)
        await wait_for_file(gateway, folder, ended_lineage=lineage)
    # What was signed in the lost time is still there, as evidence.
    evidence = CheckpointFiles(folder).get(lineage, "dev")
    assert evidence is not None
    assert evidence.size >= saved.size
