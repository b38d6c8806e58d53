"""From fields to a call, once for every interface."""

from typing import Any

import pytest

from deputize.core.call import Callback
from deputize.core.errors import MalformedRequest
from deputize.interfaces.call_request import FIELDS, parse_call_request, parse_idempotency_key


def test_a_call_needs_only_a_tool() -> None:
    request = parse_call_request({"tool": "a.b"})
    assert (request.tool, request.arguments, request.version) == ("a.b", {}, "latest")


def test_every_field_arrives() -> None:
    sent = {
        "tool": "a.b", "arguments": {"x": 1}, "version": "^1", "session": "s", "step": "2", "deadline_ms": 5.0,
        "dry_run": True, "mode": "async", "priority": 2.0, "continue": True,
        "callback": {"url": "https://a.example/", "secret": "billing", "include_result": True},
    }  # fmt: skip
    request = parse_call_request(sent, key="k", traceparent="t")
    assert (request.mode, request.priority, request.may_continue, request.dry_run) == ("async", 2, True, True)
    assert request.callback == Callback(url="https://a.example/", secret="billing", include_result=True)
    assert (request.version, request.session, request.step, request.deadline_ms) == ("^1", "s", "2", 5)
    assert (request.idempotency_key, request.traceparent) == ("k", "t")


def test_null_means_not_given() -> None:
    assert (
        parse_call_request({"tool": "a.b", "version": None, "session": None, "deadline_ms": None}).version == "latest"
    )
    nothing = parse_call_request({"tool": "a.b", "mode": None, "priority": None, "continue": None, "callback": None})
    assert (nothing.mode, nothing.priority, nothing.may_continue, nothing.callback) == (None, None, False, None)


@pytest.mark.parametrize(
    "fields",
    [
        None, [], "x", {}, {"tool": 1}, {"tool": ""}, {"tool": "x" * 201}, {"tool": "a.b", "arguments": []},
        {"tool": "a.b", "arguments": None}, {"tool": "a.b", "version": 1}, {"tool": "a.b", "version": ""},
        {"tool": "a.b", "session": "s" * 201}, {"tool": "a.b", "step": True}, {"tool": "a.b", "deadline_ms": 0},
        {"tool": "a.b", "deadline_ms": True}, {"tool": "a.b", "deadline_ms": 1.5}, {"tool": "a.b", "dry_run": 1},
        {"tool": "a.b", "mode": "later"}, {"tool": "a.b", "mode": True}, {"tool": "a.b", "priority": 0},
        {"tool": "a.b", "priority": 11}, {"tool": "a.b", "priority": True}, {"tool": "a.b", "continue": 1},
        {"tool": "a.b", "callback": "https://a.example/"}, {"tool": "a.b", "callback": {"url": ""}},
        {"tool": "a.b", "callback": {"url": "https://a.example/", "secret": "A B"}},
        {"tool": "a.b", "callback": {"url": "https://a.example/", "include_result": "yes"}},
        {"tool": "a.b", "deadline_ms": 10**9}, {"tool": "a.b", "argument": {}}, {"arguments": {}, "name": "x"},
    ],
)  # fmt: skip
def test_anything_else_is_refused(fields: Any) -> None:
    with pytest.raises(MalformedRequest):
        parse_call_request(fields)


def test_a_misspelt_field_lists_the_valid_ones() -> None:
    with pytest.raises(MalformedRequest, match=r"'argumens'.*arguments") as refused:
        parse_call_request({"tool": "a.b", "argumens": {}})
    assert refused.value.details["fields"] == list(FIELDS)


@pytest.mark.parametrize(("sent", "key"), [(b"abc", "abc"), (b'"abc"', "abc"), ("abc", "abc"), (b"~!#", "~!#")])
def test_a_key_is_what_stands_between_the_quotation_marks(sent: Any, key: str) -> None:
    assert parse_idempotency_key(sent) == key


@pytest.mark.parametrize("sent", [b"", "", b"x" * 256, b"a b", b"\xe9", "é", "a\tb", 7, True, None])
def test_a_key_is_visible_ascii_of_a_bounded_length(sent: Any) -> None:
    with pytest.raises(MalformedRequest):
        parse_idempotency_key(sent)
