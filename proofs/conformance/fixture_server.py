"""The MCP server that the conformance suite wants to find behind the interface: the official SDK's, in a process of
its own.

Its tools do what the suite says of each by name; what it has beside tools is in `fixture_resources.py`.
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

from proofs.conformance.fixture_resources import (
    PNG,
    complete,
    get_prompt,
    list_prompts,
    list_resources,
    list_templates,
    read_resource,
)
from proofs.kit.asgi_server import READY

ToolAnswer = t.CallToolResult | t.InputRequiredResult
ToolHandler = Callable[[Any, t.CallToolRequestParams], Awaitable[ToolAnswer]]

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
TOOLS: dict[str, tuple[ToolHandler, dict[str, Any]]] = {}
# What may take long is a run behind our door, and so a task.
SLOW_TOOLS: Final = (
    "slow_compute",
    "failing_job",
    "protocol_error_job",
    "confirm_delete",
    "multi_input",
    "test_tool_with_task",
)


def register_tool(schema: dict[str, Any] = _NOTHING) -> Callable[[ToolHandler], ToolHandler]:
    def register(function: ToolHandler) -> ToolHandler:
        TOOLS[function.__name__] = function, schema
        return function

    return register


def _build_schema(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def build_result(*texts: str, is_error: bool = False) -> t.CallToolResult:
    return t.CallToolResult(content=[t.TextContent(text=text) for text in texts], is_error=is_error)


def _build_resource(uri: str, mime: str, text: str) -> t.EmbeddedResource:
    return t.EmbeddedResource(resource=t.TextResourceContents(uri=uri, mime_type=mime, text=text))


@register_tool()
async def test_simple_text(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result("This is a simple text response for testing.")


@register_tool()
async def test_image_content(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return t.CallToolResult(content=[t.ImageContent(data=PNG, mime_type="image/png")])


@register_tool()
async def test_audio_content(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return t.CallToolResult(content=[t.AudioContent(data=_WAV, mime_type="audio/wav")])


@register_tool()
async def test_embedded_resource(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return t.CallToolResult(content=[_build_resource("test://embedded-resource", "text/plain", "This is embedded.")])


@register_tool()
async def test_multiple_content_types(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return t.CallToolResult(
        content=[
            t.TextContent(text="Multiple content types test:"),
            t.ImageContent(data=PNG, mime_type="image/png"),
            _build_resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    )


@register_tool()
async def test_error_handling(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result("This tool intentionally returns an error for testing", is_error=True)


@register_tool()
async def test_tool_with_progress(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    for percent in (0, 50, 100):
        await ctx.session.report_progress(percent, 100, f"{percent} of 100")
        await asyncio.sleep(0.05)
    return build_result("Done in three steps.")


@register_tool()
async def test_logging_tool(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result("Logged nothing: nobody asked for it.")


@register_tool()
async def test_tool_with_logging(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    await ctx.session.send_log_message("info", "Tool execution started", related_request_id=ctx.request_id)
    return build_result("Logged.")


@register_tool()
async def test_trigger_tool_change(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result("Behind this door a change waits for review.")


@register_tool(_build_schema(region={"type": "string", "x-mcp-header": "Region"}))
async def test_x_mcp_header(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result(f"Region {(params.arguments or {}).get('region')}")


@register_tool(_JSON_SCHEMA)
async def json_schema_2020_12_tool(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result("Taken.")


@register_tool(_build_schema(name=_TEXT))
async def greet(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return build_result(f"Hello, {(params.arguments or {}).get('name')}!")


@register_tool(
    {"type": "object", "properties": {"seconds": {"type": "number"}, "label": _TEXT}, "required": ["seconds"]}
)
async def slow_compute(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    await asyncio.sleep(float((params.arguments or {})["seconds"]))
    return build_result("Computed.")


@register_tool()
async def failing_job(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    await asyncio.sleep(1)
    return build_result("This job fails.", is_error=True)


@register_tool()
async def protocol_error_job(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    raise MCPError(code=-32603, message="this job breaks the server")


@register_tool()
async def test_missing_capability(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    if ctx.session.client_params.capabilities.sampling is None:
        raise MCPError(code=-32021, message="sampling is needed", data={"requiredCapabilities": {"sampling": {}}})
    return build_result("Sampled.")


def _build_elicitation(key: str, name: str, field: dict[str, Any] = _TEXT) -> dict[str, t.InputRequest]:
    schema = {"type": "object", "properties": {name: field}, "required": [name]}
    return {key: t.ElicitRequest(params=t.ElicitRequestFormParams(message=f"What is {key}?", requested_schema=schema))}


def _build_sampling(key: str) -> dict[str, t.InputRequest]:
    return {key: t.CreateMessageRequest(params=t.CreateMessageRequestParams.model_validate(_SAMPLING))}


_ROOTS: Final[dict[str, t.InputRequest]] = {"client_roots": t.ListRootsRequest()}
_YES: Final = {"type": "boolean"}
# Tools that ask back before they answer.
_INPUT_REQUESTS: Final[dict[str, dict[str, t.InputRequest]]] = {
    "test_input_required_result_elicitation": _build_elicitation("user_name", "name"),
    "test_input_required_result_sampling": _build_sampling("capital_question"),
    "test_input_required_result_list_roots": _ROOTS,
    "test_input_required_result_request_state": _build_elicitation("confirm", "ok", _YES),
    "test_input_required_result_multiple_inputs": _build_elicitation("user_name", "name")
    | _build_sampling("greeting")
    | _ROOTS,
    "test_input_required_result_tampered_state": _build_elicitation("confirm", "ok", _YES),
    "test_streaming_elicitation": _build_elicitation("user_name", "name"),
    "test_tool_with_task": _build_elicitation("user_name", "name"),
    "test_elicitation": _build_elicitation("username", "username"),
    "test_elicitation_sep1034_defaults": _build_elicitation("name", "name"),
    "test_elicitation_sep1330_enums": _build_elicitation("name", "name"),
    "test_sampling": _build_sampling("prompt"),
    "confirm_delete": _build_elicitation("confirm", "confirm", _YES),
    "multi_input": _build_elicitation("first", "name") | _build_elicitation("second", "name"),
}


async def _request_input(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    input_requests = _INPUT_REQUESTS[params.name]
    responses = params.input_responses or {}
    if any(key not in responses for key in input_requests):
        return t.InputRequiredResult(input_requests=input_requests, request_state=params.name)
    if params.request_state != params.name:
        raise MCPError(code=-32602, message="that is not the state this server gave out")
    return build_result(", ".join(f"{key}: {value}" for key, value in responses.items()), "state-ok")


@register_tool()
async def test_input_required_result_multi_round(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    steps = (_build_elicitation("step1", "name"), _build_elicitation("step2", "color"))
    step = int(params.request_state or 0) + 1 if params.input_responses else 0
    if step < len(steps):
        return t.InputRequiredResult(input_requests=steps[step], request_state=str(step))
    return build_result("Both steps were taken.")


@register_tool()
async def test_input_required_result_capabilities(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    capabilities = ctx.session.client_params.capabilities
    input_requests = {} if capabilities.elicitation is None else _build_elicitation("user_name", "name")
    input_requests |= {} if capabilities.sampling is None else _build_sampling("greeting")
    return t.InputRequiredResult(input_requests=input_requests)


TOOLS |= {name: (_request_input, {"type": "object"}) for name in _INPUT_REQUESTS}


async def list_tools(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListToolsResult:
    tools = [
        t.Tool(name=name, description=f"The tool {name} of the conformance suite.", input_schema=schema)
        for name, (_, schema) in TOOLS.items()
    ]
    return t.ListToolsResult(tools=tools)


async def call_tool(ctx: Any, params: t.CallToolRequestParams) -> ToolAnswer:
    return await TOOLS[params.name][0](ctx, params)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    server: Server[Any] = Server(
        "fixture", version="1", on_list_tools=list_tools, on_call_tool=call_tool, on_list_resources=list_resources,
        on_list_resource_templates=list_templates, on_read_resource=read_resource, on_list_prompts=list_prompts,
        on_get_prompt=get_prompt, on_completion=complete,
    )  # fmt: skip
    listener = socket.create_server(("127.0.0.1", options.port), backlog=512)
    config = uvicorn.Config(server.streamable_http_app(), loop="uvloop", access_log=False, log_level="warning")
    print(f"{READY}http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
