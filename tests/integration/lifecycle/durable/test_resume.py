"""Runs that no one seems to have, or that one worker cannot read, find a worker all the same."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deputize.core.clock import Clock
from deputize.core.contract.tools import ToolProgress
from deputize.lifecycle.durable.active_runs import ActiveRun, ActiveRuns
from deputize.lifecycle.durable.resume import RunNotReady, load_pending_run
from deputize.store.keys import MasterKey
from tests.integration.operations.background.test_worker import begin_run, expire_lease, open_worker_lab, start_run
from tests.support.gateway_lab import open_lab, wait_until
from tests.support.scripted_tools import list_effects

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]


async def test_what_a_worker_was_handed_after_it_was_buried_is_found_when_it_dies(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as buried:
        call = await start_run(buried, "note", "orphaned", "k")
        # It was away, so others took over what it had and struck it off; it came back, got this, and was killed.
        await buried.db.execute(
            "update dbos.workflow_status set status = 'PENDING', executor_id = $1", buried.runtime.lease.boot_id
        )
        await expire_lease(buried, buried)
        async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
            await lab.wait_for_state(call, "succeeded")
            assert len(list_effects("orphaned")) == 1


async def test_a_run_sealed_with_a_newer_key_than_its_worker_knows_is_executed(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _), open_lab(fresh_database, tmp_path) as other:
        assert lab.runtime.keys.find("dev") is not None
        master = MasterKey.read(tmp_path / "master.key")
        wrapped = master.wrap("dev", 2, Clock().random_bytes(32), Clock())
        await lab.db.execute(
            "insert into deputize.tenant_keys (tenant, version, wrapped) values ('dev', 2, $1)", wrapped
        )
        assert (await other.runtime.keys.load("dev")).newest_version == 2
        await lab.wait_for_state(await start_run(other, "note", "newer-key", "k"), "succeeded")


async def test_a_worker_with_another_master_key_breaks_nothing_that_others_can_open(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deputize.lifecycle.durable.resume._RETRY_LATER_SECONDS", 0.05)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _), open_lab(fresh_database, tmp_path) as submitting:
        keys: Any = lab.runtime.keys
        own, keys._master = keys._master, MasterKey(material=Clock().random_bytes(32))
        keys.forget("dev")
        call = await start_run(submitting, "note", "foreign", "k")

        async def was_put_back() -> bool:
            return bool(await lab.db.fetchval("select enqueue_count from deputize.runs where id = $1", call) > 2)

        await wait_until(was_put_back)
        assert await lab.fetch_state(call) == "queued"
        keys._master = own
        await lab.wait_for_state(call, "succeeded")


async def test_a_run_of_an_issuer_no_longer_trusted_is_not_executed(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        call = await start_run(lab, "note", "struck-off", "k")
        settings = lab.runtime.settings
        struck_off = settings.identity.model_copy(update={"issuers": ()})
        rooms = replace(lab.runtime, settings=settings.model_copy(update={"identity": struck_off}))
        # Left to others first: they may know it already. If none does, the run ends.
        with pytest.raises(RunNotReady, match="no longer trusts") as refused:
            await load_pending_run(rooms, "dev", call)
        assert refused.value.unable
        await lab.db.execute("update deputize.runs set unable_since = now() - interval '1 hour'")
        assert await load_pending_run(rooms, "dev", call) is None
        assert (await lab.fetch_call(call))["error"] == "requires-setup"
        assert list_effects("struck-off") == []


async def test_a_failed_progress_write_loses_no_progress(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        desk, calls = ActiveRuns(lab.runtime), [await start_run(lab, "note", tag, tag) for tag in ("one", "two")]
        real = ActiveRun.write_progress
        begun_both = [await begin_run(lab, call) for call in calls]
        with desk.track_run(*begun_both[0]) as (_, one), desk.track_run(*begun_both[1]) as (_, two):

            async def write(active_run: ActiveRun, connection: Any) -> None:
                if active_run is two:
                    raise OSError("lost")
                await real(active_run, connection)

            for carried in (one, two):
                carried.report_progress(ToolProgress(partial=b'{"value": "part"}'))
            monkeypatch.setattr(ActiveRun, "write_progress", write)
            with pytest.raises(OSError, match="lost"):
                await desk.sync_runs()
            monkeypatch.undo()
            monkeypatch.setattr("deputize.lifecycle.durable.active_runs.WRITE_SECONDS", 0.0)
            await desk.sync_runs()
            await desk.sync_runs()
        kept = await lab.db.fetch("select id, seq from deputize.progress order by id, seq")
        assert [(str(row["id"]), row["seq"]) for row in kept] == [(call, 1) for call in calls]
