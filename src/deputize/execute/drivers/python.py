"""Run tools that are Python functions in this process: the operator's own, trusted code.

Async tools run in the request's own task. Synchronous tools run in threads, and a thread cannot be stopped: one that
outlives its deadline is reported as `ThreadOverrun`, with a future for its eventual end.
"""

import asyncio
import contextvars
import functools
import inspect
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from deputize.core.bounded_dict import BoundedDict
from deputize.core.contract.contract import Contract
from deputize.core.contract.safety_floor import Weakening, list_weakenings
from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import (
    DeadlineExceeded,
    Problem,
    SemanticViolation,
    ToolFailed,
    ToolNotAdmitted,
    ToolRequiresSetup,
    ToolTimeout,
    UpstreamUnavailable,
)
from deputize.execute.deadlines import Deadlines

_MAX_CACHED_CONTRACTS = 10_000
# A part of the tool's time may have passed before it was started.
_OWN_TIMEOUT_SHARE = 0.9
_MAX_EARLIER_TOOLS = 256


class ThreadOverrun(ToolTimeout):
    """The deadline passed while the tool still runs in its thread; `future` completes when it ends."""

    def __init__(self, message: str, future: "asyncio.Future[Any]") -> None:
        super().__init__(message)
        self.future = future


def build_not_loaded_error(contract: Contract) -> ToolRequiresSetup:
    """Build the error for a contract whose function is not loaded in this process."""
    target = contract.handler.target
    return ToolRequiresSetup(
        f"{contract.full_name} {contract.version} needs the function {target}, which this gateway has not loaded",
        details={"target": target, "setting": "tools.python"},
        advice="If the function moved or was deleted, retire this version: deputize tool retire NAME VERSION. Else let "
        "tools.python match its file, and restart the gateway.",
        nothing_happened=True,
    )


def _build_weaker_error(contract: Contract, weakenings: list[Weakening]) -> ToolNotAdmitted:
    """Build the error for a registered contract that says less than its function declares now."""
    first, target = weakenings[0], contract.handler.target
    return ToolNotAdmitted(
        f"{contract.full_name} {contract.version} was not run: its contract says {first.path} {first.contract_value}, "
        f"but the function {target} declares {first.function_value}",
        details={"target": target, "reasons": [asdict(each) for each in weakenings]},
        advice="Retire this version, and register one that is at least as strict as the function declares.",
        nothing_happened=True,
    )


def _require_helpers(tool: PythonTool, contract: Contract) -> None:
    """Refuse a contract that declares what its function does not bring: a check that is not made would be missed."""
    helpers = {
        "validates": ("validate", tool.validate),
        "verifies": ("verify", tool.verify),
        "reads_state": ("read_state", tool.read_state),
        "rolls_back": ("rollback", tool.rollback),
    }
    for field, (name, function) in helpers.items():
        if getattr(contract, field) and function is None:
            raise ToolRequiresSetup(
                f"{contract.full_name} {contract.version} declares {field}, but the function {tool.target} brings none",
                details={"target": tool.target, "field": field},
                advice=f"Add {name}= to the function's @tool, or register a version without {field}.",
                nothing_happened=True,
            )


class _LoadedTools:
    """The functions that are loaded at one time, found by what contracts name. Replaced as a whole, never changed."""

    def __init__(self, tools: Iterable[PythonTool]) -> None:
        self.tools = tuple(tools)
        self.contracts = {tool.contract.full_name: tool.contract for tool in self.tools}
        self.by_digest: BoundedDict[str, PythonTool] = BoundedDict(_MAX_CACHED_CONTRACTS)
        self._by_version = {(tool.target, tool.contract.version): tool for tool in self.tools}
        self._by_target = {tool.target: tool for tool in self.tools}
        # A file's contract for a function without @tool is a declaration too, and so may differ from its siblings.
        self._own_digests = {tool.contract.digest for tool in self.tools if tool.declaration is None}
        self._declarations: dict[str, dict[str, Contract]] = {}
        for tool in self.tools:
            declaration = tool.declaration or tool.contract
            self._declarations.setdefault(tool.target, {})[declaration.digest] = declaration

    def find_implementation(self, contract: Contract) -> PythonTool | None:
        target = contract.handler.target
        tool = self._by_version.get((target, contract.version)) or self._by_target.get(target)
        return tool if tool is not None and _is_implementation(tool, contract) else None

    def list_weakenings(self, contract: Contract) -> list[Weakening]:
        if contract.digest in self._own_digests:
            return []
        declarations = self._declarations.get(contract.handler.target, {})
        return [each for declaration in declarations.values() for each in list_weakenings(contract, declaration)]


class PythonDriver:
    """The driver for Python functions: finds a contract's function by its target and calls it with a deadline."""

    def __init__(self, tools: Iterable[PythonTool] = (), *, threads: int = 32) -> None:
        self._loaded_tools = _LoadedTools(tools)
        # Tools of the gateway itself, which stay when the project's are replaced.
        self._builtin_tools: tuple[PythonTool, ...] = ()
        # Contracts that were replaced while calls were on their way to them, with their functions.
        self._earlier: BoundedDict[str, PythonTool] = BoundedDict(_MAX_EARLIER_TOOLS)
        self._deadlines = Deadlines()
        self.thread_count = threads
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="tool")

    def close(self) -> None:
        """Stop the threads without waiting for running tools."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def add_builtin(self, tool: PythonTool) -> None:
        """Add a tool of the gateway itself."""
        self._builtin_tools += (tool,)
        self._loaded_tools = _LoadedTools((*self._loaded_tools.tools, tool))

    def replace_tools(self, tools: Iterable[PythonTool]) -> None:
        """Use these functions for every call that has not found its own yet; running ones end on what they began with.

        A call that was validated under a contract that is replaced here still finds the function of that contract.
        """
        loaded_tools = _LoadedTools((*tools, *self._builtin_tools))
        replaced_names = {(tool.contract.full_name, tool.contract.version) for tool in loaded_tools.tools}
        for tool in self._loaded_tools.tools:
            if (tool.contract.full_name, tool.contract.version) in replaced_names:
                self._earlier.put(tool.contract.digest, tool)
        self._loaded_tools = loaded_tools

    def find_tool(self, contract: Contract) -> PythonTool:
        """Find a contract's function: a decorated one by target and version, a manifest's by target alone."""
        loaded_tools = self._loaded_tools
        cached_tool = loaded_tools.by_digest.get(contract.digest)
        if cached_tool is not None:
            return cached_tool
        tool = loaded_tools.find_implementation(contract)
        if tool is None:
            earlier_tool = self._earlier.get(contract.digest)
            if earlier_tool is not None:
                return earlier_tool
            raise build_not_loaded_error(contract)
        weakenings = loaded_tools.list_weakenings(contract)
        if weakenings:
            raise _build_weaker_error(contract, weakenings)
        _require_helpers(tool, contract)
        return loaded_tools.by_digest.put(contract.digest, tool)

    def find_contract(self, name: str) -> Contract | None:
        """Find the contract of a loaded function by its tool's name."""
        return self._loaded_tools.contracts.get(name)

    def list_weakenings(self, contract: Contract) -> list[Weakening]:
        """List the fields in which a contract is weaker than what its function declares, if that is loaded."""
        return self._loaded_tools.list_weakenings(contract)

    async def preflight(self, tool: PythonTool, arguments: dict[str, Any], seconds: float) -> None:
        """Run the tool's own `validate`, before any effect."""
        if tool.validate is None:
            return
        try:
            await self._call_helper(tool.contract.full_name, tool.validate, arguments, seconds)
        except ThreadOverrun as error:
            # Validation has no effects, even if its thread is still running.
            raise ToolTimeout(
                "the tool's own validation took too long; nothing was done", nothing_happened=True
            ) from error
        except Problem as problem:
            raise problem.replace(nothing_happened=True) from problem.__cause__
        except (ValueError, LookupError) as error:
            raise SemanticViolation(_describe_error(error), nothing_happened=True) from error
        except TimeoutError as error:
            raise ToolTimeout(
                "the tool's own validation took too long; nothing was done", nothing_happened=True
            ) from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(
                f"the tool's own validation failed: {_describe_error(error)}", nothing_happened=True
            ) from error

    async def run(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """Run the tool and return its output, or raise the Problem it ended in. All other errors are mapped here."""
        if seconds <= 0:
            raise DeadlineExceeded("the deadline passed before the tool was started, so nothing was done")
        if context is not None:
            arguments = {**arguments, "context": context}
        try:
            if tool.is_async:
                return await self._deadlines.run(tool.run(**arguments), seconds)
            return await self._run_in_thread(tool.contract.full_name, tool.run, arguments, seconds)
        except ThreadOverrun as overrun:
            raise overrun.replace(advice=_advise_after_timeout(tool.contract, seconds)) from overrun.__cause__
        except Problem:
            raise
        except TimeoutError as error:
            advice = _advise_after_timeout(tool.contract, seconds)
            raise ToolTimeout(f"{tool.contract.full_name} did not end within {seconds:.3g} s", advice=advice) from error
        except _FILE_ERRORS as error:
            raise ToolFailed(f"{tool.contract.full_name} failed: {_describe_error(error)}") from error
        except OSError as error:
            raise UpstreamUnavailable(
                f"{tool.contract.full_name} lost its upstream: {_describe_error(error)}"
            ) from error
        except asyncio.CancelledError as error:
            if _is_task_canceled():
                raise
            # The call was not canceled; something that the tool itself started was.
            raise ToolFailed(f"{tool.contract.full_name} failed: {_describe_error(error)}") from error
        except (Exception, SystemExit) as error:
            if _is_connection_loss(error):
                raise UpstreamUnavailable(
                    f"{tool.contract.full_name} lost its upstream: {_describe_error(error)}"
                ) from error
            raise ToolFailed(f"{tool.contract.full_name} failed: {_describe_error(error)}") from error

    async def preview(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """Run the tool's `preview` and return its result, or raise the Problem it ended in.

        A preview is read-only by declaration and by its credential, so even a thread that still runs has no effects.
        """
        name = tool.contract.full_name
        if tool.preview is None:
            raise ToolFailed(f"the contract of {name} declares a preview, but its function has none")
        if context is not None:
            arguments = {**arguments, "context": context}
        try:
            return await self._call_helper(name, tool.preview, arguments, seconds)
        except (ThreadOverrun, TimeoutError) as error:
            raise ToolTimeout(f"the preview of {name} did not end within {seconds:.3g} s") from error
        except Problem:
            raise
        except asyncio.CancelledError as error:
            if _is_task_canceled():
                raise
            raise ToolFailed(f"the preview of {name} failed: {_describe_error(error)}") from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(f"the preview of {name} failed: {_describe_error(error)}") from error

    async def read_state(self, tool: PythonTool, arguments: dict[str, Any], seconds: float) -> Any:
        """Run the tool's `read_state` and return the state, or raise `ToolFailed`."""
        name = tool.contract.full_name
        if tool.read_state is None:
            return None
        try:
            return await self._call_helper(name, tool.read_state, arguments, seconds)
        except (ThreadOverrun, TimeoutError) as error:
            raise ToolFailed(f"read_state of {name} did not end within {seconds:.3g} s") from error
        except asyncio.CancelledError as error:
            if _is_task_canceled():
                raise
            raise ToolFailed(f"read_state of {name} failed: {_describe_error(error)}") from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(f"read_state of {name} failed: {_describe_error(error)}") from error

    async def confirm(self, tool: PythonTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        """Run the tool's own `verify`; any exception rejects the output."""
        if tool.verify is not None:
            check = functools.partial(tool.verify, arguments, output)
            await self._call_helper(tool.contract.full_name, check, {}, seconds)

    async def roll_back(self, tool: PythonTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        """Run the tool's `rollback`, or raise `ToolFailed`: then the effect may still be there."""
        name = tool.contract.full_name
        if tool.rollback is None:
            raise ToolFailed(f"the contract of {name} declares a rollback, but its function has none")
        take_back = functools.partial(tool.rollback, arguments, output)
        try:
            await self._call_helper(name, take_back, {}, seconds)
        except (ThreadOverrun, TimeoutError) as error:
            raise ToolFailed(f"the rollback of {name} did not end within {seconds:.3g} s") from error
        except asyncio.CancelledError as error:
            if _is_task_canceled():
                raise
            raise ToolFailed(f"the rollback of {name} failed: {_describe_error(error)}") from error
        except (Exception, SystemExit) as error:
            raise ToolFailed(f"the rollback of {name} failed: {_describe_error(error)}") from error

    async def _call_helper(
        self, name: str, function: Callable[..., Any], arguments: dict[str, Any], seconds: float
    ) -> Any:
        """Call a helper function of the tool: async ones in this task, synchronous ones in a thread."""
        if inspect.iscoroutinefunction(function):
            async with asyncio.timeout(seconds):
                return await function(**arguments)
        return await self._run_in_thread(name, function, arguments, seconds)

    async def _run_in_thread(
        self, name: str, function: Callable[..., Any], arguments: dict[str, Any], seconds: float
    ) -> Any:
        thread_future = self._threads.submit(contextvars.copy_context().run, _call_function, function, arguments)
        async_future = asyncio.wrap_future(thread_future)
        try:
            finished_futures, _ = await asyncio.wait({async_future}, timeout=seconds)
        except asyncio.CancelledError:
            thread_future.cancel()
            raise
        if finished_futures and not async_future.cancelled():
            return async_future.result()
        if thread_future.cancel():
            # It must not start later, when its caller is gone and its lease may have expired.
            raise DeadlineExceeded(f"no thread was free for {name} in time, so it was not started")
        # Retrieve the exception, or asyncio would log the tool's error text if no caller awaits the future.
        async_future.add_done_callback(lambda future: future.cancelled() or future.exception())
        raise ThreadOverrun(f"{name} still runs in its thread after {seconds:.3g} s", async_future)


def _advise_after_timeout(contract: Contract, seconds: float) -> str | None:
    """Advise the caller, to whom a later deadline is no use if the tool's own time is over."""
    limit = contract.timeout.effective_seconds
    if seconds < limit * _OWN_TIMEOUT_SHARE:
        return None
    return f"Request less at once: the tool has {limit:.3g} s, whatever the deadline. Its author can allow more."


# How client libraries name a lost connection or response; few of them derive from Python's own exceptions for that.
_CONNECTION_ERROR_NAMES = re.compile(
    r"Timeout|Connect|Disconnect|Transport|Network|ProtocolError|ReadError|WriteError|RpcError"
)


def _is_connection_loss(error: BaseException) -> bool:
    """Tell whether an error means that a peer did not answer, so that it may have acted."""
    return any(_CONNECTION_ERROR_NAMES.search(kind.__name__) for kind in type(error).__mro__)


def _is_implementation(tool: PythonTool, contract: Contract) -> bool:
    """Tell whether a function may run under a contract.

    A function that declares this very version must match its digest, so that it does not run under an outdated
    declaration. Any other contract names the function on purpose: a manifest, or another version.
    """
    own = tool.contract
    is_same_version = (own.full_name, own.version) == (contract.full_name, contract.version)
    return not is_same_version or own.digest == contract.digest


# File errors are failures of the tool, not of an upstream service that may recover.
_FILE_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def _call_function(run: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return run(**arguments)
    except (StopIteration, SystemExit) as error:
        # A future cannot hold StopIteration, and SystemExit would end the process.
        raise RuntimeError(type(error).__name__) from error


def _is_task_canceled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _describe_error(error: BaseException) -> str:
    """Describe an error by its type and the first line of its text, without a stack trace or file paths."""
    first = str(error).strip().splitlines()[:1]
    text = first[0][:200] if first else ""
    return type(error).__name__ if not text or "/" in text or "\\" in text else f"{type(error).__name__}: {text}"
