"""Run any tool through the driver that its contract names in `handler.driver`.

    python   functions in this process     drivers/python.py
    mcp      tools of MCP servers          drivers/mcp.py

The lifecycle uses only this module and knows no driver by name.
"""

from collections.abc import Coroutine
from typing import Any

from deputize.core.contract.contract import Contract
from deputize.core.contract.safety_floor import Weakening
from deputize.core.contract.tools import AnyTool, PythonTool, ToolContext
from deputize.core.errors import ToolFailed, ToolNotAdmitted, ToolRequiresSetup
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver


class Drivers:
    """All drivers behind one interface."""

    def __init__(self, python: PythonDriver, mcp: McpDriver) -> None:
        self._python = python
        self._mcp = mcp

    def find_tool(self, contract: Contract) -> AnyTool:
        """Find the tool that implements a contract, or raise the Problem that says why there is none."""
        match contract.handler.driver:
            case "python":
                return self._python.find_tool(contract)
            case "mcp":
                return self._mcp.find_tool(contract)
            case "none":
                raise ToolRequiresSetup(
                    f"{contract.full_name} {contract.version} is connected to no code",
                    advice="Register a version whose handler names a function.",
                    nothing_happened=True,
                )

    def get_code_digest(self, contract: Contract) -> str:
        """Return the digest of the code that would run here; empty if none is loaded, or for another server's tool."""
        if contract.handler.driver != "python":
            return ""
        try:
            return self._python.find_tool(contract).code_digest
        except (ToolRequiresSetup, ToolNotAdmitted):
            return ""

    def find_contract(self, name: str) -> Contract | None:
        """Find the contract of a loaded function by its tool's name."""
        return self._python.find_contract(name)

    def list_weakenings(self, contract: Contract) -> list[Weakening]:
        """List the fields in which a contract is weaker than its function declares, as far as that is loaded."""
        return self._python.list_weakenings(contract) if contract.handler.driver == "python" else []

    def run(
        self, tool: AnyTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Coroutine[Any, Any, Any]:
        """Run a tool and return its output, or raise the Problem it ended in."""
        if isinstance(tool, PythonTool):
            return self._python.run(tool, arguments, context, seconds)
        return self._mcp.run(tool, arguments, context, seconds)

    async def preflight(self, tool: AnyTool, arguments: dict[str, Any], seconds: float) -> None:
        """Run the tool's own validation, if it has one."""
        if isinstance(tool, PythonTool):
            await self._python.preflight(tool, arguments, seconds)

    async def preview(
        self, tool: PythonTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        """Run the tool's preview function."""
        return await self._python.preview(tool, arguments, context, seconds)

    async def read_state(self, tool: AnyTool, arguments: dict[str, Any], seconds: float) -> Any:
        """Run the tool's reader of the state that it could change; only called for tools that bring one."""
        return await self._python.read_state(tool, arguments, seconds) if isinstance(tool, PythonTool) else None

    async def roll_back(self, tool: AnyTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        """Run the tool's own rollback of its effect; only called for tools that bring one."""
        if not isinstance(tool, PythonTool):
            raise ToolFailed(f"{tool.contract.full_name} has no rollback: it is a tool of another server")
        await self._python.roll_back(tool, arguments, output, seconds)

    async def confirm(self, tool: AnyTool, arguments: dict[str, Any], output: Any, seconds: float) -> None:
        """Run the tool's own verification of its output, if it has one."""
        if isinstance(tool, PythonTool):
            await self._python.confirm(tool, arguments, output, seconds)
