"""Run the quick forms of proofs, each in a process of its own: three at a time, or alone where times are compared."""

import asyncio
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

PASSED: Final = 0
FAILED: Final = 1
INCONCLUSIVE: Final = 3
"""A time, a size or a control was missed, and nothing came out that must not."""
# One more than the cores of CI: the longest proofs wait for most of their time.
_AT_ONCE: Final = 3
_END_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProofRun:
    """How one proof ended, and all it printed."""

    name: str
    code: int
    output: str
    seconds: float


def run_quick_proofs(
    names: Sequence[str], timed_names: frozenset[str], command: Sequence[str] = (sys.executable, "-m", "proofs")
) -> dict[str, ProofRun]:
    """Run every proof and return the last run of each; an inconclusive one is repeated once, with nothing beside it."""
    with asyncio.Runner() as runner:
        return runner.run(_run_queue(names, timed_names, command))


async def _run_queue(names: Sequence[str], timed_names: frozenset[str], command: Sequence[str]) -> dict[str, ProofRun]:
    task = asyncio.current_task()
    if task is not None:  # a signal to this process ends the proofs it started
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    slots = asyncio.Semaphore(_AT_ONCE)

    async def run_in_slot(name: str) -> ProofRun:
        async with slots:
            return await _run_one(command, name)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(run_in_slot(name)) for name in names if name not in timed_names]
    runs = {run.name: run for run in (each.result() for each in tasks)}
    runs |= {name: await _run_one(command, name) for name in names if name in timed_names}
    for run in list(runs.values()):
        if run.code == INCONCLUSIVE:
            print(f"{run.name} was inconclusive and is repeated alone", flush=True)
            runs[run.name] = await _run_one(command, run.name)
    return runs


async def _run_one(command: Sequence[str], name: str) -> ProofRun:
    """Run one proof to its end and print its last line, or everything it printed if it did not pass."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command, name, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        stdout, _ = await process.communicate()
    finally:
        if process.returncode is None:
            await _end_process(process)
    run = ProofRun(
        name=name,
        code=process.returncode if process.returncode is not None else FAILED,
        output=stdout.decode(errors="replace").rstrip(),
        seconds=time.monotonic() - began,
    )
    text = run.output.rpartition("\n")[2] if run.code == PASSED else run.output
    print(f"{text} ({run.seconds:.0f} s)", flush=True)
    return run


async def _end_process(process: asyncio.subprocess.Process) -> None:
    """End a proof so that it ends what it started; kill it if that takes too long."""
    process.terminate()
    try:
        async with asyncio.timeout(_END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
