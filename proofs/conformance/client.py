"""Our side of an upstream, put through the suite's client scenarios: it looks at a server and calls what it finds.

The suite starts a program per scenario; ours (`client_shim.py`) hands the server's address to this process, which has
the product's upstream client loaded already.
"""

import argparse
import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from deputize.core.errors import CredentialExpired, CredentialMissing, Problem
from deputize.core.mcp.elicitation import ClientCapability, InputRound
from deputize.core.mcp.servers import Definition
from deputize.core.settings import McpServerSettings, Settings
from deputize.execute.upstreams.server_pool import UpstreamPool
from proofs.conformance.sign_in import SignedInUser
from proofs.kit.asgi_server import READY

_TENANT, _SERVER = "dev", "suite"
_SECONDS = 50.0
Result = TypeVar("Result")
_SAMPLE_VALUES: dict[str, Any] = {
    "string": "text",
    "number": 5,
    "integer": 5,
    "boolean": True,
    "object": {},
    "array": [],
}


async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One line in, what to do; one line out, what went wrong."""
    request = orjson.loads(await reader.readline())
    try:
        faults = await run_scenario(request["url"], request.get("context") or {})
    except Exception as error:  # noqa: BLE001 - the suite waits for an answer: without one it waits for ever
        traceback.print_exc()
        faults = [f"the client broke off with {error!r}"]
    writer.write(orjson.dumps(faults) + b"\n")
    await writer.drain()
    writer.close()


async def run_scenario(url: str, context: dict[str, Any]) -> list[str]:
    """Everything the server offers, called once, or what the scenario says is to be called."""
    settings = Settings(servers=(McpServerSettings(name=_SERVER, url=url),))
    upstreams, user, faults = UpstreamPool(settings), SignedInUser(url, context), []
    try:
        discovery = await retry_after_sign_in(
            user, lambda: upstreams.discover_server(_TENANT, _SERVER, user.secret, _SECONDS)
        )
        calls = context.get("toolCalls") or [build_arguments(each, discovery.tools) for each in discovery.tools]
        for call in calls:
            try:
                await retry_after_sign_in(user, partial(_call_tool, upstreams, user, call))
            except Problem as problem:
                faults.append(f"{call['name']}: {problem.message}")
    except Problem as problem:
        faults.append(problem.message)
    finally:
        await user.aclose()
        await upstreams.aclose()
    return faults


async def _call_tool(
    upstreams: UpstreamPool, user: SignedInUser, call: dict[str, Any], input_round: InputRound | None = None
) -> dict[str, Any]:
    """One call, and where the server asks first, once more with its own state and made-up answers."""
    result = await upstreams.call_tool(
        _TENANT, _SERVER, call["name"], call["arguments"], meta={}, credential=user.secret, seconds=_SECONDS,
        client_capabilities=frozenset(ClientCapability), input_round=input_round,
    )  # fmt: skip
    if result.get("resultType") == "input_required" and input_round is None:
        responses = {name: {"action": "accept", "content": {}} for name in result["inputRequests"]}
        next_round = InputRound(continued_call_id="", request_state=result.get("requestState"), responses=responses)
        return await _call_tool(upstreams, user, call, next_round)
    return result


async def retry_after_sign_in(user: SignedInUser, attempt: Callable[[], Awaitable[Result]]) -> Result:
    """What comes of asking, once the person was let in as often as the server wanted."""
    while True:
        try:
            return await attempt()
        except (CredentialMissing, CredentialExpired) as error:
            await user.obtain_token(error)


def build_arguments(tool: Definition, tools: tuple[Definition, ...]) -> dict[str, Any]:
    """Arguments of the kinds that the tool wants; a tool that wants a schema gets the first tool's, as it came."""
    schema = tool.declaration["inputSchema"]
    arguments = {}
    for name in schema.get("required", ()):
        kind = schema.get("properties", {}).get(name, {}).get("type")
        arguments[name] = _SAMPLE_VALUES.get(kind if isinstance(kind, str) else "string")
        if name == "schema":
            arguments[name] = tools[0].declaration["inputSchema"]
    return {"name": tool.name, "arguments": arguments}


async def serve_socket(path: Path) -> None:
    server = await asyncio.start_unix_server(handle_connection, path)
    print(f"{READY}{path}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    sys.exit(asyncio.run(serve_socket(parser.parse_args().socket)))
