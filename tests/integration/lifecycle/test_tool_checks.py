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
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body
from tests.support.scripted_tools import (
    checked_tags,
    list_effects,
    postcondition_errors,
    precondition_errors,
    raise_error,
    set_behaviour,
)


@pytest.mark.requirement("INV-14")
async def test_the_tools_own_judgement_comes_before_the_effect_and_gives_the_key_back(lab: GatewayLab) -> None:
    precondition_errors["judge"] = ValueError("there is no such user")
    refused = await lab.call("checked_note", "judge", key="judge")
    assert (refused.state, error_slug(refused)) == (State.VALIDATION_FAILED, "semantic-violation")
    assert "no such user" in parse_body(refused)["detail"]
    assert not list_effects("judge")
    assert not await lab.has_claim(refused.call_id)
    del precondition_errors["judge"]
    assert (await lab.call("checked_note", "judge", key="judge")).state is State.SUCCEEDED
    assert checked_tags.count("judge") == 2


@pytest.mark.requirement("INV-14")
async def test_the_tools_own_judgement_is_not_asked_for_strangers_or_replays(lab: GatewayLab) -> None:
    refused = await lab.call("checked_note", "stranger", key="stranger", by=await lab.make_caller(scopes=()))
    assert refused.state is State.DENIED
    assert "stranger" not in checked_tags
    first = await lab.call("checked_note", "replayed", key="replayed")
    precondition_errors["replayed"] = SemanticViolation("it is gone now")
    assert (await lab.call("checked_note", "replayed", key="replayed")).body == first.body
    assert checked_tags.count("replayed") == 1


@pytest.mark.requirement("INV-14")
async def test_the_intent_is_durable_before_the_tools_own_judgement(lab: GatewayLab) -> None:
    precondition_errors["order"] = ValueError("no")
    refused = await lab.call("checked_note", "order", key="order")
    assert await lab.fetch_entry_kinds(refused.call_id) == ["intent", "outcome"]


@pytest.mark.requirement("INV-7")
@pytest.mark.parametrize(
    ("tag", "answer", "expected"),
    [("schema", ["no object"], "result-invalid"), ("predicate", {"size": 11}, "predicate-failed")],
)
async def test_a_result_that_breaks_its_contract_is_a_failure_that_happened(
    lab: GatewayLab, tag: str, answer: object, expected: str
) -> None:
    set_behaviour(tag, lambda _: answer)
    outcome = await lab.call("checked_note", tag, key=tag)
    assert (outcome.state, error_slug(outcome), outcome.http_status) == (State.FAILED, expected, 502)
    assert "result" not in parse_body(outcome)
    again = await lab.call("checked_note", tag, key=tag)
    assert (again.body, again.is_replay) == (outcome.body, True)
    assert len(list_effects(tag)) == 1


@pytest.mark.requirement("INV-7")
@pytest.mark.parametrize(
    "doubt",
    [AssertionError("not what was asked"), SemanticViolation("wrong"), ToolConflict("moved"), ToolPrecondition("gone")],
    ids=lambda doubt: type(doubt).__name__,
)
async def test_a_tool_that_does_not_confirm_its_result_has_acted_all_the_same(
    lab: GatewayLab, doubt: Exception
) -> None:
    tag = f"doubt-{type(doubt).__name__}"
    postcondition_errors[tag] = doubt
    outcome = await lab.call("checked_note", tag, key=tag)
    assert outcome.state is State.FAILED
    assert await lab.has_claim(outcome.call_id)
    assert (await lab.call("checked_note", tag, key=tag)).body == outcome.body
    assert len(list_effects(tag)) == 1


@pytest.mark.requirement("INV-7")
async def test_a_warning_lets_the_result_pass(lab: GatewayLab) -> None:
    set_behaviour("long", lambda _: {"size": 9})
    outcome = await lab.call("checked_note", "long", key="long")
    assert (outcome.state, parse_body(outcome)["result"]) == (State.SUCCEEDED, {"size": 9})
    assert parse_body(outcome)["warnings"] == ["the result fails the check usual: it is larger than most"]
    set_behaviour("fits", lambda _: {"size": 4})
    assert parse_body(await lab.call("checked_note", "fits", key="fits"))["warnings"] == []


@pytest.mark.requirement("INV-7")
async def test_a_read_that_breaks_its_contract_is_not_released(lab: GatewayLab) -> None:
    set_behaviour("bad-read", lambda _: "no object")
    outcome = await lab.call("look", "bad-read")
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "result-invalid")
    assert b"no object" not in outcome.body


def _problem_list(*problems: Problem) -> list[Problem]:
    return list(problems)


def _fail_in_order(tag: str, problems: list[Problem]) -> None:
    """Each attempt ends in the next problem, and the one after the last succeeds."""
    left = list(problems)

    def behave(_: ToolContext) -> dict[str, str]:
        if left:
            raise left.pop(0)
        return {"value": "at last"}

    set_behaviour(tag, behave)


@pytest.mark.requirement("INV-12")
@pytest.mark.parametrize(
    ("tool", "problems", "attempts", "state"),
    [
        ("look", _problem_list(UpstreamUnavailable("a"), UpstreamTimeout("b")), 3, State.SUCCEEDED),
        ("look", _problem_list(*[UpstreamUnavailable("a")] * 3), 3, State.FAILED),
        ("look", _problem_list(ToolFailed("for good")), 1, State.FAILED),
        ("put", _problem_list(UpstreamTimeout("a")), 2, State.SUCCEEDED),
        ("assign", _problem_list(UpstreamUnavailable("a")), 2, State.SUCCEEDED),
        ("note", _problem_list(UpstreamUnavailable("a")), 1, State.UNKNOWN),
        ("note", _problem_list(UpstreamRateLimited("nothing was done")), 2, State.SUCCEEDED),
        ("put", _problem_list(ToolFailed("for good")), 1, State.FAILED),
        ("put", _problem_list(UpstreamTimeout("a"), ToolPrecondition("already there")), 2, State.UNKNOWN),
        ("put", _problem_list(UpstreamTimeout("a"), *[UpstreamRateLimited("b")] * 2), 3, State.UNKNOWN),
        ("note", _problem_list(*[UpstreamRateLimited("b")] * 3), 3, State.FAILED),
    ],
)
async def test_only_what_can_do_no_harm_is_tried_again(
    lab: GatewayLab, request: pytest.FixtureRequest, tool: str, problems: list[Problem], attempts: int, state: State
) -> None:
    tag = request.node.name
    _fail_in_order(tag, problems)
    outcome = await lab.call(tool, tag, key=None if tool == "look" else "k" + str(hash(tag)))
    assert (outcome.state, [effect.attempt for effect in list_effects(tag)]) == (state, list(range(1, attempts + 1)))
    assert parse_body(outcome)["execution"]["attempts"] == attempts
    assert len({effect.key for effect in list_effects(tag)}) == 1
    if tool != "look":
        assert await lab.has_claim(outcome.call_id) is (tool != "note" or state is not State.FAILED)


@pytest.mark.requirement("INV-12")
async def test_what_the_upstream_asks_to_wait_is_waited_or_not_tried(lab: GatewayLab) -> None:
    _fail_in_order("later", [UpstreamRateLimited("later", retry_after_ms=60_000)])
    outcome = await lab.call("look", "later")
    assert (outcome.state, parse_body(outcome)["execution"]["attempts"]) == (State.FAILED, 1)
    assert outcome.retry_after_ms == 60_000


@pytest.mark.requirement("INV-7")
async def test_a_result_the_tool_cannot_write_is_a_failure_and_not_unknown(lab: GatewayLab) -> None:
    set_behaviour(
        "unwritable", raise_error(ResultInvalid("the tool returned a value that cannot be serialized as JSON"))
    )
    outcome = await lab.call("put", "unwritable", key="unwritable")
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "result-invalid")
    await asyncio.gather(*[lab.call("put", "unwritable", key="unwritable") for _ in range(3)])
    assert len(list_effects("unwritable")) == 1
