"""Resources, prompts and completions of the fixture server, as the suite describes each by name or address.

Above: `fixture.py`. Below: the SDK.
"""

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
    described = t.ResourceTemplate(
        uri_template=_TEMPLATE, name="Data", description="Data by id.", mime_type="application/json"
    )
    return t.ListResourceTemplatesResult(resource_templates=[described])


async def read_resource(ctx: Any, asked: t.ReadResourceRequestParams) -> t.ReadResourceResult:
    before, _, after = _TEMPLATE.partition("{id}")
    contents: t.TextResourceContents | t.BlobResourceContents
    if asked.uri == _TEXT:
        text = "This is the content of the static text resource."
        contents = t.TextResourceContents(uri=asked.uri, mime_type="text/plain", text=text)
    elif asked.uri == _BINARY:
        contents = t.BlobResourceContents(uri=asked.uri, mime_type="image/png", blob=PNG)
    elif asked.uri.startswith(before) and asked.uri.endswith(after):
        id_ = asked.uri.removeprefix(before).removesuffix(after)
        text = f'{{"id":"{id_}","templateTest":true,"data":"Data for ID: {id_}"}}'
        contents = t.TextResourceContents(uri=asked.uri, mime_type="application/json", text=text)
    else:
        raise MCPError(code=-32602, message="Resource not found", data={"uri": asked.uri})
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


async def get_prompt(ctx: Any, asked: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
    given = asked.arguments or {}
    if asked.name == "test_input_required_result_prompt":
        return _asking(asked)
    if asked.name == "test_prompt_with_arguments":
        return _messages(_text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
    if asked.name == "test_prompt_with_image":
        image = t.ImageContent(data=PNG, mime_type="image/png")
        return _messages(image, _text("Please analyze the image above."))
    if asked.name == "test_prompt_with_embedded_resource":
        text = "Embedded resource content for testing."
        inside = t.TextResourceContents(uri=given["resourceUri"], mime_type="text/plain", text=text)
        embedded = t.EmbeddedResource(resource=inside)
        return _messages(embedded, _text("Please process the embedded resource above."))
    return _messages(_text("This is a simple prompt for testing."))


async def complete(ctx: Any, asked: t.CompleteRequestParams) -> t.CompleteResult:
    found = [each for each in ("paris", "park", "party", "testing") if each.startswith(asked.argument.value)]
    return t.CompleteResult(completion=t.Completion(values=found, total=len(found), has_more=False))


def _asking(asked: t.GetPromptRequestParams) -> t.GetPromptResult | t.InputRequiredResult:
    answer = (asked.input_responses or {}).get("user_context")
    if answer is None:
        wants = t.ElicitRequestFormParams(message="What context should the prompt use?", requested_schema=_CONTEXT)
        return t.InputRequiredResult(input_requests={"user_context": t.ElicitRequest(params=wants)})
    return _messages(_text(f"With {answer}."))


def _messages(*contents: Any) -> t.GetPromptResult:
    return t.GetPromptResult(messages=[t.PromptMessage(role="user", content=each) for each in contents])


def _text(text: str) -> t.TextContent:
    return t.TextContent(text=text)
