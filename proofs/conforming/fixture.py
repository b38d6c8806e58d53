"""The MCP server that the conformance suite wants to find behind the door: the official SDK's, in a process of its own.

Its tools do what the suite says of each by name; what it has beside tools is in `fixture_offers.py`. Above: `site.py`,
which starts it behind a gateway. Below: the SDK.
"""

import argparse
import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as t
import uvicorn
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from proofs.conforming.fixture_offers import (
    PNG,
    complete,
    get_prompt,
    list_prompts,
    list_resources,
    list_templates,
    read_resource,
)
from proofs.kit.serving import READY

Answer = t.CallToolResult | t.InputRequiredResult
Tool = Callable[[Any, t.CallToolRequestParams], Awaitable[Answer]]

# Half a sample of silence.
_WAV: Final = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=="
_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_SAMPLING: Final = {"messages": [{"role": "user", "content": {"type": "text", "text": "Which?"}}], "maxTokens": 100}
_TEXT: Final = {"type": "string"}
_JSON_SCHEMA: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "addressDef", "type": "object", "properties": {"street": _TEXT, "city": _TEXT}}},
    "properties": {
        "name": _TEXT,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": _TEXT,
        "email": _TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
TOOLS: dict[str, tuple[Tool, dict[str, Any]]] = {}
# What may take long is a run behind our door, and so a task.
SLOW: Final = (
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
)


def tool(schema: dict[str, Any] = _NOTHING) -> Callable[[Tool], Tool]:
    def declared(function: Tool) -> Tool:
        TOOLS[function.__name__] = function, schema
        return function

    return declared


def _takes(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def said(*texts: str, is_error: bool = False) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=text) for text in texts], is_error=is_error)


def _resource(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(resource=t.TextResourceContents(uri=uri, mime_type=mime, text=text))


@tool()
async def test_simple_text(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said("This is a simple text response for testing.")


@tool()
async def test_image_content(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return t.CallToolResult(content=[t.ImageContent(data=PNG, mime_type="image/png")])


@tool()
async def test_audio_content(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return t.CallToolResult(content=[t.AudioContent(data=_WAV, mime_type="audio/wav")])


@tool()
async def test_embedded_resource(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return t.CallToolResult(content=[_resource("test://embedded-resource", "text/plain", "This is embedded.")])


@tool()
async def test_multiple_content_types(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return t.CallToolResult(
        content=[
            t.TextContent(text="Multiple content types test:"),
            t.ImageContent(data=PNG, mime_type="image/png"),
            _resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    )


@tool()
async def test_error_handling(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said("This tool intentionally returns an error for testing", is_error=True)


@tool()
async def test_tool_with_progress(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100, f"{done} of 100")
        await asyncio.sleep(0.05)
    return said("Done in three steps.")


@tool()
async def test_logging_tool(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said("Logged nothing: nobody asked for it.")


@tool()
async def test_tool_with_logging(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    await ctx.session.send_log_message("info", "Tool execution started", related_request_id=ctx.request_id)
    return said("Logged.")


@tool()
async def test_trigger_tool_change(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said("Behind this door a change waits for review.")


@tool(_takes(region={"type": "string", "x-mcp-header": "Region"}))
async def test_x_mcp_header(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said(f"Region {(asked.arguments or {}).get('region')}")


@tool(_JSON_SCHEMA)
async def json_schema_2020_12_tool(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said("Taken.")


@tool(_takes(name=_TEXT))
async def greet(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return said(f"Hello, {(asked.arguments or {}).get('name')}!")


@tool({"type": "object", "properties": {"seconds": {"type": "number"}, "label": _TEXT}, "required": ["seconds"]})
async def slow_compute(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    await asyncio.sleep(float((asked.arguments or {})["seconds"]))
    return said("Computed.")


@tool()
async def failing_job(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    await asyncio.sleep(1)
    return said("This job fails.", is_error=True)


@tool()
async def protocol_error_job(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    raise MCPError(code=-32603, message="this job breaks the server")


@tool()
async def test_missing_capability(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    if ctx.session.client_params.capabilities.sampling is None:
        raise MCPError(code=-32021, message="sampling is needed", data={"requiredCapabilities": {"sampling": {}}})
    return said("Sampled.")


def _elicits(key: str, name: str, field: dict[str, Any] = _TEXT) -> dict[str, t.InputRequest]:
    wanted = {"type": "object", "properties": {name: field}, "required": [name]}
    return {key: t.ElicitRequest(params=t.ElicitRequestFormParams(message=f"What is {key}?", requested_schema=wanted))}


def _samples(key: str) -> dict[str, t.InputRequest]:
    return {key: t.CreateMessageRequest(params=t.CreateMessageRequestParams.model_validate(_SAMPLING))}


_ROOTS: Final[dict[str, t.InputRequest]] = {"client_roots": t.ListRootsRequest()}
_YES: Final = {"type": "boolean"}
# Tools that ask back before they answer.
_ASKS: Final[dict[str, dict[str, t.InputRequest]]] = {
    "test_input_required_result_elicitation": _elicits("user_name", "name"),
    "test_input_required_result_sampling": _samples("capital_question"),
    "test_input_required_result_list_roots": _ROOTS,
    "test_input_required_result_request_state": _elicits("confirm", "ok", _YES),
    "test_input_required_result_multiple_inputs": _elicits("user_name", "name") | _samples("greeting") | _ROOTS,
    "test_input_required_result_tampered_state": _elicits("confirm", "ok", _YES),
    "test_streaming_elicitation": _elicits("user_name", "name"),
    "test_tool_with_task": _elicits("user_name", "name"),
    "test_elicitation": _elicits("username", "username"),
    "test_elicitation_sep1034_defaults": _elicits("name", "name"),
    "test_elicitation_sep1330_enums": _elicits("name", "name"),
    "test_sampling": _samples("prompt"),
    "confirm_delete": _elicits("confirm", "confirm", _YES),
    "multi_input": _elicits("first", "name") | _elicits("second", "name"),
}


async def _ask_back(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    wanted = _ASKS[asked.name]
    given = asked.input_responses or {}
    if any(key not in given for key in wanted):
        return t.InputRequiredResult(input_requests=wanted, request_state=asked.name)
    if asked.request_state != asked.name:
        raise MCPError(code=-32602, message="that is not the state this server gave out")
    return said(", ".join(f"{key}: {value}" for key, value in given.items()), "state-ok")


@tool()
async def test_input_required_result_multi_round(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    steps = (_elicits("step1", "name"), _elicits("step2", "color"))
    done = int(asked.request_state or 0) + 1 if asked.input_responses else 0
    if done < len(steps):
        return t.InputRequiredResult(input_requests=steps[done], request_state=str(done))
    return said("Both steps were taken.")


@tool()
async def test_input_required_result_capabilities(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    can = ctx.session.client_params.capabilities
    wanted = {} if can.elicitation is None else _elicits("user_name", "name")
    wanted |= {} if can.sampling is None else _samples("greeting")
    return t.InputRequiredResult(input_requests=wanted)


TOOLS |= {name: (_ask_back, {"type": "object"}) for name in _ASKS}


async def list_tools(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    described = [
        t.Tool(name=name, description=f"The tool {name} of the conformance suite.", input_schema=schema)
        for name, (_, schema) in TOOLS.items()
    ]
    return t.ListToolsResult(tools=described)


async def call_tool(ctx: Any, asked: t.CallToolRequestParams) -> Answer:
    return await TOOLS[asked.name][0](ctx, asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    server: Server[Any] = Server(
        "fixture", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource, on_list_prompts=list_prompts,
        on_get_prompt=get_prompt, on_completion=complete,
    )  # fmt: skip
    listener = socket.create_server(("127.0.0.1", given.port), backlog=512)
    config = uvicorn.Config(server.streamable_http_app(), loop="uvloop", access_log=False, log_level="warning")
    print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
