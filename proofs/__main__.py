"""Runs proofs: `python -m proofs NAME [--full] [--json FILE]`, and `list`, `all`, `kept` in place of a name.

Above: people and CI. Below: one module of this package per proof; `kit.report`, which judges what they found.
"""

import argparse
import asyncio
import importlib
import pkgutil
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import uvloop

import proofs
from proofs.kit.facts import commit_facts, machine_facts
from proofs.kit.report import RESULTS, Verdict, as_json, is_wrong, last_line, passes, shortcomings
from proofs.kit.world import World

_NOT_PROOFS = {"__main__", "kit"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Proof:
    name: str
    promise: str
    prove: Callable[[World], Awaitable[Verdict]]


def names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(proofs.__path__) if module.name not in _NOT_PROOFS)


def find(name: str) -> Proof:
    module = importlib.import_module(f"proofs.{name}")
    if name != module.NAME:
        raise ValueError(f"proofs/{name}.py calls itself {module.NAME!r}: a proof bears its module's name")
    return Proof(name=module.NAME, promise=module.PROMISE, prove=module.prove)


async def attempt(proof: Proof, *, full: bool) -> tuple[Verdict, dict[str, object]]:
    """Run the proof in a world of its own; a proof that breaks off has failed, and its log says why."""
    began = datetime.now(UTC)
    world = World(full=full)
    world.say(f"{proof.name} ({'full' if full else 'quick'} form): {proof.promise}")
    try:
        async with world:
            verdict = await proof.prove(world)
            if not passes(verdict):
                world.show_logs()
    except Exception as failure:  # noqa: BLE001 - the door: whatever a proof raises is its failure, told and counted
        traceback.print_exception(failure)
        verdict = Verdict(figures={}, bars={}, notes=[f"broke off with {type(failure).__name__}"])
    seconds = (datetime.now(UTC) - began).total_seconds()
    about: dict[str, object] = {
        **commit_facts(),
        "machine": machine_facts(world.postgres_version),
        "started": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
    }
    return verdict, about


async def run(proof: Proof, *, full: bool, json: Path | None) -> Verdict:
    task = asyncio.current_task()
    if task is not None:  # whoever ends the proof ends its children too
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    verdict, about = await attempt(proof, full=full)
    for note in verdict.notes:
        print(f"note: {note}", file=sys.stderr)
    target = json or (RESULTS / f"{proof.name}.json" if full else None)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(as_json(proof.name, verdict, full=full, about=about))
    sys.stderr.flush()
    print(last_line(proof.name, verdict), flush=True)
    return verdict


def run_now(proof: Proof, *, full: bool, json: Path | None) -> Verdict:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(run(proof, full=full, json=json))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(f"{proof.name}: ended from outside before it was done: FAIL")


def run_all(*, full: bool) -> bool:
    """In the quick form, what missed a time, a size or a control has one more chance at the end: whoever runs it there
    shares the machine. What came out wrong has none.
    """
    found = {name: run_now(find(name), full=full, json=None) for name in names()}
    for name, verdict in found.items():
        if not (full or passes(verdict) or is_wrong(verdict)):
            print(f"{name} is run once more")
            found[name] = run_now(find(name), full=full, json=None)
    failed = [name for name, verdict in found.items() if not passes(verdict)]
    told = f"FAIL: {', '.join(failed)}" if failed else "PASS"
    print(f"{len(found) - len(failed)} of {len(found)} proofs passed: {told}")
    return not failed


def list_proofs() -> bool:
    for name in names():
        print(f"{name:20} {find(name).promise}")
    return True


def check_kept() -> bool:
    found = shortcomings()
    for line in found:
        print(line)
    print(f"kept results: {'FAIL' if found else 'PASS'}")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m proofs", description="Run the proofs behind our figures.")
    parser.add_argument(
        "name",
        choices=[*names(), "list", "all", "kept"],
        metavar="NAME",
        help="a proof, or list, all, or kept: do the results in proofs/results meet their bars?",
    )
    parser.add_argument("--full", action="store_true", help="the published sizes instead of the quick ones")
    parser.add_argument("--json", type=Path, metavar="FILE", help="where to write the result of one proof")
    given = parser.parse_args()
    if given.name == "list":
        return 0 if list_proofs() else 1
    if given.name == "kept":
        return 0 if check_kept() else 1
    if given.name == "all":
        return 0 if run_all(full=given.full) else 1
    return 0 if passes(run_now(find(given.name), full=given.full, json=given.json)) else 1


if __name__ == "__main__":
    sys.exit(main())
