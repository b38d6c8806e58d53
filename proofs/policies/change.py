"""A policy change meets calls: three gateways under load while policies are put, judged by PostgreSQL's commit order.

Every set that is put holds one rule, named after its number, that permits or forbids everything. So each entry says
which set it was decided by, and the database says which set held when it committed.
"""

import asyncio
import bisect
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, put_policies, start_gateway
from proofs.kit.wire import Line
from proofs.kit.world import World

_LOOPS = (("act", 2), ("look", 1))
_PAUSE_SECONDS = (0.03, 0.12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    gateways: tuple[GatewayHandle, ...]
    ledger: LedgerHandle
    issuer: Issuer
    dsn: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    id: str
    write: bool
    released: bool
    slug: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One entry of a call: what it is, the number of the set it was decided by, and when it committed (µs)."""

    kind: str
    number: int | None
    at: int


@dataclass(kw_only=True, slots=True)
class Found:
    wrong: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    puts: int = 0
    calls: int = 0
    stopped: int = 0
    lag_us: int = 0

    def violation(self, what: str, call: Call, distance_us: int) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            self.samples.append(f"{what}: call {call.id}, {distance_us / 1000:+.3f} ms")

    def total(self, sign: str) -> int:
        return sum(count for what, count in self.wrong.items() if what.startswith(sign))


async def open_site(world: World) -> Site:
    postgres = await world.postgres()
    ledger = await start_ledger(world)
    issuer = new_issuer()
    env = {"PROOF_LEDGER": ledger.url}
    gateways = [
        await start_gateway(world, postgres.dsn, issuer, name=name, tools="barrier.py", env=env) for name in "abc"
    ]
    return Site(gateways=tuple(gateways), ledger=ledger, issuer=issuer, dsn=postgres.dsn)


async def changes_under_load(world: World, site: Site, puts: int, name: str) -> Found:
    """Puts sets one after the other, through all gateways in turn, while calls go on; then judges every call."""
    stop = asyncio.Event()
    calls: list[Call] = []
    numbers = itertools.count(1)
    async with asyncio.TaskGroup() as group:
        for gateway, (tool, loops) in itertools.product(site.gateways, _LOOPS):
            for _ in range(loops):
                group.create_task(_call_until(site.issuer, gateway, tool, stop, calls, numbers))
        await _put_one_after_another(site, puts)
        stop.set()
    found = await _judge(site, calls)
    said = ", ".join(f"{count} {what}" for what, count in sorted(found.wrong.items())) or "no violation"
    world.say(f"{name}: {found.puts} changes, {found.calls} calls, {found.stopped} stopped at the barrier: {said}")
    return found


async def _put_one_after_another(site: Site, puts: int) -> None:
    dice = random.Random(7)
    admin = site.issuer.token("admin", scopes=("deputize:admin",))
    first = await _sets_so_far(site.dsn) + 1
    for number in range(first, first + puts):
        effect = "forbid" if number % 2 else "permit"
        text = f'@id("set-{number}") {effect} (principal, action, resource);'
        await put_policies(site.gateways[number % len(site.gateways)].url, admin, text)
        await asyncio.sleep(dice.uniform(*_PAUSE_SECONDS))


async def _sets_so_far(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from deputize.policies where tenant = 'acme'"))
    finally:
        await connection.close()


async def _call_until(
    issuer: Issuer, gateway: GatewayHandle, tool: str, stop: asyncio.Event, calls: list[Call], numbers: Any
) -> None:
    line = Line.to(gateway.url, token=issuer.token(f"user-{gateway.name}"))
    while not stop.is_set():
        number = next(numbers)
        key = {"Idempotency_Key": f"{gateway.name}-{number}-{id(stop)}"} if tool == "act" else {}
        asked = {"tool": f"barrier.{tool}", "arguments": {"word": f"w{number}"}}
        answer = await line.post("/v1/calls", asked, **key)
        said = answer.json()
        slug = None if answer.status == 200 else said["error"]["slug"]
        calls.append(Call(id=said["call_id"], write=tool == "act", released=answer.status == 200, slug=slug))
    line.close()


async def _judge(site: Site, calls: Sequence[Call]) -> Found:
    effects = Counter(effect.key for effect in await site.ledger.effects())
    connection = await asyncpg.connect(site.dsn)
    try:
        rows, sets = await _rows(connection), await _sets(connection)
    finally:
        await connection.close()
    found = Found(puts=sum(number is not None for number, _, _ in sets), calls=len(calls))
    times = [at for _, _, at in sets]
    if times != sorted(times):
        found.wrong["other: epochs in another order than commits"] += 1
    for call in calls:
        _judge_call(found, call, rows.get(call.id, []), effects, sets, times)
    return found


Set = tuple[int | None, bool, int]
"""A set's number (None before the first), whether it permits, and when it committed."""


def _judge_call(
    found: Found, call: Call, rows: Sequence[Row], effects: Counter[str], sets: Sequence[Set], times: Sequence[int]
) -> None:
    deciding = [row for row in rows if row.kind in ("intent", "read")]
    refusals = [row for row in rows if row.kind == "refusal"]
    went_on = effects[call.id] > 0 if call.write else call.released
    if call.slug not in (None, "permission-denied"):
        found.violation(f"other: {call.slug}", call, 0)
    if effects[call.id] > 1 or len(deciding) > 1 or (went_on and not deciding):
        found.violation("other: not exactly one row and effect", call, 0)
    for row in (*deciding, *refusals):
        _judge_row(found, call, row, sets, times)
    if not deciding:
        return
    number, permits, since = sets[bisect.bisect_right(times, deciding[0].at) - 1]
    if went_on and not permits:
        found.violation("late: acted on the policy before", call, deciding[0].at - since)
    if not went_on:
        found.stopped += 1
        if permits or any(row.number != number for row in refusals):
            found.violation("early: refused by a policy that did not hold yet", call, deciding[0].at - since)


def _judge_row(found: Found, call: Call, row: Row, sets: Sequence[Set], times: Sequence[int]) -> None:
    """An entry may be decided by a set that was just replaced, and by none that was not yet there."""
    # A gateway that starts puts its own set again, so one number may have been in force twice.
    places = [place for place, each in enumerate(sets) if each[0] == row.number]
    if not places:
        found.violation("other: decided by a set nobody put", call, 0)
        return
    place = max((each for each in places if times[each] <= row.at), default=places[0])
    # A refusal that follows the barrier is decided as of the commit before it, whose set is there by then.
    if row.at < times[place]:
        found.violation("early: decided by a set before its commit", call, row.at - times[place])
    if place + 1 < len(sets) and row.at > times[place + 1]:
        found.lag_us = max(found.lag_us, row.at - times[place + 1])


async def _rows(connection: "asyncpg.Connection[Any]") -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for call, entry, at in await connection.fetch(
        """
        select call_id::text, entry, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.audit_entries where tenant = 'acme' and call_id is not null
        """
    ):
        told = orjson.loads(entry)
        numbers = [int(rule.removeprefix("set-")) for rule in told.get("rules", ()) if rule.startswith("set-")]
        row = Row(kind=told["kind"], number=numbers[0] if numbers else None, at=at)
        found.setdefault(call, []).append(row)
    return found


async def _sets(connection: "asyncpg.Connection[Any]") -> list[Set]:
    rows = await connection.fetch(
        """
        select files, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.policies where tenant = 'acme' order by changed_epoch
        """
    )
    return [_set(orjson.loads(files)[0]["text"], at) for files, at in rows]


def _set(text: str, at: int) -> Set:
    number = int(text.partition("set-")[2].partition('"')[0]) if "set-" in text else None
    return number, "permit" in text, at
