"""Send hostile URLs and documents through every place that takes a URL, in a network where no connection goes unseen.

Every address is the proof's own there (`kit/closed_network.py`), so a connection to a metadata service arrives at a
listener instead of a time-out. A connection is forbidden if its address is neither public nor the one that the operator
named.
"""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import orjson

from proofs.kit.closed_network import build_command
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.ssrf.coverage import list_uncovered_code
from proofs.ssrf.judge import RESULT_FILE, Attempt, compute_figures, list_blind_places, list_forbidden, list_idle_places

NAME = "ssrf"
PROMISE = "No URL or document from outside leads to a connection into the operator's network or to a metadata service."
_ARENA = "proofs.ssrf.arena"
_UNCHECKED, _RESOLVED_TWICE = "ssrf_unchecked_addresses", "ssrf_resolved_twice"
_UNCOVERED = "code that no place covers"
_ROOT = Path(__file__).resolve().parents[2]
_ARENA_SECONDS = 3_600.0


async def prove(sandbox: Sandbox) -> Verdict:
    if shutil.which("unshare") is None:
        raise RuntimeError("unshare is not installed: `apt-get install -y util-linux`, then run again.")
    # The quick form runs the control beside it; the full form leaves the machine to one of them.
    if sandbox.full:
        attempts, unchecked = await _run(sandbox, _ARENA, "FULL"), await _run_variant(sandbox, _UNCHECKED)
    else:
        attempts, unchecked = await asyncio.gather(_run(sandbox, _ARENA, "QUICK"), _run_variant(sandbox, _UNCHECKED))
    covered = _load_result(sandbox.folder / "arena")["covered_code"]
    uncovered_code = list_uncovered_code(covered)
    controls = {
        _UNCHECKED: not list_blind_places(unchecked),
        _UNCOVERED: bool(set(list_uncovered_code(covered, _plant_client(sandbox.folder))) - set(uncovered_code)),
    }
    if sandbox.full:
        resolved_twice = await _run_variant(sandbox, _RESOLVED_TWICE)
        controls[_RESOLVED_TWICE] = bool(list_forbidden(resolved_twice))
    figures = compute_figures(attempts, uncovered_code)
    figures[f"{_UNCHECKED}_forbidden_connections"] = len(list_forbidden(unchecked))
    return Verdict(figures=figures, controls=controls, notes=_describe(attempts, uncovered_code))


async def _run_variant(sandbox: Sandbox, variant: str) -> list[Attempt]:
    sandbox.log(f"control: {variant}")
    return await _run(sandbox, f"proofs.variants.{variant}", "QUICK")


async def _run(sandbox: Sandbox, module: str, form: str) -> list[Attempt]:
    """Run an arena in a network of its own, and read what it wrote."""
    folder = sandbox.folder / module.rpartition(".")[2]
    folder.mkdir()
    command = build_command([sys.executable, "-m", module, str(folder), form])
    # The sources that this proof was started with come first, as in a checkout beside the one that is installed.
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    result = await sandbox.run_command(command, env={"PYTHONPATH": path}, cwd=folder, timeout=_ARENA_SECONDS)
    if result.code != 0:
        raise RuntimeError(
            f"{module} ended with {result.code}; it needs user or root namespaces: {result.stderr[-2000:]}"
        )
    sandbox.log(f"{module} ({form}): {result.seconds:.1f} s")
    return [
        Attempt(**{**each, "addresses": tuple(each["addresses"]), "methods": tuple(each["methods"])})
        for each in _load_result(folder)["attempts"]
    ]


def _load_result(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = orjson.loads((folder / RESULT_FILE).read_bytes())
    return result


def _plant_client(folder: Path) -> Path:
    """Plant a module with a client that no place covers; return the folder that has only that."""
    source = folder / "planted"
    source.mkdir()
    (source / "new_feature.py").write_text("import urllib.request\n", encoding="utf-8")
    return source


def _describe(attempts: list[Attempt], uncovered_code: list[str]) -> list[str]:
    """Describe what was found, for the one who has to mend it."""
    return [
        *(f"no place covers: {each}" for each in uncovered_code),
        *(f"connects to nothing: {each}" for each in list_idle_places(attempts)),
        *(f"forbidden: {each.place}, {each.kind}: {each.case[:100]} led to {', '.join(each.addresses)}"
          for each in list_forbidden(attempts)[:20]),
        *(f"unexpected: {each.place}, {each.kind}: {each.case[:100]} ended with {each.outcome}"
          for each in attempts if each.outcome.startswith("error ")),
    ][:60]  # fmt: skip
