"""A claimed call never stays open under a living owner: what breaks on the way is given back, or said to be unknown."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from deputize import Result
from deputize.core.clock import Clock
from deputize.core.errors import ToolFailed, Unavailable
from deputize.core.events import State
from deputize.lifecycle.authority import Authority
from tests.integration.lifecycle.lab import Lab, body, open_lab, slug, until
from tests.integration.lifecycle.tools import Gate, effects_of, on, raising

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-5")]


async def test_a_request_canceled_while_the_tool_runs_leaves_an_unknown(lab: Lab) -> None:
    gate = Gate()
    on("canceled", gate)
    running = asyncio.create_task(lab.call("note", "canceled", key="canceled"))
    await gate.began.wait()
    call_id = await lab.running_call("note")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await lab.until_state(call_id, "unknown")
    told = await lab.call("note", "canceled", key="canceled")
    assert (told.state, told.call_id) == (State.UNKNOWN, call_id)
    assert len(effects_of("canceled")) == 1


async def test_a_request_canceled_before_its_claim_is_durable_gives_the_key_back(lab: Lab) -> None:
    async with lab.barrier_closed():
        waiting = asyncio.create_task(lab.call("note", "hasty", key="hasty"))
        await lab.until_waiting()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async def goes_through() -> bool:
        again = await lab.call("note", "hasty", key="hasty")
        # Until its end is recorded the key is held; who asks in that moment hears how the first one ended.
        assert again.state is State.SUCCEEDED or slug(again) in ("in-flight", "deadline-exceeded")
        return again.state is State.SUCCEEDED

    await until(goes_through)
    assert len(effects_of("hasty")) == 1


async def test_a_claim_that_commits_after_its_deadline_is_given_back_and_not_acted_on(
    fresh_database: str, tmp_path: Path
) -> None:
    # A clock that stands still: whatever the loop's timers think, the deadline has not come by it.
    async with open_lab(fresh_database, tmp_path, clock=Clock(monotonic=lambda: 0.0)) as lab:
        async with lab.barrier_closed():
            waiting = asyncio.create_task(lab.call("note", "overdue", key="overdue", deadline_ms=100))
            await asyncio.wait({waiting}, timeout=0.5)  # the deadline passes; the refusal waits to be recorded
        refused = await waiting
        assert (refused.state, slug(refused)) == (State.TIMED_OUT, "deadline-exceeded")
        await lab.until_state(refused.call_id, "timed_out")
        assert not await lab.claimed(refused.call_id)
        assert not effects_of("overdue")


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
    lab: Lab, what: str, behaviour: Callable[[Any], Any]
) -> None:
    on(what, behaviour)
    outcome = await lab.call("note", what, key=what.replace(" ", "-"))
    assert (outcome.state, slug(outcome)) == (State.FAILED, "result-invalid")
    assert await lab.state(outcome.call_id) == "failed"
    assert (await lab.call("note", what, key=what.replace(" ", "-"))).body == outcome.body
    assert len(effects_of(what)) == 1
    read = await lab.call("look", what)
    assert (read.state, slug(read)) == (State.FAILED, "result-invalid")


@pytest.mark.parametrize(
    "error",
    [ToolFailed("half \ud800"), ToolFailed("odd", details={"what": object()}), ValueError("half \udcff")],
    ids=["text", "details", "foreign"],
)
async def test_a_problem_that_cannot_be_written_is_still_told(lab: Lab, error: Exception) -> None:
    tag = f"unprintable-{type(error).__name__}-{len(str(error))}"
    on(tag, raising(error))
    outcome = await lab.call("note", tag, key=tag)
    assert (outcome.state, slug(outcome)) == (State.FAILED, "tool-failed")
    assert body(outcome)["call_id"] == outcome.call_id
    assert (await lab.call("look", tag)).state is State.FAILED


async def test_a_fault_of_ours_after_the_effect_is_unknown_not_forgotten(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(tenant: str) -> None:
        raise ZeroDivisionError("a fault of ours")

    def breaks_the_gateway(_: object) -> dict[str, str]:
        monkeypatch.setattr(lab.rooms.keys, "ready", broken)
        return {"value": "done"}

    on("fault", breaks_the_gateway)
    outcome = await lab.call("note", "fault", key="fault")
    monkeypatch.undo()
    assert (outcome.state, slug(outcome)) == (State.UNKNOWN, "outcome-unknown")
    [effect] = effects_of("fault")
    assert body(outcome)["error"]["details"]["call_id"] == effect.key
    await lab.until_state(effect.key, "unknown")
    assert (await lab.call("note", "fault", key="fault")).state is State.UNKNOWN
    assert len(effects_of("fault")) == 1


@pytest.mark.requirement("NEW-7")
async def test_authority_that_cannot_be_read_again_refuses_the_call_and_gives_the_key_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object) -> None:
        raise ConnectionError("PostgreSQL is away for readers")

    async with lab.barrier_closed() as admin:
        waiting = asyncio.create_task(lab.call("note", "unread", key="unread"))
        await lab.until_waiting()
        monkeypatch.setattr(Authority, "_read", away)
        await admin.execute("update deputize.epochs set revocation = revocation + 1 where tenant = 'dev'")
    refused = await waiting
    monkeypatch.undo()
    assert (slug(refused), refused.http_status) == (Unavailable.face.slug, 503)

    async def given_back() -> bool:
        return not await lab.claimed(refused.call_id)

    await until(given_back)
    assert not effects_of("unread")
    assert (await lab.call("note", "unread", key="unread")).state is State.SUCCEEDED


async def test_a_take_over_whose_commit_is_in_doubt_leaves_the_call_unknown(
    lab: Lab, other_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    on("doubt", gate)
    running = asyncio.create_task(other_lab.call("put", "doubt", key="doubt"))
    await gate.began.wait()
    call_id = await lab.running_call("put")
    await lab.bury(other_lab, call_id)
    await _lose_the_next_answer(lab, monkeypatch)
    outcome = await lab.call("put", "doubt", key="doubt")
    monkeypatch.undo()
    assert outcome.state is State.UNKNOWN
    await lab.until_state(call_id, "unknown")
    on("doubt", lambda _: {"value": "after all"})
    assert (await lab.call("put", "doubt", key="doubt")).state is State.SUCCEEDED
    gate.open.set()
    await running


async def _lose_the_next_answer(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection that takes the call over is lost right after its commit."""
    async with lab.rooms.store.writers.acquire() as connection:
        pooled: Any = type(connection)
    original = pooled.fetch

    async def fetch(self: Any, query: str, *args: Any, **options: Any) -> Any:
        answer = await original(self, query, *args, **options)
        if "retake_call" in query:
            await self.execute("commit")
            raise ConnectionResetError("lost after the commit")
        return answer

    monkeypatch.setattr(pooled, "fetch", fetch)


async def test_waiting_for_a_call_of_ones_own_lapsed_lease_ends_with_the_deadline_and_spares_the_database(
    lab: Lab,
) -> None:
    gate = Gate()
    on("own", gate)
    running = asyncio.create_task(lab.call("put", "own", key="own"))
    await gate.began.wait()
    await lab.db.execute(
        "update deputize.leases set expires_at = now() - interval '1 hour' where boot = $1", lab.rooms.lease.boot
    )
    statements = "select xact_commit from pg_stat_database where datname = current_database()"
    before = await lab.db.fetchval(statements)
    waiting = asyncio.create_task(lab.call("put", "own", key="own", deadline_ms=300))
    done, _ = await asyncio.wait({waiting}, timeout=3)
    await lab.rooms.lease.renew()
    gate.open.set()
    await running
    assert done, "it goes on looking past its deadline"
    assert slug(await waiting) == "in-flight"
    assert await lab.db.fetchval(statements) - before < 100
