"""Run jobs that outsiders make costly in processes of their own, never on the event loop.

A job is a function of this package from bytes to bytes. Its process has a limit on memory and processor time and an
empty environment, and is killed and replaced if a job overruns. A tenant has one job at a time, so that its jobs wait
for each other and not other tenants' jobs for them; tenants take turns. Who waits too long is refused. Processes start
with the first job and are reused; a module of jobs may have `prepare_next`, which is called between two of them.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Final

import structlog

from deputize.execute.job_process_main import HEADER

log = structlog.get_logger(__name__)
MAX_PROCESSES: Final = 2
MAX_WAITING_PER_TENANT: Final = 32
MAX_JOB_SECONDS: Final = 2
# Longer than a tenant's longest job takes, beside those of others.
_WAIT_SECONDS: Final = 120.0
# The first job of a process waits for the interpreter to start and to import what it needs.
_START_SECONDS: Final = 10.0
# A job has its seconds of processor time, after which its process ends itself. A busy machine spreads them over longer.
_BUSY_SECONDS: Final = 15.0
_MAX_REPLY_BYTES: Final = 33_554_432
_MODULE: Final = "deputize.execute.job_process_main"


class JobRefused(Exception):
    """Too many jobs of the tenant wait, or this one waited too long. It did not begin."""


class JobProcesses:
    """Some processes of one gateway, for one kind of work. With a higher `nice` value, they yield to calls.

    Where the users of a tenant take turns before, it may have more than one job at a time.
    """

    def __init__(self, max_processes: int = MAX_PROCESSES, *, nice: int = 0, per_tenant: int = 1) -> None:
        self._idle: list[_JobProcess] = []
        self._nice = nice
        self._per_tenant = per_tenant
        self._slots = asyncio.Semaphore(max_processes)
        self._tenant_slots: dict[str, asyncio.Semaphore] = {}
        self._waiting_counts: dict[str, int] = {}

    async def run_job(
        self,
        tenant: str,
        job: Callable[[bytes], bytes],
        payload: bytes,
        *,
        seconds: int = MAX_JOB_SECONDS,
        most_waiting: int = MAX_WAITING_PER_TENANT,
    ) -> bytes | None:
        """Run a job for a tenant; None if it took too much time or memory, failed, or too many jobs wait.

        With a lower `most_waiting`, a job that can be refused leaves room for those that cannot.
        """
        try:
            return await self.begin_job(tenant, job, payload, seconds=seconds, most_waiting=most_waiting)
        except JobRefused:
            return None

    async def begin_job(
        self,
        tenant: str,
        job: Callable[[bytes], bytes],
        payload: bytes,
        *,
        seconds: int = MAX_JOB_SECONDS,
        most_waiting: int = MAX_WAITING_PER_TENANT,
    ) -> bytes | None:
        """Run a job for a tenant; None if it took too much time or memory, or failed.

        Raises `JobRefused` if too many jobs wait: this one may be tried again.
        """
        name, count = f"{job.__module__}:{job.__qualname__}", self._waiting_counts.get(tenant, 0)
        if count >= most_waiting:
            log.warning("job_refused", tenant=tenant, job=name, waiting=count)
            raise JobRefused
        self._waiting_counts[tenant] = count + 1
        tenant_slots = self._tenant_slots.setdefault(tenant, asyncio.Semaphore(self._per_tenant))
        try:
            async with AsyncExitStack() as stack:
                try:
                    async with asyncio.timeout(_WAIT_SECONDS):
                        await stack.enter_async_context(tenant_slots)
                        await stack.enter_async_context(self._slots)
                except TimeoutError as error:
                    log.warning("job_refused", tenant=tenant, job=name, waiting=count)
                    raise JobRefused from error
                return await self._run_in_slot(tenant, name, payload, seconds)
        finally:
            self._waiting_counts[tenant] -= 1
            if not self._waiting_counts[tenant]:
                del self._waiting_counts[tenant], self._tenant_slots[tenant]

    async def _run_in_slot(self, tenant: str, name: str, payload: bytes, seconds: int) -> bytes | None:
        # One that has died meanwhile gets no job.
        self._idle = [each for each in self._idle if each.is_alive]
        process = self._idle.pop() if self._idle else await _JobProcess.start(self._nice)
        try:
            reply = await process.exchange(name, payload, seconds)
        except BaseException:
            await process.kill()
            raise
        if reply is None:
            await process.kill()
            log.warning("job_overrun", tenant=tenant, job=name, seconds=seconds)
            return None
        self._idle.append(process)
        if reply[:1] != b"+":
            log.error("job_failed", tenant=tenant, job=name, reason=reply[1:].decode() or "memory")
            return None
        return reply[1:]

    async def aclose(self) -> None:
        """End the processes."""
        while self._idle:
            await self._idle.pop().kill()


class _JobProcess:
    """One process and its pipes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._is_new = True

    @classmethod
    async def start(cls, nice: int) -> "_JobProcess":
        environment = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "PATH": os.defpath}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", _MODULE, str(nice), str(os.getpid()),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            env=environment, start_new_session=True,
        )  # fmt: skip
        return cls(process)

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    async def exchange(self, name: str, payload: bytes, seconds: int) -> bytes | None:
        """Send a job and wait for its reply; None if the process does not reply in time."""
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            return None
        patience = seconds + _BUSY_SECONDS + (_START_SECONDS if self._is_new else 0)
        self._is_new = False
        frames = (name.encode(), payload, str(seconds).encode())
        try:
            async with asyncio.timeout(patience):
                stdin.writelines(HEADER.pack(len(each)) + each for each in frames)
                await stdin.drain()
                (size,) = HEADER.unpack(await stdout.readexactly(HEADER.size))
                return await stdout.readexactly(size) if 0 < size <= _MAX_REPLY_BYTES else None
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError):
            return None

    async def kill(self) -> None:
        """End the process at once, with those that it started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
