"""A call whose caller has no more time goes on as a run, where to do it again is to do it once."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.contract.tools import ToolContext
from deputize.core.errors import CallNotFound, NotRetryable, ToolFailed
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("INV-4"), pytest.mark.requirement("NEW-3")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened, open_worker(opened.gateway):
        yield opened


def set_slow_first_attempt(tag: str) -> None:
    """Too slow for who waits, and quick for who comes after."""

    async def behave(_: ToolContext) -> Any:
        if len(list_effects(tag)) == 1:
            await asyncio.Event().wait()
        return {"value": "done"}

    set_behaviour(tag, behave)


async def _fetch_result(lab: GatewayLab, call_id: str) -> dict[str, Any]:
    shown: dict[str, Any] = (await lab.gateway.calls.show_call(await lab.make_caller(), call_id)).envelope.fields
    return shown


@pytest.mark.parametrize("tool", ["look", "put", "assign"])
async def test_what_may_be_done_again_goes_on_instead_of_timing_out(lab: GatewayLab, tool: str) -> None:
    tag = f"goes-on-{tool}"
    set_slow_first_attempt(tag)
    outcome = await lab.call(tool, tag, key=tag, deadline_ms=4000, may_continue=True)
    assert (outcome.http_status, parse_body(outcome)["state"]) == (202, "queued")
    await lab.wait_for_state(outcome.call_id, "succeeded")
    assert (await _fetch_result(lab, outcome.call_id))["result"] == {"value": "done"}
    keys = {effect.key for effect in list_effects(tag)}
    assert (len(list_effects(tag)), keys) == (2, {outcome.call_id})
    # The first attempt may have acted, so whoever wrote since then wrote at the same time.
    rows = await lab.db.fetch(
        "select j.began_at = k.created_at from deputize.journal j "
        "join deputize.calls k on k.tenant = j.tenant and k.id = j.call_id where j.call_id = $1",
        outcome.call_id,
    )
    assert [row[0] for row in rows] == ([] if tool == "look" else [True])


async def test_without_leave_it_times_out_as_before(lab: GatewayLab) -> None:
    set_slow_first_attempt("no-leave")
    outcome = await lab.call("look", "no-leave", deadline_ms=4000)
    assert (outcome.http_status, error_slug(outcome)) == (504, "tool-timeout")


async def test_what_would_be_done_twice_stays_unknown(lab: GatewayLab) -> None:
    set_slow_first_attempt("done-twice")
    outcome = await lab.call("note", "done-twice", key="done-twice", deadline_ms=4000, may_continue=True)
    assert (outcome.http_status, error_slug(outcome)) == (504, "outcome-unknown")
    assert len(list_effects("done-twice")) == 1


async def test_a_tool_that_exceeds_its_own_time_would_again(lab: GatewayLab) -> None:
    set_slow_first_attempt("own-time")
    outcome = await lab.call("brief_look", "own-time", deadline_ms=60_000, may_continue=True)
    assert error_slug(outcome) == "tool-timeout"


async def test_a_thread_that_still_acts_is_not_joined_by_a_second_one(lab: GatewayLab) -> None:
    go = threading.Event()
    set_behaviour("still", lambda _: go.wait(60) and {"value": "done"})
    outcome = await lab.call("thread_put", "still", key="still", deadline_ms=4000, may_continue=True)
    go.set()
    assert error_slug(outcome) == "outcome-unknown"
    await lab.wait_for_state(outcome.call_id, "succeeded")
    assert len(list_effects("still")) == 1


async def test_the_same_key_sent_as_a_run_tries_an_unknown_outcome_again_where_it_is_taken_once(
    lab: GatewayLab,
) -> None:
    set_behaviour("unknown", raise_error(ConnectionError("reset")))
    first = await lab.call("put", "unknown", key="unknown")
    assert error_slug(first) == "outcome-unknown"
    set_behaviour("unknown", lambda _: {"value": "done"})
    again = await lab.call("put", "unknown", key="unknown", mode="async")
    assert (again.http_status, again.call_id) == (202, first.call_id)
    await lab.wait_for_state(first.call_id, "succeeded")
    assert {effect.key for effect in list_effects("unknown")} == {first.call_id}


async def test_an_unknown_run_is_tried_again_when_its_caller_asks(lab: GatewayLab) -> None:
    set_behaviour("ask-again", raise_error(ConnectionError("reset")))
    first = await lab.call("put", "ask-again", key="ask-again", mode="async")
    await lab.wait_for_state(first.call_id, "unknown")
    set_behaviour("ask-again", lambda _: {"value": "done"})
    again = await lab.gateway.retry_call(await lab.make_caller(), first.call_id)
    assert (again.http_status, again.call_id) == (202, first.call_id)
    await lab.wait_for_state(first.call_id, "succeeded")
    assert (await _fetch_result(lab, first.call_id))["result"] == {"value": "done"}


async def test_what_may_have_acted_is_never_tried_again_and_neither_is_anothers(lab: GatewayLab) -> None:
    retry = lab.gateway.retry_call
    set_behaviour("lost", raise_error(ConnectionError("reset")))
    lost = await lab.call("note", "lost", key="lost", mode="async")
    await lab.wait_for_state(lost.call_id, "unknown")
    with pytest.raises(NotRetryable, match="cannot recognise a repeated call"):
        await retry(await lab.make_caller(), lost.call_id)
    set_behaviour("failed", raise_error(ToolFailed("half of it")))
    failed = await lab.call("put", "failed", key="failed", mode="async")
    await lab.wait_for_state(failed.call_id, "failed")
    with pytest.raises(NotRetryable, match="may have acted"):
        await retry(await lab.make_caller(), failed.call_id)
    done = await lab.call("put", "good", key="good", mode="async")
    await lab.wait_for_state(done.call_id, "succeeded")
    with pytest.raises(NotRetryable, match="succeeded"):
        await retry(await lab.make_caller(), done.call_id)
    inside = await lab.call("put", "inside", key="inside")
    with pytest.raises(NotRetryable, match="own idempotency key"):
        await retry(await lab.make_caller(), inside.call_id)
    for who in (await lab.make_caller("eve"), await lab.make_admin()):
        with pytest.raises(CallNotFound):
            await retry(who, lost.call_id)
    with pytest.raises(CallNotFound):
        await retry(await lab.make_caller(), "no id")


async def test_trying_again_needs_the_authority_of_who_asks_now(lab: GatewayLab) -> None:
    set_behaviour("weaker", raise_error(ConnectionError("reset")))
    first = await lab.call("put", "weaker", key="weaker", mode="async")
    await lab.wait_for_state(first.call_id, "unknown")
    with pytest.raises(CallNotFound):
        await lab.gateway.retry_call(await lab.make_caller(scopes=()), first.call_id)
    assert await lab.fetch_state(first.call_id) == "unknown"
