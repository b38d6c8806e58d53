"""A draft tried on what was really asked: the tenant's recorded decisions, page by page, against other policies.

Inside the gateway, so that nobody who writes policy needs the database. Reads as one tenant, in pages of ids, and
replays in a thread, so that calls go on meanwhile. Below: `govern/policy/backtest.py`, which asks and counts.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson

from deputize.core.caller import Caller
from deputize.core.clock import id_time_ms
from deputize.govern.decide import require_admin
from deputize.govern.policy.backtest import Backtest, Made
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.force import default_files
from deputize.govern.policy.rules import PolicyFile
from deputize.lifecycle.checking import checked
from deputize.lifecycle.record import DRY_RUN
from deputize.lifecycle.rooms import Rooms
from deputize.store.queries import load

PAGE = 2000
USUAL = timedelta(days=30)
_SQL = load("backtest")
# What happened to a call before or without its effect; an outcome repeats what its intent says.
_KINDS = frozenset({"read", "intent", "refusal"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far it is, in the time it looks back on."""

    entries: int
    share: float

    def to_json(self) -> dict[str, Any]:
        return {"progress": {"entries": self.entries, "share": round(self.share, 4)}}


class Backtests:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    async def begin(
        self, caller: Caller, files: Sequence[PolicyFile], since: datetime | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """Everything that can be refused is refused here; what is returned tells its progress, and last the result."""
        require_admin(caller)
        authority = await self._rooms.authority.of(caller.tenant)
        authority.revocations.check(caller)
        (await checked(authority, files)).require()
        draft = await asyncio.to_thread(CompiledPolicies, tuple(files) or default_files())
        start = since or self._rooms.clock.now() - USUAL
        # A time without a zone is read as UTC, like all times here.
        start_ms = int((start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp() * 1000)
        return self._run(caller.tenant, draft, authority.policy.digest, max(start_ms, 0))

    async def _run(
        self, tenant: str, draft: CompiledPolicies, in_force: str, since_ms: int
    ) -> AsyncIterator[dict[str, Any]]:
        began, until_ms = self._rooms.clock.monotonic(), self._rooms.clock.epoch_ms()
        backtest = Backtest(draft, engine=self._rooms.settings.policy.engine)
        last = first_id(since_ms)
        end = first_id(until_ms + 1)
        start_ms = await self._first_ms(tenant, last, end)
        entries = 0
        while start_ms is not None:
            page = await self._page(tenant, last, end)
            if not page:
                break
            entries, last = entries + len(page), str(page[-1]["id"])
            made = [each for row in page if (each := _made(row)) is not None]
            records = await self._records(tenant, backtest.unknown(each.record_id for each in made))
            await asyncio.to_thread(_take_in, backtest, records, made)
            share = (id_time_ms(last) - start_ms) / max(until_ms - start_ms, 1)
            yield Progress(entries=entries, share=min(share, 1.0)).to_json()
        report = await asyncio.to_thread(backtest.report)
        yield {
            "result": {
                "since_ms": since_ms,
                "until_ms": until_ms,
                "draft": draft.digest,
                "in_force": in_force,
                "seconds": round(self._rooms.clock.monotonic() - began, 3),
                "entries": entries,
                **report.to_json(),
            }
        }

    async def _first_ms(self, tenant: str, after: str, end: str) -> int | None:
        async with self._rooms.store.reading(tenant) as connection:
            found = await connection.fetchval(_SQL["first_entry_since"], tenant, after, end)
        return None if found is None else id_time_ms(str(found))

    async def _page(self, tenant: str, after: str, end: str) -> list[asyncpg.Record]:
        async with self._rooms.store.reading(tenant) as connection:
            return await connection.fetch(_SQL["entries_between"], tenant, after, end, PAGE)

    async def _records(self, tenant: str, ids: Sequence[str]) -> list[asyncpg.Record]:
        if not ids:
            return []
        async with self._rooms.store.reading(tenant) as connection:
            return await connection.fetch(_SQL["decision_records"], tenant, ids)


def first_id(ms: int) -> str:
    """The smallest UUIDv7 of a millisecond; no id is older than 1970."""
    time = f"{max(ms, 0):012x}"
    return f"{time[:8]}-{time[8:]}-0000-0000-000000000000"


def _take_in(backtest: Backtest, records: Sequence[asyncpg.Record], made: Sequence[Made]) -> None:
    for record in records:
        backtest.learn(record["id"], record["record"])
    for each in made:
        backtest.count(each)


def _made(row: asyncpg.Record) -> Made | None:
    """Calls that policies decided; what the token alone refused has no record."""
    entry = orjson.loads(row["entry"])
    record_id = entry.get("decision")
    if record_id is None or entry["kind"] not in _KINDS or entry.get("command") == DRY_RUN:
        return None
    return Made(
        call_id=entry["call"], record_id=record_id, at_ms=id_time_ms(str(row["id"])), session=entry.get("session")
    )
