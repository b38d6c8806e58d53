"""Resources, prompts and completions of the fixture server, as the suite describes each by name or address."""

from typing import Any, Final

import mcp_types as t
from mcp.shared.exceptions import MCPError

# One red pixel.
PNG: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
_TEXT: Final = "test://static-text"
_BINARY: Final = "test://static-binary"
_TEMPLATE: Final = "test://template/{id}/data"
_CONTEXT: Final = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
# By name, the arguments each takes.
PROMPTS: Final[dict[str, tuple[str, ...]]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


async def list_resources(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListResourcesResult:
    return t.ListResourcesResult(
        resources=[
            t.Resource(uri=_TEXT, name="Static text", description="A text that stays.", mime_type="text/plain"),
            t.Resource(uri=_BINARY, name="Static binary", description="One red pixel.", mime_type="image/png"),
        ]
    )


async def list_templates(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListResourceTemplatesResult:
    template = t.ResourceTemplate(
        uri_template=_TEMPLATE, name="Data", description="Data by id.", mime_type="application/json"
    )
    return t.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(ctx: Any, params: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    before, _, after = _TEMPLATE.partition("{id}")
    contents: t.TextResourceContents | t.BlobResourceContents
    if params.uri == _TEXT:
        text = "This is the content of the static text resource."
        contents = t.TextResourceContents(uri=params.uri, mime_type="text/plain", text=text)
    elif params.uri == _BINARY:
        contents = t.BlobResourceContents(uri=params.uri, mime_type="image/png", blob=PNG)
    elif params.uri.startswith(before) and params.uri.endswith(after):
        id_ = params.uri.removeprefix(before).removesuffix(after)
        text = f'{{"id":"{id_}","templateTest":true,"data":"Data for ID: {id_}"}}'
        contents = t.TextResourceContents(uri=params.uri, mime_type="application/json", text=text)
    else:
        raise MCPError(code=-32602, message="Resource not found", data={"uri": params.uri})
    return t.ReadResourceResult(contents=[contents])


async def list_prompts(ctx: Any, params: t.PaginatedRequestParams | None) -> t.ListPromptsResult:
    return t.ListPromptsResult(
        prompts=[
            t.Prompt(
                name=name,
                description=f"The prompt {name} of the conformance suite.",
                arguments=[t.PromptArgument(name=each, description="A text.", required=True) for each in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
    )


async def get_prompt(ctx: Any, params: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
    arguments = params.arguments or {}
    if params.name == "test_input_required_result_prompt":
        return _request_context(params)
    if params.name == "test_prompt_with_arguments":
        return _build_messages(
            _build_text(f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'")
        )
    if params.name == "test_prompt_with_image":
        image = t.ImageContent(data=PNG, mime_type="image/png")
        return _build_messages(image, _build_text("Please analyze the image above."))
    if params.name == "test_prompt_with_embedded_resource":
        text = "Embedded resource content for testing."
        contents = t.TextResourceContents(uri=arguments["resourceUri"], mime_type="text/plain", text=text)
        embedded_resource = t.EmbeddedResource(resource=contents)
        return _build_messages(embedded_resource, _build_text("Please process the embedded resource above."))
    return _build_messages(_build_text("This is a simple prompt for testing."))


async def complete(ctx: Any, params: t.CompleteRequestParams) -> t.CompleteResult:
    matches = [each for each in ("paris", "park", "party", "testing") if each.startswith(params.argument.value)]
    return t.CompleteResult(completion=t.Completion(values=matches, total=len(matches), has_more=False))


def _request_context(params: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
    answer = (params.input_responses or {}).get("user_context")
    if answer is None:
        elicitation = t.ElicitRequestFormParams(
            message="What context should the prompt use?", requested_schema=_CONTEXT
        )
        return t.InputRequiredResult(input_requests={"user_context": t.ElicitRequest(params=elicitation)})
    return _build_messages(_build_text(f"With {answer}."))


def _build_messages(*contents: Any) -> t.GetPromptResult:
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=each) for each in contents])


def _build_text(text: str) -> t.TextContent:
    return t.TextContent(text=text)
