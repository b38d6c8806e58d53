"""Several calls of one request: side by side where that is safe, answered in their order, each a call of its own."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolFailed
from deputize.core.call import CallRequest
from deputize.core.call_batch import MAX_BATCH_SIZE, BatchedCall, CallBatch, FailurePolicy
from deputize.core.hooks import HookCall, LoadedHook
from deputize.core.outcome import Outcome
from deputize.operations.calls.call_batches import MAX_PARALLEL_CALLS
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.limited_lab import make_rule, open_limited_lab
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("INV-9")

FAILURE = ToolFailed("it broke")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened:
        yield opened


def make_call(tool: str, tag: str, depends_on: Iterable[int] = (), **request: Any) -> BatchedCall:
    asked = CallRequest(tool=f"lab.{tool}", arguments={"tag": tag}, **request)
    return BatchedCall(request=asked, depends_on=frozenset(depends_on))


async def run_calls(
    lab: GatewayLab, *calls: BatchedCall, on_failure: FailurePolicy = "cancel_dependent"
) -> list[Outcome]:
    batch = CallBatch(calls=calls, on_failure=on_failure)
    results = await lab.gateway.run_calls(await lab.make_caller(), batch)
    return [each for each in results if isinstance(each, Outcome)]


def start(lab: GatewayLab, *calls: BatchedCall, **options: Any) -> "asyncio.Task[list[Outcome]]":
    return asyncio.create_task(run_calls(lab, *calls, **options))


def gate(*tags: str) -> list[Gate]:
    gates = []
    for tag in tags:
        gates.append(Gate({"value": tag}))
        set_behaviour(tag, gates[-1])
    return gates


async def wait_for_begin(*gates: Gate) -> None:
    async with asyncio.timeout(90):
        await asyncio.gather(*(each.began.wait() for each in gates))


async def wait_for_effects(tag: str, count: int) -> None:
    async def are_there() -> bool:
        return len(list_effects(tag)) >= count

    await wait_until(are_there)


def values(outcomes: Iterable[Outcome]) -> list[Any]:
    return [parse_body(each)["result"]["value"] for each in outcomes]


async def test_independent_calls_run_side_by_side_and_are_answered_in_their_order(lab: GatewayLab) -> None:
    gates = gate("side-read", "side-one", "side-two")
    batch = start(lab, make_call("look", "side-read"), make_call("put", "side-one"), make_call("note", "side-two"))
    await wait_for_begin(*gates)
    for each in reversed(gates):
        each.open.set()
    outcomes = await batch
    assert values(outcomes) == ["side-read", "side-one", "side-two"]
    # Each is a call of its own, with its own audit entries.
    assert [(await lab.fetch_entry_kinds(each.call_id))[-1] for each in outcomes] == ["read", "outcome", "outcome"]


async def test_calls_that_change_the_same_resource_run_one_after_another(lab: GatewayLab) -> None:
    (first,) = gate("same")
    batch = start(lab, make_call("put", "same"), make_call("assign", "same"), make_call("look", "same-read"))
    await wait_for_begin(first)
    await wait_for_effects("same-read", 1)
    assert [each.tool for each in list_effects("same")] == ["put"]
    first.open.set()
    assert [each.state for each in await batch] == ["succeeded"] * 3
    assert [each.tool for each in list_effects("same")] == ["put", "assign"]


async def test_arguments_that_may_be_coerced_make_a_write_run_alone(lab: GatewayLab) -> None:
    (first,) = gate("alone")
    coerced = CallRequest(tool="lab.put", arguments={"tag": "other", "count": "2"})
    batch = start(lab, make_call("note", "alone"), BatchedCall(request=coerced), make_call("look", "alone-read"))
    await wait_for_begin(first)
    await wait_for_effects("alone-read", 1)
    assert not list_effects("other")
    first.open.set()
    assert [each.state for each in await batch] == ["succeeded"] * 3


async def test_calls_that_declare_it_run_beside_each_other_on_one_resource(lab: GatewayLab) -> None:
    (both,) = gate("tally")
    batch = start(lab, make_call("tally", "tally"), make_call("tally", "tally"), make_call("put", "tally"))
    await wait_for_effects("tally", 2)
    # One that does not declare it waits for both.
    assert {each.tool for each in list_effects("tally")} == {"tally"}
    both.open.set()
    assert [each.state for each in await batch] == ["succeeded"] * 3
    assert list_effects("tally")[-1].tool == "put"


async def test_only_so_many_calls_of_a_batch_run_at_once(lab: GatewayLab) -> None:
    (all_of_them,) = gate("many")
    batch = start(lab, *(make_call("look", "many") for _ in range(MAX_BATCH_SIZE)))
    await wait_for_effects("many", MAX_PARALLEL_CALLS)
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(list_effects("many")) == MAX_PARALLEL_CALLS
    all_of_them.open.set()
    assert len(await batch) == len(list_effects("many")) == MAX_BATCH_SIZE


async def test_a_call_that_depends_on_one_that_failed_is_canceled_and_so_are_those_behind_it(lab: GatewayLab) -> None:
    set_behaviour("dep-0", raise_error(FAILURE))
    outcomes = await run_calls(
        lab, make_call("note", "dep-0"), make_call("note", "dep-1", [0]), make_call("note", "dep-2", [1]),
        make_call("note", "dep-3"),
    )  # fmt: skip
    slugs = [error_slug(each) for each in outcomes]
    assert slugs == ["tool-failed", "sibling-canceled", "sibling-canceled", None]
    canceled = parse_body(outcomes[1])
    assert (canceled["state"], canceled["status"]) == ("canceled", 409)
    assert canceled["detail"] == "the call was canceled because calls[0] of its batch did not succeed"
    assert canceled["error"]["details"] == {"sibling": 0, "on_failure": "cancel_dependent"}
    assert parse_body(outcomes[2])["error"]["details"]["sibling"] == 1
    assert not list_effects("dep-1") + list_effects("dep-2")
    (entry,) = await lab.fetch_entries(outcomes[1].call_id)
    assert (entry["kind"], entry["outcome"], entry["error"]) == ("refusal", "canceled", "E3715")


async def test_a_failure_can_be_ignored_and_dependence_is_then_only_an_order(lab: GatewayLab) -> None:
    set_behaviour("ignored", raise_error(FAILURE))
    outcomes = await run_calls(
        lab, make_call("note", "ignored"), make_call("note", "ignored-1", [0]), on_failure="ignore"
    )
    assert [error_slug(each) for each in outcomes] == ["tool-failed", None]


async def test_a_failure_stops_siblings_that_may_be_interrupted_and_waits_for_others(lab: GatewayLab) -> None:
    fails = Gate(FAILURE)
    set_behaviour("stop-fails", fails)
    read, blocked, undeclared, write = gate("stop-read", "stop-blocked", "stop-undeclared", "stop-write")
    calls = [
        make_call("note", "stop-fails"), make_call("scan", "stop-read"), make_call("survey", "stop-blocked"),
        make_call("look", "stop-undeclared"), make_call("brew", "stop-write"), make_call("put", "stop-later", [1]),
    ]  # fmt: skip
    batch = start(lab, *calls, on_failure="cancel_siblings")
    await wait_for_begin(fails, read, blocked, undeclared, write)
    fails.open.set()
    blocked.open.set()
    undeclared.open.set()
    outcomes = await batch
    assert [error_slug(each) for each in outcomes] == [
        "tool-failed", "sibling-canceled", None, None, "outcome-unknown", "sibling-canceled",
    ]  # fmt: skip
    # A read that was stopped changed nothing; of a write that was stopped nobody knows.
    assert [each.state for each in outcomes] == ["failed", "canceled", "succeeded", "succeeded", "unknown", "canceled"]
    assert [entry["outcome"] for entry in await lab.fetch_entries(outcomes[1].call_id)] == ["canceled"]
    assert await lab.fetch_state(outcomes[4].call_id) == "unknown"


async def test_what_depends_on_a_call_that_has_not_ended_is_canceled(lab: GatewayLab) -> None:
    calls = [make_call("look", "queued", mode="async"), make_call("note", "behind", [0]), make_call("note", "behind")]
    outcomes = await run_calls(lab, *calls, on_failure="cancel_siblings")
    assert outcomes[0].is_accepted
    assert parse_body(outcomes[1])["detail"].endswith("because calls[0] of its batch has not ended yet")
    # Not to begin is no failure: others go on.
    assert outcomes[2].state == "succeeded"


async def test_a_write_behind_a_queued_one_of_the_same_resource_is_queued_too(lab: GatewayLab) -> None:
    outcomes = await run_calls(
        lab, make_call("put", "turn", mode="async"), make_call("assign", "turn"), make_call("note", "turn")
    )
    assert [(each.state, each.is_accepted) for each in outcomes] == [
        ("queued", True), ("queued", True), ("succeeded", False),
    ]  # fmt: skip


@pytest.mark.requirement("INV-5")
async def test_a_batch_that_is_sent_again_repeats_nothing(lab: GatewayLab) -> None:
    set_behaviour("again-1", raise_error(FAILURE))
    calls = [
        make_call("note", "again-0", idempotency_key="again-0"),
        make_call("note", "again-1", idempotency_key="again-1"),
        make_call("note", "again-2", [1], idempotency_key="again-2"),
        # The same key within one batch, too.
        make_call("note", "again-0", idempotency_key="again-0"),
    ]
    first, second = await run_calls(lab, *calls), await run_calls(lab, *calls)
    assert first[3].is_replay
    assert first[3].body == first[0].body
    assert [each.is_replay for each in second] == [True, True, False, True]
    assert [each.body for each in second[:2]] == [each.body for each in first[:2]]
    assert len(list_effects("again-0")) == len(list_effects("again-1")) == 1
    # A call that was canceled has not used its key.
    set_behaviour("again-2", lambda _: {"value": "made"})
    assert values(await run_calls(lab, BatchedCall(request=calls[2].request))) == ["made"]


async def test_every_call_of_a_batch_is_authorized_on_its_own(lab: GatewayLab) -> None:
    by = await lab.make_caller("bert", scopes=())
    batch = CallBatch(calls=[make_call("look", "own"), make_call("note", "own-denied"), make_call("nothing", "x")])
    results = await lab.gateway.run_calls(by, batch)
    assert [error_slug(each) if isinstance(each, Outcome) else each for each in results] == [
        None, "scope-missing", "tool-not-found",
    ]  # fmt: skip
    assert not list_effects("own-denied")


async def test_limits_count_every_call_of_a_batch(fresh_database: str, tmp_path: Path) -> None:
    async with open_limited_lab(fresh_database, tmp_path, make_rule("rate", 2, tools="lab.look")) as limited:
        outcomes = await run_calls(limited, *(make_call("look", "limited") for _ in range(3)))
        assert sorted(error_slug(each) or "" for each in outcomes) == ["", "", "rate-limited"]


async def test_writes_whose_arguments_hooks_may_change_run_alone(fresh_database: str, tmp_path: Path) -> None:
    def keep_arguments(call: HookCall) -> None:
        """Change nothing; the gateway cannot know that before."""

    hook = LoadedHook(name="keep", moment="before", function=keep_arguments, is_async=False, tools="lab.note")
    async with open_lab(fresh_database, tmp_path, hooks=[hook]) as hooked:
        (first,) = gate("hooked-1")
        calls = [make_call("put", "hooked-1"), make_call("note", "hooked-2"), make_call("look", "hooked-3")]
        batch = start(hooked, *calls)
        await wait_for_begin(first)
        await wait_for_effects("hooked-3", 1)
        assert not list_effects("hooked-2")
        first.open.set()
        assert [each.state for each in await batch] == ["succeeded"] * 3
