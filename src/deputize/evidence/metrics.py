"""Collect the metrics of calls, approvals and limits for Prometheus.

Calls are counted in plain numbers on the event loop and become samples when Prometheus scrapes: a counter of the client
library takes a lock for each addition, and a call makes four.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import add

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from deputize.core.contract.contract import Contract
from deputize.core.states import State
from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
STALL_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# People decide within minutes, hours or a day.
APPROVAL_BUCKETS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


# The tool versions that are counted one by one, and the name under which all further ones are counted together:
# tenants register versions without end, and a counter must never be dropped.
_MAX_TALLIES = 20_000
_OTHER_TOOLS = "other"


class _Tally:
    """The counts of one tool version, or of all that are not counted one by one."""

    __slots__ = ("buckets", "calls", "contract", "cost", "dry_runs", "replays", "retries", "seconds", "timeouts")

    def __init__(self, contract: Contract | None) -> None:
        self.contract = contract
        self.calls: dict[State, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.cost = 0.0
        self.retries = self.timeouts = self.replays = self.dry_runs = 0


class Metrics:
    """The metrics of this process, with their own registry; `/metrics` on the private port renders it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies: dict[str, _Tally] = {}
        self._other_tally = _Tally(None)
        self._unknown_tool_calls: Counter[State] = Counter()
        self._schema_violations: Counter[tuple[str, str]] = Counter()
        self._counts_by_label: Counter[tuple[Metric, str]] = Counter()
        self._disagreements: Counter[tuple[str, str]] = Counter()
        self.registry.register(self)
        self.approvals_pending = Gauge(
            Metric.APPROVALS_PENDING,
            METRIC_HELP[Metric.APPROVALS_PENDING],
            METRIC_LABELS[Metric.APPROVALS_PENDING],
            registry=self.registry,
        )
        self.approval_time = Histogram(
            Metric.APPROVAL_TIME,
            METRIC_HELP[Metric.APPROVAL_TIME],
            METRIC_LABELS[Metric.APPROVAL_TIME],
            registry=self.registry,
            buckets=APPROVAL_BUCKETS,
        )
        self.loop_stalls = Histogram(
            Metric.LOOP_STALLS, METRIC_HELP[Metric.LOOP_STALLS], registry=self.registry, buckets=STALL_BUCKETS
        )
        self.database_went_back = Gauge(
            Metric.DATABASE_WENT_BACK, METRIC_HELP[Metric.DATABASE_WENT_BACK], registry=self.registry
        )

    def record_end(
        self, contract: Contract | None, state: State, seconds: float, *, attempts: int = 1, cost: float = 0.0
    ) -> None:
        """Count the end of a call, in any state."""
        if contract is None:
            self._unknown_tool_calls[state] += 1
            return
        tally = self._tallies.get(contract.digest) or self._add_tally(contract)
        tally.calls[state] = tally.calls.get(state, 0) + 1
        tally.buckets[bisect_left(BUCKETS, seconds)] += 1
        tally.seconds += seconds
        if attempts > 1:
            tally.retries += attempts - 1
        if cost:
            tally.cost += cost
        if state is State.TIMED_OUT:
            tally.timeouts += 1

    def record_replay(self, contract: Contract) -> None:
        """Count a call that was answered with a stored outcome."""
        (self._tallies.get(contract.digest) or self._add_tally(contract)).replays += 1

    def record_dry_run(self, contract: Contract) -> None:
        """Count a dry run."""
        (self._tallies.get(contract.digest) or self._add_tally(contract)).dry_runs += 1

    def record_schema_violation(self, contract: Contract, phase: str) -> None:
        """Count an input or output that does not match its schema."""
        key = (contract.full_name, phase)
        is_counted = key in self._schema_violations or len(self._schema_violations) < _MAX_TALLIES
        self._schema_violations[key if is_counted else (_OTHER_TOOLS, phase)] += 1

    def record_limit_refusal(self, rule: str) -> None:
        """Count a call that a limit refused."""
        self._counts_by_label[Metric.LIMIT_REFUSALS, rule] += 1

    def record_uncounted_call(self, rule: str) -> None:
        """Count a call that was allowed while a limit's counters were unreachable."""
        self._counts_by_label[Metric.LIMIT_UNCOUNTED, rule] += 1

    def record_notification(self, outcome: str) -> None:
        """Count a notification to approvers by its outcome."""
        self._counts_by_label[Metric.NOTIFICATIONS, outcome] += 1

    def record_refused_connection(self, reason: str) -> None:
        """Count a connection or request that was refused before its caller was known."""
        self._counts_by_label[Metric.CONNECTION_REFUSALS, reason] += 1

    def record_disagreement(self, rule: str, *, is_resolved: bool) -> None:
        """Count a result that differs from what another tool said."""
        self._disagreements[rule, str(is_resolved).lower()] += 1

    def _add_tally(self, contract: Contract) -> _Tally:
        if len(self._tallies) >= _MAX_TALLIES:
            return self._other_tally
        tally = self._tallies[contract.digest] = _Tally(contract)
        return tally

    def collect(self) -> Iterator[Family]:
        """Render the counts as samples; the registry calls this at each scrape."""
        # Tenants may declare the same name and version differently, and some metrics have no version label: tallies
        # with equal labels are one series.
        sums: defaultdict[tuple[Metric, tuple[str, ...]], float] = defaultdict(float)
        times: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for state, count in self._unknown_tool_calls.items():
            sums[Metric.CALLS, ("", "", state, "")] += count
        for tally in (*self._tallies.values(), self._other_tally):
            name, version, kind, mutation_class, cost_category = _build_labels(tally.contract)
            if tally.contract is None and not tally.calls:
                continue
            for state, count in tally.calls.items():
                sums[Metric.CALLS, (name, version, state, mutation_class)] += count
            sums[Metric.RETRIES, (name, version)] += tally.retries
            sums[Metric.TIMEOUTS, (name, version, kind)] += tally.timeouts
            sums[Metric.COST, (name, version, cost_category)] += tally.cost
            sums[Metric.REPLAYS, (name,)] += tally.replays
            sums[Metric.DRY_RUNS, (name,)] += tally.dry_runs
            buckets, seconds = times.get((name, version, kind), ([0] * len(tally.buckets), 0.0))
            times[name, version, kind] = [*map(add, buckets, tally.buckets)], seconds + tally.seconds
        for violation, count in self._schema_violations.items():
            sums[Metric.VALIDATION_FAILURES, violation] += count
        for disagreement, count in self._disagreements.items():
            sums[Metric.DISAGREEMENTS, disagreement] += count
        for (metric, name), count in self._counts_by_label.items():
            sums[metric, (name,)] += count
        counters = {metric: _build_counter(metric) for metric in _COUNTER_METRICS}
        for (metric, labels), value in sums.items():
            counters[metric].add_metric(labels, value)
        yield from counters.values()
        yield _build_latency(times)


_COUNTER_METRICS = (
    Metric.CALLS, Metric.COST, Metric.RETRIES, Metric.TIMEOUTS, Metric.REPLAYS, Metric.DRY_RUNS,
    Metric.VALIDATION_FAILURES, Metric.LIMIT_REFUSALS, Metric.LIMIT_UNCOUNTED, Metric.NOTIFICATIONS,
    Metric.CONNECTION_REFUSALS, Metric.DISAGREEMENTS,
)  # fmt: skip


def _build_labels(contract: Contract | None) -> tuple[str, str, str, str, str]:
    if contract is None:
        return _OTHER_TOOLS, "", "", "", ""
    timeout_class, cost_category = contract.timeout.timeout_class, contract.observability.cost_category
    return contract.full_name, contract.version, timeout_class, contract.mutation_class, cost_category


def _build_latency(times: dict[tuple[str, ...], tuple[list[int], float]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(Metric.LATENCY, METRIC_HELP[Metric.LATENCY], labels=METRIC_LABELS[Metric.LATENCY])
    for labels, (buckets, seconds) in times.items():
        family.add_metric(labels, _accumulate_buckets(buckets), seconds)
    return family


def _build_counter(metric: Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric, METRIC_HELP[metric], labels=METRIC_LABELS[metric])


def _accumulate_buckets(buckets: list[int]) -> list[tuple[str, float]]:
    """Accumulate buckets as Prometheus expects them: each includes everything below it."""
    total, rows = 0, []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows
