"""The health of tools comes from the calls of the last 15 minutes, of one tenant."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from deputize.core.clock import Clock
from deputize.core.errors import ScopeMissing, ToolFailed
from deputize.evidence.call_measurements import CallEnd
from deputize.operations.background.measurement_storage import MeasurementStorage
from tests.support.gateway_lab import GatewayLab, open_lab
from tests.support.scripted_tools import TOOLS, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("OBS-3")
_ahead = timedelta()
_LOOK = next(each.contract for each in TOOLS if each.contract.name == "look")


def _read_epoch_ms() -> int:
    return time.time_ns() // 1_000_000 + int(_ahead.total_seconds() * 1000)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    clock = Clock(epoch_ms=_read_epoch_ms)
    async with open_lab(module_database, tmp_path_factory.mktemp("lab"), clock=clock) as opened:
        yield opened


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def _empty_window(lab: GatewayLab) -> None:
    global _ahead
    _ahead = timedelta()
    await lab.runtime.call_measurements.store_measurements(lab.runtime.store)
    await lab.db.execute("delete from deputize.recent_measurements")


async def _report(lab: GatewayLab) -> dict[str, dict[str, Any]]:
    report = await lab.gateway.tool_health.report_health(await lab.make_admin())
    assert report["minutes"] == 15
    return {each["tool"]: each for each in report["tools"]}


async def test_calls_of_two_gateways_make_one_score(lab: GatewayLab) -> None:
    set_behaviour("broken", raise_error(ToolFailed("it is broken")))
    async with open_lab(lab.dsn, lab.folder) as other_lab:
        for each in (lab, other_lab):
            await each.call("look", "x")
        await other_lab.call("look", "broken")
        await other_lab.runtime.call_measurements.store_measurements(other_lab.runtime.store)
    score = (await _report(lab))["lab.look"]
    assert (score["calls"], score["error_share"]) == (3, pytest.approx(1 / 3, abs=1e-6))
    assert score["penalties"]["errors"] == 0.5
    assert score["score"] == pytest.approx(0.5 - score["penalties"]["latency"], abs=1e-3)


async def test_a_report_waits_for_what_another_task_is_storing(lab: GatewayLab) -> None:
    measurements, store = lab.runtime.call_measurements, lab.runtime.store
    for _ in range(3):
        measurements.record_call("dev", _LOOK, CallEnd.SUCCESS, 0.1, 0)
    blocker = await asyncpg.connect(lab.dsn)
    try:
        async with blocker.transaction():
            await blocker.execute("lock table deputize.call_measurements in share mode")
            first = asyncio.create_task(measurements.store_measurements(store))
            await lab.wait_for_blocked_query("%deputize.call_measurements%")
            second = asyncio.create_task(measurements.store_measurements(store))
            # It has nothing of its own to store: without waiting for the first one it would end here.
            for _ in range(10):
                await asyncio.sleep(0)
            assert not second.done()
        await second
        assert first.done()
    finally:
        await blocker.close()
    assert (await _report(lab))["lab.look"]["calls"] == 3


async def test_what_is_older_than_the_window_does_not_count_and_is_deleted(lab: GatewayLab) -> None:
    global _ahead
    measurements, count = lab.runtime.call_measurements, "select count(*) from deputize.recent_measurements"
    measurements.record_call("dev", _LOOK, CallEnd.FAILURE, 0.1, 0)
    await measurements.store_measurements(lab.runtime.store)
    _ahead = timedelta(minutes=13)
    assert (await _report(lab))["lab.look"]["score"] == 0.5
    _ahead = timedelta(minutes=16)
    assert await _report(lab) == {}
    storage = MeasurementStorage(lab.runtime)
    for minutes, expected_rows in ((16, 1), (77, 0)):
        _ahead = timedelta(minutes=minutes)
        await lab.db.execute("delete from deputize.periodic_tasks where name = 'measurement storage'")
        await storage._take_turn()
        assert await lab.db.fetchval(count) == expected_rows


async def test_the_worst_tool_is_first_and_other_tenants_are_not_seen(lab: GatewayLab) -> None:
    measurements = lab.runtime.call_measurements
    healthy = _LOOK.model_copy(update={"name": "healthy"})
    # A version that is not registered any more is judged by the default class.
    slow = _LOOK.model_copy(update={"name": "slow"})
    for _ in range(10):
        measurements.record_call("dev", healthy, CallEnd.SUCCESS, 0.001, 0)
        measurements.record_call("dev", slow, CallEnd.TIMEOUT, 5.0, 0)
        measurements.record_call("far", _LOOK, CallEnd.FAILURE, 0.1, 0)
    report = await _report(lab)
    assert list(report) == ["lab.slow", "lab.healthy"]
    assert (report["lab.slow"]["score"], report["lab.slow"]["limit_seconds"]) == (0.0, 5.0)
    assert report["lab.healthy"]["score"] > 0.99


async def test_only_administrators_see_it(lab: GatewayLab) -> None:
    with pytest.raises(ScopeMissing):
        await lab.gateway.tool_health.report_health(await lab.make_caller())
