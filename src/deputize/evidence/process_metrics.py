"""Show what a process does beside calls: its release, commits, pools, and the queues of its database.

Everything is read at a scrape; a call adds nothing here.
"""

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import asyncpg
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric
from deputize.store.commit_statistics import COMMIT_BUCKETS, CommitStatistics
from deputize.store.group_commit import GroupCommit

_Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueSizes:
    """What waits in the database, for all processes on it; ages are those of the oldest, 0 if nothing waits."""

    queued_calls: int
    queued_call_seconds: float
    unlogged_entries: int
    sequencer_lag_seconds: float


class ProcessMetrics:
    """The metrics of this process; each appears once its source is named."""

    def __init__(self) -> None:
        self._release: str | None = None
        self._writers: Mapping[str, GroupCommit] = {}
        self._pools: Mapping[str, _Pool] = {}
        # Set by the task that looks at the queues; None until it has.
        self.queue_sizes: QueueSizes | None = None

    def watch_process(self, release: str, writers: Mapping[str, GroupCommit], pools: Mapping[str, _Pool]) -> None:
        """Show this release, these writers of batches, and these pools of connections, by their names."""
        self._release, self._writers, self._pools = release, writers, pools

    def collect(self) -> Iterator[Family]:
        """Render the metrics; the registry calls this at each scrape."""
        build = _build_gauge(Metric.BUILD)
        if self._release is not None:
            build.add_metric((self._release, platform.python_version()), 1.0)
        yield build
        yield from self._collect_commits()
        yield from self._collect_pools()
        yield from self._collect_queues()

    def _collect_commits(self) -> Iterator[Family]:
        labels = METRIC_LABELS[Metric.COMMIT_TIME]
        times = HistogramMetricFamily(Metric.COMMIT_TIME, METRIC_HELP[Metric.COMMIT_TIME], labels=labels)
        rows = CounterMetricFamily(Metric.COMMIT_ROWS, METRIC_HELP[Metric.COMMIT_ROWS], labels=labels)
        waiting_rows = _build_gauge(Metric.COMMIT_QUEUE)
        for name, writer in self._writers.items():
            statistics = writer.statistics
            times.add_metric((name,), _accumulate(statistics), statistics.seconds)
            rows.add_metric((name,), statistics.rows)
            waiting_rows.add_metric((name,), writer.waiting_row_count)
        yield from (times, rows, waiting_rows)

    def _collect_pools(self) -> Iterator[Family]:
        connections, limits = _build_gauge(Metric.POOL_CONNECTIONS), _build_gauge(Metric.POOL_LIMIT)
        for name, pool in self._pools.items():
            idle_count = pool.get_idle_size()
            connections.add_metric((name, "idle"), idle_count)
            connections.add_metric((name, "used"), pool.get_size() - idle_count)
            limits.add_metric((name,), pool.get_max_size())
        yield from (connections, limits)

    def _collect_queues(self) -> Iterator[Family]:
        sizes = self.queue_sizes
        for metric, value in (
            (Metric.QUEUED_CALLS, None if sizes is None else sizes.queued_calls),
            (Metric.QUEUED_CALL_AGE, None if sizes is None else sizes.queued_call_seconds),
            (Metric.UNLOGGED_ENTRIES, None if sizes is None else sizes.unlogged_entries),
            (Metric.SEQUENCER_LAG, None if sizes is None else sizes.sequencer_lag_seconds),
        ):
            family = _build_gauge(metric)
            if value is not None:
                family.add_metric((), value)
            yield family


def _build_gauge(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric, METRIC_HELP[metric], labels=METRIC_LABELS[metric])


def _accumulate(statistics: CommitStatistics) -> list[tuple[str, float]]:
    """Accumulate buckets as Prometheus expects them: each includes everything below it."""
    total, rows = 0, []
    for bound, count in zip((*map(str, COMMIT_BUCKETS), "+Inf"), statistics.buckets, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows
