"""Start sandboxes by the thousand, while their supervisor is killed again and again."""

import asyncio
import contextlib
import os
import signal

from deputize.sandboxes.client import SandboxClient, SandboxUnavailable
from deputize.sandboxes.port import Ending, SandboxEnd, SandboxLimits, SandboxSpec
from proofs.kit.sandbox import Sandbox
from proofs.sandbox_endings.host import Host
from proofs.sandbox_endings.judge import Churn
from proofs.sandbox_endings.programs import MARK

_AT_ONCE = 8
_LIMITS = SandboxLimits(memory_bytes=64 * 1_048_576, processes=24, storage_bytes=4 * 1_048_576)
_EXPECTED = (Ending.EXIT, 0, b"done\n")
_EXPECTED_OF_PATIENT = (Ending.DEADLINE, None, b"")
# Each leaves something behind that only its end ends.
_PROGRAMS = (
    "sleep 300 & setsid sleep 300 & echo done",
    "head -c 1000000 /dev/zero > /tmp/x; head -c 1000000 /dev/zero > /dev/shm/x; sleep 300 < /tmp/x & echo done",
    "(trap '' TERM INT HUP; setsid sleep 300) & sleep 0.01; echo done",
    "sleep 300; echo done",
)
_PATIENT = len(_PROGRAMS) - 1
_PROXY_PORT = 3128


class _Counts:
    def __init__(self) -> None:
        self.kills = self.lost = 0
        self.untrue: list[str] = []


async def churn(sandbox: Sandbox, count: int, kill_every: int, mark: str) -> Churn:
    """Start so many sandboxes, several at once, and count what is left of them when the last one has ended."""
    folder = sandbox.folder / "churned"
    temporary = sandbox.folder / "churned-temporary"
    temporary.mkdir()
    host = Host(folder=folder, mark=mark, temporary=temporary)
    client = SandboxClient(folder, accept_weak_limits=True, accept_shared_user=True)
    counts, numbers = _Counts(), iter(range(1, count + 1))
    try:
        await _run(client, mark, 0)
        usual = host.count_descriptors()

        async def run_lane() -> None:
            for number in numbers:
                if number % kill_every == 0:
                    counts.kills += _kill_supervisor(host)
                    sandbox.log(f"{number} sandboxes, {counts.kills} supervisors killed")
                await _try(client, mark, number, counts)

        await asyncio.gather(*(run_lane() for _ in range(_AT_ONCE)))
        # The supervisor that runs now has swept up after the others.
        await _run(client, mark, 0)
        left = await host.count_left(usual_descriptors=usual)
    finally:
        await client.aclose()
    return Churn(
        sandboxes=count, kills=counts.kills, lost=counts.lost, untrue=tuple(counts.untrue), at_once=_AT_ONCE, left=left
    )


async def _try(client: SandboxClient, mark: str, number: int, counts: _Counts) -> None:
    is_patient = number % len(_PROGRAMS) == _PATIENT
    try:
        end, output = await _run(client, mark, number)
    except SandboxUnavailable:
        counts.lost += 1
        return
    if end.ending is Ending.FAILURE:
        counts.lost += 1
    elif (end.ending, end.exit_code, output) != (_EXPECTED_OF_PATIENT if is_patient else _EXPECTED):
        counts.untrue.append(f"sandbox {number}: {end}, {output!r}")


async def _run(client: SandboxClient, mark: str, number: int) -> tuple[SandboxEnd, bytes]:
    kind = number % len(_PROGRAMS)
    spec = SandboxSpec(
        command=("/bin/sh", "-c", _PROGRAMS[kind]),
        seconds=0.5 if kind == _PATIENT else 120.0,
        environment={MARK: mark},
        limits=_LIMITS,
        # The supervisor enters the network of these.
        proxy_port=_PROXY_PORT if number % 3 == 0 else None,
    )
    result = await client.run(spec)
    return result.end, result.stdout


def _kill_supervisor(host: Host) -> bool:
    pid = host.find_supervisor()
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
