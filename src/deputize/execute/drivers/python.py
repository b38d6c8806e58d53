"""Runs tools that are Python functions of this process: the operator's own, trusted code.

Async tools run in the request's own task, without a hop. Synchronous ones run in threads, and a thread cannot be
stopped: one that outlives its deadline is reported as exactly that, with a future for the end it may still come to.
"""

import asyncio
import contextvars
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deputize.core.contract import Contract
from deputize.core.definition import PythonTool, ToolContext
from deputize.core.errors import (
    DeadlineExceeded,
    Problem,
    RequiresSetup,
    SemanticViolation,
    ToolFailed,
    ToolTimeout,
    UpstreamUnavailable,
)
from deputize.execute.deadlines import Deadlines


class StillRunning(ToolTimeout):
    """The deadline passed and the tool goes on in its thread; `late` is done when it is."""

    def __init__(self, message: str, late: "asyncio.Future[Any]") -> None:
        super().__init__(message)
        self.late = late


def not_loaded(contract: Contract) -> RequiresSetup:
    target = contract.handler.target
    return RequiresSetup(
        f"{contract.full_name} {contract.version} names the function {target}, which is not loaded here",
        details={"target": target, "setting": "tools.python"},
        nothing_happened=True,
    )


class PythonDriver:
    """Finds a contract's function by its target and calls it under a deadline."""

    def __init__(self, tools: Iterable[PythonTool] = (), *, threads: int = 32) -> None:
        tools = list(tools)
        self._tools = {(tool.target, tool.contract.version): tool for tool in tools}
        self._by_target = {tool.target: tool for tool in tools}
        self._found: dict[str, PythonTool] = {}
        self._deadlines = Deadlines()
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tool")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def find(self, contract: Contract) -> PythonTool:
        """The function behind a contract. A manifest names one by target alone; a decorated one also by version."""
        found = self._found.get(contract.digest)
        if found is not None:
            return found
        target = contract.handler.target
        tool = self._tools.get((target, contract.version)) or self._by_target.get(target)
        if tool is None or not _fulfils(tool, contract):
            raise not_loaded(contract)
        self._found[contract.digest] = tool
        return tool

    async def preflight(self, tool: PythonTool, arguments: dict[str, Any], seconds: float) -> None:
        """The tool's own look at the values, before anything can change."""
        if tool.validate is None:
            return
        try:
            await self._call(tool.contract.full_name, tool.validate, arguments, seconds)
        except StillRunning as error:
            # A check changes nothing, however long its thread goes on.
            raise ToolTimeout(
                "the tool's own validation took too long; nothing was done", nothing_happened=True
            ) from error
        except Problem as problem:
            problem.nothing_happened = True
            raise
        except (ValueError, LookupError) as error:
            raise SemanticViolation(_said(error), nothing_happened=True) from error
        except TimeoutError as error:
            raise ToolTimeout(
                "the tool's own validation took too long; nothing was done", nothing_happened=True
            ) from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(f"the tool's own validation failed: {_said(error)}", nothing_happened=True) from error

    async def run(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """The tool's output, or the Problem it ended in. Foreign errors are mapped here and nowhere else."""
        if seconds <= 0:
            raise DeadlineExceeded("the deadline passed before the tool was started, so nothing was done")
        if context is not None:
            arguments = {**arguments, "context": context}
        try:
            if tool.is_async:
                return await self._deadlines.run(tool.run(**arguments), seconds)
            return await self._in_thread(tool.contract.full_name, tool.run, arguments, seconds)
        except Problem:
            raise
        except TimeoutError as error:
            raise ToolTimeout(f"{tool.contract.full_name} did not end within {seconds:.3g} s") from error
        except _OF_FILES as error:
            raise ToolFailed(f"{tool.contract.full_name} failed: {_said(error)}") from error
        except OSError as error:
            raise UpstreamUnavailable(f"{tool.contract.full_name} lost its upstream: {_said(error)}") from error
        except asyncio.CancelledError as error:
            if _is_being_canceled():
                raise
            # Not its caller was canceled but something the tool itself had started.
            raise ToolFailed(f"{tool.contract.full_name} failed: {_said(error)}") from error
        except (Exception, SystemExit) as error:
            if _lost_its_peer(error):
                raise UpstreamUnavailable(f"{tool.contract.full_name} lost its upstream: {_said(error)}") from error
            raise ToolFailed(f"{tool.contract.full_name} failed: {_said(error)}") from error

    async def preview(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """What the tool says it would do, or the Problem that kept it from saying so. It is read-only by its author's
        word and by its credential; however long its thread goes on, nothing was done.
        """
        name = tool.contract.full_name
        if tool.preview is None:
            raise ToolFailed(f"the function of {name} has no preview, although its contract says so")
        if context is not None:
            arguments = {**arguments, "context": context}
        try:
            return await self._call(name, tool.preview, arguments, seconds)
        except (StillRunning, TimeoutError) as error:
            raise ToolTimeout(f"the preview of {name} did not end within {seconds:.3g} s") from error
        except Problem:
            raise
        except asyncio.CancelledError as error:
            if _is_being_canceled():
                raise
            raise ToolFailed(f"the preview of {name} failed: {_said(error)}") from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(f"the preview of {name} failed: {_said(error)}") from error

    async def confirm(self, tool: PythonTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        """The tool's own check of what it did; whatever it raises means no."""
        if tool.verify is not None:
            check = functools.partial(tool.verify, arguments, output)
            await self._call(tool.contract.full_name, check, {}, seconds)

    async def _call(self, name: str, function: Callable[..., Any], arguments: dict[str, Any], seconds: float) -> Any:
        """A function of the tool's beside its own: where it waits, the loop goes on; where it blocks, a thread does."""
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(seconds):
                return await function(**arguments)
        return await self._in_thread(name, function, arguments, seconds)

    async def _in_thread(
        self, name: str, function: Callable[..., Any], arguments: dict[str, Any], seconds: float
    ) -> Any:
        queued = self._threads.submit(contextvars.copy_context().run, _called, function, arguments)
        running = asyncio.wrap_future(queued)
        try:
            done, _ = await asyncio.wait({running}, timeout=seconds)
        except asyncio.CancelledError:
            queued.cancel()
            raise
        if done and not running.cancelled():
            return running.result()
        if queued.cancel():
            # It must not begin later, when nobody waits for it and its lease may be over.
            raise DeadlineExceeded(f"no thread was free for {name} in time, so it was not started")
        # Where nobody waits for the late end, the loop would log what the tool said.
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise StillRunning(f"{name} still runs in its thread after {seconds:.3g} s", running)


# How client libraries name an answer that never came; few of them derive from the errors Python has for that.
_LOST_NAMES = re.compile(r"Timeout|Connect|Disconnect|Transport|Network|ProtocolError|ReadError|WriteError|RpcError")


def _lost_its_peer(error: BaseException) -> bool:
    """Whether the error says that a peer fell silent, which is no verdict: it may have acted."""
    return any(_LOST_NAMES.search(kind.__name__) for kind in type(error).__mro__)


def _fulfils(tool: PythonTool, contract: Contract) -> bool:
    """Code that declares itself as this very version runs only under that declaration, not under an older text of it.
    Any other contract names the code on purpose: a manifest, or a version registered beside it."""
    own = tool.contract
    same = (own.full_name, own.version) == (contract.full_name, contract.version)
    return not same or own.digest == contract.digest


# What the tool says of its own files is about the tool, not about a service that may come back.
_OF_FILES = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def _called(run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return run(**arguments)
    except (StopIteration, SystemExit) as error:
        # A future cannot carry the one, and the loop would end the process for the other.
        raise RuntimeError(type(error).__name__) from error


def _is_being_canceled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _said(error: BaseException) -> str:
    """The error's kind and, at most, the first line of its text: a stack or a path is nobody's business outside."""
    first = str(error).strip().splitlines()[:1]
    text = first[0][:200] if first else ""
    return type(error).__name__ if not text or "/" in text or "\\" in text else f"{type(error).__name__}: {text}"
