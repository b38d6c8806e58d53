"""When a gateway is not fit to work it says so, starts nothing, and loses nothing that was already done."""

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import pytest

from deputize.app import open_gateway
from deputize.core.clock import Clock
from deputize.core.states import State
from deputize.lifecycle import reply
from deputize.operations.views.health import NO_WORKER
from deputize.store import migrate
from deputize.store.local_postgres import LocalPostgres
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, open_lab, parse_body
from tests.support.scripted_tools import TOOLS, Gate, list_effects, set_behaviour


def _failing_checks(lab: GatewayLab) -> list[str]:
    return [check.name for check in lab.gateway.health.run_checks() if check.is_required and not check.ok]


async def test_a_gateway_that_can_work_is_ready(lab: GatewayLab) -> None:
    assert lab.gateway.health.is_ready
    check_names = [check.name for check in lab.gateway.health.run_checks()]
    assert check_names == ["process", "database", "lineage", "lease", "clock", "background", "workers"]


async def test_a_gateway_says_whether_any_worker_runs_and_is_ready_without_one(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        workers = lab.gateway.health.run_checks()[-1]
        assert (workers.ok, workers.detail, lab.gateway.health.is_ready) == (False, NO_WORKER, True)
        settings = lab_settings(fresh_database, tmp_path)
        async with open_gateway(settings, tools=TOOLS, development=True, worker=True) as other:
            assert (other.has_worker, other.health.run_checks()[-1].detail) == (True, "1 running")
            async with asyncio.timeout(60):
                # The other process is seen by its lease in the database.
                while not lab.gateway.health.worker_count:  # noqa: ASYNC110 -- read in the background
                    await asyncio.sleep(0.05)


async def test_a_gateway_whose_background_work_ended_is_not_ready(lab: GatewayLab) -> None:
    before = asyncio.all_tasks()
    async with open_lab(lab.dsn, lab.folder) as broken:
        sweeper = next(task for task in asyncio.all_tasks() - before if task.get_name() == "sweeper")
        sweeper.cancel()
        await asyncio.wait({sweeper})
        assert _failing_checks(broken) == ["background"]


async def test_a_gateway_whose_clock_is_off_is_not_ready(lab: GatewayLab) -> None:
    ahead = Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 + 45_000)
    async with open_lab(lab.dsn, lab.folder, clock=ahead) as skewed:
        assert not skewed.gateway.health.is_ready
        assert _failing_checks(skewed) == ["clock"]
    behind = Clock(epoch_ms=lambda: time.time_ns() // 1_000_000 - 20_000)
    async with open_lab(lab.dsn, lab.folder, clock=behind) as tolerated:
        assert tolerated.gateway.health.is_ready


@pytest.mark.requirement("NEW-3")
async def test_a_gateway_that_lost_its_lease_starts_no_effect_and_gives_the_key_back(lab: GatewayLab) -> None:
    jumped = 0.0
    async with open_lab(lab.dsn, lab.folder, clock=Clock(monotonic=lambda: time.monotonic() + jumped)) as lapsed:
        jumped = 1000.0
        assert _failing_checks(lapsed) == ["lease"]
        refused = await lapsed.call("note", "lapsed", key="lapsed")
        assert (refused.state, error_slug(refused), refused.http_status) == (State.FAILED, "unavailable", 503)
        assert not list_effects("lapsed")
        assert not await lapsed.has_claim(refused.call_id)
        assert (await lapsed.call("look", "lapsed-read")).state is State.SUCCEEDED
        await lapsed.runtime.lease.renew()
        assert lapsed.gateway.health.is_ready
        assert (await lapsed.call("note", "lapsed", key="lapsed")).state is State.SUCCEEDED


@pytest.fixture
def own_postgres(reachable_folder: Path) -> Iterator[LocalPostgres]:
    """A server of this test's own, to be killed."""
    server = LocalPostgres(reachable_folder / "db", settings={"full_page_writes": "off"}).start()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(migrate.upgrade, server.dsn).result()
    yield server
    server.stop()


@pytest.mark.requirement("NEW-3")
async def test_without_postgresql_nothing_is_started_and_nothing_done_is_lost(
    own_postgres: LocalPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "_RECORDING_SECONDS", 0.5)
    async with open_lab(own_postgres.dsn, tmp_path) as lab:
        assert (await lab.call("look", "warm")).state is State.SUCCEEDED
        gate = Gate()
        set_behaviour("halfway", gate)
        running = asyncio.create_task(lab.call("note", "halfway", key="halfway"))
        await gate.began.wait()
        call_id = await lab.find_running_call("note")
        own_postgres.kill()
        gate.open.set()
        told = await running
        assert (told.state, error_slug(told), told.call_id) == (State.UNKNOWN, "recording-pending", call_id)
        for refused in (await lab.call("look", "down"), await lab.call("note", "down", key="down")):
            assert (refused.state, error_slug(refused), refused.http_status) == (State.FAILED, "unavailable", 503)
            assert refused.retry_after_ms == 1000
            assert "down" not in parse_body(refused).get("result", {})
        assert not [effect for effect in list_effects("down") if effect.tool == "note"]
        assert "database" in _failing_checks(lab)
        await asyncio.to_thread(own_postgres.start)
        lab.db = await asyncpg.connect(own_postgres.dsn)
        await lab.wait_for_state(call_id, "succeeded")
        replayed = await lab.call("note", "halfway", key="halfway")
        assert (replayed.state, replayed.call_id, parse_body(replayed)["result"]) == (
            State.SUCCEEDED,
            call_id,
            {"value": "done"},
        )
        assert len(list_effects("halfway")) == 1
        assert (await lab.call("look", "up")).state is State.SUCCEEDED
