"""Report the exceptions of Python tools to their author: the driver of a development gateway.

The driver below maps every exception to a Problem whose text is all that a caller gets. Here the exception itself, with
its stack, is handed to the terminal first.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from deputize.core.call_report import ReportToolError
from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import Problem, SemanticViolation, ToolTimeout
from deputize.execute.drivers.python import PythonDriver

# Ends that are no fault of the code, or have no stack of their own.
_UNREPORTED = (Problem, TimeoutError, asyncio.CancelledError)


class ReportingDriver(PythonDriver):
    """A driver that reports what the code of a tool raised, and passes it on."""

    def __init__(self, tools: Iterable[PythonTool], report_error: ReportToolError) -> None:
        super().__init__(tools)
        self._report_error = report_error

    @contextmanager
    def _report(self, tool: PythonTool) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # A check that refuses the arguments does what it is there for.
            is_verdict = isinstance(error, SemanticViolation)
            cause = None if is_verdict else error.__cause__ if isinstance(error, Problem) else error
            if isinstance(error, ToolTimeout):
                self._report_error(tool.contract, error)
            elif cause is not None and not isinstance(cause, _UNREPORTED):
                self._report_error(tool.contract, cause)
            raise

    async def preflight(self, tool: PythonTool, arguments: dict[str, Any], seconds: float) -> None:
        with self._report(tool):
            await super().preflight(tool, arguments, seconds)

    async def run(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        with self._report(tool):
            return await super().run(tool, arguments, context, seconds)

    async def preview(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        with self._report(tool):
            return await super().preview(tool, arguments, context, seconds)

    async def read_state(self, tool: PythonTool, arguments: dict[str, Any], seconds: float) -> Any:
        with self._report(tool):
            return await super().read_state(tool, arguments, seconds)

    async def confirm(self, tool: PythonTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        with self._report(tool):
            await super().confirm(tool, arguments, output, seconds)

    async def roll_back(self, tool: PythonTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        with self._report(tool):
            await super().roll_back(tool, arguments, output, seconds)
