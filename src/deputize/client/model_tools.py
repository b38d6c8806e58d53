"""Hand tools to a model API in its own shape, and execute the tool calls of the model's reply.

Shapes differ between APIs in three places only: where a definition has its name, where a reply has its tool calls, and
how a result is sent back. Nothing here sends a request: `ModelTools` and `SyncModelTools` do, through a client.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from deputize.client.protocol import DeputizeError, Failure, Reply

ModelApi = Literal["openai-chat", "openai-responses", "anthropic", "json-schema"]
MAX_PARALLEL_CALLS: Final = 8
_MAX_ERRORS: Final = 5
# What to pass on, and the field that every such value has.
_REPLIES: Final[dict[ModelApi, tuple[str, str]]] = {
    "openai-chat": ("an assistant message, such as completion.choices[0].message", "role"),
    "openai-responses": ("a response, with its output", "output"),
    "anthropic": ("a message, with its content", "content"),
    "json-schema": ("a list of calls", ""),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCall:
    """A tool call that a model made. `arguments` is None if they are not a JSON object."""

    id: str
    name: str
    arguments: dict[str, Any] | None

    def derive_key(self, conversation: str) -> str:
        """Derive the idempotency key from the conversation and the call, so that executing it again acts once."""
        parts = [conversation, self.id, self.name, self.arguments]
        text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelResult:
    """The result of a tool call as text for the model. `reply` is None if the gateway was not asked."""

    call: ModelCall
    text: str
    is_error: bool
    reply: Reply | None = None


def check_model_api(api: str) -> None:
    """Raise unless this is the name of a model API."""
    if api not in get_args(ModelApi):
        raise DeputizeError(f"the model API {api!r} is unknown: use {', '.join(get_args(ModelApi))}")


def get_definition_name(api: ModelApi, definition: Mapping[str, Any]) -> str:
    """Return the name that a model calls a tool by."""
    if api == "openai-chat":
        return str(definition["function"]["name"])
    return str(definition["title" if api == "json-schema" else "name"])


def list_model_calls(api: ModelApi, reply: Any) -> list[ModelCall]:
    """List the tool calls in a model's reply: a message or response of the API, as its library returns it or as JSON.

    For `json-schema`, the calls themselves, as `{"id": …, "name": …, "arguments": {…}}`. Raises for anything else, as
    calls in it would be lost.
    """
    plain = _to_plain(reply)
    description, field = _REPLIES[api]
    if not (isinstance(plain, list | tuple) if api == "json-schema" else isinstance(plain, Mapping) and field in plain):
        raise DeputizeError(f"this is not a reply of {api}: pass {description}")
    match api:
        case "openai-chat":
            parts = _list_parts(plain, "tool_calls")
            return [_make_call(each.get("id"), **_get_function(each)) for each in parts]
        case "openai-responses":
            parts = [each for each in _list_parts(plain, "output") if each.get("type") == "function_call"]
            return [_make_call(each.get("call_id"), each.get("name"), each.get("arguments")) for each in parts]
        case "anthropic":
            parts = [each for each in _list_parts(plain, "content") if each.get("type") == "tool_use"]
            return [_make_call(each.get("id"), each.get("name"), each.get("input")) for each in parts]
        case _:
            return [_make_call(each.get("id"), each.get("name"), each.get("arguments")) for each in _list_parts(plain)]


def build_messages(api: ModelApi, results: Sequence[ModelResult]) -> list[dict[str, Any]]:
    """Build what is sent back to the model, in the order of its calls; append it to the conversation."""
    match api:
        case "openai-chat":
            return [{"role": "tool", "tool_call_id": each.call.id, "content": each.text} for each in results]
        case "openai-responses":
            return [{"type": "function_call_output", "call_id": each.call.id, "output": each.text} for each in results]
        case "anthropic":
            blocks = [
                {
                    "type": "tool_result",
                    "tool_use_id": each.call.id,
                    "content": each.text,
                    "is_error": each.is_error,
                }
                for each in results
            ]
            return [{"role": "user", "content": blocks}] if blocks else []
        case _:
            return [{"id": each.call.id, "content": each.text, "is_error": each.is_error} for each in results]


def refuse_call(call: ModelCall, names: Iterable[str]) -> ModelResult | None:
    """Refuse a call that cannot be sent: of a tool that was not offered, or without valid arguments; None if it can."""
    offered_names = sorted(names)
    if call.name not in offered_names:
        text = f"There is no tool {call.name[:64]}, so nothing happened. Tools: {', '.join(offered_names) or 'none'}."
        return ModelResult(call=call, text=text, is_error=True)
    if call.arguments is None:
        text = "The arguments are not a JSON object, so nothing happened. Send them as one JSON object."
        return ModelResult(call=call, text=text, is_error=True)
    return None


def describe_reply(call: ModelCall, reply: Reply) -> ModelResult:
    """Describe the outcome of a call so that a model can go on: the result, or what happened and the next step."""
    if reply.failure is not None:
        return ModelResult(call=call, text=_describe_failure(reply.failure), is_error=True, reply=reply)
    if reply.pending:
        return ModelResult(call=call, text=_describe_pending(reply), is_error=False, reply=reply)
    text = reply.result if isinstance(reply.result, str) else json.dumps(reply.result, ensure_ascii=False)
    return ModelResult(call=call, text=text, is_error=False, reply=reply)


def _describe_failure(failure: Failure) -> str:
    errors = failure.details.get("errors")
    lines = [f"{failure.message} ({failure.number} {failure.slug})."]
    if isinstance(errors, list):
        lines += [f"- {each.get('path')}: {each.get('message')}" for each in errors[:_MAX_ERRORS]]
    lines.append(f"Next step: {failure.advice}")
    return "\n".join(lines)


def _describe_pending(reply: Reply) -> str:
    approval = reply.approval
    if approval is None:
        return f"The call was accepted and has not ended yet (call {reply.call_id}). Do not repeat it."
    groups = ", ".join(approval.get("groups") or ()) or "an approver"
    return (
        f"Nothing was done yet: the call waits for approval by {groups} (call {reply.call_id}). Do not repeat it. Tell "
        "the user that a person must approve it; it then continues by itself."
    )


def _to_plain(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else value


def _list_parts(plain: Any, name: str | None = None) -> list[Mapping[str, Any]]:
    parts = plain if name is None else plain.get(name) if isinstance(plain, Mapping) else None
    if not isinstance(parts, Sequence) or isinstance(parts, str):
        return []
    return [each for each in (_to_plain(part) for part in parts) if isinstance(each, Mapping)]


def _get_function(part: Mapping[str, Any]) -> dict[str, Any]:
    function = part.get("function")
    function = function if isinstance(function, Mapping) else {}
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _make_call(call_id: Any, name: Any, arguments: Any) -> ModelCall:
    if not isinstance(call_id, str) or not call_id:
        raise DeputizeError("a tool call of the model has no id: pass its message on as the API returned it")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            arguments = None
    return ModelCall(id=call_id, name=str(name), arguments=arguments if isinstance(arguments, dict) else None)
