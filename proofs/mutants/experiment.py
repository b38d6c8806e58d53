"""Plant one fault at a time into a copy of the source, and see whether the tests notice.

`faults/PACKAGE.toml` holds the faults: what to replace, and the tests that have to fail. On the unchanged copy they
have to pass. The full form tries all faults, the quick form five, chosen by the commit. A fault that survives shows a
missing test. One whose text is no longer in the source fails the proof by name.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from proofs.kit.facts import read_commit_facts
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.mutants.mutant import Mutant, choose_mutants, load_mutants

NAME = "mutants"
PROMISE = "A fault planted anywhere in the source is noticed by the tests of what it breaks."

_ROOT: Final = Path(__file__).resolve().parents[2]
_LANES: Final = 2
_QUICK_COUNT: Final = 5
_MAX_SECONDS: Final = 900.0
_CONTROL: Final = "without a fault, the same tests pass"
_FAILED: Final = re.compile(r"\b\d+ failed\b")
_SUMMARY: Final = re.compile(r" in \d+\.\d+s")
End = Literal["killed", "survived", "broken"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MutantRun:
    """How the tests of one mutant ended; `broken` if they could not judge it."""

    mutant: Mutant
    end: End
    last_line: str
    seconds: float


async def prove(sandbox: Sandbox) -> Verdict:
    mutants = load_mutants()
    outdated = [problem for each in mutants if (problem := each.find_problem(_ROOT)) is not None]
    runnable = [each for each in mutants if each.equivalent is None and each.find_problem(_ROOT) is None]
    if not sandbox.full:
        runnable = choose_mutants(runnable, str(read_commit_facts()["commit"]), _QUICK_COUNT)
    lanes = [await asyncio.to_thread(_copy_tree, sandbox.folder / f"tree-{number}") for number in range(_LANES)]
    unchanged = await _run_unchanged(sandbox, lanes[0], runnable)
    runs = await _run_all(sandbox, lanes, runnable)
    return _build_verdict(mutants, outdated, runs, unchanged)


def _copy_tree(target: Path) -> Path:
    """Copy what the tests need, as it is now: tracked files and new ones, without what is ignored."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True).stdout.decode().split("\0")
    for name in names:
        source = _ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
    return target


async def _run_unchanged(sandbox: Sandbox, tree: Path, mutants: Sequence[Mutant]) -> MutantRun:
    """Run the tests of all mutants on the unchanged copy: a test that fails anyway would kill anything."""
    tests = tuple(sorted({test for each in mutants for test in each.tests}))
    run = await _run_tests(sandbox, tree, replace(mutants[0], name="unchanged", tests=tests), limit=3600.0)
    sandbox.log(f"unchanged: {run.last_line}")
    return run


async def _run_all(sandbox: Sandbox, lanes: Sequence[Path], mutants: Sequence[Mutant]) -> list[MutantRun]:
    pending, runs = iter(mutants), []

    async def run_lane(tree: Path) -> None:
        for mutant in pending:
            with mutant.apply(tree):
                run = await _run_tests(sandbox, tree, mutant)
            sandbox.log(f"{run.end}: {mutant.name} ({run.seconds:.0f} s): {run.last_line}")
            runs.append(run)

    async with asyncio.TaskGroup() as group:
        for tree in lanes:
            group.create_task(run_lane(tree))
    return runs


async def _run_tests(sandbox: Sandbox, tree: Path, mutant: Mutant, *, limit: float = _MAX_SECONDS) -> MutantRun:
    """Run the tests until one fails. Their own processes find the changed source first on the path."""
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--no-header", "--tb=line"]
    argv = [sys.executable, "-m", "pytest", *options, *(f"tests/{test}" for test in mutant.tests)]
    path = os.pathsep.join((str(tree / "src"), str(tree)))
    started_at = time.monotonic()
    try:
        result = await sandbox.run_command(argv, cwd=tree, env={"PYTHONPATH": path}, timeout=limit)
    except TimeoutError:
        seconds = time.monotonic() - started_at
        return MutantRun(mutant=mutant, end="broken", last_line="the tests did not end", seconds=seconds)
    # Processes that the tests started may write after the summary.
    lines = (result.stdout.strip() or result.stderr.strip()).splitlines()[-5:]
    last_line = next((line for line in reversed(lines) if _SUMMARY.search(line)), lines[-1] if lines else "")
    return MutantRun(
        mutant=mutant, end=judge_tests(result.code, last_line), last_line=last_line, seconds=result.seconds
    )


def judge_tests(code: int, last_line: str) -> End:
    """Judge how pytest ended: a fault is noticed by a test that fails, not by one that cannot be set up."""
    if code == 0:
        return "survived"
    return "killed" if code == 1 and _FAILED.search(last_line) else "broken"


def _build_verdict(
    mutants: Sequence[Mutant],
    outdated: Sequence[str],
    runs: Sequence[MutantRun],
    unchanged: MutantRun,
) -> Verdict:
    survivors = [run for run in runs if run.end == "survived"]
    broken = [run for run in runs if run.end == "broken"]
    equivalents = [each for each in mutants if each.equivalent is not None]
    figures: dict[str, Figure] = {
        "faults": len(runs),
        "noticed": sum(run.end == "killed" for run in runs),
        "survived": len(survivors),
        "not_judged": len(broken),
        "outdated": len(outdated),
        "equivalent": len(equivalents),
        "packages": len({run.mutant.file.partition("/")[0] for run in runs}),
        "longest_seconds": round(max((run.seconds for run in runs), default=0.0), 1),
    }
    return Verdict(
        figures=figures,
        controls={_CONTROL: unchanged.end == "survived"},
        notes=[
            *outdated,
            *(f"survived: {run.mutant.name}: {run.mutant.fault}" for run in survivors),
            *(f"not judged: {run.mutant.name}: {run.last_line}" for run in broken),
            *(f"equivalent: {each.name}: {each.equivalent}" for each in equivalents),
        ],
    )
