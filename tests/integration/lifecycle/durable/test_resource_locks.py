"""Runs that write to the same thing wait for each other, without a worker; others run together."""

import asyncio
import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from deputize import ToolContext
from deputize.app import open_worker
from deputize.core.settings.runs import RunLimit, RunSettings
from deputize.operations.background.worker import Worker
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until
from tests.support.scripted_tools import Gate, list_effects, set_behaviour

pytestmark = pytest.mark.requirement("INV-9")


class ConcurrencyRecorder:
    """A behaviour that lets everybody in, notes who was inside at once, and out when told, or once so many have met."""

    def __init__(self, *, seconds: float = 0.0, expected: int = 1) -> None:
        self.inside: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self.open = asyncio.Event()
        self._seconds, self._expected, self._have_met = seconds, expected, asyncio.Event()

    async def __call__(self, context: ToolContext) -> dict[str, Any]:
        self.inside.append(context.call_id)
        self.order.append(context.call_id)
        self.most = max(self.most, len(self.inside))
        if len(self.inside) >= self._expected:
            self._have_met.set()
        await self._have_met.wait()
        await (asyncio.sleep(self._seconds) if self._seconds else self.open.wait())
        self.inside.remove(context.call_id)
        return {"value": "done"}


@asynccontextmanager
async def open_worker_lab(
    dsn: str, folder: Path, *limits: RunLimit, at_once: int = 20
) -> AsyncIterator[tuple[GatewayLab, Worker]]:
    runs = RunSettings(poll_seconds=0.05, limits=limits, at_once=at_once, drain_seconds=1)
    async with (
        open_lab(dsn, folder, runs=runs, lease_seconds=60, sweep_seconds=0.2) as lab,
        open_worker(lab.gateway) as worker,
    ):
        yield lab, worker


async def start_run(lab: GatewayLab, tool: str, tag: str, key: str, **request: Any) -> str:
    outcome = await lab.call(tool, tag, key=key, mode="async", **request)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def fetch_lock_queue(lab: GatewayLab) -> list[tuple[str, bool]]:
    rows = await lab.db.fetch(
        "select call_id, is_held from deputize.resource_locks where released_at is null order by requested_at"
    )
    return [(str(row["call_id"]), row["is_held"]) for row in rows]


async def wait_until_queued(lab: GatewayLab, *calls: str) -> None:
    """Returns once these wait in line, as rows."""

    async def is_queued() -> bool:
        return {call for call, held in await fetch_lock_queue(lab) if not held} == set(calls)

    await wait_until(is_queued)


async def test_writers_of_one_scope_go_one_after_another_and_others_beside_them(
    fresh_database: str, tmp_path: Path
) -> None:
    first, second = ConcurrencyRecorder(), ConcurrencyRecorder(seconds=0.01)
    set_behaviour("same", first)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, worker):
        one = await start_run(lab, "put", "same", "k1")
        await wait_until(lambda: _as_condition(first.inside))
        two = await start_run(lab, "put", "same", "k2")
        other = await start_run(lab, "put", "another", "k3")
        reading = await start_run(lab, "look", "same-but-read", "k4")
        await lab.wait_for_state(other, "succeeded")
        await lab.wait_for_state(reading, "succeeded")
        await wait_until_queued(lab, two)

        async def only_one_is_here() -> bool:
            return worker.active_run_count == 1

        await wait_until(only_one_is_here)
        assert await lab.fetch_state(two) == "queued"
        set_behaviour("same", second)
        first.open.set()
        await lab.wait_for_state(two, "succeeded")
        assert (first.order, second.order) == ([one], [two])
        assert await fetch_lock_queue(lab) == []


async def _as_condition(value: object) -> bool:
    return bool(value)


async def test_a_hard_limit_holds_over_different_inputs(fresh_database: str, tmp_path: Path) -> None:
    turnstile = ConcurrencyRecorder(seconds=0.05, expected=2)
    tags = [f"limited-{number}" for number in range(8)]
    for tag in tags:
        set_behaviour(tag, turnstile)
    async with open_worker_lab(fresh_database, tmp_path, RunLimit(tools="lab.p*", at_once=2)) as (lab, _):
        calls = [await start_run(lab, "put", tag, tag) for tag in tags]
        for call in calls:
            await lab.wait_for_state(call, "succeeded")
        assert turnstile.most == 2
        assert await fetch_lock_queue(lab) == []


async def test_reads_come_under_a_limit_too_and_other_tools_do_not(fresh_database: str, tmp_path: Path) -> None:
    reads, writes = ConcurrencyRecorder(seconds=0.05), Gate()
    set_behaviour("r", reads)
    set_behaviour("w", writes)
    async with open_worker_lab(fresh_database, tmp_path, RunLimit(tools="lab.look", at_once=1)) as (lab, _):
        free = await start_run(lab, "put", "w", "w")
        calls = [await start_run(lab, "look", "r", f"r{number}") for number in range(3)]
        await writes.began.wait()
        for call in calls:
            await lab.wait_for_state(call, "succeeded")
        assert reads.most == 1
        writes.open.set()
        await lab.wait_for_state(free, "succeeded")


async def test_the_most_urgent_of_those_who_wait_goes_first(fresh_database: str, tmp_path: Path) -> None:
    first, rest = ConcurrencyRecorder(), ConcurrencyRecorder(seconds=0.01)
    set_behaviour("urgent", first)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        await start_run(lab, "put", "urgent", "k0")
        await wait_until(lambda: _as_condition(first.inside))
        waiting = {level: await start_run(lab, "put", "urgent", f"k{level}", priority=level) for level in (9, 1, 5)}
        await wait_until_queued(lab, *waiting.values())
        set_behaviour("urgent", rest)
        first.open.set()
        for call in waiting.values():
            await lab.wait_for_state(call, "succeeded")
        assert rest.order == [waiting[1], waiting[5], waiting[9]]


async def test_anyone_who_is_canceled_in_line_keeps_nobody_waiting(fresh_database: str, tmp_path: Path) -> None:
    first, rest = ConcurrencyRecorder(), ConcurrencyRecorder(seconds=0.01)
    set_behaviour("left", first)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        await start_run(lab, "put", "left", "k0")
        await wait_until(lambda: _as_condition(first.inside))
        gone = await start_run(lab, "put", "left", "k1")
        await wait_until_queued(lab, gone)
        last = await start_run(lab, "put", "left", "k2")
        await wait_until_queued(lab, gone, last)
        await lab.db.execute("update deputize.calls set state = 'canceled', ended_at = now() where id = $1", gone)
        set_behaviour("left", rest)
        first.open.set()
        await lab.wait_for_state(last, "succeeded")
        assert rest.order == [last]
        assert len(list_effects("left")) == 2


async def test_an_outcome_nobody_knows_makes_room_too(fresh_database: str, tmp_path: Path) -> None:
    async def lose_answer(_: ToolContext) -> Any:
        raise ConnectionError("no answer")

    set_behaviour("lost", lose_answer)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        calls = [await start_run(lab, "note", "lost", f"k{number}") for number in range(2)]
        for call in calls:
            await lab.wait_for_state(call, "unknown")
        assert await fetch_lock_queue(lab) == []


async def test_those_whom_nobody_called_are_found(fresh_database: str, tmp_path: Path) -> None:
    """Anyone who should have called them died first."""
    first, second = ConcurrencyRecorder(), ConcurrencyRecorder(seconds=0.01)
    set_behaviour("forgotten", first)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        one = await start_run(lab, "put", "forgotten", "k0")
        await wait_until(lambda: _as_condition(first.inside))
        set_behaviour("forgotten", second)
        two = await start_run(lab, "put", "forgotten", "k1")
        await wait_until_queued(lab, two)
        # As if the holder's process had ended between the outcome and the call to those behind it.
        await lab.db.execute("update deputize.calls set state = 'unknown' where id = $1", one)
        await lab.wait_for_state(two, "succeeded")
        first.open.set()


async def test_a_scope_of_any_length_has_its_place_in_line(fresh_database: str, tmp_path: Path) -> None:
    # Nothing a database could press into an index row.
    long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
    gate = Gate({"value": "done"})
    set_behaviour(long, gate)
    async with open_worker_lab(fresh_database, tmp_path) as (lab, _):
        first = await start_run(lab, "put", long, "a")
        await gate.began.wait()
        second = await start_run(lab, "put", long, "b")
        await wait_until_queued(lab, second)
        gate.open.set()
        for call in (first, second):
            await lab.wait_for_state(call, "succeeded")
