"""A deploy in mid-run: workers of two releases of a project side by side, then the old ones told to stop in turn."""

import asyncio
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator

from proofs.fleet.asking import Job
from proofs.fleet.crew import Crew
from proofs.fleet.site import Part, Site

STEPS = 3
_ENDED = "select not exists (select from deputize.calls where id = any($1::uuid[]) and state in ('queued', 'running'))"
_ROWS = "select version, state, owner_epoch from deputize.calls where id = any($1::uuid[])"


async def deploy(site: Site) -> Part:
    count = site.world.size(quick=100, full=500)
    old = await site.crew(2, name="old")
    asking = site.asking()
    choose = random.Random(5)
    await asking.submit(_jobs("before", count // 2, choose), lanes=6)
    new = await _new_release(site)
    later = asyncio.create_task(asking.submit(_jobs("during", count - count // 2, choose), lanes=2, pace=0.02))
    for place in list(old.hands):
        await _told_to_stop(old, place)
    await later
    ids = list(asking.calls.values())
    await site.database.until(_ENDED, ids, seconds=300)
    rows = await site.database.fetch(_ROWS, ids)
    effects = Counter(effect.call for effect in await site.ledger.effects())
    attempts = Counter(
        int(times) for key, times in (await site.ledger.attempts()).items() if key.partition(":")[0] in ids
    )
    await new.dismiss()
    versions = Counter(str(row["version"]) for row in rows)
    site.world.say(
        f"deploy: {dict(versions)}, {dict(Counter(row['state'] for row in rows))}, attempts {dict(attempts)}"
    )
    return Part(
        figures={
            "deploy_runs": len(ids),
            "deploy_lost": sum(row["state"] != "succeeded" for row in rows)
            + sum(effects[job] != STEPS for job in asking.calls),
            "deploy_repeated": sum(times > 1 for times in attempts.elements()),
            "deploy_versions": len(versions),
        },
        bars={
            "deploy_runs": (">=", count),
            "deploy_lost": ("==", 0),
            "deploy_repeated": ("==", 0),
            "deploy_versions": ("==", 2),
        },
        notes=[
            f"Deploy: {count} runs of three steps; two workers of an old release, then two of a new one beside them, "
            "then SIGTERM to the old ones in turn. Each run keeps the version of the tool it was asked for under.",
        ],
    )


def _jobs(name: str, count: int, choose: random.Random) -> Iterator[Job]:
    for number in range(count):
        label = f"{name}-{number}"
        yield Job(label=label, tool="steps.book", arguments={"label": label, "delay_ms": choose.randrange(50, 300)})


async def _new_release(site: Site) -> Crew:
    """The same project with a newer version of each tool."""
    folder = site.world.folder / "release-2"
    shutil.copytree(site.gateway.folder, folder)
    for name in ("steps.py", "jobs.py"):
        file = folder / "tools" / name
        file.write_text(file.read_text().replace('namespace="', 'version="0.2.0", namespace="'))
    return await site.crew(2, folder=folder, name="new")


async def _told_to_stop(crew: Crew, place: int) -> None:
    hand = crew.hands.pop(place)
    os.kill(hand.born.pid, signal.SIGTERM)
    await hand.born.gone(60)
    await hand.born.end()
