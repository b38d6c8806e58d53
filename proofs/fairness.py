"""One tenant floods the queue while another asks for a run now and then; and jobs that must not meet do not.

`fleet/crew.py` are the workers. When a run was queued and when it began is read from its row; when jobs were at work is
what they say themselves, by the machine's clock.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from proofs.crash.nursery import Nursery, open_nursery
from proofs.fleet.asking import Asking, Job
from proofs.fleet.crew import Crew, Database
from proofs.fleet.judge import percentile
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, put_policies, start_gateway
from proofs.kit.report import Verdict
from proofs.kit.wire import Line
from proofs.kit.world import World

NAME = "fairness"
PROMISE = "One tenant's flood does not keep another waiting, and runs that touch the same thing never meet."

WORKERS = 3
FLOOD, OTHER = "acme", "beside"
SETTINGS = """
[timing]
lease_seconds = 5
sweep_seconds = 0.5
margin_seconds = 0.2

[runs]
poll_seconds = 0.1

[[runs.limits]]
tools = "jobs.single"
at_once = 1
"""
_STARTS = """
select extract(epoch from r.started_at - r.queued_at)::float8 from deputize.runs r
where r.tenant = $1 and r.id = any($2::uuid[])
"""
_QUEUED = "select count(*) from deputize.calls where tenant = $1 and state = 'queued'"
_ENDED = "select not exists (select from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running'))"
_WELL = "select count(*) from deputize.calls where id = any($1::uuid[]) and state = 'succeeded'"
_CARRIED = f"select count(*) >= {WORKERS} from (select distinct owner from deputize.calls where state = 'running') as o"
_FORGET = "delete from dbos.workflow_status where status <> 'SUCCESS'"
_STOP = "update deputize.calls set state = 'canceled', ended_at = now() where state = 'queued'"


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    world: World
    nursery: Nursery
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    turns: Path

    async def crew(self, module: str | None = None) -> Crew:
        crew = Crew(
            world=self.world, nursery=self.nursery, folder=self.gateway.folder, database=self.database,
            env={"PROOF_TURNS": str(self.turns)},
        )  # fmt: skip
        crew.module = module or crew.module
        self.world.at_end(crew.dismiss)
        for place in range(WORKERS):
            await crew.man(place)
        return crew

    def asking(self) -> Asking:
        tokens = {tenant: self.issuer.token("ann", tenant=tenant) for tenant in (FLOOD, OTHER)}
        return Asking(url=self.gateway.url, tokens=tokens)


async def prove(world: World) -> Verdict:
    postgres, nursery = await asyncio.gather(world.postgres(), open_nursery(world))
    issuer, turns = new_issuer(), world.folder / "turns.jsonl"
    gateway = await start_gateway(
        world, postgres.dsn, issuer, tools="jobs.py", settings=SETTINGS, env={"PROOF_TURNS": str(turns)}
    )
    await _move_in(gateway, issuer)
    database = Database(postgres.dsn)
    world.at_end(database.close)
    site = Site(world=world, nursery=nursery, database=database, gateway=gateway, issuer=issuer, turns=turns)
    before, during, left = await _flood(site)
    crew = await site.crew()
    met, done, jobs = await _turns(site, crew, "turn", world.size(quick=150, full=2000))
    await crew.dismiss()
    caught = {"fairness_no_lines": await _control(site)}
    allowed = max(2 * percentile(before, 0.95), 1.0)
    return Verdict(
        figures={
            "start_p95_alone_seconds": round(percentile(before, 0.95), 3),
            "start_p95_beside_a_flood_seconds": round(percentile(during, 0.95), 3),
            "start_p95_of_what_is_allowed": round(percentile(during, 0.95) / allowed, 3),
            "flood_left_at_the_end": left,
            "jobs": jobs,
            "jobs_done_once": done,
            "jobs_that_met": met,
        },
        bars={
            "start_p95_of_what_is_allowed": ("<=", world.within(1.0)),
            "flood_left_at_the_end": (">=", 1),
            "jobs": (">=", world.size(quick=150, full=2000)),
            "jobs_done_once": ("==", jobs),
            "jobs_that_met": ("==", 0),
        },
        controls=caught,
        notes=[
            f"{world.size(quick=2000, full=10_000)} runs of one tenant, 20-80 ms each, on {WORKERS} workers; the other "
            "asks for one about five times a second. Allowed is the larger of twice the p95 without a flood and 1 s.",
            "Jobs that must not meet: nine in ten write to one of a few dozen things, the others come under a limit of "
            "one at once; priorities 1 to 10, a worker is killed in the middle. They note when they began and ended "
            "by CLOCK_MONOTONIC.",
        ],
    )


async def _move_in(gateway: GatewayHandle, issuer: Issuer) -> None:
    """The other tenant gets the same tool and policies."""
    scopes = ("proof:write", "deputize:admin")
    here = Line.to(gateway.url, token=issuer.token("root", tenant=FLOOD, scopes=scopes))
    token = issuer.token("root", tenant=OTHER, scopes=scopes)
    beside = Line.to(gateway.url, token=token)
    shown = (await here.get("/v1/tools/jobs.rest")).json()
    answer = await beside.post("/v1/tools", {**shown["contract"], "handler": {"target": "tools.jobs:rest"}})
    if answer.status != 201:
        raise RuntimeError(f"the tool was not registered: {answer.status} {answer.body[:500]!r}")
    await put_policies(gateway.url, token)
    here.close()
    beside.close()


def _rests(tenant: str, name: str, count: int, choose: random.Random) -> Iterator[Job]:
    for number in range(count):
        arguments: dict[str, object] = {"label": f"{name}-{number}", "milliseconds": choose.randrange(20, 80)}
        yield Job(label=f"{name}-{number}", tool="jobs.rest", arguments=arguments, tenant=tenant)


async def _flood(site: Site) -> tuple[list[float], list[float], int]:
    """How long the other tenant's runs took to begin, without and with a flood; and what was left of it at the end."""
    few, choose = site.world.size(quick=25, full=100), random.Random(3)
    crew = await site.crew()
    before = await _starts(site, "alone", few, choose)
    # It breaks in while nobody is there to drain it, so that all of it stands before the others.
    await crew.dismiss()
    flood = _rests(FLOOD, "flood", site.world.size(quick=2000, full=10_000), choose)
    await site.asking().submit(flood, lanes=8)
    crew = await site.crew()
    await site.database.until(_CARRIED)
    during = await _starts(site, "beside", few, choose)
    left = int(str(await site.database.value(_QUEUED, FLOOD)))
    site.world.say(f"p95 {percentile(before, 0.95):.3f} s alone, {percentile(during, 0.95):.3f} s beside {left} runs")
    # Nobody waits for the rest of it: that a queue is emptied is shown elsewhere.
    await site.database.fetch(_STOP)
    await crew.dismiss()
    await site.database.fetch(_FORGET)
    return before, during, left


async def _starts(site: Site, name: str, count: int, choose: random.Random) -> list[float]:
    asking = site.asking()
    await asking.submit(_rests(OTHER, name, count, choose), lanes=1, pace=0.2)
    ids = list(asking.calls.values())
    await site.database.until(_ENDED, ids)
    return [row[0] for row in await site.database.fetch(_STARTS, OTHER, ids)]


def _jobs(name: str, count: int, choose: random.Random) -> Iterator[Job]:
    places = max(4, count // 50)
    for number in range(count):
        label = f"{name}-{number}"
        arguments: dict[str, object] = {"label": label, "milliseconds": choose.randrange(5, 40)}
        priority = choose.randrange(1, 11)
        if number % 10 == 0:
            yield Job(label=label, tool="jobs.single", arguments=arguments, priority=priority)
        else:
            arguments["place"] = f"desk-{choose.randrange(places)}"
            yield Job(label=label, tool="jobs.work", arguments=arguments, priority=priority)


async def _turns(site: Site, crew: Crew, name: str, count: int) -> tuple[int, int, int]:
    """How many jobs met another, how many were done and noted once, and how many there were."""
    asking = site.asking()
    submitting = asyncio.create_task(asking.submit(_jobs(name, count, random.Random(4)), lanes=8))
    await asyncio.sleep(site.world.size(quick=2, full=10))
    if not crew.module.startswith("proofs.variants"):
        await crew.kill(0)
        await crew.man(0)
    await submitting
    ids = list(asking.calls.values())
    await site.database.until(_ENDED, ids, seconds=900)
    well = int(str(await site.database.value(_WELL, ids)))
    noted = [turn for turn in _read(site.turns) if turn["label"].rpartition("-")[0] == name]
    once = len({turn["label"] for turn in noted})
    met = _met(noted)
    site.world.say(f"{name}: {count} jobs, {well} succeeded, {len(noted)} noted, {met} met another")
    return met, min(well, once), count


def _read(turns: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in turns.read_bytes().splitlines()]


def _met(noted: Sequence[dict[str, Any]]) -> int:
    lines: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for turn in noted:
        lines[turn["kind"], turn["place"]].append((turn["began"], turn["ended"]))
    met = 0
    for line in lines.values():
        latest = 0
        for began, ended in sorted(line):
            met += began < latest
            latest = max(latest, ended)
    return met


async def _control(site: Site) -> bool:
    """Workers that stand in no line: jobs meet, and the same look finds them."""
    crew = await site.crew("proofs.variants.fairness_no_lines")
    met, _, _ = await _turns(site, crew, "control", 60)
    await crew.dismiss()
    return met > 0
