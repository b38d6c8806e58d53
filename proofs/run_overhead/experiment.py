"""What runs cost and whom they disturb: CPU beside the bare engine, calls that only wait, a deploy in mid-run, and
reads that are answered meanwhile. Each part is a module beside this one.
"""

import asyncio

from proofs.kit.fork_server import start_fork_server
from proofs.kit.gateway import create_issuer, start_gateway
from proofs.kit.helper_servers import start_ledger
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.worker_pool import Database
from proofs.run_overhead.cpu_cost import measure_cpu_cost
from proofs.run_overhead.deployment import measure_deploy
from proofs.run_overhead.idle_runs import measure_idle_runs
from proofs.run_overhead.read_latency import is_blocking_submit_caught, measure_read_latency
from proofs.run_overhead.testbed import Testbed

NAME = "run_overhead"
PROMISE = "Runs cost little more than the engine under them, wait for nothing, and leave interactive calls alone."

SETTINGS = """
[timing]
lease_seconds = 5
sweep_seconds = 0.5
margin_seconds = 0.2
"""


async def prove(sandbox: Sandbox) -> Verdict:
    postgres, ledger, fork_server = await asyncio.gather(
        sandbox.start_postgres(), start_ledger(sandbox), start_fork_server(sandbox)
    )
    issuer = create_issuer()
    env = {"PROOF_LEDGER": ledger.url, "PROOF_TURNS": str(sandbox.folder / "turns.jsonl")}
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="[js]*s.py", settings=SETTINGS, env=env)
    database = Database(postgres.dsn)
    sandbox.add_cleanup(database.close)
    testbed = Testbed(
        sandbox=sandbox, postgres=postgres, fork_server=fork_server, ledger=ledger, database=database, gateway=gateway,
        issuer=issuer, env=env,
    )  # fmt: skip
    parts = [
        await part(testbed) for part in (measure_cpu_cost, measure_idle_runs, measure_deploy, measure_read_latency)
    ]
    return Verdict(
        figures={name: figure for part in parts for name, figure in part.figures.items()},
        controls={"run_overhead_blocking_submit": await is_blocking_submit_caught(testbed)},
        notes=[note for part in parts for note in part.notes],
    )
