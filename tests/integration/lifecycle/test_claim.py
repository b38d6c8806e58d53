"""A claim is always released or recorded as UNKNOWN when its request fails."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deputize import Result
from deputize.core.clock import Clock
from deputize.core.errors import ToolFailed, Unavailable
from deputize.core.states import State
from deputize.lifecycle.tenant_snapshot import Authority
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.scripted_tools import Gate, list_effects, raise_error, set_behaviour

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-5")]


async def test_a_request_canceled_while_the_tool_runs_leaves_an_unknown(lab: GatewayLab) -> None:
    gate = Gate()
    set_behaviour("canceled", gate)
    running = asyncio.create_task(lab.call("note", "canceled", key="canceled"))
    await gate.began.wait()
    call_id = await lab.find_running_call("note")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await lab.wait_for_state(call_id, "unknown")
    told = await lab.call("note", "canceled", key="canceled")
    assert (told.state, told.call_id) == (State.UNKNOWN, call_id)
    assert len(list_effects("canceled")) == 1


async def test_a_request_canceled_before_its_claim_is_durable_gives_the_key_back(lab: GatewayLab) -> None:
    async with lab.hold_barrier():
        waiting = asyncio.create_task(lab.call("note", "hasty", key="hasty"))
        await lab.wait_for_blocked_query()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def can_call_again() -> bool:
        again = await lab.call("note", "hasty", key="hasty")
        # Until its end is recorded the key is held; who asks in that moment hears how the first one ended.
        assert again.state is State.SUCCEEDED or error_slug(again) in ("in-flight", "deadline-exceeded")
        return again.state is State.SUCCEEDED

    await wait_until(can_call_again)
    assert len(list_effects("hasty")) == 1


async def test_a_claim_that_commits_after_its_deadline_is_given_back_and_not_acted_on(
    fresh_database: str, tmp_path: Path
) -> None:
    # A clock that stands still: whatever the loop's timers think, the deadline has not come by it.
    async with open_lab(fresh_database, tmp_path, clock=Clock(monotonic=lambda: 0.0)) as lab:
        async with lab.hold_barrier():
            waiting = asyncio.create_task(lab.call("note", "overdue", key="overdue", deadline_ms=3000))
            await lab.wait_for_blocked_query()
            await asyncio.wait({waiting}, timeout=3.5)  # the deadline passes; the refusal waits to be recorded
        refused = await waiting
        assert (refused.state, error_slug(refused)) == (State.TIMED_OUT, "deadline-exceeded")
        await lab.wait_for_state(refused.call_id, "timed_out")
        assert not await lab.has_claim(refused.call_id)
        assert not list_effects("overdue")


UNPRINTABLE: list[tuple[str, Callable[[Any], Any]]] = [
    ("keys that are no text", lambda _: {1: 2}),
    ("an object", lambda _: {"value": object()}),
    ("a summary that is no text", lambda _: Result(payload={"value": 1}, summary=object())),  # type: ignore[arg-type]  # on purpose
    ("half a character", lambda _: Result(payload={"value": 1}, summary="\ud800")),
    ("a cost that is no number", lambda _: Result(payload={"value": 1}, cost=Decimal("0.1"))),  # type: ignore[arg-type]  # on purpose
]


@pytest.mark.requirement("INV-7")
@pytest.mark.parametrize(("what", "behaviour"), UNPRINTABLE, ids=[what for what, _ in UNPRINTABLE])
async def test_a_result_that_cannot_be_written_is_a_failure_that_happened(
    lab: GatewayLab, what: str, behaviour: Callable[[Any], Any]
) -> None:
    set_behaviour(what, behaviour)
    outcome = await lab.call("note", what, key=what.replace(" ", "-"))
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "result-invalid")
    assert await lab.fetch_state(outcome.call_id) == "failed"
    assert (await lab.call("note", what, key=what.replace(" ", "-"))).body == outcome.body
    assert len(list_effects(what)) == 1
    read = await lab.call("look", what)
    assert (read.state, error_slug(read)) == (State.FAILED, "result-invalid")


@pytest.mark.parametrize(
    "error",
    [ToolFailed("half \ud800"), ToolFailed("odd", details={"what": object()}), ValueError("half \udcff")],
    ids=["text", "details", "foreign"],
)
async def test_a_problem_that_cannot_be_serialized_is_still_reported(lab: GatewayLab, error: Exception) -> None:
    tag = f"unprintable-{type(error).__name__}-{len(str(error))}"
    set_behaviour(tag, raise_error(error))
    outcome = await lab.call("note", tag, key=tag)
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "tool-failed")
    assert parse_body(outcome)["call_id"] == outcome.call_id
    assert (await lab.call("look", tag)).state is State.FAILED


async def test_a_fault_of_ours_after_the_effect_is_unknown_not_forgotten(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Background tasks use the same keys, in contexts of their own.
    is_own_task = ContextVar("is_own_task", default=False)
    load = lab.runtime.keys.get

    def fail_to_load(*positional: Any) -> Any:
        if is_own_task.get():
            raise ZeroDivisionError("a fault of ours")
        return load(*positional)

    def breaks_the_gateway(_: object) -> dict[str, str]:
        monkeypatch.setattr(lab.runtime.keys, "get", fail_to_load)
        return {"value": "done"}

    is_own_task.set(True)
    set_behaviour("fault", breaks_the_gateway)
    outcome = await lab.call("note", "fault", key="fault")
    monkeypatch.undo()
    assert (outcome.state, error_slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    [effect] = list_effects("fault")
    assert parse_body(outcome)["error"]["details"]["call_id"] == effect.key
    await lab.wait_for_state(effect.key, "unknown")
    assert (await lab.call("note", "fault", key="fault")).state is State.UNKNOWN
    assert len(list_effects("fault")) == 1


@pytest.mark.requirement("NEW-7")
async def test_authority_that_cannot_be_read_again_refuses_the_call_and_gives_the_key_back(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail_to_read(*_: object) -> None:
        raise ConnectionError("PostgreSQL is away for readers")

    async with lab.hold_barrier() as admin:
        waiting = asyncio.create_task(lab.call("note", "unread", key="unread"))
        await lab.wait_for_blocked_query()
        monkeypatch.setattr(Authority, "_load_authority", fail_to_read)
        await admin.execute("update deputize.epochs set revocation = revocation + 1 where tenant = 'dev'")
    refused = await waiting
    monkeypatch.undo()
    assert (error_slug(refused), refused.http_status) == (Unavailable.spec.slug, 503)

    async def is_released() -> bool:
        return not await lab.has_claim(refused.call_id)

    await wait_until(is_released)
    assert not list_effects("unread")
    assert (await lab.call("note", "unread", key="unread")).state is State.SUCCEEDED


async def test_a_take_over_whose_commit_is_in_doubt_leaves_the_call_unknown(
    lab: GatewayLab, other_lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    set_behaviour("doubt", gate)
    running = asyncio.create_task(other_lab.call("put", "doubt", key="doubt"))
    await gate.began.wait()
    call_id = await lab.find_running_call("put")
    await lab.expire_lease(other_lab, call_id)
    await _lose_the_next_answer(lab, monkeypatch)
    outcome = await lab.call("put", "doubt", key="doubt")
    monkeypatch.undo()
    assert outcome.state is State.UNKNOWN
    await lab.wait_for_state(call_id, "unknown")
    set_behaviour("doubt", lambda _: {"value": "after all"})
    assert (await lab.call("put", "doubt", key="doubt")).state is State.SUCCEEDED
    gate.open.set()
    await running


async def _lose_the_next_answer(lab: GatewayLab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that takes the call over is lost right after its commit."""
    async with lab.runtime.store.writers.acquire() as connection:
        pooled: Any = type(connection)
    original = pooled.fetch

    async def fetch(self: Any, query: str, *args: Any, **options: Any) -> Any:
        answer = await original(self, query, *args, **options)
        if "take_over_call" in query:
            await self.execute("commit")
            raise ConnectionResetError("lost after the commit")
        return answer

    monkeypatch.setattr(pooled, "fetch", fetch)


async def test_waiting_for_a_call_of_ones_own_lapsed_lease_ends_with_the_deadline_and_spares_the_database(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = await _count_take_overs(lab, monkeypatch)
    gate = Gate()
    set_behaviour("own", gate)
    running = asyncio.create_task(lab.call("put", "own", key="own"))
    await gate.began.wait()
    await lab.db.execute(
        "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", lab.runtime.lease.boot_id
    )
    began = lab.runtime.clock.monotonic()
    waiting = asyncio.create_task(lab.call("put", "own", key="own", deadline_ms=4000))
    done, _ = await asyncio.wait({waiting}, timeout=60)
    elapsed = lab.runtime.clock.monotonic() - began
    await lab.runtime.lease.renew()
    gate.open.set()
    await running
    assert done, "it goes on looking past its deadline"
    assert error_slug(await waiting) == "in-flight"
    # One attempt for each twentieth of a second, however long the machine took.
    assert 1 <= len(attempts) <= elapsed / 0.05 + 2


async def _count_take_overs(lab: GatewayLab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect each statement by which the gateway tries to take a call over, from now on."""
    async with lab.runtime.store.writers.acquire() as connection:
        pooled: Any = type(connection)
    original = pooled.fetch
    attempts: list[str] = []

    async def fetch(self: Any, query: str, *args: Any, **options: Any) -> Any:
        if "take_over_call" in query:
            attempts.append(query)
        return await original(self, query, *args, **options)

    monkeypatch.setattr(pooled, "fetch", fetch)
    return attempts
