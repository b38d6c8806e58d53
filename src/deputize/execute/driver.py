"""The port every tool runs behind: whoever carries a call finds its tool here and runs it, wherever that may be.

    python   functions in this process                drivers/python.py
    mcp      tools of MCP servers elsewhere            drivers/mcp.py

Above: the lifecycle, which knows no driver by name. Below: one driver per `handler.driver`.
"""

from collections.abc import Coroutine
from typing import Any

from deputize.core.contract import Contract
from deputize.core.definition import AnyTool, PythonTool, ToolContext
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver


class Drivers:
    def __init__(self, python: PythonDriver, mcp: McpDriver) -> None:
        self._python = python
        self._mcp = mcp

    def find(self, contract: Contract) -> AnyTool:
        """What fulfils a contract here, or the Problem that says why nothing does."""
        return self._python.find(contract) if contract.handler.driver == "python" else self._mcp.find(contract)

    def run(
        self, tool: AnyTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Coroutine[Any, Any, Any]:
        """The tool's output, or the Problem it ended in."""
        if isinstance(tool, PythonTool):
            return self._python.run(tool, arguments, context, seconds)
        return self._mcp.run(tool, arguments, context, seconds)

    async def preflight(self, tool: AnyTool, arguments: dict[str, Any], seconds: float) -> None:
        if isinstance(tool, PythonTool):
            await self._python.preflight(tool, arguments, seconds)

    async def preview(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        return await self._python.preview(tool, arguments, context, seconds)

    async def confirm(self, tool: AnyTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        if isinstance(tool, PythonTool):
            await self._python.confirm(tool, arguments, output, seconds)
