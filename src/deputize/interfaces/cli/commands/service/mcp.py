"""Define `deputize mcp`: serve the gateway's tools to MCP clients that use stdio."""

import asyncio
import contextlib
import os

from deputize.interfaces.cli.client.target import AgentToken, Url, find_gateway
from deputize.interfaces.cli.render.output import Json, printer


def mcp(url: Url = "", token: AgentToken = "", json: Json = False) -> None:
    """Speak MCP on stdin and stdout, for clients that start a program; every message goes to the gateway's /mcp.

    Clients that speak HTTP do not need it: give them the URL and the token for agents that deputize dev prints.
    """
    gateway = find_gateway(url, token, for_agent=True)
    from deputize.interfaces.cli.client.mcp_bridge import run_bridge

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(run_bridge(gateway.url, gateway.token, printer.error))
    # The reading thread may still block on stdin, which would keep the process alive.
    os._exit(0)
