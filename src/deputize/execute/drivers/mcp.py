"""Tools of MCP servers: one call through a line that is open already, held against what somebody agreed to.

Above: `execute/driver.py`. Below: `upstreams/servers.py`.
"""

from typing import Any

from deputize.core.contract import Contract
from deputize.core.definition import ToolContext, UpstreamTool
from deputize.execute.upstreams.servers import Upstreams


class McpDriver:
    def __init__(self, upstreams: Upstreams) -> None:
        self._upstreams = upstreams

    def find(self, contract: Contract) -> UpstreamTool:
        server, _, name = contract.handler.target.partition("/")
        return UpstreamTool(contract=contract, server=server, name=name)

    async def run(
        self, tool: UpstreamTool, arguments: dict[str, Any], context: ToolContext | None, seconds: float
    ) -> Any:
        raise NotImplementedError
