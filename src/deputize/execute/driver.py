"""Run any tool through the driver that its contract names in `handler.driver`.

    python   functions in this process     drivers/python.py
    mcp      tools of MCP servers          drivers/mcp.py
    http     operations of HTTP services   drivers/http.py
    grpc     methods of gRPC services      drivers/grpc.py
    command  programs in sandboxes         drivers/command.py

A flow has no driver: its steps are calls of their own.

The lifecycle uses only this module and knows no driver by name.
"""

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from deputize.core.contract.contract import Contract
from deputize.core.contract.safety_floor import Weakening
from deputize.core.contract.tools import (
    AnyTool,
    CommandTool,
    FlowTool,
    GrpcTool,
    HttpTool,
    ProjectTool,
    PythonTool,
    ToolContext,
)
from deputize.core.errors import ToolFailed, ToolNotAdmitted, ToolRequiresSetup
from deputize.execute.drivers.command import CommandDriver
from deputize.execute.drivers.http import HttpDriver
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver
from deputize.sandboxes.port import Backend, Placement

if TYPE_CHECKING:
    from deputize.execute.drivers.grpc import GrpcDriver


class Drivers:
    """All drivers behind one interface."""

    def __init__(
        self, python: PythonDriver, mcp: McpDriver, http: HttpDriver, command: CommandDriver,
        grpc: "GrpcDriver | None" = None, *, runs_programs: bool = False, program_backend: Backend | None = None,
    ) -> None:  # fmt: skip
        self._python = python
        self._mcp = mcp
        self._http = http
        self._command = command
        # None if the settings have no gRPC service; gRPC is an extra.
        self._grpc = grpc
        self._runs_programs = runs_programs
        # None if programs may run without a sandbox.
        self._program_backend = program_backend

    def find_tool(self, contract: Contract) -> AnyTool:
        """Find the tool that implements a contract, or raise the Problem that says why there is none."""
        match contract.handler.driver:
            case "python":
                return self._python.find_tool(contract)
            case "mcp":
                return self._mcp.find_tool(contract)
            case "http":
                return self._http.find_tool(contract)
            case "grpc":
                return self._require_grpc(contract).find_tool(contract)
            case "command":
                return self._command.find_tool(contract)
            case "flow":
                if contract.flow is not None and contract.flow.program is not None and not self._runs_programs:
                    raise ToolRequiresSetup(
                        f"{contract.full_name} runs programs, and the settings do not say what they may call",
                        details={"setting": "builtin.code"},
                        advice="Add [builtin.code] to deputize.toml, and restart the gateway.",
                        nothing_happened=True,
                    )
                return FlowTool(contract=contract)
            case "none":
                raise ToolRequiresSetup(
                    f"{contract.full_name} {contract.version} is connected to no code",
                    advice="Register a version whose handler names a function.",
                    nothing_happened=True,
                )

    def find_placement(self, contract: Contract, tenant: str) -> Placement:
        """Find the strongest sandbox that calls of a tool can have here."""
        match contract.handler.driver:
            case "command":
                # It runs on what is demanded, or not at all.
                return max(Backend, key=list(Backend).index)
            case "mcp":
                return self._mcp.find_backend(contract, tenant) or "none"
            case "python":
                return self._find_function_placement(contract)
            case "flow" if contract.flow is not None and contract.flow.program is not None:
                return self._program_backend or "uncertain"
            case _:
                return "none"

    def _find_function_placement(self, contract: Contract) -> Placement:
        try:
            backend = self._python.find_tool(contract).backend
        except (ToolRequiresSetup, ToolNotAdmitted):
            return "none"
        return "none" if backend is None else Backend(backend)

    def get_code_digest(self, contract: Contract) -> str:
        """Return the digest of the code that would run here; empty if none is loaded, or for another server's tool."""
        if contract.handler.driver != "python":
            return ""
        try:
            return self._python.find_tool(contract).code_digest
        except (ToolRequiresSetup, ToolNotAdmitted):
            return ""

    def replace_functions(self, tools: Iterable[ProjectTool]) -> None:
        """Use other functions of this process from now on; running calls end on those that they began with."""
        self._python.replace_tools(each for each in tools if isinstance(each, PythonTool))

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
        if isinstance(tool, HttpTool):
            return self._http.run(tool, arguments, context, seconds)
        if isinstance(tool, GrpcTool):
            return self._require_grpc(tool.contract).run(tool, arguments, context, seconds)
        if isinstance(tool, CommandTool):
            return self._command.run(tool, arguments, context, seconds)
        if isinstance(tool, FlowTool):
            raise TypeError("a flow is advanced by lifecycle/durable/flow_run.py, not run by a driver")
        return self._mcp.run(tool, arguments, context, seconds)

    def _require_grpc(self, contract: Contract) -> "GrpcDriver":
        if self._grpc is None:
            raise ToolRequiresSetup(
                f"{contract.full_name} is a method of a gRPC service, and the settings have none",
                details={"setting": "services"},
                advice="Add the service to [[services]] in deputize.toml, and restart the gateway.",
                nothing_happened=True,
            )
        return self._grpc

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
