"""A million tickets wait for people, and time goes on for all of them: what one gateway's sweeper takes for it.

Some of the tickets are due: over, to be escalated, or to be brought to mind again. The gateway finds and moves them by
itself, in batches of 500, while everything else stays open. Its memory is held against that of the same gateway in a
database where nothing else waits. Then somebody whose group is asked about many thousands of them looks at some.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import asyncpg

from deputize.lifecycle.approvals.clockwork import AT_ONCE
from deputize.store.local import LocalPostgres
from proofs.fleet.measured import postgres_cpu_seconds
from proofs.kit.gateway import GatewayHandle, new_issuer, start_gateway
from proofs.kit.people import People
from proofs.kit.report import Bar, Figure, Verdict
from proofs.kit.variant import restart_as
from proofs.kit.world import World
from proofs.waiting.crowd import HERE, REMIND_SECONDS, Crowd, fill
from proofs.waiting.pages import ASKING, look_at_pages
from proofs.waiting.timed import Batch, batches_of

NAME = "tickets"
PROMISE = "A million calls wait for people, time is up for each when it is up, and the gateway hardly notices."

MOST_MS, MOST_PAGE_MS = 200.0, 100.0
_DUE = "select count(*) from deputize.approvals where next_at <= now() or state = 'open' and expires_at <= now()"
_STATES = """
select count(*) filter (where a.state = 'open') as open, count(*) filter (where a.state = 'expired') as expired,
       count(*) filter (where a.state not in ('open', 'expired')) as otherwise,
       count(*) filter (where a.level = 1) as risen
from deputize.approvals a
"""
_ENTRIES = """
select count(*) as calls, coalesce(sum(n), 0)::bigint as entries, coalesce(max(n), 0) as most
from (select count(*) as n from deputize.audit_entries where call_id is not null group by tenant, call_id) as of_call
"""
_TOLD = "select kind, count(*) as n, count(distinct (ticket, grp)) as different from deputize.notices group by kind"


@dataclass(frozen=True, kw_only=True, slots=True)
class Swept:
    batches: Sequence[Batch]
    peak_mb: float
    last_mb: float
    cpu_seconds: float


async def prove(world: World) -> Verdict:
    postgres = await world.postgres()
    each, waiting = world.size(quick=3_000, full=100_000), world.size(quick=10_000, full=1_000_000)
    issuer, port = new_issuer(), world.free_port()
    people = await People.open(world, issuer, HERE)
    settings = people.settings(f"http://127.0.0.1:{port}") + f"remind_seconds = {REMIND_SECONDS}\n"
    gateway = await start_gateway(
        world, postgres.dsn, issuer, tools="orders.py", settings=settings, port=port, policies=ASKING
    )
    few = Crowd(over=1_500, rising=500, remind=500, waiting=0)
    none = await _swept(world, gateway, postgres, few, "tickets_timed")
    world.say(f"memory {none.peak_mb:.1f} MB where nothing else waits")
    crowd = Crowd(over=each, rising=each, remind=each, waiting=waiting)
    many = await _swept(world, gateway, postgres, crowd, "tickets_timed")
    facts = await _facts(postgres.dsn, few, crowd)
    looked = await look_at_pages(gateway, people, tickets=60, looks=world.size(quick=200, full=2000))
    world.say(f"{looked.looks} looks at tickets, p50 {looked.quantile(0.5)} ms")
    world.say("control: one ticket after the other")
    slow = await _swept(
        world, gateway, postgres, Crowd(over=AT_ONCE, rising=0, remind=0, waiting=0), "tickets_one_by_one"
    )
    one_by_one = _quantile([batch for batch in slow.batches if batch.over], 0.5)
    took, in_one = _took(many.batches)
    return Verdict(
        figures={
            "open": waiting + 2 * each,
            "batches": len(many.batches),
            **took,
            "cpu_ms_per_batch_with_postgres": round(1000 * many.cpu_seconds / len(many.batches), 1),
            "memory_mb": round(many.peak_mb, 1),
            "memory_of_none": round(many.peak_mb / none.peak_mb, 3),
            "memory_last_of_peak": round(many.last_mb / many.peak_mb, 3),
            **facts,
            "page_p99_ms": looked.quantile(0.99),
            "page_p50_ms": looked.quantile(0.5),
            "pages_that_failed": looked.failed,
            "one_by_one_batch_ms": one_by_one,
        },
        bars=_bars(world),
        controls={"ends one ticket after the other": one_by_one > 3 * in_one},
        notes=[
            f"{3 * each} of {waiting + 3 * each} tickets were due, a third of them over; batches of {AT_ONCE} on one "
            "gateway, each timed from the look for what is due to the last commit.",
            "Pages: the console's page of a ticket, one after the other over one connection, signed in.",
        ],
    )


def _bars(world: World) -> dict[str, Bar]:
    return {
        # Of the few batches of the quick form the slowest would be all there is to a p99.
        "batch_p99_ms" if world.full else "batch_p50_ms": ("<=", world.within(MOST_MS)),
        "memory_of_none": ("<=", 1.1),
        "page_p99_ms": ("<=", world.within(MOST_PAGE_MS)),
        "pages_that_failed": ("==", 0),
        "left_due": ("==", 0),
        "ended_otherwise": ("==", 0),
        "ended_twice_or_unproven": ("==", 0),
        "told_twice_or_not": ("==", 0),
    }


def _took(batches: Sequence[Batch]) -> tuple[dict[str, Figure], float]:
    """The figures of whole batches, and the median of those that end tickets. The first one after a start is apart: it
    loads every tenant's keys, and PostgreSQL plans every statement.
    """
    first, *others = [batch for batch in batches if batch.count == AT_ONCE]
    ending = [batch for batch in others if batch.over]
    figures: dict[str, Figure] = {
        "batch_p99_ms": _quantile(others, 0.99),
        "batch_over_p99_ms": _quantile(ending, 0.99),
        "batch_over_p50_ms": _quantile(ending, 0.5),
        "batch_moved_p99_ms": _quantile([batch for batch in others if not batch.over], 0.99),
        "batch_p50_ms": _quantile(others, 0.5),
        "first_batch_ms": round(first.ms, 1),
    }
    return figures, _quantile(ending, 0.5)


async def _swept(world: World, gateway: GatewayHandle, postgres: LocalPostgres, crowd: Crowd, variant: str) -> Swept:
    """From a start with so many tickets until nothing is due."""
    await gateway.child.stop()
    world.say(f"{crowd.due + crowd.waiting} tickets are opened, {crowd.due} of them due")
    await fill(postgres.dsn, crowd)
    await restart_as(gateway, variant)
    cpu = _cpu_seconds(gateway, postgres)
    sizes: list[float] = []
    connection = await asyncpg.connect(postgres.dsn)
    try:
        async with asyncio.timeout(1200):
            while await connection.fetchval(_DUE):
                for _ in range(4):
                    await asyncio.sleep(0.25)
                    sizes.append(_memory(gateway.child.pid))
    finally:
        await connection.close()
    cpu = _cpu_seconds(gateway, postgres) - cpu
    await asyncio.sleep(2)
    batches = batches_of(gateway.child)
    world.say(f"{len(batches)} batches, memory {max(sizes):.1f} MB")
    return Swept(batches=batches, peak_mb=max(sizes), last_mb=_memory(gateway.child.pid), cpu_seconds=cpu)


async def _facts(dsn: str, *crowds: Crowd) -> dict[str, Figure]:
    """Everything that was due was done once, and nothing else was."""
    over, rising = sum(each.over for each in crowds), sum(each.rising for each in crowds)
    reminded, waiting = sum(each.remind for each in crowds), sum(each.waiting for each in crowds)
    connection = await asyncpg.connect(dsn)
    try:
        due = await connection.fetchval(_DUE)
        [states] = await connection.fetch(_STATES)
        [entries] = await connection.fetch(_ENTRIES)
        told = {row["kind"]: (row["n"], row["different"]) for row in await connection.fetch(_TOLD)}
    finally:
        await connection.close()
    wrong = (
        abs(states["open"] - waiting - rising - reminded) + abs(states["expired"] - over) + states["otherwise"]
        + abs(states["risen"] - rising)
    )  # fmt: skip
    unproven = abs(entries["calls"] - over) + abs(entries["entries"] - over) + abs(entries["most"] - 1)
    # Two groups are asked at first, one more at the next level.
    expected = {"escalated": rising, "reminder": 2 * reminded}
    misses = sum(abs(told.get(kind, (0, 0))[place] - count) for kind, count in expected.items() for place in (0, 1))
    return {
        "left_due": int(due),
        "expired": int(states["expired"]),
        "ended_otherwise": int(wrong),
        "ended_twice_or_unproven": int(unproven),
        "told_twice_or_not": int(misses),
    }


def _quantile(batches: Sequence[Batch], share: float) -> float:
    """The milliseconds that this share of them did not exceed."""
    ordered = sorted(batch.ms for batch in batches)
    return round(ordered[ceil(share * len(ordered)) - 1], 1)


def _cpu_seconds(gateway: GatewayHandle, postgres: LocalPostgres) -> float:
    """Of the gateway and of PostgreSQL, which are all there is in this world."""
    return gateway.child.cpu_seconds() + postgres_cpu_seconds(postgres.pid)


def _memory(pid: int) -> float:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * 4096 / 1_000_000
