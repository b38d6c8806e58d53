"""What the tool itself says before and after, what the contract says of the result, and what is tried again."""

import asyncio

import pytest

from deputize import SemanticViolation, ToolContext
from deputize.core.errors import (
    Problem,
    ResultInvalid,
    ToolConflict,
    ToolFailed,
    ToolPrecondition,
    UpstreamRateLimited,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from deputize.core.events import State
from tests.integration.lifecycle.lab import Lab, body, slug
from tests.integration.lifecycle.tools import doubts, effects_of, judged, on, raising, verdicts


@pytest.mark.requirement("INV-14")
async def test_the_tools_own_judgement_comes_before_the_effect_and_gives_the_key_back(lab: Lab) -> None:
    verdicts["judge"] = ValueError("there is no such user")
    refused = await lab.call("checked", "judge", key="judge")
    assert (refused.state, slug(refused)) == (State.VALIDATION_FAILED, "semantic-violation")
    assert "no such user" in body(refused)["detail"]
    assert not effects_of("judge")
    assert not await lab.claimed(refused.call_id)
    del verdicts["judge"]
    assert (await lab.call("checked", "judge", key="judge")).state is State.SUCCEEDED
    assert judged.count("judge") == 2


@pytest.mark.requirement("INV-14")
async def test_the_tools_own_judgement_is_not_asked_for_strangers_or_replays(lab: Lab) -> None:
    refused = await lab.call("checked", "stranger", key="stranger", by=await lab.caller(scopes=()))
    assert refused.state is State.DENIED
    assert "stranger" not in judged
    first = await lab.call("checked", "replayed", key="replayed")
    verdicts["replayed"] = SemanticViolation("it is gone now")
    assert (await lab.call("checked", "replayed", key="replayed")).body == first.body
    assert judged.count("replayed") == 1


@pytest.mark.requirement("INV-14")
async def test_the_intent_is_durable_before_the_tools_own_judgement(lab: Lab) -> None:
    verdicts["order"] = ValueError("no")
    refused = await lab.call("checked", "order", key="order")
    assert await lab.kinds(refused.call_id) == ["intent", "outcome"]


@pytest.mark.requirement("INV-7")
@pytest.mark.parametrize(
    ("tag", "answer", "expected"),
    [("schema", ["no object"], "result-invalid"), ("predicate", {"size": 11}, "predicate-failed")],
)
async def test_a_result_that_breaks_its_contract_is_a_failure_that_happened(
    lab: Lab, tag: str, answer: object, expected: str
) -> None:
    on(tag, lambda _: answer)
    outcome = await lab.call("checked", tag, key=tag)
    assert (outcome.state, slug(outcome), outcome.http_status) == (State.FAILED, expected, 502)
    assert "result" not in body(outcome)
    again = await lab.call("checked", tag, key=tag)
    assert (again.body, again.replayed) == (outcome.body, True)
    assert len(effects_of(tag)) == 1


@pytest.mark.requirement("INV-7")
@pytest.mark.parametrize(
    "doubt",
    [AssertionError("not what was asked"), SemanticViolation("wrong"), ToolConflict("moved"), ToolPrecondition("gone")],
    ids=lambda doubt: type(doubt).__name__,
)
async def test_a_tool_that_does_not_confirm_its_result_has_acted_all_the_same(lab: Lab, doubt: Exception) -> None:
    tag = f"doubt-{type(doubt).__name__}"
    doubts[tag] = doubt
    outcome = await lab.call("checked", tag, key=tag)
    assert outcome.state is State.FAILED
    assert await lab.claimed(outcome.call_id)
    assert (await lab.call("checked", tag, key=tag)).body == outcome.body
    assert len(effects_of(tag)) == 1


@pytest.mark.requirement("INV-7")
async def test_a_read_that_breaks_its_contract_is_not_released(lab: Lab) -> None:
    on("bad-read", lambda _: "no object")
    outcome = await lab.call("look", "bad-read")
    assert (outcome.state, slug(outcome)) == (State.FAILED, "result-invalid")
    assert b"no object" not in outcome.body


def _after(*problems: Problem) -> list[Problem]:
    return list(problems)


def _failing(tag: str, problems: list[Problem]) -> None:
    """Each attempt ends in the next problem, and the one after the last succeeds."""
    left = list(problems)

    def behave(_: ToolContext) -> dict[str, str]:
        if left:
            raise left.pop(0)
        return {"value": "at last"}

    on(tag, behave)


@pytest.mark.requirement("INV-12")
@pytest.mark.parametrize(
    ("tool", "problems", "attempts", "state"),
    [
        ("look", _after(UpstreamUnavailable("a"), UpstreamTimeout("b")), 3, State.SUCCEEDED),
        ("look", _after(*[UpstreamUnavailable("a")] * 3), 3, State.FAILED),
        ("look", _after(ToolFailed("for good")), 1, State.FAILED),
        ("put", _after(UpstreamTimeout("a")), 2, State.SUCCEEDED),
        ("assign", _after(UpstreamUnavailable("a")), 2, State.SUCCEEDED),
        ("note", _after(UpstreamUnavailable("a")), 1, State.UNKNOWN),
        ("note", _after(UpstreamRateLimited("nothing was done")), 2, State.SUCCEEDED),
        ("put", _after(ToolFailed("for good")), 1, State.FAILED),
        ("put", _after(UpstreamTimeout("a"), ToolPrecondition("already there")), 2, State.UNKNOWN),
        ("put", _after(UpstreamTimeout("a"), *[UpstreamRateLimited("b")] * 2), 3, State.UNKNOWN),
        ("note", _after(*[UpstreamRateLimited("b")] * 3), 3, State.FAILED),
    ],
)
async def test_only_what_can_do_no_harm_is_tried_again(
    lab: Lab, request: pytest.FixtureRequest, tool: str, problems: list[Problem], attempts: int, state: State
) -> None:
    tag = request.node.name
    _failing(tag, problems)
    outcome = await lab.call(tool, tag, key=None if tool == "look" else "k" + str(hash(tag)))
    assert (outcome.state, [effect.attempt for effect in effects_of(tag)]) == (state, list(range(1, attempts + 1)))
    assert body(outcome)["execution"]["attempts"] == attempts
    assert len({effect.key for effect in effects_of(tag)}) == 1
    if tool != "look":
        assert await lab.claimed(outcome.call_id) is (tool != "note" or state is not State.FAILED)


@pytest.mark.requirement("INV-12")
async def test_what_the_upstream_asks_to_wait_is_waited_or_not_tried(lab: Lab) -> None:
    _failing("later", [UpstreamRateLimited("later", retry_after_ms=60_000)])
    outcome = await lab.call("look", "later")
    assert (outcome.state, body(outcome)["execution"]["attempts"]) == (State.FAILED, 1)
    assert outcome.retry_after_ms == 60_000


@pytest.mark.requirement("INV-7")
async def test_a_result_the_tool_cannot_write_is_a_failure_and_not_unknown(lab: Lab) -> None:
    on("unwritable", raising(ResultInvalid("the tool returned a value that cannot be written as JSON")))
    outcome = await lab.call("put", "unwritable", key="unwritable")
    assert (outcome.state, slug(outcome)) == (State.FAILED, "result-invalid")
    await asyncio.gather(*[lab.call("put", "unwritable", key="unwritable") for _ in range(3)])
    assert len(effects_of("unwritable")) == 1
