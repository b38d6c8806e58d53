"""Runs of three steps on three workers, while workers are killed and frozen, PostgreSQL is killed and Redis is emptied.

Half of the runs act on an upstream that deduplicates, half on one that cannot. Some runs are handed out twice on
purpose. `fleet/crew.py` are the workers, `fleet/weather.py` the storm, `fleet/judge.py` the verdict.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass

from proofs.crash.nursery import Nursery, open_nursery
from proofs.fleet.asking import Asking, Job
from proofs.fleet.crew import Crew, Database
from proofs.fleet.judge import LEASE_SECONDS, Judgement, judge, percentile
from proofs.fleet.weather import Weather
from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Verdict
from proofs.kit.world import World

NAME = "recovery"
PROMISE = "Whatever dies, a run neither repeats a step nor loses one, and is gone on with soon."

WORKERS = 3
SETTINGS = f"""
[timing]
lease_seconds = {LEASE_SECONDS}
sweep_seconds = 0.2
margin_seconds = 0.2

[runs]
at_once = 12
poll_seconds = 0.1
most_takeovers = 50
reconcile_after_seconds = 1
reconcile_seconds = 1
reconcile_tries = 1

[limits]
redis_url = "{{redis}}"

[[limits.rules]]
name = "counted"
kind = "rate"
limit = 1000000
when_lost = "allow"
"""
_OPEN = "select count(*) from deputize.calls where state in ('queued', 'running')"
_ATTENDED = """
select not exists (select from deputize.calls k where k.state in ('queued', 'running') or k.state = 'unknown'
    and not exists (select from deputize.tickets t where t.tenant = k.tenant and t.call_id = k.id))
"""
_NONE_OPEN = "select not exists (select from deputize.calls where state in ('queued', 'running'))"
_SENDING = "select count(*) from deputize.calls where owner = $1 and state = 'running' and tool = 'steps.send'"
_TWICE = """
select deputize.enqueue_run(r.tenant, r.id, r.priority) from deputize.runs r join deputize.calls k using (tenant, id)
where k.state in ('queued', 'running') order by random() limit $1
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    world: World
    ledger: LedgerHandle
    nursery: Nursery
    database: Database
    gateway: GatewayHandle
    issuer: Issuer
    env: dict[str, str]

    def crew(self, module: str | None = None) -> Crew:
        crew = Crew(
            world=self.world, nursery=self.nursery, folder=self.gateway.folder, env=self.env, database=self.database
        )  # fmt: skip
        crew.module = module or crew.module
        self.world.at_end(crew.dismiss)
        return crew

    def asking(self) -> Asking:
        return Asking(url=self.gateway.url, tokens={"acme": self.issuer.token("ann")})


async def prove(world: World) -> Verdict:
    postgres, ledger, nursery = await asyncio.gather(world.postgres(), start_ledger(world), open_nursery(world))
    redis = world.free_port()
    weather = Weather(world=world, postgres=postgres, redis_port=redis, choose=random.Random(0))
    await weather.start_redis()
    issuer, env = new_issuer(), {"PROOF_LEDGER": ledger.url}
    settings = SETTINGS.format(redis=f"redis://127.0.0.1:{redis}/0")
    gateway = await start_gateway(world, postgres.dsn, issuer, tools="steps.py", settings=settings, env=env)
    database = Database(postgres.dsn)
    world.at_end(database.close)
    site = Site(
        world=world, ledger=ledger, nursery=nursery, database=database, gateway=gateway, issuer=issuer, env=env
    )  # fmt: skip
    count = world.size(quick=200, full=10_000)
    asking, crew = site.asking(), site.crew()
    for place in range(WORKERS):
        await crew.man(place)
    world.say(f"{WORKERS} workers, {count} runs")
    await _run_through(site, asking, crew, weather, count)
    found = await judge(asking.calls, await ledger.effects(), crew.blows, weather.downtimes, database)
    for sentence in found.sentences()[:40]:
        world.say(f"wrong: {sentence}")
    world.say(f"{dict(found.states)}, {found.taken_over} taken over, asked again {asking.repeats} times")
    await crew.dismiss()
    return _verdict(found, asking, crew, weather, count, await _controls(site))


def _jobs(count: int, name: str, choose: random.Random) -> Iterator[Job]:
    for number in range(count):
        tool = "steps.book" if number % 2 else "steps.send"
        arguments: dict[str, object] = {"label": f"{name}-{number}", "delay_ms": choose.randrange(20, 500)}
        yield Job(label=f"{name}-{number}", tool=tool, arguments=arguments)


async def _run_through(site: Site, asking: Asking, crew: Crew, weather: Weather, count: int) -> None:
    """The storm begins with the first run and ends with the last; then everything still open has to come to its end."""
    storm = asyncio.create_task(weather.rage(crew, brief=not site.world.full))
    twice = asyncio.create_task(_hand_out_twice(site.database))
    submitting = asyncio.create_task(asking.submit(_jobs(count, "run", random.Random(1)), lanes=6, pace=0.3))
    try:
        ended = 0
        while not submitting.done() or await site.database.value(_OPEN):
            for task in (storm, twice, submitting):
                if task.done() and task.exception() is not None:
                    task.result()
            await asyncio.sleep(1)
            ended += 1
            if ended % 20 == 0:
                waiting = await site.database.value(_OPEN)
                site.world.say(f"{len(asking.calls)} queued, {waiting} open, {len(crew.blows)} blows")
    finally:
        storm.cancel()
        twice.cancel()
        await asyncio.gather(storm, twice, return_exceptions=True)
    await submitting
    await site.database.until(_ATTENDED)


async def _hand_out_twice(database: Database) -> None:
    while True:
        await asyncio.sleep(0.5)
        await database.fetch(_TWICE, 3)


async def _controls(site: Site) -> dict[str, bool]:
    """Workers broken on purpose, struck where they are broken; true where the same judgement catches them."""
    caught = {}
    for variant in ("recovery_no_claim", "recovery_blind"):
        asking, crew = site.asking(), site.crew(f"proofs.variants.{variant}")
        for place in range(2):
            await crew.man(place)
        await asking.submit(_jobs(20, variant, random.Random(2)), lanes=4)
        await site.database.until(_SENDING, crew.hands[0].boot)
        await site.database.fetch(_TWICE, 20)
        if variant == "recovery_blind":
            # Long enough for a first step, too short for the third.
            await asyncio.sleep(0.6)
            await crew.kill(0)
        await site.database.until(_NONE_OPEN)
        found = await judge(asking.calls, await site.ledger.effects(), [], [], site.database)
        wrong = found.duplicates
        site.world.say(f"{variant}: {wrong[0] if wrong else 'nothing was found wrong'}")
        caught[variant] = bool(wrong)
        await crew.dismiss()
    return caught


def _verdict(
    found: Judgement, asking: Asking, crew: Crew, weather: Weather, count: int, controls: dict[str, bool]
) -> Verdict:
    return Verdict(
        figures={
            "runs": len(asking.calls),
            "workers_killed": sum(not blow.frozen for blow in crew.blows),
            "workers_frozen": sum(blow.frozen for blow in crew.blows),
            "databases_killed": len(weather.downtimes),
            "redis_emptied_or_killed": weather.redis_blows,
            "runs_taken_over": found.taken_over,
            "duplicate_or_blindly_repeated_steps": len(found.duplicates),
            "lost_runs_or_steps": len(found.lost) + len(found.unended),
            "keys_with_two_calls": len(asking.changed),
            "entries_that_do_not_match": len(found.unrecorded),
            "unknown_and_nobody_asked": len(found.unattended),
            "takeover_p99_seconds": round(percentile(found.waits, 0.99), 2),
            "takeovers_timed": len(found.waits),
            "upper_bound_per_run": 3 / count,
        },
        bars={
            "runs": (">=", count),
            "workers_frozen": (">=", 1),
            "databases_killed": (">=", 1),
            "runs_taken_over": (">=", 1),
            "duplicate_or_blindly_repeated_steps": ("==", 0),
            "lost_runs_or_steps": ("==", 0),
            "keys_with_two_calls": ("==", 0),
            "entries_that_do_not_match": ("==", 0),
            "unknown_and_nobody_asked": ("==", 0),
            "takeover_p99_seconds": ("<=", crew.world.within(15.0)),
        },
        controls=controls,
        notes=[
            "A run makes three effects at the ledger, a process of its own, under keys made of the run's key.",
            "steps.book: the upstream takes a key once; every run succeeds. steps.send: it would act twice; a run ends "
            "in success or, where a worker died with it, in UNKNOWN with a ticket.",
            "A worker is killed every 1-5 s and started again; one is frozen for longer than its lease, and wakes.",
            "Every half second up to three open runs are handed out a second time on purpose.",
            "Takeover is timed from the end of the dead worker's lease to the next entry of the run, without the time "
            "PostgreSQL was away; runs that were handed to the worker and not yet begun are counted too.",
            "With none seen in N runs, the rate of failures is below 3/N with 95% confidence.",
        ],
    )
