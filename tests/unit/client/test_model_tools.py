"""Tool calls of models: the same calls and results in the shape of each API."""

from typing import Any

import pytest

from deputize.client.model_tools import (
    ModelApi,
    ModelCall,
    ModelResult,
    build_messages,
    check_model_api,
    describe_reply,
    get_definition_name,
    list_model_calls,
    refuse_call,
)
from deputize.client.protocol import DeputizeError, Failure, Reply

pytestmark = pytest.mark.requirement("EXE-1")
CALL = ModelCall(id="c1", name="hello__greet", arguments={"name": "Ana"})


class LibraryObject:
    """An object as the libraries return it."""

    def __init__(self, value: dict[str, Any]) -> None:
        self._value = value

    def model_dump(self, *, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return self._value


def make_reply(api: ModelApi, arguments: Any = '{"name": "Ana"}') -> Any:
    function = {"name": "hello__greet", "arguments": arguments}
    replies: dict[ModelApi, Any] = {
        "openai-chat": {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": function}]},
        "openai-responses": {
            "output": [
                {"type": "reasoning", "id": "r"},
                {"type": "function_call", "call_id": "c1", "id": "x", **function},
            ]
        },
        "anthropic": {
            "content": [
                {"type": "text", "text": "I greet."},
                {"type": "tool_use", "id": "c1", "name": "hello__greet", "input": {"name": "Ana"}},
            ]
        },
        "json-schema": [{"id": "c1", **function}],
    }
    return replies[api]


APIS: tuple[ModelApi, ...] = ("openai-chat", "openai-responses", "anthropic", "json-schema")


@pytest.mark.parametrize("api", APIS)
def test_calls_are_found_in_the_reply_of_each_api(api: ModelApi) -> None:
    reply = make_reply(api)
    assert list_model_calls(api, reply) == [CALL]
    library_reply = [LibraryObject(each) for each in reply] if api == "json-schema" else LibraryObject(reply)
    assert list_model_calls(api, library_reply) == [CALL]
    empty: Any = {"role": "assistant", "tool_calls": None, "output": None, "content": "Hello."}
    assert list_model_calls(api, [] if api == "json-schema" else empty) == []


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("other", [None, {}, "text", {"choices": [{"message": {"role": "assistant"}}]}])
def test_what_is_no_reply_of_the_api_is_refused_so_that_no_call_is_lost(api: ModelApi, other: Any) -> None:
    with pytest.raises(DeputizeError, match=f"not a reply of {api}: pass "):
        list_model_calls(api, other)


def test_an_unknown_api_is_refused_by_name() -> None:
    with pytest.raises(DeputizeError, match="'openai' is unknown: use openai-chat, "):
        check_model_api("openai")


def test_results_carry_the_models_ids() -> None:
    results = [ModelResult(call=CALL, text="Hello!", is_error=False), ModelResult(call=CALL, text="No.", is_error=True)]
    assert build_messages("openai-chat", results)[0] == {"role": "tool", "tool_call_id": "c1", "content": "Hello!"}
    assert build_messages("openai-responses", results)[1] == {
        "type": "function_call_output", "call_id": "c1", "output": "No.",
    }  # fmt: skip
    (message,) = build_messages("anthropic", results)
    assert message["role"] == "user"
    assert [each["is_error"] for each in message["content"]] == [False, True]
    assert build_messages("json-schema", results)[1] == {"id": "c1", "content": "No.", "is_error": True}
    assert all(build_messages(api, []) == [] for api in APIS)


@pytest.mark.parametrize("arguments", ["{", "[]", "7", "null", "[" * 100_000])
def test_arguments_that_are_no_object_are_answered_without_a_call(arguments: str) -> None:
    (call,) = list_model_calls("openai-chat", make_reply("openai-chat", arguments))
    refusal = refuse_call(call, ["hello__greet"])
    assert refusal is not None
    assert (refusal.is_error, "not a JSON object" in refusal.text) == (True, True)


def test_an_invented_tool_is_answered_without_a_call() -> None:
    refusal = refuse_call(CALL, ["hello__forget"])
    assert refusal is not None
    assert refusal.text == "There is no tool hello__greet, so nothing happened. Tools: hello__forget."
    assert refuse_call(CALL, ["hello__greet"]) is None


def test_a_call_without_an_id_cannot_be_executed_once() -> None:
    with pytest.raises(DeputizeError, match="has no id"):
        list_model_calls("json-schema", [{"name": "hello__greet", "arguments": {}}])


def test_the_key_depends_on_the_conversation_and_the_call_alone() -> None:
    same = ModelCall(id="c1", name="hello__greet", arguments={"name": "Ana"})
    assert CALL.derive_key("a") == same.derive_key("a")
    others = [
        CALL.derive_key("b"),
        ModelCall(id="c2", name="hello__greet", arguments={"name": "Ana"}).derive_key("a"),
        ModelCall(id="c1", name="hello__forget", arguments={"name": "Ana"}).derive_key("a"),
        ModelCall(id="c1", name="hello__greet", arguments={"name": "\ud800"}).derive_key("a"),
    ]
    assert len({CALL.derive_key("a"), *others}) == 5


def test_outcomes_are_written_for_a_model() -> None:
    def describe(**more: Any) -> ModelResult:
        reply = Reply(**{"result": None, "state": "succeeded", "call_id": "id-1", "envelope": {}, **more})
        return describe_reply(CALL, reply)

    assert describe(result="Hello!").text == "Hello!"
    assert describe(result={"a": "ü"}).text == '{"a": "ü"}'
    approval = {"poll_after_ms": 1000, "approval": {"groups": ["leads"]}}
    waiting = describe(envelope=approval)
    assert (waiting.is_error, "waits for approval by leads (call id-1)" in waiting.text) == (False, True)
    assert "Do not repeat it" in describe(envelope={"poll_after_ms": 1000}).text
    failure = Failure(
        status=400, code="INVALID_INPUT", number="E3301", error_class="x", slug="schema-violation",
        message="It is wrong", advice="Fix it.", retryable=False, retry_after_ms=None, trace_id="t",
        details={"errors": [{"path": "/name", "message": "is required"}]},
    )  # fmt: skip
    assert describe(failure=failure).text == (
        "It is wrong (E3301 schema-violation).\n- /name: is required\nNext step: Fix it."
    )


def test_definitions_have_their_names_where_each_api_puts_them() -> None:
    assert get_definition_name("openai-chat", {"function": {"name": "a"}}) == "a"
    assert get_definition_name("openai-responses", {"name": "a"}) == "a"
    assert get_definition_name("anthropic", {"name": "a"}) == "a"
    assert get_definition_name("json-schema", {"title": "a"}) == "a"
