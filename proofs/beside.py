"""What runs cost and whom they disturb: CPU beside the bare engine, calls that only wait, a deploy in mid-run, and
reads that are answered meanwhile. Each part stands in `fleet/` under its own name.
"""

import asyncio

from proofs.crash.nursery import open_nursery
from proofs.fleet.cost import cost
from proofs.fleet.crew import Database
from proofs.fleet.deploy import deploy
from proofs.fleet.idle import idle
from proofs.fleet.reads import reads
from proofs.fleet.site import Site
from proofs.kit.companions import start_ledger
from proofs.kit.gateway import new_issuer, start_gateway
from proofs.kit.report import Verdict
from proofs.kit.world import World

NAME = "beside"
PROMISE = "Runs cost little more than the engine under them, wait for nothing, and leave interactive calls alone."

SETTINGS = """
[timing]
lease_seconds = 5
sweep_seconds = 0.5
margin_seconds = 0.2
"""


async def prove(world: World) -> Verdict:
    postgres, ledger, nursery = await asyncio.gather(world.postgres(), start_ledger(world), open_nursery(world))
    issuer = new_issuer()
    env = {"PROOF_LEDGER": ledger.url, "PROOF_TURNS": str(world.folder / "turns.jsonl")}
    gateway = await start_gateway(world, postgres.dsn, issuer, tools="[js]*s.py", settings=SETTINGS, env=env)
    database = Database(postgres.dsn)
    world.at_end(database.close)
    site = Site(
        world=world, postgres=postgres, nursery=nursery, ledger=ledger, database=database, gateway=gateway,
        issuer=issuer, env=env,
    )  # fmt: skip
    parts = [await part(site) for part in (cost, idle, deploy, reads)]
    return Verdict(
        figures={name: figure for part in parts for name, figure in part.figures.items()},
        bars={name: bar for part in parts for name, bar in part.bars.items()},
        notes=[note for part in parts for note in part.notes],
    )
