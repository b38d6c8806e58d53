"""The same key acts once: what is replayed, what is refused, what gives a key back, and whose key it is."""

import asyncio

import pytest

from deputize import ToolContext
from deputize.core.errors import ToolConflict, ToolFailed, UpstreamRateLimited
from deputize.core.states import State
from deputize.lifecycle.claim import compute_join_pause
from tests.support.gateway_lab import GatewayLab, error_slug, parse_body, wait_until, watch_joins
from tests.support.policies import OPEN_FILES
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = pytest.mark.requirement("INV-5")


async def test_a_success_is_replayed_byte_for_byte(lab: GatewayLab) -> None:
    first = await lab.call("note", "twice", key="twice")
    again = await lab.call("note", "twice", key="twice")
    assert (first.is_replay, again.is_replay) == (False, True)
    assert (again.body, again.state, again.call_id, again.spec) == (
        first.body,
        first.state,
        first.call_id,
        None,
    )
    assert len(list_effects("twice")) == 1


async def test_a_failure_that_was_the_tools_verdict_is_replayed_too(lab: GatewayLab) -> None:
    set_behaviour("fails", raise_error(ToolFailed("it cannot be done")))
    first = await lab.call("note", "fails", key="fails")
    again = await lab.call("note", "fails", key="fails")
    assert (first.state, error_slug(first)) == (State.FAILED, "tool-failed")
    assert (again.body, again.state, error_slug(again), again.is_replay) == (
        first.body,
        first.state,
        error_slug(first),
        True,
    )
    assert again.http_status == first.http_status
    assert len(list_effects("fails")) == 1


async def test_other_input_under_the_same_key_is_refused_and_leaves_the_first_alone(lab: GatewayLab) -> None:
    first = await lab.call("note", {"tag": "one", "count": 1}, key="reused")
    refused = await lab.call("note", {"tag": "one", "count": 2}, key="reused")
    assert (error_slug(refused), refused.http_status) == ("key-reused", 422)
    assert (await lab.call("note", {"tag": "one", "count": 1}, key="reused")).body == first.body
    assert len(list_effects("one")) == 1


async def test_a_key_is_its_tenants_its_users_its_agents_and_its_tools_own(lab: GatewayLab) -> None:
    admin = await lab.make_caller("root", scopes=("deputize:admin",), tenant="elsewhere")
    contract = (await lab.runtime.authority.load_tenant("dev")).tools.resolve_version("lab.note").contract
    await lab.gateway.commands.register_tool(admin, contract)
    await lab.gateway.commands.put_policies(admin, OPEN_FILES)
    callers = [
        await lab.make_caller(),
        await lab.make_caller("bob"),
        await lab.make_caller(agent="robot"),
        await lab.make_caller(tenant="elsewhere"),
    ]
    outcomes = [await lab.call("note", "whose", key="shared", by=by) for by in callers]
    outcomes.append(await lab.call("put", "whose", key="shared"))
    assert [outcome.state for outcome in outcomes] == [State.SUCCEEDED] * 5
    assert len({outcome.call_id for outcome in outcomes}) == len(list_effects("whose")) == 5


async def test_a_renewed_token_repeats_its_callers_call(lab: GatewayLab) -> None:
    first = await lab.call("note", "renewed", key="renewed")
    again = await lab.call("note", "renewed", key="renewed", by=await lab.make_caller(lifetime=7200))
    assert again.body == first.body


@pytest.mark.parametrize("problem", [UpstreamRateLimited("later"), ToolConflict("somebody was faster")])
async def test_what_proves_that_nothing_happened_gives_the_key_back(lab: GatewayLab, problem: Exception) -> None:
    tag = type(problem).__name__
    set_behaviour(tag, raise_error(problem))
    first = await lab.call("note", tag, key=tag)
    assert first.state is State.FAILED
    assert not await lab.has_claim(first.call_id)
    set_behaviour(tag, lambda _: {"value": "now"})
    again = await lab.call("note", tag, key=tag)
    assert (again.state, again.is_replay) == (State.SUCCEEDED, False)
    assert again.call_id != first.call_id


async def test_a_call_without_a_key_is_a_fresh_one_each_time(lab: GatewayLab) -> None:
    outcomes = [await lab.call("note", "keyless-note") for _ in range(2)]
    assert outcomes[0].call_id != outcomes[1].call_id
    assert len(list_effects("keyless-note")) == 2


async def test_a_racer_hears_409_with_the_call_it_lost_to(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("race", gate)
    first = asyncio.create_task(lab.call("note", "race", key="race"))
    await gate.began.wait()
    loser = await lab.call("note", "race", key="race")
    assert (error_slug(loser), loser.http_status, loser.retry_after_ms) == ("in-flight", 409, 500)
    gate.open.set()
    assert parse_body(loser)["error"]["details"]["call_id"] == (await first).call_id


async def test_many_racers_with_one_key_in_one_batch_act_once(lab: GatewayLab) -> None:
    outcomes = await asyncio.gather(*[lab.call("note", "crowd", key="crowd") for _ in range(30)])
    assert len(list_effects("crowd")) == 1
    done = [outcome for outcome in outcomes if outcome.state is State.SUCCEEDED]
    assert len({outcome.body for outcome in done}) == 1
    assert {error_slug(outcome) for outcome in outcomes if outcome not in done} <= {"in-flight"}


async def test_an_idempotent_call_without_a_key_joins_its_twin_in_flight(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("join", gate)
    by = await lab.make_caller()
    first = asyncio.create_task(lab.call("assign", "join", by=by, session="s1"))
    await gate.began.wait()
    with watch_joins() as joins:
        twin = asyncio.create_task(lab.call("assign", "join", by=by, session="s1"))
        await asyncio.wait_for(joins.wait(), 60)
    stranger = asyncio.create_task(lab.call("assign", "join", by=by, session="s2"))

    async def both_act() -> bool:
        return len(list_effects("join")) == 2

    await wait_until(both_act)
    gate.open.set()
    made, joined, apart = await first, await twin, await stranger
    assert (joined.body, joined.is_joined, joined.is_replay) == (made.body, True, False)
    assert apart.call_id != made.call_id
    assert len(list_effects("join")) == 2
    # Joining ends with the flight: the next one is a call of its own.
    later = await lab.call("assign", "join", by=by, session="s1")
    assert (later.is_joined, later.call_id == made.call_id) == (False, False)


async def test_who_joined_and_cannot_wait_hears_that_the_call_is_still_running(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("left", gate)
    first = asyncio.create_task(lab.call("assign", "left", session="s1"))
    await gate.began.wait()
    left = await lab.call("assign", "left", session="s1", deadline_ms=4000)
    assert (error_slug(left), left.http_status) == ("in-flight", 409)
    gate.open.set()
    assert parse_body(left)["error"]["details"]["call_id"] == (await first).call_id


def test_who_joined_looks_less_often_the_longer_it_waits() -> None:
    assert [compute_join_pause(seconds) for seconds in (0, 2, 60)] == [0.05, 0.2, 1]


async def test_a_key_can_be_taken_again_by_one_caller_once_its_window_is_over(lab: GatewayLab) -> None:
    first = await lab.call("note", "window", key="window")
    window = (await lab.fetch_call(first.call_id))["window_ends"] - (await lab.fetch_call(first.call_id))["ended_at"]
    assert window.total_seconds() == 3600
    await lab.db.execute(
        "update deputize.calls set window_ends = now() - interval '1 second' where id = $1", first.call_id
    )
    outcomes = await asyncio.gather(*[lab.call("note", "window", key="window") for _ in range(10)])
    assert len(list_effects("window")) == 2
    assert first.call_id not in {outcome.call_id for outcome in outcomes if outcome.state is State.SUCCEEDED}


@pytest.mark.requirement("INV-11")
async def test_coercion_does_not_change_what_was_asked_for(lab: GatewayLab) -> None:
    first = await lab.call("note", {"tag": "coerced", "count": "3"}, key="coerced")
    assert parse_body(first)["input"]["mutations"]
    assert (await lab.call("note", {"tag": "coerced", "count": "3"}, key="coerced")).body == first.body
    # What the caller sent is what counts, not what was made of it.
    assert error_slug(await lab.call("note", {"tag": "coerced", "count": 3}, key="coerced")) == "key-reused"


async def test_the_order_of_arguments_is_no_other_input(lab: GatewayLab) -> None:
    first = await lab.call("note", {"tag": "order", "count": 1}, key="order")
    assert (await lab.call("note", {"count": 1, "tag": "order"}, key="order")).body == first.body


@pytest.mark.requirement("GOV-1")
async def test_a_replay_is_authorized_before_it_is_given(lab: GatewayLab) -> None:
    first = await lab.call("note", "lost-scope", key="lost-scope")
    assert first.state is State.SUCCEEDED
    refused = await lab.call("note", "lost-scope", key="lost-scope", by=await lab.make_caller(scopes=()))
    assert (refused.state, error_slug(refused)) == (State.DENIED, "scope-missing")
    assert refused.call_id != first.call_id


async def test_the_key_is_durable_before_the_effect(lab: GatewayLab) -> None:
    seen: list[int] = []

    async def count_claims(context: ToolContext) -> dict[str, int]:
        seen.append(await lab.db.fetchval("select count(*) from deputize.claims where call_id = $1", context.key))
        return {"value": seen[0]}

    set_behaviour("durable", count_claims)
    assert (await lab.call("note", "durable", key="durable")).state is State.SUCCEEDED
    assert seen == [1]


async def test_replays_are_counted_apart(lab: GatewayLab) -> None:
    before = _count_replays(lab)
    for _ in range(3):
        await lab.call("put", "counted", key="counted")
    assert _count_replays(lab) - before == 2


def _count_replays(lab: GatewayLab) -> float:
    return (
        lab.gateway.metrics_registry.get_sample_value("deputize_tool_idempotency_replays_total", {"tool": "lab.put"})
        or 0.0
    )
