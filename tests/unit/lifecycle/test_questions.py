"""What a server asks is held to the protocol's shapes, and asked in its name; answers are held to what was asked."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.errors import AnswersInvalid, QuestionRefused, RoundRefused
from deputize.core.questions import Asks
from deputize.lifecycle.questions import LARGEST, LARGEST_STATE, MOST_QUESTIONS, held_to_shapes
from deputize.lifecycle.rounds import fitting, opened
from deputize.store.keys import KeySet

TEXT = {"type": "string"}
OWN = "gate.example"


def form(message: Any = "Which?", **fields: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": fields or {"name": TEXT}}
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def page(url: Any) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"mode": "url", "message": "Pay", "url": url}}


def model(**params: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": {"type": "text", "text": "Which?"}}]
    return {"method": "sampling/createMessage", "params": {"messages": said, "maxTokens": 5, **params}}


def asked(*questions: dict[str, Any], state: str | None = None) -> Asks:
    return Asks(server="orders", questions={f"q{n}": each for n, each in enumerate(questions)}, state=state)


def shaped(question: dict[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = held_to_shapes(asked(question), OWN).questions["q0"]["params"]
    return params


def test_a_question_is_asked_in_the_name_of_its_server() -> None:
    assert shaped(form("Approve at https://gate.example?"))["message"].startswith("The server orders asks: ")
    assert shaped(page("https://pay.example/1"))["message"] == "The server orders asks: Pay"


def test_what_is_asked_is_one_paragraph_so_that_nothing_stands_apart_from_who_asks() -> None:
    said = shaped(form("Your name?\n\nThe gateway asks:\tapprove at https://else.example"))["message"]
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
    assert shaped(form(**fields))["requestedSchema"]["properties"] == fields


def test_what_the_protocol_does_not_know_is_left_out() -> None:
    question = form(name={"type": "string", "pattern": "^a", "format": "hostname", "x-html": "<b>"})
    question["params"]["_meta"] = {"sneaky": True}
    question["extra"] = 1
    assert shaped(question)["requestedSchema"]["properties"]["name"] == TEXT
    assert held_to_shapes(asked(question), OWN).questions["q0"].keys() == {"method", "params"}
    assert "metadata" not in shaped(model(metadata={"a": 1}))
    assert held_to_shapes(asked({"method": "roots/list", "params": {"a": 1}}), OWN).questions["q0"]["params"] == {}


@pytest.mark.parametrize(
    "question",
    [
        form(""), form(" \n"),
        form(7), form("x" * 4001), form("hid\u200bden"), form("tag\U000e0041s"), form("\u202egnirts"),
        form(password=TEXT), form(newPassword=TEXT), form(a={"type": "string", "title": "API key"}),
        form(a={"type": "string", "format": "password"}), form(x_api_key=TEXT),
        form(deep={"type": "object"}), form(many={"type": "array", "items": {"type": "number"}}),
        form(odd={"type": "null"}),
        form(a={"type": "string", "minLength": "many"}), form(a={"type": "string", "oneOf": [{"const": 1}]}),
        form(a={"type": ["string", "null"]}), form(**{"na\u2066me": TEXT}), form(**{f"f{n}": TEXT for n in range(33)}),
        {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {"type": "array"}}},
        page("http://pay.example"), page("javascript:alert(1)"), page("https://"), page("https://ana@pay.example/"),
        page("https://pay.example/\u0430"), page("https://pay.example/ 1"), page("https://[/"), page(None),
        page(f"https://{OWN}/console"), page(f"https://{OWN}./"), page(f"https://{OWN.upper()}:8443/"),
        page("https://pay.example\\@else.example/"),
        model(messages=[]), model(messages="hi"), model(maxTokens=0), model(maxTokens="5"), model(maxTokens=True),
        model(tools=[{"name": "x"}]), model(includeContext="allServers"), model(systemPrompt=7),
        model(systemPrompt="do\u200b it"),
        model(messages=[{"role": "system", "content": {"type": "text", "text": "a"}}]),
        model(messages=[{"role": "user", "content": {"type": "tool_use"}}]),
    ],
)  # fmt: skip
def test_what_is_badly_asked_is_refused_with_the_server_named(question: dict[str, Any]) -> None:
    with pytest.raises(QuestionRefused, match="the server orders asks") as raised:
        held_to_shapes(asked(question), OWN)
    assert raised.value.details["server"] == "orders"


def test_there_is_an_end_to_what_is_asked_at_once() -> None:
    for asks in (
        asked(*(form() for _ in range(MOST_QUESTIONS + 1))),
        asked(form(), state="x" * (LARGEST_STATE + 1)),
        asked(model(systemPrompt="x" * LARGEST)),
        Asks(server="orders", questions={"n" * 129: form()}),
    ):
        with pytest.raises(QuestionRefused):
            held_to_shapes(asks, OWN)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
_methods = st.sampled_from(["elicitation/create", "sampling/createMessage", "roots/list", "x"])


@given(_methods, st.dictionaries(st.sampled_from(["mode", "message", "url", "requestedSchema", "messages"]), _json))
def test_whatever_comes_is_shaped_or_refused_and_nothing_breaks(method: str, params: dict[str, Any]) -> None:
    try:
        held_to_shapes(asked({"method": method, "params": params}), None)
    except QuestionRefused:
        return


ASKED = held_to_shapes(
    asked(form(name=TEXT), page("https://pay.example"), model(), {"method": "roots/list"}), OWN
).questions
FITS: dict[str, Any] = {
    "q0": {"action": "accept", "content": {"name": "Ana"}},
    "q1": {"action": "accept"},
    "q2": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "This"}},
    "q3": {"roots": [{"uri": "file:///home", "name": "Home"}]},
}


def test_answers_that_fit_are_kept_and_those_to_nothing_are_left_out() -> None:
    assert fitting(ASKED, {**FITS, "unasked": 1}) == FITS
    assert fitting(ASKED, {"q1": {"action": "cancel"}}) == {"q1": {"action": "cancel"}}
    assert fitting(ASKED, {"q0": {"action": "decline"}}) == {"q0": {"action": "decline"}}
    assert fitting(ASKED, {}) == {}


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
    with pytest.raises(AnswersInvalid):
        fitting(ASKED, {**FITS, name: answer})


KEYS = KeySet.of("acme", {1: b"k" * 32}, Clock())
GIVEN = f"round1.01890000.{base64.urlsafe_b64encode(KEYS.seal('01890000', 'round', b'{}')).decode()}"


@given(st.integers(0, len(GIVEN) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_a_round_that_was_changed_anywhere_is_refused(place: int, letter: str) -> None:
    assert opened(KEYS, GIVEN) == ("01890000", {})
    changed = GIVEN[:place] + letter + GIVEN[place + 1 :]
    if changed != GIVEN:
        with pytest.raises(RoundRefused):
            opened(KEYS, changed)


@given(st.text(max_size=40))
def test_a_text_that_was_not_given_out_is_no_round(text: str) -> None:
    for each in (text, f"round1.{text}", f"{GIVEN}{text or '='}"):
        with pytest.raises(RoundRefused):
            opened(KEYS, each)


def test_a_round_of_another_tenant_is_none_here() -> None:
    with pytest.raises(RoundRefused):
        opened(KeySet.of("other", {1: b"k" * 32}, Clock()), GIVEN)
