"""Rounds of the same calls over several ways, in turn, with what each took and what CPU its process used."""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proofs.kit.child_process import ChildProcess
from proofs.kit.load import LoadError, Sample, Target, run_wrk


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkTarget:
    """One way under load, and the process between, whose CPU is counted."""

    request: Target
    process: ChildProcess


@dataclass(kw_only=True, slots=True)
class TargetRuns:
    """What one lane did in every round."""

    samples: list[Sample] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    @property
    def p50_ms(self) -> float:
        return statistics.median(each.p50_ms for each in self.samples)

    @property
    def p99_ms(self) -> float:
        return statistics.median(each.p99_ms for each in self.samples)

    @property
    def per_second(self) -> float:
        return statistics.median(each.per_second for each in self.samples)

    @property
    def cpu_ms_per_call(self) -> float:
        return statistics.median(self.cpu_ms)

    @property
    def requests(self) -> int:
        return sum(each.requests for each in self.samples)


def compute_slowdown(ours: TargetRuns, theirs: TargetRuns) -> float:
    """How much longer the middle call took, round by round: two measurements side by side in time."""
    pairs = zip(ours.samples, theirs.samples, strict=True)
    return statistics.median(a.p50_ms / b.p50_ms for a, b in pairs)


async def run_rounds(
    targets: Mapping[str, BenchmarkTarget], *, connections: int, count: int, seconds: int
) -> dict[str, TargetRuns]:
    """Every lane in every round; the order turns, so that a drift of the machine favours none."""
    runs_by_target = {name: TargetRuns() for name in targets}
    for benchmark_target in targets.values():
        await measure_patiently(benchmark_target.request, 1, connections)
    for number in range(count):
        for name in _rotate_names(list(targets), number):
            benchmark_target, runs = targets[name], runs_by_target[name]
            before = benchmark_target.process.read_cpu_seconds()
            sample = await measure_patiently(benchmark_target.request, seconds, connections)
            runs.samples.append(sample)
            runs.cpu_ms.append((benchmark_target.process.read_cpu_seconds() - before) * 1000 / sample.requests)
    return runs_by_target


async def measure_patiently(request: Target, seconds: int, connections: int) -> Sample:
    """A machine with much other work may answer nothing for a while: it is given more time before that is a failure."""
    for factor in (1, 4):
        with contextlib.suppress(LoadError):
            return await run_wrk(request, seconds=seconds * factor, connections=connections)
    return await run_wrk(request, seconds=seconds * 16, connections=connections)


def _rotate_names(names: Sequence[str], number: int) -> list[str]:
    start = number % len(names)
    return [*names[start:], *names[:start]]
