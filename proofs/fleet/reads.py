"""Interactive reads at a fixed rate, while workers carry runs on the same PostgreSQL, and while they do not."""

import asyncio
import time
from collections.abc import Iterator

import orjson

from proofs.fleet.asking import Asking, Job
from proofs.fleet.judge import percentile
from proofs.fleet.site import Part, Site
from proofs.kit.load import Target, measure
from proofs.kit.paced import paced

_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_BODY = {"tool": "jobs.rest", "arguments": {"label": "read"}}


async def reads(site: Site) -> Part:
    world = site.world
    seconds, rounds = world.size(quick=4, full=20), world.size(quick=1, full=5)
    crew = await site.crew(2)
    target = _read(site)
    capacity = (await measure(target, seconds=world.size(quick=3, full=10), connections=16)).per_second
    most = await _run_capacity(site, world.size(quick=150, full=1500))
    ratios, alone, beside = [], [], []
    for number in range(rounds):
        without = await paced(target, rate=0.3 * capacity, seconds=seconds)
        running = asyncio.create_task(_runs(site, f"beside-{number}", 0.25 * most, seconds + 2))
        await asyncio.sleep(1)
        meanwhile = await paced(target, rate=0.3 * capacity, seconds=seconds)
        await running
        await site.database.until(_NONE_OPEN, seconds=120)
        alone.append(percentile(without, 0.99))
        beside.append(percentile(meanwhile, 0.99))
        ratios.append(beside[-1] / alone[-1])
        world.say(f"reads: p99 {1000 * alone[-1]:.1f} ms alone, {1000 * beside[-1]:.1f} ms beside runs")
    await crew.dismiss()
    return Part(
        figures={
            "reads_per_second": round(0.3 * capacity),
            "runs_per_second_beside": round(0.25 * most, 1),
            "read_p99_ms_alone": round(1000 * percentile(alone, 0.5), 2),
            "read_p99_ms_beside_runs": round(1000 * percentile(beside, 0.5), 2),
            "read_p99_beside_runs_of_alone": round(percentile(ratios, 0.5), 3),
        },
        # One short round is at the mercy of whatever else the machine does.
        bars={"read_p99_beside_runs_of_alone": ("<=", 1.5 if world.full else 5.0)},
        notes=[
            "Reads: at 30% of what wrk got out of the gateway, each sent when it is due whatever became of those "
            "before, and runs at 25% of what two workers carried at most. Client, gateway, workers and PostgreSQL "
            "share the cores.",
        ],
    )


def _read(site: Site) -> Target:
    headers = {"authorization": f"Bearer {site.issuer.token('ann')}", "content-type": "application/json"}
    return Target(url=f"{site.gateway.url}/v1/calls", headers=headers, body=orjson.dumps(_BODY))


def _marks(name: str, count: int) -> Iterator[Job]:
    for number in range(count):
        yield Job(label=f"{name}-{number}", tool="jobs.mark", arguments={"label": f"{name}-{number}"})


async def _run_capacity(site: Site, count: int) -> float:
    began = time.monotonic()
    await site.asking().submit(_marks("most", count), lanes=8)
    await site.database.until(_NONE_OPEN, seconds=300)
    return count / (time.monotonic() - began)


async def _runs(site: Site, name: str, rate: float, seconds: float) -> None:
    asking: Asking = site.asking()
    count = int(rate * seconds)
    await asking.submit(_marks(name, count), lanes=2, pace=2 / rate)
