"""Every problem has exactly one face at the MCP door."""

from typing import Any

import orjson
import pytest

from deputize.core.errors import Problem, every_problem
from deputize.core.events import State
from deputize.core.outcome import failure_body
from deputize.doors.mcp.faces import CODES, STATUSES, RpcError, code_of, error_of, is_protocol_error
from deputize.doors.mcp.results import result_of

EVERY = sorted(every_problem(), key=lambda each: each.face.number)


def _envelope(problem: type[Problem], **details: Any) -> Any:
    made = problem("it went wrong", details=details, retry_after_ms=1500)
    return orjson.loads(failure_body(made, call_id="c1", state=State.FAILED, trace_id="t", more={}))


@pytest.mark.parametrize("problem", EVERY, ids=lambda each: each.face.slug)
def test_a_call_that_came_to_a_problem_is_an_error_or_a_result_and_says_the_same(problem: type[Problem]) -> None:
    envelope = _envelope(problem)
    if is_protocol_error(problem.face):
        with pytest.raises(RpcError) as raised:
            result_of(envelope, None, "")
        assert raised.value.code == code_of(problem.face)
        assert raised.value.data["error"]["slug"] == problem.face.slug
        assert (raised.value.http == 401) == (problem.face.http == 401)
        return
    result = result_of(envelope, None, "https://gateway.example")
    assert result["isError"] is True
    told, shown = result["content"][0]["text"], result["structuredContent"]
    assert shown["error"]["slug"] == problem.face.slug
    for word in ("it went wrong", problem.face.code, shown["error"]["advice"], "1500 ms"):
        assert word in told
    assert result["_meta"]["dev.deputize/receipt"]["url"] == "https://gateway.example/v1/calls/c1"


@pytest.mark.parametrize("problem", EVERY, ids=lambda each: each.face.slug)
def test_a_problem_outside_a_call_is_an_error_with_a_code_and_a_status(problem: type[Problem]) -> None:
    error = error_of(problem("it went wrong"), "0" * 32)
    assert error.code == CODES.get(problem, problem.face.jsonrpc_code)
    assert error.http == STATUSES.get(error.code, problem.face.http)
    assert error.http >= 400
    assert error.data["error"]["trace_id"] == "0" * 32


def test_only_what_is_wrong_with_the_request_the_token_or_us_is_an_error() -> None:
    errors = {each.face.slug for each in EVERY if is_protocol_error(each.face)}
    unauthenticated = {each.face.slug for each in EVERY if each.face.http == 401}
    assert errors - unauthenticated == {
        "internal", "malformed", "parse-failed", "too-large", "unsupported-media", "method-not-allowed",
        "no-such-route", "tool-not-found", "version-not-found", "call-not-found", "round-refused",
    }  # fmt: skip


def test_no_code_of_ours_is_one_the_protocol_keeps_for_itself() -> None:
    ours = {code_of(each.face) for each in EVERY if each not in CODES}
    assert all(not -32768 <= code <= -32000 or code in STATUSES for code in ours)
