"""Declare the ids a tool has in other protocols. Ids of single calls are in their audit entries."""

from typing import Annotated, Literal

from pydantic import StringConstraints

from deputize.core.contract.parts import SparsePart

NativeId = Annotated[str, StringConstraints(min_length=1, max_length=400)]
HttpMethod = Literal["GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE"]


class McpIds(SparsePart):
    """The ids of a tool of an MCP server."""

    server_id: NativeId
    tool_name: NativeId
    method: NativeId | None = None
    mcp_protocol_version: NativeId | None = None


class OpenApiIds(SparsePart):
    """The ids of an operation in an OpenAPI document."""

    operation_id: NativeId | None = None
    method: HttpMethod
    path: NativeId
    server_url: NativeId | None = None
    security_scheme_refs: tuple[NativeId, ...] | None = None


class FunctionCallingIds(SparsePart):
    """The ids of a function in a model API."""

    function_name: NativeId
    strict: bool | None = None
    defer_loading: bool | None = None


class A2aIds(SparsePart):
    """The ids of a skill of another agent."""

    agent_card_url: NativeId
    agent_skill_id: NativeId


class CommandIds(SparsePart):
    """The ids of a command, and references to its arguments, folder, environment and sandbox."""

    command_id: NativeId
    argv_ref: NativeId | None = None
    cwd_ref: NativeId | None = None
    env_policy_ref: NativeId | None = None
    sandbox_ref: NativeId | None = None


class BrowserIds(SparsePart):
    """The id of an action in a browser."""

    action_id: NativeId


class NativeIds(SparsePart):
    """The ids of one tool in each protocol through which it exists."""

    mcp: McpIds | None = None
    openapi: OpenApiIds | None = None
    function_calling: FunctionCallingIds | None = None
    a2a: A2aIds | None = None
    command: CommandIds | None = None
    browser: BrowserIds | None = None
