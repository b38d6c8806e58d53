"""Every problem has exactly one face at the MCP interface."""

from typing import Any

import orjson
import pytest

from deputize.core.errors import Problem, list_problem_types
from deputize.core.outcome import render_failure_envelope
from deputize.core.states import State
from deputize.interfaces.mcp.errors import (
    HTTP_STATUSES,
    RPC_CODES,
    RpcError,
    build_error,
    get_rpc_code,
    is_protocol_error,
)
from deputize.interfaces.mcp.render import build_result
from tests.support.cases import check_each

EVERY_PROBLEM = sorted(list_problem_types(), key=lambda each: each.spec.number)


def _make_envelope(problem: type[Problem], **details: Any) -> Any:
    made = problem("it went wrong", details=details, retry_after_ms=1500)
    return orjson.loads(render_failure_envelope(made, call_id="c1", state=State.FAILED, trace_id="t", extra_fields={}))


@check_each("problem", EVERY_PROBLEM, label=lambda problem: problem.spec.slug)
def test_a_call_that_came_to_a_problem_is_an_error_or_a_result_and_says_the_same(problem: type[Problem]) -> None:
    envelope = _make_envelope(problem)
    if is_protocol_error(problem.spec):
        with pytest.raises(RpcError) as raised:
            build_result(envelope, None, "")
        assert raised.value.code == get_rpc_code(problem.spec)
        assert raised.value.data["error"]["slug"] == problem.spec.slug
        assert (raised.value.http == 401) == (problem.spec.http == 401)
        return
    result = build_result(envelope, None, "https://gateway.example")
    assert result["isError"] is True
    told, shown = result["content"][0]["text"], result["structuredContent"]
    assert shown["error"]["slug"] == problem.spec.slug
    for word in ("it went wrong", problem.spec.code, shown["error"]["advice"], "1500 ms"):
        assert word in told
    assert result["_meta"]["dev.deputize/receipt"]["url"] == "https://gateway.example/v1/calls/c1"


@check_each("problem", EVERY_PROBLEM, label=lambda problem: problem.spec.slug)
def test_a_problem_outside_a_call_is_an_error_with_a_code_and_a_status(problem: type[Problem]) -> None:
    error = build_error(problem("it went wrong"), "0" * 32)
    assert error.code == RPC_CODES.get(problem, problem.spec.jsonrpc_code)
    assert error.http == HTTP_STATUSES.get(error.code, problem.spec.http)
    assert error.http >= 400
    assert error.data["error"]["trace_id"] == "0" * 32


def test_only_what_is_wrong_with_the_request_the_token_or_us_is_an_error() -> None:
    errors = {each.spec.slug for each in EVERY_PROBLEM if is_protocol_error(each.spec)}
    unauthenticated = {each.spec.slug for each in EVERY_PROBLEM if each.spec.http == 401}
    assert errors - unauthenticated == {
        "internal", "malformed", "parse-failed", "too-large", "unsupported-media", "method-not-allowed",
        "no-such-route", "tool-not-found", "version-not-found", "call-not-found", "round-token-rejected",
    }  # fmt: skip


def test_no_code_of_ours_is_one_the_protocol_keeps_for_itself() -> None:
    ours = {get_rpc_code(each.spec) for each in EVERY_PROBLEM if each not in RPC_CODES}
    assert all(not -32768 <= code <= -32000 or code in HTTP_STATUSES for code in ours)
