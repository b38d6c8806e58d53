"""A server of the official SDK with resources, prompts and completions, run as a process of its own.

What it declares is what stands in a file at the moment, which a test can change; what it was asked is written down in
another, so that a test can see that something was never sent.
"""

import argparse
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import anyio
import mcp_types as t
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

README = "docs://readme"
LOGO = "docs://logo"
PAGES = "docs://pages/{page}"
BLOB = "iVBORw0KGgo="
TONE: dict[str, Any] = {"type": "object", "properties": {"tone": {"type": "string"}}, "required": ["tone"]}
DECLARATIONS: dict[str, Any] = {
    "resources": [
        {"uri": README, "name": "readme", "description": "How to begin.", "mimeType": "text/markdown", "size": 10},
        {"uri": LOGO, "name": "logo", "mimeType": "image/png"},
    ],
    "templates": [{"uriTemplate": PAGES, "name": "pages", "description": "One page of the manual."}],
    "prompts": [
        {
            "name": "summary",
            "description": "Sums a page up.",
            "arguments": [{"name": "page", "description": "Which page.", "required": True}],
        },
        {"name": "picture", "description": "Shows the logo."},
        {"name": "asking", "description": "Asks before it answers."},
    ],
}


class ResourcesServer:
    """The running server, seen from a test."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self.url = f"http://127.0.0.1:{port}/mcp"

    def declare(self, **parts: Any) -> None:
        declared = json.loads((self._folder / "declared.json").read_text())
        (self._folder / "declared.json").write_text(json.dumps({**declared, **parts}))

    @property
    def requests(self) -> list[list[str]]:
        """Everything it was asked for, as it was asked: method and name."""
        return [json.loads(line) for line in (self._folder / "asked.jsonl").read_text().splitlines()]


def write_declarations(folder: Path) -> None:
    """What the server reads and writes, as it is at first."""
    folder.mkdir(exist_ok=True)
    (folder / "declared.json").write_text(json.dumps(DECLARATIONS))
    (folder / "asked.jsonl").touch()


@contextmanager
def run_resources_server(folder: Path) -> Iterator[ResourcesServer]:
    write_declarations(folder)
    process = Popen([sys.executable, __file__, str(folder)], stdout=PIPE, text=True)
    try:
        assert process.stdout is not None
        yield ResourcesServer(folder, int(process.stdout.readline()))
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


class _SdkHandlers:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_server(self) -> "Server[Any]":
        return Server(
            "library",
            version="1",
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_completion=self.complete,
        )

    def _read_declaration(self, part: str) -> Any:
        return json.loads((self._folder / "declared.json").read_text())[part]

    def _log_request(self, method: str, name: str) -> None:
        with (self._folder / "asked.jsonl").open("a") as log:
            log.write(json.dumps([method, name]) + "\n")

    async def list_tools(self, *_: Any) -> t.ListToolsResult:
        # A server may have a tool of this name, too.
        taken = t.Tool(name="read_resource", description="Reads something else.", input_schema={"type": "object"})
        return t.ListToolsResult(tools=[taken])

    async def list_resources(self, *_: Any) -> t.ListResourcesResult:
        return t.ListResourcesResult.model_validate({"resources": self._read_declaration("resources")})

    async def list_templates(self, *_: Any) -> t.ListResourceTemplatesResult:
        return t.ListResourceTemplatesResult.model_validate({"resourceTemplates": self._read_declaration("templates")})

    async def list_prompts(self, *_: Any) -> t.ListPromptsResult:
        return t.ListPromptsResult.model_validate({"prompts": self._read_declaration("prompts")})

    async def call_tool(self, _: Any, params: t.CallToolRequestParams) -> t.CallToolResult:
        return t.CallToolResult(content=[t.TextContent(text=params.name)])

    async def read_resource(self, _: Any, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
        self._log_request("resources/read", params.uri)
        if params.uri == LOGO:
            return t.ReadResourceResult(
                contents=[t.BlobResourceContents(uri=params.uri, mime_type="image/png", blob=BLOB, meta={"own": 1})]
            )
        if params.uri.endswith("/none"):
            raise MCPError(code=-32602, message="there is none", data={"uri": params.uri})
        text = f"This is {params.uri}."
        return t.ReadResourceResult(
            contents=[t.TextResourceContents(uri=params.uri, mime_type="text/markdown", text=text)]
        )

    async def get_prompt(self, _: Any, params: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
        self._log_request("prompts/get", params.name)
        content: Any
        if params.name == "asking":
            given = (params.input_responses or {}).get("tone")
            if given is None:
                wants = t.ElicitRequestFormParams(message="Which tone?", requested_schema=TONE)
                asks: dict[str, t.InputRequest] = {"tone": t.ElicitRequest(params=wants)}
                return t.InputRequiredResult(input_requests=asks, request_state="asked")
            assert isinstance(given, t.ElicitResult)
            content = t.TextContent(text=f"{params.request_state}: {given.content}")
        elif params.name == "picture":
            content = t.ImageContent(data=BLOB, mime_type="image/png")
        elif "page" not in (params.arguments or {}):
            raise MCPError(code=-32602, message="page is missing")
        else:
            content = t.TextContent(text=f"Sum up {(params.arguments or {})['page']}.")
        return t.GetPromptResult(description="As asked.", messages=[t.PromptMessage(role="user", content=content)])

    async def complete(self, _: Any, params: t.CompleteRequestParams) -> t.CompleteResult:
        self._log_request("completion/complete", params.argument.value)
        return t.CompleteResult(
            completion=t.Completion(values=[params.argument.value + "ris"], total=1, has_more=False)
        )


async def run_stdio(server: "Server[Any]") -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--stdio", action="store_true")
    given = parser.parse_args()
    server = _SdkHandlers(given.folder).make_server()
    if given.stdio:
        anyio.run(run_stdio, server)
        return
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
