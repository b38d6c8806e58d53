"""An agent's client, as small as one can be: JSON lines to `deputize mcp`, and no field that is optional."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from proofs.first_day.newcomer import Newcomer

_SECONDS = 60.0
_CHANGED = "notifications/tools/list_changed"


@dataclass(kw_only=True, slots=True)
class McpClient:
    """One session over the pipes of the bridge; what a bridge that has ended would answer is empty."""

    process: asyncio.subprocess.Process
    reader: asyncio.Task[None] | None = None
    number: int = 0
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    changes: int = 0
    """How often the bridge said that the list of tools changed."""
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_open(self) -> bool:
        return self.reader is not None and not self.reader.done()

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return its result or its error; empty if the connection is closed."""
        self.number += 1
        number = self.number
        await self._send({"id": number, "method": method, "params": params})
        await self._wait_until(lambda: number in self.answers or not self.is_open)
        answer = self.answers.pop(number, {})
        result: dict[str, Any] = answer.get("result") or answer.get("error") or {}
        return result

    async def call(self, tool: str, **arguments: Any) -> str:
        """Call a tool and return what a model reads of the answer: the content, or the error."""
        result = await self.ask("tools/call", name=tool, arguments=arguments)
        texts = [str(each.get("text", "")) for each in result.get("content", ())]
        return "\n".join(texts) if "content" in result else json.dumps(result)

    async def list_tools(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in (await self.ask("tools/list")).get("tools", ())}

    async def wait_for_change(self, seen: int, seconds: float) -> bool:
        """Wait until the bridge has told of one more change than were seen; false if it does not in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._wait_until(lambda: self.changes > seen or not self.is_open)
        except TimeoutError:
            pass
        return self.changes > seen

    async def close(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        if self.reader is not None:
            await self.reader

    async def read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            message = json.loads(line)
            if "id" in message and "method" not in message:
                self.answers[message["id"]] = message
            self.changes += message.get("method") == _CHANGED
            self.news.set()
        # Who waits sees that no answer comes any more once this task is done.
        asyncio.get_running_loop().call_soon(self.news.set)

    async def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            await self.process.stdin.drain()
        except ConnectionError:
            pass

    async def _wait_until(self, is_so: Any) -> None:
        async with asyncio.timeout(_SECONDS):
            while not is_so():
                self.news.clear()
                await self.news.wait()


async def connect(user: Newcomer) -> tuple[McpClient, dict[str, Any]]:
    """Start the bridge as a client does; return the session and what the client read first."""
    process = await asyncio.create_subprocess_exec(
        *user.build_command("exec deputize mcp"),
        cwd=user.folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        limit=2**24,
    )
    client = McpClient(process=process)
    client.reader = asyncio.create_task(client.read())
    user.sandbox.add_cleanup(client.close)
    about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a client", "version": "1"}}
    started = await client.ask("initialize", **about)
    await client._send({"method": "notifications/initialized"})
    return client, started
