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
from deputize.core.run_settings import RunLimit, Runs
from deputize.lifecycle.worker import Worker
from tests.integration.lifecycle.lab import Lab, open_lab, until
from tests.integration.lifecycle.tools import Gate, effects_of, on

pytestmark = pytest.mark.requirement("INV-9")


class Turnstile:
    """A behaviour that lets everybody in, notes who was inside at once, and out when told."""

    def __init__(self, *, seconds: float = 0.0) -> None:
        self.inside: list[str] = []
        self.order: list[str] = []
        self.most = 0
        self.open = asyncio.Event()
        self._seconds = seconds

    async def __call__(self, context: ToolContext) -> dict[str, Any]:
        self.inside.append(context.call_id)
        self.order.append(context.call_id)
        self.most = max(self.most, len(self.inside))
        await (asyncio.sleep(self._seconds) if self._seconds else self.open.wait())
        self.inside.remove(context.call_id)
        return {"value": "done"}


@asynccontextmanager
async def working(dsn: str, folder: Path, *limits: RunLimit, at_once: int = 20) -> AsyncIterator[tuple[Lab, Worker]]:
    runs = Runs(poll_seconds=0.05, limits=limits, at_once=at_once, drain_seconds=1)
    async with (
        open_lab(dsn, folder, runs=runs, lease_seconds=10, sweep_seconds=0.2) as lab,
        open_worker(lab.gateway) as worker,
    ):
        yield lab, worker


async def run(lab: Lab, tool: str, tag: str, key: str, **request: Any) -> str:
    outcome = await lab.call(tool, tag, key=key, mode="async", **request)
    assert outcome.http_status == 202, outcome.body
    return outcome.call_id


async def lines(lab: Lab) -> list[tuple[str, bool]]:
    rows = await lab.db.fetch("select call_id, held from deputize.places where left_at is null order by since")
    return [(str(row["call_id"]), row["held"]) for row in rows]


async def in_line(lab: Lab, *calls: str) -> None:
    """Returns once these wait in line, as rows."""

    async def wait() -> bool:
        return {call for call, held in await lines(lab) if not held} == set(calls)

    await until(wait)


async def test_writers_of_one_scope_go_one_after_another_and_others_beside_them(
    fresh_database: str, tmp_path: Path
) -> None:
    first, second = Turnstile(), Turnstile(seconds=0.01)
    on("same", first)
    async with working(fresh_database, tmp_path) as (lab, worker):
        one = await run(lab, "put", "same", "k1")
        await until(lambda: _true(first.inside))
        two = await run(lab, "put", "same", "k2")
        other = await run(lab, "put", "another", "k3")
        reading = await run(lab, "look", "same-but-read", "k4")
        await lab.until_state(other, "succeeded")
        await lab.until_state(reading, "succeeded")
        await in_line(lab, two)

        async def only_one_is_here() -> bool:
            return worker.carrying == 1

        await until(only_one_is_here)
        assert await lab.state(two) == "queued"
        on("same", second)
        first.open.set()
        await lab.until_state(two, "succeeded")
        assert (first.order, second.order) == ([one], [two])
        assert await lines(lab) == []


async def _true(value: object) -> bool:
    return bool(value)


async def test_a_hard_limit_holds_over_different_inputs(fresh_database: str, tmp_path: Path) -> None:
    turnstile = Turnstile(seconds=0.05)
    tags = [f"limited-{number}" for number in range(8)]
    for tag in tags:
        on(tag, turnstile)
    async with working(fresh_database, tmp_path, RunLimit(tools="lab.p*", at_once=2)) as (lab, _):
        calls = [await run(lab, "put", tag, tag) for tag in tags]
        for call in calls:
            await lab.until_state(call, "succeeded")
        assert turnstile.most == 2
        assert await lines(lab) == []


async def test_reads_come_under_a_limit_too_and_other_tools_do_not(fresh_database: str, tmp_path: Path) -> None:
    reads, writes = Turnstile(seconds=0.05), Gate()
    on("r", reads)
    on("w", writes)
    async with working(fresh_database, tmp_path, RunLimit(tools="lab.look", at_once=1)) as (lab, _):
        free = await run(lab, "put", "w", "w")
        calls = [await run(lab, "look", "r", f"r{number}") for number in range(3)]
        await writes.began.wait()
        for call in calls:
            await lab.until_state(call, "succeeded")
        assert reads.most == 1
        writes.open.set()
        await lab.until_state(free, "succeeded")


async def test_the_most_urgent_of_those_who_wait_goes_first(fresh_database: str, tmp_path: Path) -> None:
    first, rest = Turnstile(), Turnstile(seconds=0.01)
    on("urgent", first)
    async with working(fresh_database, tmp_path) as (lab, _):
        await run(lab, "put", "urgent", "k0")
        await until(lambda: _true(first.inside))
        waiting = {level: await run(lab, "put", "urgent", f"k{level}", priority=level) for level in (9, 1, 5)}
        await in_line(lab, *waiting.values())
        on("urgent", rest)
        first.open.set()
        for call in waiting.values():
            await lab.until_state(call, "succeeded")
        assert rest.order == [waiting[1], waiting[5], waiting[9]]


async def test_whoever_is_canceled_in_line_keeps_nobody_waiting(fresh_database: str, tmp_path: Path) -> None:
    first, rest = Turnstile(), Turnstile(seconds=0.01)
    on("left", first)
    async with working(fresh_database, tmp_path) as (lab, _):
        await run(lab, "put", "left", "k0")
        await until(lambda: _true(first.inside))
        gone = await run(lab, "put", "left", "k1")
        await in_line(lab, gone)
        last = await run(lab, "put", "left", "k2")
        await in_line(lab, gone, last)
        await lab.db.execute("update deputize.calls set state = 'canceled', ended_at = now() where id = $1", gone)
        on("left", rest)
        first.open.set()
        await lab.until_state(last, "succeeded")
        assert rest.order == [last]
        assert len(effects_of("left")) == 2


async def test_an_outcome_nobody_knows_makes_room_too(fresh_database: str, tmp_path: Path) -> None:
    async def is_lost(_: ToolContext) -> Any:
        raise ConnectionError("no answer")

    on("lost", is_lost)
    async with working(fresh_database, tmp_path) as (lab, _):
        calls = [await run(lab, "note", "lost", f"k{number}") for number in range(2)]
        for call in calls:
            await lab.until_state(call, "unknown")
        assert await lines(lab) == []


async def test_those_whom_nobody_called_are_found(fresh_database: str, tmp_path: Path) -> None:
    """Whoever should have called them died first."""
    first, second = Turnstile(), Turnstile(seconds=0.01)
    on("forgotten", first)
    async with working(fresh_database, tmp_path) as (lab, _):
        one = await run(lab, "put", "forgotten", "k0")
        await until(lambda: _true(first.inside))
        on("forgotten", second)
        two = await run(lab, "put", "forgotten", "k1")
        await in_line(lab, two)
        # As if the holder's process had ended between the outcome and the call to those behind it.
        await lab.db.execute("update deputize.calls set state = 'unknown' where id = $1", one)
        await lab.until_state(two, "succeeded")
        first.open.set()


async def test_a_scope_of_any_length_has_its_place_in_line(fresh_database: str, tmp_path: Path) -> None:
    # Nothing a database could press into an index row.
    long = "".join(random.Random(1).choices(string.ascii_letters, k=20_000))
    gate = Gate({"value": "done"})
    on(long, gate)
    async with working(fresh_database, tmp_path) as (lab, _):
        first = await run(lab, "put", long, "a")
        await gate.began.wait()
        second = await run(lab, "put", long, "b")
        await in_line(lab, second)
        gate.open.set()
        for call in (first, second):
            await lab.until_state(call, "succeeded")
