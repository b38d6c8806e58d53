"""`deputize mcp`: the gateway's tools for clients that start a program and speak to it over its pipes."""

import asyncio
import contextlib
import os

from deputize.doors.cli.output import Json, printer
from deputize.doors.cli.remote import Token, Url, find_gateway


def mcp(url: Url = "", token: Token = "", json: Json = False) -> None:
    """Speak MCP on stdin and stdout, for clients that only start programs; every message goes to the gateway's /mcp.

    Clients that speak HTTP need no bridge: give them the address that deputize dev prints, and a token.
    """
    gateway = find_gateway(url, token)
    from deputize.doors.cli.mcp_bridge import bridge

    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(bridge(gateway.url, gateway.token, printer.bad))
    # The reading thread may still wait for a line that nobody writes.
    os._exit(0)
