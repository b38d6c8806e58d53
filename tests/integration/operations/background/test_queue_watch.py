"""Every process shows its release, its commits and pools, and what waits in the database."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deputize.composition.runtime import RELEASE
from deputize.core.clock import make_first_id
from deputize.operations.background.queue_watch import QueueWatch
from tests.support.gateway_lab import GatewayLab, open_lab

pytestmark = pytest.mark.requirement("OBS-2")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened:
        yield opened


def _read(lab: GatewayLab, name: str, **labels: str) -> float:
    value = lab.runtime.metrics.registry.get_sample_value(name, labels)
    assert value is not None, name
    return value


async def test_a_call_is_a_row_of_a_commit(lab: GatewayLab) -> None:
    rows = _read(lab, "deputize_commit_rows_total", writer="calls")
    commits = _read(lab, "deputize_commit_seconds_count", writer="calls")
    await lab.call("look", "counted")
    assert _read(lab, "deputize_commit_rows_total", writer="calls") > rows
    assert _read(lab, "deputize_commit_seconds_count", writer="calls") > commits
    assert _read(lab, "deputize_commit_queue_rows", writer="runs") == 0


async def test_releases_and_pools_are_shown(lab: GatewayLab) -> None:
    text = [sample.labels for family in lab.runtime.metrics.process.collect() for sample in family.samples]
    assert any(labels.get("version") == RELEASE for labels in text)
    async with lab.runtime.store.read_transaction("dev"):
        assert _read(lab, "deputize_pool_connections", pool="readers", state="used") >= 1
    for pool in ("readers", "writers"):
        open_count = sum(_read(lab, "deputize_pool_connections", pool=pool, state=state) for state in ("used", "idle"))
        assert 1 <= open_count <= _read(lab, "deputize_pool_connections_limit", pool=pool)


async def test_queued_calls_of_all_tenants_and_the_lag_of_the_log_are_measured(lab: GatewayLab) -> None:
    # No worker runs in this lab, so the call stays queued.
    outcome = await lab.call("note", "queued", key="queued", mode="async")
    assert outcome.http_status == 202
    old_id = make_first_id(lab.runtime.clock.epoch_ms() - 3_600_000)
    # Another process is the sequencer, and does nothing.
    await lab.db.execute(
        "update deputize.log_sequencer set owner = $1, epoch = epoch + 1, expires_at = now() + interval '1 hour'",
        lab.runtime.clock.new_id(),
    )
    await lab.db.execute("insert into deputize.tenants (tenant) values ('far') on conflict do nothing")
    await lab.db.execute("insert into deputize.log_queue (tenant, entry_id) values ('far', $1)", old_id)
    try:
        await QueueWatch(lab.runtime).run_step()
        assert _read(lab, "deputize_queued_calls") == 1
        assert 0 <= _read(lab, "deputize_queued_call_age_seconds") < 3600
        assert _read(lab, "deputize_log_queue_entries") >= 1
        assert _read(lab, "deputize_log_sequencer_lag_seconds") >= 3600
    finally:
        await lab.db.execute("delete from deputize.log_queue where entry_id = $1", old_id)
        await lab.db.execute("update deputize.log_sequencer set owner = null, expires_at = now()")


async def test_old_numbers_are_not_shown_when_the_database_is_away(lab: GatewayLab) -> None:
    watch = QueueWatch(lab.runtime)
    await watch.run_step()
    watch.report_error(OSError("gone"))
    assert lab.runtime.metrics.registry.get_sample_value("deputize_queued_calls") is None
    await watch.run_step()
    assert _read(lab, "deputize_queued_calls") >= 0
