"""Collect the metrics of calls, approvals and limits for Prometheus.

Calls are counted in plain numbers on the event loop and become samples when Prometheus scrapes: a counter of the client
library takes a lock for each addition, and a call makes four.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from operator import add
from typing import Literal

from prometheus_client import CollectorRegistry, Gauge, Histogram
from prometheus_client import Counter as LabelledCounter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family

from deputize.core.contract.contract import Contract
from deputize.core.contract.prices import COMPONENT_BY_CATEGORY, CallUsage, CostComponent, compute_costs
from deputize.core.injection.suspicions import Suspicion
from deputize.core.states import State
from deputize.core.telemetry import METRIC_HELP, METRIC_LABELS, Metric
from deputize.evidence.process_metrics import ProcessMetrics

# Four for each power of ten. Each is less than twice the one before, so that a p99 that moves to the next bucket is not
# taken for one that has doubled.
BUCKETS = (
    0.001, 0.0018, 0.0032, 0.0056, 0.01, 0.018, 0.032, 0.056, 0.1, 0.18, 0.32, 0.56, 1.0, 1.8, 3.2, 5.6, 10.0, 18.0,
    32.0, 56.0, 100.0, 180.0, 320.0,
)  # fmt: skip
STALL_BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# People decide within minutes, hours or a day.
APPROVAL_BUCKETS = (1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 43_200.0, 86_400.0, 604_800.0)


# The tool versions that are counted one by one, and the name under which all further ones are counted together:
# tenants register versions without end, and a counter must never be dropped.
_MAX_TALLIES = 20_000
_OTHER_TOOLS = "other"
# Shown as 0 from the first call of a tool on: Prometheus sees no increase in a counter that it sees for the first time,
# so that an alert would miss the first failures.
_SHOWN_STATES = (State.SUCCEEDED, State.FAILED, State.TIMED_OUT, State.UNKNOWN)
# The name of a check, whether it passes, and whether readiness requires it.
ReadinessCheck = tuple[str, bool, bool]
# An external service, and how far its circuit is from closed.
CircuitLevel = tuple[str, int]
# An external service, the calls to it that are in progress, and those that wait.
ServiceCalls = tuple[str, int, int]


class _Tally:
    """The counts of one tool version, or of all that are not counted one by one."""

    __slots__ = (
        "buckets", "cached_reads", "calls", "contract", "costs", "dry_runs", "fallbacks", "replays", "retries",
        "seconds", "timeouts",
    )  # fmt: skip

    def __init__(self, contract: Contract | None) -> None:
        self.contract = contract
        self.calls: dict[State, int] = {}
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.seconds = 0.0
        self.costs: dict[tuple[CostComponent, str], float] = {}
        self.retries = self.timeouts = self.replays = self.dry_runs = self.cached_reads = self.fallbacks = 0


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
        self._suspicions: Counter[tuple[str, str]] = Counter()
        self._list_checks: Callable[[], Iterable[ReadinessCheck]] = lambda: ()
        self._list_circuits: Callable[[], Iterable[CircuitLevel]] = lambda: ()
        self._list_services: Callable[[], Iterable[ServiceCalls]] = lambda: ()
        self.registry.register(self)
        # What the process does beside calls.
        self.process = ProcessMetrics()
        self.registry.register(self.process)
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
        self.event_lag = Gauge(
            Metric.EVENT_LAG, METRIC_HELP[Metric.EVENT_LAG], METRIC_LABELS[Metric.EVENT_LAG], registry=self.registry
        )
        self.log_unwitnessed_seconds = Gauge(
            Metric.LOG_UNWITNESSED, METRIC_HELP[Metric.LOG_UNWITNESSED], registry=self.registry
        )
        self.log_witness_refusals = LabelledCounter(
            Metric.WITNESS_REFUSALS,
            METRIC_HELP[Metric.WITNESS_REFUSALS],
            METRIC_LABELS[Metric.WITNESS_REFUSALS],
            registry=self.registry,
        )

    def watch_readiness(self, list_checks: Callable[[], Iterable[ReadinessCheck]]) -> None:
        """Show the checks of readiness; they are run at each scrape."""
        self._list_checks = list_checks

    def watch_circuits(self, list_circuits: Callable[[], Iterable[CircuitLevel]]) -> None:
        """Show the circuits of external services; they are listed at each scrape."""
        self._list_circuits = list_circuits

    def watch_services(self, list_services: Callable[[], Iterable[ServiceCalls]]) -> None:
        """Show the calls to external services; they are listed at each scrape."""
        self._list_services = list_services

    def show_tool(self, contract: Contract) -> None:
        """Show a tool, and the thresholds that it declares, before its first call has ended."""
        if contract.digest not in self._tallies:
            self._add_tally(contract)

    def record_end(
        self,
        contract: Contract | None,
        state: State,
        seconds: float,
        *,
        attempts: int = 1,
        usage: CallUsage | None = None,
    ) -> None:
        """Count the end of a call, in any state, and what it cost if it was dispatched."""
        if contract is None:
            self._unknown_tool_calls[state] += 1
            return
        tally = self._tallies.get(contract.digest) or self._add_tally(contract)
        tally.calls[state] = tally.calls.get(state, 0) + 1
        tally.buckets[bisect_left(BUCKETS, seconds)] += 1
        tally.seconds += seconds
        if attempts > 1:
            tally.retries += attempts - 1
        if usage is not None and (usage.fixed_cost or contract.observability.prices is not None):
            _add_costs(tally, contract, usage)
        if state is State.TIMED_OUT:
            tally.timeouts += 1

    def record_review_cost(self, contract: Contract, cost: float) -> None:
        """Count what a person's decision on a call cost."""
        costs = (self._tallies.get(contract.digest) or self._add_tally(contract)).costs
        key = CostComponent.HUMAN_REVIEW, contract.observability.currency
        costs[key] = costs.get(key, 0.0) + cost

    def record_replay(self, contract: Contract) -> None:
        """Count a call that was answered with a stored outcome."""
        (self._tallies.get(contract.digest) or self._add_tally(contract)).replays += 1

    def record_cached_read(self, contract: Contract) -> None:
        """Count a read that was answered with the result of an earlier one."""
        (self._tallies.get(contract.digest) or self._add_tally(contract)).cached_reads += 1

    def record_fallback(self, contract: Contract) -> None:
        """Count a call that was answered by an alternative of its tool."""
        (self._tallies.get(contract.digest) or self._add_tally(contract)).fallbacks += 1

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

    def record_spent_retry_budget(self, service: str) -> None:
        """Count an attempt that was not repeated because the retry budget of its service was spent."""
        self._count_service(Metric.RETRY_REFUSALS, service)

    def record_busy_service(self, service: str) -> None:
        """Count a call that was refused, or a run that was held, because its service was busy."""
        self._count_service(Metric.SERVICE_REFUSALS, service)

    def _count_service(self, metric: Metric, service: str) -> None:
        key = (metric, service)
        is_counted = key in self._counts_by_label or len(self._counts_by_label) < _MAX_TALLIES
        self._counts_by_label[key if is_counted else (metric, _OTHER_TOOLS)] += 1

    def record_notification(self, outcome: str) -> None:
        """Count a notification to approvers by its outcome."""
        self._counts_by_label[Metric.NOTIFICATIONS, outcome] += 1

    def record_refused_connection(self, reason: str) -> None:
        """Count a connection or request that was refused before its caller was known."""
        self._counts_by_label[Metric.CONNECTION_REFUSALS, reason] += 1

    def record_disagreement(self, rule: str, *, is_resolved: bool) -> None:
        """Count a result that differs from what another tool said."""
        self._disagreements[rule, str(is_resolved).lower()] += 1

    def record_sent_events(self, sink: str, count: int) -> None:
        """Count events that a sink acknowledged."""
        self._counts_by_label[Metric.EVENTS_SENT, sink] += count

    def record_event_failure(self, sink: str) -> None:
        """Count an attempt to send events that failed."""
        self._counts_by_label[Metric.EVENT_FAILURES, sink] += 1

    def record_suspicions(self, side: Literal["arguments", "result"], suspicions: Iterable[Suspicion]) -> None:
        """Count texts that look like an injection attempt."""
        for each in suspicions:
            self._suspicions[each.kind, side] += 1

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
            name, version, kind, mutation_class = _build_labels(tally.contract)
            if tally.contract is None and not tally.calls:
                continue
            for state, count in (dict.fromkeys(_SHOWN_STATES, 0) | tally.calls).items():
                sums[Metric.CALLS, (name, version, state, mutation_class)] += count
            sums[Metric.VALIDATION_FAILURES, (name, "output")] += 0
            sums[Metric.RETRIES, (name, version)] += tally.retries
            sums[Metric.TIMEOUTS, (name, version, kind)] += tally.timeouts
            for (component, currency), cost in _list_costs(tally):
                sums[Metric.COST, (name, version, component, currency)] += cost
            sums[Metric.REPLAYS, (name,)] += tally.replays
            sums[Metric.DRY_RUNS, (name,)] += tally.dry_runs
            sums[Metric.CACHED_READS, (name,)] += tally.cached_reads
            sums[Metric.FALLBACKS, (name,)] += tally.fallbacks
            buckets, seconds = times.get((name, version, kind), ([0] * len(tally.buckets), 0.0))
            times[name, version, kind] = [*map(add, buckets, tally.buckets)], seconds + tally.seconds
        for violation, count in self._schema_violations.items():
            sums[Metric.VALIDATION_FAILURES, violation] += count
        for disagreement, count in self._disagreements.items():
            sums[Metric.DISAGREEMENTS, disagreement] += count
        for suspicion, count in self._suspicions.items():
            sums[Metric.SUSPICIONS, suspicion] += count
        for (metric, name), count in self._counts_by_label.items():
            sums[metric, (name,)] += count
        counters = {metric: _build_counter(metric) for metric in _COUNTER_METRICS}
        for (metric, labels), value in sums.items():
            counters[metric].add_metric(labels, value)
        yield from counters.values()
        yield _build_latency(times)
        yield self._build_readiness()
        yield self._build_circuits()
        yield self._build_services()
        yield self._build_thresholds()

    def _build_thresholds(self) -> GaugeMetricFamily:
        """Build the thresholds that tools declare; tenants and versions may differ, and the lowest counts."""
        labels = METRIC_LABELS[Metric.ALERT_THRESHOLD]
        family = GaugeMetricFamily(Metric.ALERT_THRESHOLD, METRIC_HELP[Metric.ALERT_THRESHOLD], labels=labels)
        thresholds: dict[tuple[str, str], float] = {}
        for tally in self._tallies.values():
            if tally.contract is not None and tally.contract.alerts is not None:
                for name, value in tally.contract.alerts.list_thresholds():
                    key = tally.contract.full_name, name
                    thresholds[key] = min(value, thresholds.get(key, value))
        for key, value in thresholds.items():
            family.add_metric(key, value)
        return family

    def _build_services(self) -> GaugeMetricFamily:
        labels = METRIC_LABELS[Metric.SERVICE_CALLS]
        family = GaugeMetricFamily(Metric.SERVICE_CALLS, METRIC_HELP[Metric.SERVICE_CALLS], labels=labels)
        counts: Counter[tuple[str, str]] = Counter()
        for service, running_count, waiting_count in self._list_services():
            counts[service, "running"] += running_count
            counts[service, "waiting"] += waiting_count
        for key, count in counts.items():
            family.add_metric(key, count)
        return family

    def _build_circuits(self) -> GaugeMetricFamily:
        labels = METRIC_LABELS[Metric.CIRCUIT_STATE]
        family = GaugeMetricFamily(Metric.CIRCUIT_STATE, METRIC_HELP[Metric.CIRCUIT_STATE], labels=labels)
        levels: dict[str, int] = {}
        for service, level in self._list_circuits():
            levels[service] = max(level, levels.get(service, 0))
        for service, level in levels.items():
            family.add_metric((service,), level)
        return family

    def _build_readiness(self) -> GaugeMetricFamily:
        labels = METRIC_LABELS[Metric.READINESS]
        family = GaugeMetricFamily(Metric.READINESS, METRIC_HELP[Metric.READINESS], labels=labels)
        for name, is_ok, is_required in self._list_checks():
            family.add_metric((name, str(is_required).lower()), float(is_ok))
        return family


_COUNTER_METRICS = (
    Metric.CALLS, Metric.COST, Metric.RETRIES, Metric.TIMEOUTS, Metric.REPLAYS, Metric.DRY_RUNS,
    Metric.VALIDATION_FAILURES, Metric.LIMIT_REFUSALS, Metric.LIMIT_UNCOUNTED, Metric.NOTIFICATIONS,
    Metric.CONNECTION_REFUSALS, Metric.DISAGREEMENTS, Metric.EVENTS_SENT, Metric.EVENT_FAILURES, Metric.SUSPICIONS,
    Metric.RETRY_REFUSALS, Metric.SERVICE_REFUSALS, Metric.CACHED_READS, Metric.FALLBACKS,
)  # fmt: skip


def _build_labels(contract: Contract | None) -> tuple[str, str, str, str]:
    if contract is None:
        return _OTHER_TOOLS, "", "", ""
    return contract.full_name, contract.version, contract.timeout.timeout_class, contract.mutation_class


def _add_costs(tally: _Tally, contract: Contract, usage: CallUsage) -> None:
    observability = contract.observability
    for component, cost in compute_costs(observability.cost_category, observability.prices, usage).items():
        key = component, observability.currency
        tally.costs[key] = tally.costs.get(key, 0.0) + cost


def _list_costs(tally: _Tally) -> Iterable[tuple[tuple[CostComponent, str], float]]:
    """List the costs of a tool version; that of its category also while it is 0."""
    if tally.contract is None:
        return tally.costs.items()
    observability = tally.contract.observability
    first_key = COMPONENT_BY_CATEGORY[observability.cost_category], observability.currency
    return ({first_key: 0.0} | tally.costs).items()


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
