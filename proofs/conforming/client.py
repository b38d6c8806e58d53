"""Our side of an upstream, put through the suite's client scenarios: it looks at a server and calls what it finds.

The suite starts a program per scenario; ours (`ask.py`) hands the server's address to this process, which has the
product's upstream client loaded already. Above: `conformance.py`. Below: `execute/upstreams/`, unmodified.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from deputize.core.errors import CredentialExpired, CredentialMissing, Problem
from deputize.core.questions import Ability, Round
from deputize.core.servers import Definition
from deputize.core.settings import McpServer, Settings
from deputize.execute.upstreams.servers import Upstreams
from proofs.conforming.person import Person
from proofs.kit.serving import READY

_TENANT, _SERVER = "dev", "suite"
_SECONDS = 50.0
Done = TypeVar("Done")
_MADE_UP: dict[str, Any] = {"string": "text", "number": 5, "integer": 5, "boolean": True, "object": {}, "array": []}


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One line in, what to do; one line out, what went wrong."""
    asked = orjson.loads(await reader.readline())
    faults = await tried(asked["url"], asked.get("context") or {})
    writer.write(orjson.dumps(faults) + b"\n")
    await writer.drain()
    writer.close()


async def tried(url: str, context: dict[str, Any]) -> list[str]:
    """Everything the server offers, called once, or what the scenario says is to be called."""
    settings = Settings(servers=(McpServer(name=_SERVER, url=url),))
    upstreams, person, faults = Upstreams(settings), Person(url, context), []
    try:
        found = await signed_in(person, lambda: upstreams.discover(_TENANT, _SERVER, person.secret, _SECONDS))
        calls = context.get("toolCalls") or [made_up(each, found.tools) for each in found.tools]
        for call in calls:
            try:
                await signed_in(person, partial(_called, upstreams, person, call))
            except Problem as problem:
                faults.append(f"{call['name']}: {problem.message}")
    except Problem as problem:
        faults.append(problem.message)
    finally:
        await person.aclose()
        await upstreams.aclose()
    return faults


async def _called(
    upstreams: Upstreams, person: Person, call: dict[str, Any], round: Round | None = None
) -> dict[str, Any]:
    """One call, and where the server asks first, once more with its own state and made-up answers."""
    result = await upstreams.call(
        _TENANT, _SERVER, call["name"], call["arguments"], meta={}, credential=person.secret, seconds=_SECONDS,
        abilities=frozenset(Ability), round=round,
    )  # fmt: skip
    if result.get("resultType") == "input_required" and round is None:
        accepted = {name: {"action": "accept", "content": {}} for name in result["inputRequests"]}
        told = Round(continues="", state=result.get("requestState"), responses=accepted)
        return await _called(upstreams, person, call, told)
    return result


async def signed_in(person: Person, ask: Callable[[], Awaitable[Done]]) -> Done:
    """What comes of asking, once the person was let in as often as the server wanted."""
    while True:
        try:
            return await ask()
        except (CredentialMissing, CredentialExpired) as refused:
            await person.let_in(refused)


def made_up(tool: Definition, tools: tuple[Definition, ...]) -> dict[str, Any]:
    """Arguments of the kinds that the tool wants; a tool that wants a schema gets the first tool's, as it came."""
    schema = tool.said["inputSchema"]
    arguments = {}
    for name in schema.get("required", ()):
        kind = schema.get("properties", {}).get(name, {}).get("type")
        arguments[name] = _MADE_UP.get(kind if isinstance(kind, str) else "string")
        if name == "schema":
            arguments[name] = tools[0].said["inputSchema"]
    return {"name": tool.name, "arguments": arguments}


async def serve(path: Path) -> None:
    server = await asyncio.start_unix_server(answered, path)
    print(f"{READY}{path}", flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=Path, required=True)
    sys.exit(asyncio.run(serve(parser.parse_args().socket)))
