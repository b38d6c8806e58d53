"""What the client sends, what it makes of answers, and when it tries again: no network needed."""

import hashlib
import hmac
import itertools
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.client.protocol import CallFailed, ClientProtocol, SendStep, StepResponse, Steps, Unreachable, WaitStep
from deputize.core.errors import CallInFlight, Problem, RateLimited, list_problem_types
from deputize.core.outcome import build_problem_fields
from tests.support.cases import check_each

GOOD = StepResponse(status=200, body=orjson.dumps({"call_id": "c", "state": "succeeded", "result": 7}))
LOST_ANSWER = StepResponse(transport_error=ConnectionError("gone"))


def _error_answer(kind: type[Problem], retry_after_ms: int | None = None) -> StepResponse:
    fields = build_problem_fields(kind("no", retry_after_ms=retry_after_ms), trace_id="t")
    return StepResponse(status=kind.spec.http, body=orjson.dumps(fields))


def _make_rules(**options: Any) -> ClientProtocol:
    return ClientProtocol("http://gw/", "tok", options.get("session", "s"), b"secret", options.get("attempts", 4))


def _start_call(rules: ClientProtocol, arguments: dict[str, Any] | None = None, **options: Any) -> Steps[Any]:
    chosen: dict[str, Any] = (
        dict.fromkeys(("key", "step", "version", "deadline_ms", "traceparent")) | {"check": True} | options
    )
    return rules.call("crm.get", arguments or {}, {}, **chosen)


def _run_steps(steps: Steps[Any], answers: Iterable[StepResponse]) -> tuple[Any, list[SendStep], list[float]]:
    sent, waited, left, answer = [], [], iter(answers), None
    try:
        while True:
            step = steps.send(answer)
            if isinstance(step, WaitStep):
                waited.append(step.seconds)
                answer = None
            else:
                sent.append(step)
                answer = next(left)
    except StopIteration as end:
        return end.value, sent, waited


@pytest.mark.requirement("INV-5")
def test_the_key_is_an_hmac_of_session_tool_step_and_canonical_arguments() -> None:
    _, (sent,), _ = _run_steps(_start_call(_make_rules(), {"b": 1, "a": "é"}, step="2"), [GOOD])
    said = b's\0crm.get\x002\0{"a":"\xc3\xa9","b":1}'
    assert sent.headers["idempotency-key"] == hmac.new(b"secret", said, hashlib.sha256).hexdigest()


@pytest.mark.requirement("INV-5")
@given(
    st.lists(st.tuples(st.sampled_from("st"), st.sampled_from(["x", "y"]), st.integers(0, 3)), min_size=2, max_size=2)
)
def test_two_keys_are_equal_exactly_when_everything_they_stand_for_is(two: list[tuple[str, str, int]]) -> None:
    keys = [_make_rules(session=session).derive_key("t", {"n": number}, step) for session, step, number in two]
    assert (keys[0] == keys[1]) == (two[0] == two[1])


@pytest.mark.requirement("INV-5")
def test_each_call_is_a_step_of_its_own_unless_it_names_one() -> None:
    rules = _make_rules()
    keys = [_run_steps(_start_call(rules, {"n": 1}), [GOOD])[1][0].headers["idempotency-key"] for _ in range(3)]
    named = [
        _run_steps(_start_call(rules, {"n": 1}, step="a"), [GOOD])[1][0].headers["idempotency-key"] for _ in range(2)
    ]
    assert len(set(keys)) == 3
    assert named[0] == named[1] not in keys
    assert _run_steps(_start_call(rules, key="mine"), [GOOD])[1][0].headers["idempotency-key"] == "mine"


@pytest.mark.requirement("INV-12")
@check_each("kind", list_problem_types(), label=lambda kind: kind.spec.slug)
def test_only_what_says_retryable_is_tried_again_and_always_with_the_same_key(kind: type[Problem]) -> None:
    steps = _start_call(_make_rules(), check=False)
    reply, sent, waited = _run_steps(steps, itertools.chain([_error_answer(kind)], itertools.repeat(GOOD)))
    assert (len(sent), len(waited)) == ((2, 1) if kind.spec.retryable else (1, 0))
    assert len({each.headers["idempotency-key"] for each in sent}) == 1
    assert reply.ok is kind.spec.retryable
    assert reply.attempts == len(sent)


@pytest.mark.requirement("INV-12")
def test_waiting_is_never_shorter_than_asked_and_spread_by_full_jitter() -> None:
    waits = [_run_steps(_start_call(_make_rules()), [_error_answer(RateLimited, 2000), GOOD])[2][0] for _ in range(200)]
    assert all(2.0 <= wait <= 2.2 for wait in waits)
    assert len(set(waits)) > 100
    grown = [_run_steps(_start_call(_make_rules(attempts=9)), [*[LOST_ANSWER] * 8, GOOD])[2] for _ in range(50)]
    assert max(each[7] for each in grown) > max(each[0] for each in grown)
    assert max(itertools.chain(*grown)) <= 10


def test_attempts_are_bounded() -> None:
    with pytest.raises(Unreachable, match="does not answer"):
        _run_steps(_start_call(_make_rules(attempts=3)), [LOST_ANSWER] * 3)
    with pytest.raises(CallFailed) as failed:
        _run_steps(_start_call(_make_rules(attempts=2)), [_error_answer(CallInFlight)] * 2)
    assert failed.value.failure.slug == "in-flight"


@pytest.mark.requirement("INV-12")
def test_a_deadline_is_passed_on_and_not_waited_past() -> None:
    _, sent, _ = _run_steps(_start_call(_make_rules(), deadline_ms=500), [_error_answer(CallInFlight), GOOD])
    deadlines = [orjson.loads(each.content or b"{}")["deadline_ms"] for each in sent]
    assert 0 < deadlines[1] <= deadlines[0] <= 500
    assert sent[0].seconds < 10
    reply, sent, waited = _run_steps(
        _start_call(_make_rules(), deadline_ms=500, check=False), [_error_answer(RateLimited, 2000)]
    )
    assert (reply.failure.slug, len(sent), waited) == ("rate-limited", 1, [])


def test_what_is_no_gateway_is_said_to_be_none() -> None:
    for body in (b"<html>", b"[]", b"{}"):
        with pytest.raises(Unreachable, match="check the URL"):
            _run_steps(_start_call(_make_rules()), [StepResponse(status=502, body=body)])


def test_a_token_may_be_fetched_anew_for_each_attempt() -> None:
    fresh = (f"t{number}" for number in itertools.count(1))
    rules = ClientProtocol("http://gw/v1", lambda: next(fresh), None, None, 4)
    _, sent, _ = _run_steps(_start_call(rules), [LOST_ANSWER, GOOD])
    assert rules.url == "http://gw"
    assert [each.headers["authorization"] for each in sent] == ["Bearer t1", "Bearer t2"]


@pytest.mark.requirement("GOV-4")
def test_a_dry_run_has_no_key_and_is_no_step() -> None:
    rules = _make_rules()
    body = orjson.dumps({"call_id": "c", "state": "succeeded", "dry_run": True, "preview": {"by": "tool"}})
    reply, (looked,), _ = _run_steps(_start_call(rules, dry_run=True), [StepResponse(status=200, body=body)])
    assert orjson.loads(looked.content or b"")["dry_run"] is True
    assert "idempotency-key" not in looked.headers
    assert (reply.preview, reply.ok, reply.pending) == ({"by": "tool"}, True, False)
    done, (made,), _ = _run_steps(_start_call(rules), [GOOD])
    assert made.headers["idempotency-key"] == _make_rules().derive_key("crm.get", {}, "#1")
    assert done.preview is None
    assert "dry_run" not in orjson.loads(made.content or b"")
