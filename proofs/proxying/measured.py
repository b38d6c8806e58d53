"""Rounds of the same calls over several ways, in turn, with what each took and what CPU its process used.

Above: `proxy.py`. Below: `kit/load.py`.
"""

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from proofs.kit.child import Child
from proofs.kit.load import LoadFailed, Sample, Target, measure


@dataclass(frozen=True, kw_only=True, slots=True)
class Lane:
    """One way under load, and the process between, whose CPU is counted."""

    target: Target
    process: Child


@dataclass(kw_only=True, slots=True)
class Runs:
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


def slower(ours: Runs, theirs: Runs) -> float:
    """How much longer the middle call took, round by round: two measurements side by side in time."""
    pairs = zip(ours.samples, theirs.samples, strict=True)
    return statistics.median(a.p50_ms / b.p50_ms for a, b in pairs)


async def rounds(lanes: Mapping[str, Lane], *, connections: int, count: int, seconds: int) -> dict[str, Runs]:
    """Every lane in every round; the order turns, so that a drift of the machine favours none."""
    found = {name: Runs() for name in lanes}
    for lane in lanes.values():
        await patiently(lane.target, 1, connections)
    for number in range(count):
        for name in _turned(list(lanes), number):
            lane, runs = lanes[name], found[name]
            before = lane.process.cpu_seconds()
            sample = await patiently(lane.target, seconds, connections)
            runs.samples.append(sample)
            runs.cpu_ms.append((lane.process.cpu_seconds() - before) * 1000 / sample.requests)
    return found


async def patiently(target: Target, seconds: int, connections: int) -> Sample:
    """A machine with much other work may answer nothing for a while: it is given more time before that is a failure."""
    for factor in (1, 4):
        with contextlib.suppress(LoadFailed):
            return await measure(target, seconds=seconds * factor, connections=connections)
    return await measure(target, seconds=seconds * 16, connections=connections)


def _turned(names: Sequence[str], number: int) -> list[str]:
    start = number % len(names)
    return [*names[start:], *names[:start]]
