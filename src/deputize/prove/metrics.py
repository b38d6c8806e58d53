"""The nine signals and what limits did, Prometheus-readable.

Calls are counted in plain numbers of this process's one loop and turned into samples when somebody scrapes: a counter
of the client library takes a lock for each addition, and a call makes four.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from operator import add

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from deputize.core.contract import Contract
from deputize.core.events import State
from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
# People take minutes, hours or a day.
APPROVAL_BUCKETS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


class _Tally:
    """What was counted of one tool version."""

    __slots__ = ("buckets", "calls", "contract", "cost", "dry_runs", "replays", "retries", "seconds", "timeouts")

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.calls: dict[State, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.cost = 0.0
        self.retries = self.timeouts = self.replays = self.dry_runs = 0


class Metrics:
    """Owns its registry; `/metrics` on the private listener renders it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies: dict[str, _Tally] = {}
        self._unknown: Counter[State] = Counter()
        self._misfits: Counter[tuple[str, str]] = Counter()
        self._named: Counter[tuple[Metric, str]] = Counter()
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

    def ended(
        self, contract: Contract | None, state: State, seconds: float, *, attempts: int = 1, cost: float = 0.0
    ) -> None:
        """One call came to its end, however it ended."""
        if contract is None:
            self._unknown[state] += 1
            return
        tally = self._tallies.get(contract.digest) or self._tally(contract)
        tally.calls[state] = tally.calls.get(state, 0) + 1
        tally.buckets[bisect_left(BUCKETS, seconds)] += 1
        tally.seconds += seconds
        if attempts > 1:
            tally.retries += attempts - 1
        if cost:
            tally.cost += cost
        if state is State.TIMED_OUT:
            tally.timeouts += 1

    def replayed(self, contract: Contract) -> None:
        (self._tallies.get(contract.digest) or self._tally(contract)).replays += 1

    def dry_run(self, contract: Contract) -> None:
        (self._tallies.get(contract.digest) or self._tally(contract)).dry_runs += 1

    def misfit(self, contract: Contract, phase: str) -> None:
        """An input or output that did not fit its schema."""
        self._misfits[contract.full_name, phase] += 1

    def limit_refused(self, rule: str) -> None:
        self._named[Metric.LIMIT_REFUSALS, rule] += 1

    def limit_uncounted(self, rule: str) -> None:
        """A call was let through that a limit would have counted."""
        self._named[Metric.LIMIT_UNCOUNTED, rule] += 1

    def letter(self, outcome: str) -> None:
        """A message to approvers was heard, was not and is tried again, or was given up."""
        self._named[Metric.LETTERS, outcome] += 1

    def _tally(self, contract: Contract) -> _Tally:
        tally = self._tallies[contract.digest] = _Tally(contract)
        return tally

    def collect(self) -> Iterator[Family]:
        """Asked by the registry at each scrape."""
        # Tenants may declare one name and version differently, and some labels leave the version out: tallies that
        # look alike from outside are one series.
        sums: defaultdict[tuple[Metric, tuple[str, ...]], float] = defaultdict(float)
        times: dict[tuple[str, ...], tuple[list[int], float]] = {}
        for state, count in self._unknown.items():
            sums[Metric.CALLS, ("", "", state, "")] += count
        for tally in self._tallies.values():
            contract = tally.contract
            name, version, kind = contract.full_name, contract.version, contract.timeout.timeout_class
            for state, count in tally.calls.items():
                sums[Metric.CALLS, (name, version, state, contract.mutation_class)] += count
            sums[Metric.RETRIES, (name, version)] += tally.retries
            sums[Metric.TIMEOUTS, (name, version, kind)] += tally.timeouts
            sums[Metric.COST, (name, version, contract.observability.cost_category)] += tally.cost
            sums[Metric.REPLAYS, (name,)] += tally.replays
            sums[Metric.DRY_RUNS, (name,)] += tally.dry_runs
            buckets, seconds = times.get((name, version, kind), ([0] * len(tally.buckets), 0.0))
            times[name, version, kind] = [*map(add, buckets, tally.buckets)], seconds + tally.seconds
        for place, count in self._misfits.items():
            sums[Metric.VALIDATION_FAILURES, place] += count
        for (metric, name), count in self._named.items():
            sums[metric, (name,)] += count
        counters = {metric: _counter(metric) for metric in _COUNTED}
        for (metric, labels), value in sums.items():
            counters[metric].add_metric(labels, value)
        yield from counters.values()
        yield _latency(times)


_COUNTED = (
    Metric.CALLS, Metric.COST, Metric.RETRIES, Metric.TIMEOUTS, Metric.REPLAYS, Metric.DRY_RUNS,
    Metric.VALIDATION_FAILURES, Metric.LIMIT_REFUSALS, Metric.LIMIT_UNCOUNTED, Metric.LETTERS,
)  # fmt: skip


def _latency(times: dict[tuple[str, ...], tuple[list[int], float]]) -> HistogramMetricFamily:
    family = HistogramMetricFamily(Metric.LATENCY, METRIC_HELP[Metric.LATENCY], labels=METRIC_LABELS[Metric.LATENCY])
    for labels, (buckets, seconds) in times.items():
        family.add_metric(labels, _cumulative(buckets), seconds)
    return family


def _counter(metric: Metric) -> CounterMetricFamily:
    return CounterMetricFamily(metric, METRIC_HELP[metric], labels=METRIC_LABELS[metric])


def _cumulative(buckets: list[int]) -> list[tuple[str, float]]:
    """As Prometheus wants them: each bucket holds everything below it too."""
    total, rows = 0, []
    for bound, count in zip((*map(str, BUCKETS), "+Inf"), buckets, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows
