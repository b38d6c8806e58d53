"""What a server asks is held to the protocol's shapes, and asked in its name; answers are held to what was asked."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.errors import InputRequestRejected, InputResponsesInvalid, RoundTokenRejected
from deputize.core.mcp.elicitation import InputRequests
from deputize.lifecycle.elicitation.request_sanitizer import (
    MAX_BYTES,
    MAX_QUESTIONS,
    MAX_STATE_LENGTH,
    sanitize_requests,
)
from deputize.lifecycle.elicitation.round_token import open_round_token, validate_responses
from deputize.store.keys import KeySet

TEXT = {"type": "string"}
OWN = "gate.example"


def make_form_request(message: Any = "Which?", **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": fields or {"name": TEXT}}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def make_url_request(url: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "url", "message": "Pay", "url": url}}


def make_sampling_request(**params: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": {"type": "text", "text": "Which?"}}]
    return {"method": "sampling/createMessage", "params": {"messages": said, "maxTokens": 5, **params}}


def make_input_requests(*questions: dict[str, Any], state: str | None = None) -> InputRequests:
    return InputRequests(
        server="orders", requests={f"q{n}": each for n, each in enumerate(questions)}, request_state=state
    )


def sanitize_request(question: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = sanitize_requests(make_input_requests(question), OWN).requests["q0"]["params"]
    return params


def test_a_question_is_asked_in_the_name_of_its_server() -> None:
    assert sanitize_request(make_form_request("Approve at https://gate.example?"))["message"].startswith(
        "The server orders asks: "
    )
    assert sanitize_request(make_url_request("https://pay.example/1"))["message"] == "The server orders asks: Pay"


def test_what_is_asked_is_one_paragraph_so_that_nothing_stands_apart_from_who_asks() -> None:
    said = sanitize_request(make_form_request("Your name?\n\nThe gateway asks:\tapprove at https://else.example"))[
        "message"
    ]
    assert said == "The server orders asks: Your name? The gateway asks: approve at https://else.example"


def test_every_kind_of_field_that_a_form_may_have_is_kept() -> None:
    fields: dict[str, Any] = {
        "text": {"type": "string", "title": "Text", "minLength": 1, "format": "email", "default": "a@b.example"},
        "number": {"type": "number", "minimum": 0, "maximum": 1},
        "whole": {"type": "integer", "description": "How many"},
        "truth": {"type": "boolean", "default": True},
        "one": {"type": "string", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        "titled": {"type": "string", "oneOf": [{"const": "a", "title": "A"}]},
        "several": {"type": "array", "items": {"type": "string", "enum": ["a"]}, "maxItems": 1},
        "titles": {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
    }
    assert sanitize_request(make_form_request(**fields))["requestedSchema"]["properties"] == fields


def test_what_the_protocol_does_not_know_is_left_out() -> None:
    question = make_form_request(name={"type": "string", "pattern": "^a", "format": "hostname", "x-html": "<b>"})
    question["params"]["_meta"] = {"sneaky": True}
    question["extra"] = 1
    assert sanitize_request(question)["requestedSchema"]["properties"]["name"] == TEXT
    assert sanitize_requests(make_input_requests(question), OWN).requests["q0"].keys() == {"method", "params"}
    assert "metadata" not in sanitize_request(make_sampling_request(metadata={"a": 1}))
    assert (
        sanitize_requests(make_input_requests({"method": "roots/list", "params": {"a": 1}}), OWN).requests["q0"][
            "params"
        ]
        == {}
    )


@pytest.mark.parametrize(
    "question",
    [
        make_form_request(""),
        make_form_request(" \n"),
        make_form_request(7),
        make_form_request("x" * 4001),
        make_form_request("hid\u200bden"),
        make_form_request("tag\U000e0041s"),
        make_form_request("\u202egnirts"),
        make_form_request(password=TEXT),
        make_form_request(newPassword=TEXT),
        make_form_request(a={"type": "string", "title": "API key"}),
        make_form_request(a={"type": "string", "format": "password"}),
        make_form_request(x_api_key=TEXT),
        make_form_request(deep={"type": "object"}),
        make_form_request(many={"type": "array", "items": {"type": "number"}}),
        make_form_request(odd={"type": "null"}),
        make_form_request(a={"type": "string", "minLength": "many"}),
        make_form_request(a={"type": "string", "oneOf": [{"const": 1}]}),
        make_form_request(a={"type": ["string", "null"]}),
        make_form_request(**{"na\u2066me": TEXT}),
        make_form_request(**{f"f{n}": TEXT for n in range(33)}),
        {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "array"}}},
        make_url_request("http://pay.example"),
        make_url_request("javascript:alert(1)"),
        make_url_request("https://"),
        make_url_request("https://ana@pay.example/"),
        make_url_request("https://pay.example/\u0430"),
        make_url_request("https://pay.example/ 1"),
        make_url_request("https://[/"),
        make_url_request(None),
        make_url_request(f"https://{OWN}/console"),
        make_url_request(f"https://{OWN}./"),
        make_url_request(f"https://{OWN.upper()}:8443/"),
        make_url_request("https://pay.example\\@else.example/"),
        make_sampling_request(messages=[]),
        make_sampling_request(messages="hi"),
        make_sampling_request(maxTokens=0),
        make_sampling_request(maxTokens="5"),
        make_sampling_request(maxTokens=True),
        make_sampling_request(tools=[{"name": "x"}]),
        make_sampling_request(includeContext="allServers"),
        make_sampling_request(systemPrompt=7),
        make_sampling_request(systemPrompt="do\u200b it"),
        make_sampling_request(messages=[{"role": "system", "content": {"type": "text", "text": "a"}}]),
        make_sampling_request(messages=[{"role": "user", "content": {"type": "tool_use"}}]),
    ],
)
def test_what_is_badly_asked_is_refused_with_the_server_named(question: dict[str, Any]) -> None:
    with pytest.raises(InputRequestRejected, match="the server orders asks") as raised:
        sanitize_requests(make_input_requests(question), OWN)
    assert raised.value.details["server"] == "orders"


def test_there_is_an_end_to_what_is_asked_at_once() -> None:
    for asks in (
        make_input_requests(*(make_form_request() for _ in range(MAX_QUESTIONS + 1))),
        make_input_requests(make_form_request(), state="x" * (MAX_STATE_LENGTH + 1)),
        make_input_requests(make_sampling_request(systemPrompt="x" * MAX_BYTES)),
        InputRequests(server="orders", requests={"n" * 129: make_form_request()}),
    ):
        with pytest.raises(InputRequestRejected):
            sanitize_requests(asks, OWN)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
_methods = st.sampled_from(["elicitation/create", "sampling/createMessage", "roots/list", "x"])


@given(_methods, st.dictionaries(st.sampled_from(["mode", "message", "url", "requestedSchema", "messages"]), _json))
def test_whatever_comes_is_shaped_or_refused_and_nothing_breaks(method: str, params: dict[str, Any]) -> None:
    try:
        sanitize_requests(make_input_requests({"method": method, "params": params}), None)
    except InputRequestRejected:
        return


FORM_REQUESTS = sanitize_requests(
    make_input_requests(
        make_form_request(name=TEXT),
        make_url_request("https://pay.example"),
        make_sampling_request(),
        {"method": "roots/list"},
    ),
    OWN,
).requests
VALID_RESPONSES: dict[str, Any] = {
    "q0": {"action": "accept", "content": {"name": "Ana"}},
    "q1": {"action": "accept"},
    "q2": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "This"}},
    "q3": {"roots": [{"uri": "file:///home", "name": "Home"}]},
}


def test_answers_that_fit_are_kept_and_those_to_nothing_are_left_out() -> None:
    assert validate_responses(FORM_REQUESTS, {**VALID_RESPONSES, "unasked": 1}) == VALID_RESPONSES
    assert validate_responses(FORM_REQUESTS, {"q1": {"action": "cancel"}}) == {"q1": {"action": "cancel"}}
    assert validate_responses(FORM_REQUESTS, {"q0": {"action": "decline"}}) == {"q0": {"action": "decline"}}
    assert validate_responses(FORM_REQUESTS, {}) == {}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("q0", 7), ("q0", {}), ("q0", {"action": "maybe"}), ("q0", {"action": ["accept"]}),
        ("q0", {"action": "accept"}),
        ("q0", {"action": "accept", "content": {"name": 7}}), ("q0", {"action": "decline", "content": {"name": "a"}}),
        ("q0", {"action": "accept", "content": {"name": "\ud800"}}),
        ("q1", {"action": "accept", "content": {"a": 1}}),
        ("q2", {"role": "assistant", "content": {}}), ("q2", {"role": "system", "model": "m", "content": {}}),
        ("q3", {"roots": [{"uri": "https://else.example"}]}), ("q3", {"roots": "all"}), ("q3", {}),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_fit_is_named(name: str, answer: Any) -> None:
    with pytest.raises(InputResponsesInvalid):
        validate_responses(FORM_REQUESTS, {**VALID_RESPONSES, name: answer})


KEYS = KeySet.from_data_keys("acme", {1: b"k" * 32}, Clock())
RESPONSES = f"round1.01890000.{base64.urlsafe_b64encode(KEYS.seal('01890000', 'round', b'{}')).decode()}"


@given(st.integers(0, len(RESPONSES) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_round_that_was_changed_anywhere_is_refused(place: int, letter: str) -> None:
    assert open_round_token(KEYS, RESPONSES) == ("01890000", {})
    changed = RESPONSES[:place] + letter + RESPONSES[place + 1 :]
    if changed != RESPONSES:
        with pytest.raises(RoundTokenRejected):
            open_round_token(KEYS, changed)


@given(st.text(max_size=40))
def test_a_text_that_was_not_given_out_is_no_round(text: str) -> None:
    for each in (text, f"round1.{text}", f"{RESPONSES}{text or '='}"):
        with pytest.raises(RoundTokenRejected):
            open_round_token(KEYS, each)


def test_a_round_of_another_tenant_is_none_here() -> None:
    with pytest.raises(RoundTokenRejected):
        open_round_token(KeySet.from_data_keys("other", {1: b"k" * 32}, Clock()), RESPONSES)
