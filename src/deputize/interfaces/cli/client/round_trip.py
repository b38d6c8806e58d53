"""Try an entry of an MCP client as the client would: start its program or post to its URL, and list the tools."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson

from deputize.interfaces.cli.client.mcp_bridge import NO_GATEWAY, McpBridge
from deputize.interfaces.cli.client.rest_client import GatewayClient

_DEADLINE_SECONDS = 60.0
_MAX_LINE_BYTES = 32 * 1024 * 1024
_MAX_PAGES = 100
_SHOWN_CHARACTERS = 400
_VERSION = "2025-11-25"

Send = Callable[[bytes], Awaitable[None]]
Receive = Callable[[], Awaitable[bytes]]


class RoundTripError(Exception):
    """Reason why a client would see no tools."""


def list_tools_of_program(command: Sequence[str]) -> list[str]:
    """Start the program of an entry, and list the tools that it offers.

    It starts in another folder, without the variables of this terminal that are for `deputize`: a client has neither.
    """
    return asyncio.run(_limit_time(_try_program(command)))


def list_tools_at_url(url: str, token: str) -> list[str]:
    """List the tools that a gateway offers to a token; `url` is without its path `/mcp`."""
    return asyncio.run(_limit_time(_try_url(url, token)))


async def _limit_time(names: Awaitable[list[str]]) -> list[str]:
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            return await names
    except TimeoutError:
        raise RoundTripError(f"there was no answer within {_DEADLINE_SECONDS:g} s") from None


async def _try_program(command: Sequence[str]) -> list[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("DEPUTIZE_")}
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=os.sep,
            env=env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=_MAX_LINE_BYTES,
        )
    except OSError as error:
        raise RoundTripError(f"{command[0]} cannot be started ({error.strerror})") from None
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
    if stdin is None or stdout is None or stderr is None:
        raise RoundTripError(f"{command[0]} has no standard streams")

    async def send(line: bytes) -> None:
        stdin.write(line)
        await stdin.drain()

    try:
        return await _list_tools(send, stdout.readline)
    except (RoundTripError, ConnectionError, ValueError) as error:
        stdin.close()
        text = (await stderr.read(_SHOWN_CHARACTERS * 4)).decode(errors="replace").strip()
        raise RoundTripError(text[:_SHOWN_CHARACTERS] or str(error)) from None
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _try_url(url: str, token: str) -> list[str]:
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    replies: asyncio.Queue[bytes] = asyncio.Queue()
    gateway = GatewayClient(url=url, token=token)
    bridge = McpBridge(lambda: gateway, replies.put_nowait, lambda _: None)
    relay = asyncio.create_task(bridge.relay_lines(lines))
    try:
        return await _list_tools(lines.put, replies.get)
    finally:
        lines.put_nowait(None)
        await relay


async def _list_tools(send: Send, receive: Receive) -> list[str]:
    client = {"name": "deputize connect", "version": "1"}
    start = {"protocolVersion": _VERSION, "capabilities": {}, "clientInfo": client}
    initialized = await _request(send, receive, 0, "initialize", start)
    if NO_GATEWAY in (initialized.get("_meta") or {}):
        raise RoundTripError(str(initialized.get("instructions"))[:_SHOWN_CHARACTERS])
    await send(orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + b"\n")
    names: list[str] = []
    cursor: dict[str, Any] = {}
    for number in range(1, _MAX_PAGES + 1):
        page = await _request(send, receive, number, "tools/list", cursor)
        names += [str(each["name"]) for each in page.get("tools", []) if isinstance(each, dict) and "name" in each]
        if not page.get("nextCursor"):
            break
        cursor = {"cursor": page["nextCursor"]}
    return names


async def _request(send: Send, receive: Receive, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    await send(orjson.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + b"\n")
    while line := await receive():
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise RoundTripError("its output is not MCP") from None
        if not isinstance(message, dict) or message.get("id") != number:
            continue  # a notification
        if isinstance(message.get("result"), dict):
            return dict(message["result"])
        error = message.get("error")
        reason = error.get("message") if isinstance(error, dict) else "it sent no result"
        raise RoundTripError(f"{method}: {str(reason)[:_SHOWN_CHARACTERS]}")
    raise RoundTripError("it ended without an answer")


def find_program() -> str:
    """Find this program as a client can start it from anywhere."""
    folder = os.path.dirname(os.path.abspath(sys.executable))
    for path in (os.path.abspath(sys.argv[0]), os.path.join(folder, "deputize")):
        if os.path.basename(path) == "deputize" and os.access(path, os.X_OK):
            return path
    return "deputize"
