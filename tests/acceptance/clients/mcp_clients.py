"""Three MCP clients as people use them, each answering in the same few words."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from tests.acceptance.cli.cli_process import TIMEOUT_SECONDS

FASTMCP = "fastmcp==4.1.2"
NPM_PACKAGES = ("@modelcontextprotocol/inspector@2.12.0", "node@22.23.3")
_INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
_CALL_META = "dev.deputize/call"

# What both libraries share: a line with the required arguments of each tool, then a line for each line.
_PROGRAM = """
import asyncio, contextlib, json, sys

async def main(url, token):
    async with connect(url, token) as client:
        tools = await client.list_tools()
        tools = getattr(tools, "tools", tools)
        say({each.name: read_schema(each).get("required", []) for each in tools})
        while line := await asyncio.to_thread(sys.stdin.readline):
            try:
                result = await call(client, *json.loads(line))
            except Exception as error:
                say({"raised": f"{type(error).__name__}: {error}"})
                continue
            texts = [each.text for each in result.content if each.type == "text"]
            answer = {"isError": result.is_error, "structuredContent": result.structured_content, "_meta": result.meta}
            say({**answer, "text": "".join(texts)})

def say(value):
    print(json.dumps(value), flush=True)
"""
_SDK = """
import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

@contextlib.asynccontextmanager
async def connect(url, token):
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            yield client

def read_schema(tool):
    return tool.input_schema

def call(client, tool, arguments):
    return client.call_tool(tool, arguments)
"""
_FASTMCP = """
from fastmcp import Client

def connect(url, token):
    return Client(url, auth=token)

def read_schema(tool):
    return tool.input_schema

def call(client, tool, arguments):
    return client.call_tool(tool, arguments, raise_on_error=False)
"""
_RUN = "\nasyncio.run(main(*sys.argv[1:]))\n"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a call ended for the client: `succeeded`, `pending`, `refused`, or `broken` if the client itself gave up."""

    kind: str
    text: str
    call_id: str = ""


class McpClient(Protocol):
    required: Mapping[str, list[str]]

    def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> Answer: ...


def parse_answer(result: Mapping[str, Any]) -> Answer:
    if "raised" in result:
        return Answer(kind="broken", text=result["raised"])
    content = result["structuredContent"] or {}
    call_id = content.get("call_id") or (result.get("_meta") or {}).get(_CALL_META, {}).get("id", "")
    kind = "refused" if result["isError"] else "pending" if "retry_after_ms" in content else "succeeded"
    return Answer(kind=kind, text=result["text"], call_id=call_id)


class LibraryClient:
    """A program with one session, which is told its calls line by line."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin, self._stdout = stdin, stdout
        self.required: Mapping[str, list[str]] = json.loads(stdout.readline())

    def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        self._stdin.write(json.dumps([tool, arguments]) + "\n")
        self._stdin.flush()
        return parse_answer(json.loads(self._stdout.readline()))


@contextmanager
def open_library(python: Path, name: str, url: str, token: str) -> Iterator[LibraryClient]:
    text = {"sdk": _SDK, "fastmcp": _FASTMCP}[name]
    command = [str(python), "-c", _PROGRAM + text + _RUN, url, token]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        yield LibraryClient(program.stdin, program.stdout)


class Inspector:
    """The Inspector's command line, which opens a session for each call."""

    def __init__(self, packages: Path, home: Path, url: str, token: str) -> None:
        node = packages / "node" / "bin" / "node"
        self._home = home
        self._command = [str(node), str(packages / _INSPECTOR), "--cli", url, "--transport", "http"]
        self._command += ["--header", f"Authorization: Bearer {token}"]
        tools = json.loads(self._run("tools/list").stdout)["tools"]
        self.required: Mapping[str, list[str]] = {
            each["name"]: each["inputSchema"].get("required", []) for each in tools
        }

    def call_tool(self, tool: str, arguments: Mapping[str, Any]) -> Answer:
        values = {name: each if isinstance(each, str) else json.dumps(each) for name, each in arguments.items()}
        pairs = [f"{name}={value}" for name, value in values.items()]
        done = self._run("tools/call", "--tool-name", tool, *(("--tool-arg", *pairs) if pairs else ()))
        if not done.stdout:
            return Answer(kind="broken", text=done.stderr)
        result = json.loads(done.stdout)
        text = "".join(each["text"] for each in result["content"] if each["type"] == "text")
        return parse_answer({"structuredContent": None, "isError": False, **result, "text": text})

    def _run(self, method: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*self._command, "--method", method, *words]
        env = {"HOME": str(self._home)}
        return subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, cwd=self._home
        )
