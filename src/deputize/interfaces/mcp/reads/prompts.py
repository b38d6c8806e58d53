"""Serve `prompts/list`, `prompts/get` and `completion/complete` from the pinned prompts of MCP servers.

A prompt is named `server__prompt`, as tools are. Each get and each completion is one call of a contract of the server.
"""

from typing import Any, Final

from deputize.core.errors import ResourceNotFound
from deputize.core.mcp.constants import INVALID_PARAMS
from deputize.core.mcp.resources import Declaration
from deputize.core.mcp.servers import COMPLETE, GET_PROMPT, DefinitionKind
from deputize.interfaces.mcp.context import McpContext
from deputize.interfaces.mcp.errors import RpcError
from deputize.interfaces.mcp.reads.resources import build_list_page
from deputize.interfaces.mcp.reads.sources import (
    ServerSource,
    load_sources,
    qualify_prompt,
    resolve_prompt,
    resolve_resource,
)
from deputize.interfaces.mcp.reads.upstream_reads import build_refusal, read_upstream

_PROMPT_FIELDS: Final = ("title", "description", "arguments")


async def list_prompts(context: McpContext) -> dict[str, Any]:
    """Serve `prompts/list`."""

    def describe_prompt(name: str, source: ServerSource, definition: Declaration) -> dict[str, Any]:
        return {
            "name": qualify_prompt(name, source),
            **{each: definition[each] for each in _PROMPT_FIELDS if each in definition},
        }

    return await build_list_page(
        context, "prompts", "name", DefinitionKind.PROMPT, await load_sources(context, GET_PROMPT), describe_prompt
    )


async def get_prompt(context: McpContext) -> dict[str, Any]:
    """Serve `prompts/get`."""
    name = _require_text(context.request.params, "name")
    arguments = context.request.params.get("arguments")
    if arguments is not None and not isinstance(arguments, dict):
        raise RpcError(INVALID_PARAMS, "arguments must be an object with a text per argument")
    try:
        source, own_name = resolve_prompt(name, await load_sources(context, GET_PROMPT))
    except ResourceNotFound as problem:
        raise await build_refusal(context, problem, name=name) from problem
    return await read_upstream(
        context, source, {"name": own_name, **({"arguments": arguments} if arguments else {})}, name=name
    )


async def complete_argument(context: McpContext) -> dict[str, Any]:
    """Serve `completion/complete`."""
    reference, argument, completion_context = (
        context.request.params.get(each) for each in ("ref", "argument", "context")
    )
    if (
        not isinstance(reference, dict)
        or not isinstance(argument, dict)
        or not isinstance(completion_context, dict | None)
    ):
        raise RpcError(INVALID_PARAMS, "ref and argument must be objects, and so must context if it is present")
    candidates = await load_sources(context, COMPLETE)
    is_prompt = reference.get("type") == "ref/prompt"
    reference_name = _require_text(reference, "name" if is_prompt else "uri")
    try:
        source, own_name = (
            resolve_prompt(reference_name, candidates) if is_prompt else resolve_resource(reference_name, candidates)
        )
    except ResourceNotFound as problem:
        raise await build_refusal(context, problem, ref=reference_name) from problem
    call_arguments = {
        "ref": {"type": reference.get("type"), "name" if is_prompt else "uri": own_name},
        "argument": argument,
    }
    return await read_upstream(
        context,
        source,
        {**call_arguments, **({"context": completion_context} if completion_context else {})},
        ref=reference_name,
    )


def _require_text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not value:
        raise RpcError(INVALID_PARAMS, f"{name} must be a non-empty text")
    return value
