"""A scrape shows what the process does beside calls."""

import asyncpg
import pytest
from prometheus_client import CollectorRegistry

from deputize.evidence.process_metrics import ProcessMetrics, QueueSizes
from deputize.store.commit_statistics import CommitStatistics
from deputize.store.group_commit import GroupCommit

pytestmark = pytest.mark.requirement("OBS-2")


async def _refuse_to_connect() -> asyncpg.Connection:
    raise OSError("no server in this test")


def _make_registry(metrics: ProcessMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(metrics)
    return registry


def test_commits_are_counted_by_writer_with_their_rows_and_times() -> None:
    writer = GroupCommit(_refuse_to_connect, boot_id="b")
    for rows, seconds in ((3, 0.0005), (5, 0.02), (1, 60.0)):
        writer.statistics.record_commit(rows, seconds)
    metrics = ProcessMetrics()
    metrics.watch_process("1.2.3", {"calls": writer}, {})
    read = _make_registry(metrics).get_sample_value
    calls = {"writer": "calls"}
    assert read("deputize_commit_seconds_count", calls) == 3
    assert read("deputize_commit_seconds_sum", calls) == pytest.approx(60.0205)
    assert read("deputize_commit_seconds_bucket", {**calls, "le": "0.001"}) == 1
    assert read("deputize_commit_seconds_bucket", {**calls, "le": "0.025"}) == 2
    assert read("deputize_commit_seconds_bucket", {**calls, "le": "10.0"}) == 2
    assert read("deputize_commit_seconds_bucket", {**calls, "le": "+Inf"}) == 3
    assert read("deputize_commit_rows_total", calls) == 9
    assert read("deputize_commit_queue_rows", calls) == 0


def test_a_commit_exactly_on_a_bound_belongs_to_it() -> None:
    statistics = CommitStatistics()
    statistics.record_commit(1, 0.001)
    assert statistics.buckets[0] == 1


def test_queues_are_shown_once_they_were_looked_at() -> None:
    metrics = ProcessMetrics()
    read = _make_registry(metrics).get_sample_value
    assert read("deputize_queued_calls") is None
    metrics.queue_sizes = QueueSizes(
        queued_calls=2, queued_call_seconds=30.5, unlogged_entries=4, sequencer_lag_seconds=0.25
    )
    assert read("deputize_queued_calls") == 2
    assert read("deputize_queued_call_age_seconds") == 30.5
    assert read("deputize_log_queue_entries") == 4
    assert read("deputize_log_sequencer_lag_seconds") == 0.25
