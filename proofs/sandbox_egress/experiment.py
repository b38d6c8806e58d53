"""Let hostile programs in sandboxes reach for what nobody listed, in a network where no connection goes unseen.

Every address is the proof's own there (`kit/closed_network.py`). Each attempt is first made without a sandbox, through
a proxy that checks nothing, and counts only if it arrives somewhere that is forbidden. Then the programs that people
use reach what is listed.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.closed_network import build_command
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.sandbox_egress.arena import RESULT_FILE
from proofs.sandbox_egress.judge import Arrival, Attempt, Client, compute_figures

NAME = "sandbox_egress"
PROMISE = "A program in a sandbox reaches the hosts that are listed for it, and no other, however it tries."

_ROOT = Path(__file__).resolve().parents[2]
_ARENA_SECONDS = 3_600.0
_UNCHECKED = "without the sandbox and the check"


async def prove(sandbox: Sandbox) -> Verdict:
    if shutil.which("unshare") is None:
        raise RuntimeError("unshare is not installed: `apt-get install -y util-linux`, then run again.")
    folder = sandbox.folder / "arena"
    folder.mkdir()
    rounds = sandbox.pick_size(quick=1, full=10)
    command = build_command([sys.executable, "-m", "proofs.sandbox_egress.arena", str(folder), str(rounds)])
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    result = await sandbox.run_command(command, env={"PYTHONPATH": path}, cwd=folder, timeout=_ARENA_SECONDS)
    if result.code != 0:
        raise RuntimeError(f"the arena ended with {result.code}: {result.stderr[-2_000:]}")
    sandbox.log(f"{rounds} rounds of attempts: {result.seconds:.1f} s")
    found = orjson.loads((folder / RESULT_FILE).read_bytes())
    attempts = [_read_attempt(each) for each in found["attempts"]]
    clients = [Client(**{**each, "arrivals": _read_arrivals(each["arrivals"])}) for each in found["clients"]]
    figures = compute_figures(attempts, clients)
    return Verdict(
        figures=figures,
        controls={_UNCHECKED: int(figures["attempts_with_control"]) >= 120},
        notes=_describe(attempts, clients),
    )


def _read_attempt(fields: dict[str, Any]) -> Attempt:
    return Attempt(**{**fields, **{name: _read_arrivals(fields[name]) for name in ("control", "listed", "alone")}})


def _read_arrivals(rows: list[dict[str, Any]]) -> tuple[Arrival, ...]:
    return tuple(Arrival(**each) for each in rows)


def _describe(attempts: list[Attempt], clients: list[Client]) -> list[str]:
    """Describe what was found, for the one who has to mend it."""
    return [
        *(
            f"forbidden: {each.name}: {'; '.join(map(str, each.forbidden))[:300]}"
            for each in attempts
            if each.forbidden
        ),
        *(f"not tried: {each.name}: {each.problem[:300]}" for each in attempts if each.problem),
        *sorted({f"no control on this host: {each.name}" for each in attempts if not each.has_control}),
        *(f"{each.name} reached nothing: {each.output}" for each in clients if not each.has_reached),
        *(f"{each.name} was told {each.refusal or 'nothing'}" for each in clients if not each.is_told),
        f"clients: {', '.join(each.name for each in clients)}",
    ][:60]
