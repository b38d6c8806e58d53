"""Follow the audit live: entries as they are committed, for as long as the token is valid.

One feed per tenant and process reads for all who follow, so many who look cost as many queries as one. Each of them
matches what the feed read with their own query and authority. The feed keeps what it read for the moment only, and for
all alike: who takes it too slowly is told that entries were left out, and holds up no one.

Entries are committed a moment after their ids are made, and by several gateways, so each look goes back a little and
leaves out what was read. A client that reconnects may get the entries of that moment twice: their ids tell.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import TokenExpired
from deputize.core.subject import AGENT_PREFIX
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.operations.audit.entry_reader import (
    PAGE_SECONDS,
    AuditQuery,
    EntryReader,
    EntryRow,
    PermittedSearch,
    describe_entry,
)
from deputize.store.queries import load_statements

_SQL = load_statements("audit_search")
_MAX_TAILS: Final = 256
_MAX_TAILS_OF_USER: Final = 16
# The more follow, the longer between two looks, so that what all of them take of the process stays bounded.
_POLL_SECONDS: Final = 0.5
_POLL_SECONDS_PER_FOLLOWER: Final = 0.02
_MAX_POLL_SECONDS: Final = 2.0
_OVERLAP_MS: Final = 2000
_PAGE_ROWS: Final = 200
# Of more entries between two looks, the newest are sent, and that others were left out.
_MAX_ROWS: Final = 2000
# So many entries of the moment before are known again.
_MAX_KNOWN_IDS: Final = 20_000
# So many looks wait for those who are slower than the feed.
_MAX_LOOKS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class TailEntry:
    """An entry as it is described, and as it is sent: formatted once for all who get it in the same format."""

    id: UUID
    description: dict[str, Any]
    _formatted: dict[str, bytes] = field(default_factory=dict)

    def format_once(self, name: str, build: Callable[[dict[str, Any]], bytes]) -> bytes:
        """Return the entry in the format of this name; all who name it alike build it alike."""
        if name not in self._formatted:
            self._formatted[name] = build(self.description)
        return self._formatted[name]


@dataclass(frozen=True, kw_only=True, slots=True)
class TailEvent:
    """New entries, oldest first; `is_gap` if older new ones were left out. The first event has none: it is open."""

    entries: Sequence[TailEntry]
    is_gap: bool = False


class AuditTail:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("live tails of the audit", _MAX_TAILS, per_user=_MAX_TAILS_OF_USER)
        self._feeds: dict[str, _TenantFeed] = {}

    async def follow(
        self, caller: Caller, query: AuditQuery, *, after: UUID | None, most: int = _MAX_ROWS, is_page: bool = False
    ) -> AsyncIterator[TailEvent]:
        """Follow the audit after an entry, or from now. Raises when the token expires or is revoked.

        Of more new entries at once than `most`, the newest are in the event. A tail of a page of the console that was
        opened again within a minute is recorded once it is open for longer.
        """
        clock = self._reader.runtime.clock
        with self._slots.take(caller), self._join(caller.tenant) as feed:
            search = await self._reader.permit(caller, query)
            position = feed.number
            # A gateway whose clock is ahead writes ids of the future: they must not hide what comes after them.
            now_ms = clock.epoch_ms()
            first_ms = now_ms if after is None else min(after.int >> 80, now_ms) - _OVERLAP_MS
            first = UUID(int=max(first_ms, 0) << 80)
            is_recorded = await self._record(caller, search, is_page=is_page)
            yield TailEvent(entries=())
            sent_ids: set[UUID] = set()
            last_doubling_look = 0
            if after is not None:
                event = await self._catch_up(caller, query, first, most)
                sent_ids = {each.id for each in event.entries}
                # The next look may have begun, and the one after it may be the first to see what was just read.
                last_doubling_look = feed.number + 2
                if event.entries or event.is_gap:
                    yield event
            while True:
                looks = await feed.wait_for_looks(position)
                if 0 < caller.expires_at <= clock.epoch_ms() // 1000:
                    raise TokenExpired("the token expired, so the tail ended")
                await self._reader.check_caller(caller)
                is_recorded = is_recorded or await self._record(caller, search, is_page=is_page)
                is_gap = looks[0].number > position + 1 or any(each.is_gap for each in looks)
                position = looks[-1].number
                matches = [await each.list_matches(self._reader, caller, query) for each in looks]
                entries = [entry for each in matches for entry in each]
                if sent_ids or any(each[0].id < first for each in matches if each):
                    entries = [each for each in entries if each.id >= first and each.id not in sent_ids]
                if entries or is_gap:
                    yield TailEvent(entries=entries[-most:], is_gap=is_gap or len(entries) > most)
                if position >= last_doubling_look:
                    sent_ids = set()

    async def _record(self, caller: Caller, search: PermittedSearch, *, is_page: bool) -> bool:
        if is_page:
            look = search.description
            return await self._reader.record_look(caller, "tail_audit", look, seconds=PAGE_SECONDS)
        await self._reader.record(caller, "tail_audit", search.description)
        return True

    @contextmanager
    def _join(self, tenant: str) -> Iterator["_TenantFeed"]:
        """Take part in the tenant's feed, which is there as long as someone does."""
        feed = self._feeds.setdefault(tenant, _TenantFeed(self._reader, tenant))
        feed.follower_count += 1
        try:
            yield feed
        finally:
            feed.follower_count -= 1
            if not feed.follower_count:
                del self._feeds[tenant]
                feed.close()

    async def _catch_up(self, caller: Caller, query: AuditQuery, first: UUID, most: int) -> TailEvent:
        """Read what was committed since an id, which the feed does not read again."""
        search = await self._reader.permit(caller, query)
        rows: list[EntryRow] = []
        before, is_gap = None, False
        while True:
            page = await self._reader.read_page(caller.tenant, search, before, min(_PAGE_ROWS, most))
            rows += [row for row in page.rows if row[0] >= first]
            before = page.searched_to
            is_over = before is None or before <= first
            is_gap = not is_over and (page.is_cut or len(rows) >= most)
            if is_over or is_gap:
                break
        rows.reverse()
        descriptions = await self._reader.describe_entries(caller.tenant, rows)
        return TailEvent(
            entries=[TailEntry(row[0], each) for row, each in zip(rows, descriptions, strict=True)], is_gap=is_gap
        )


class _TenantFeed:
    """What a tenant's audit got since its followers looked last."""

    def __init__(self, reader: EntryReader, tenant: str) -> None:
        self.follower_count = 0
        # The number of the newest look.
        self.number = 0
        self._reader = reader
        self._tenant = tenant
        self._looks: deque[_Look] = deque(maxlen=_MAX_LOOKS)
        self._next_look: asyncio.Task[None] | None = None
        self._due_at = 0.0
        self._start_ms = self._newest_ms = reader.runtime.clock.epoch_ms()
        self._oldest_id = UUID(int=0)
        self._known_ids: set[UUID] = set()

    async def wait_for_looks(self, position: int) -> "list[_Look]":
        """Wait for looks after the one of this number. The first who waits lets the feed look, for all."""
        while self.number <= position:
            if self._next_look is None or self._next_look.done():
                # In a context of its own, not in the request of whoever asked first.
                self._next_look = asyncio.create_task(self._look(), context=contextvars.Context())
            # One who leaves does not end the look of the others.
            await asyncio.shield(self._next_look)
        return [each for each in self._looks if each.number > position]

    def close(self) -> None:
        """End the look that no one waits for."""
        if self._next_look is not None:
            self._next_look.cancel()

    async def _look(self) -> None:
        clock = self._reader.runtime.clock
        await asyncio.sleep(self._due_at - clock.monotonic())
        seconds = _POLL_SECONDS + _POLL_SECONDS_PER_FOLLOWER * self.follower_count
        self._due_at = clock.monotonic() + min(seconds, _MAX_POLL_SECONDS)
        first = max(self._oldest_id, UUID(int=max(self._newest_ms - _OVERLAP_MS, 0) << 80))
        limit = min(_MAX_ROWS + len(self._known_ids), _MAX_KNOWN_IDS)
        async with self._reader.runtime.store.read_transaction(self._tenant) as connection:
            ids = [row["id"] for row in await connection.fetch(_SQL["list_newest_ids"], self._tenant, first, limit + 1)]
            new_ids = [each for each in ids if each not in self._known_ids]
            is_gap = len(new_ids) > _MAX_ROWS or len(ids) > limit
            new_ids = new_ids[:_MAX_ROWS]
            rows = await connection.fetch(_SQL["load_entries"], self._tenant, new_ids[-1], new_ids) if new_ids else []
        entries = [(row["id"], row["entry"], orjson.loads(row["entry"])) for row in rows]
        subjects = await self._reader.load_subjects(
            self._tenant, (name for row in entries for name in row[2]["caller"])
        )
        if is_gap:
            self._oldest_id = (new_ids or ids)[-1]
        self._known_ids = set(ids)
        newest_ms = max([self._newest_ms, *(each.int >> 80 for each in ids[:1])])
        self._newest_ms = min(newest_ms, max(self._start_ms, clock.epoch_ms()))
        self.number += 1
        self._looks.append(_Look(self.number, entries, subjects, is_gap=is_gap))


class _Look:
    """The entries that a feed read at one time, oldest first, for all who follow."""

    def __init__(self, number: int, rows: Sequence[EntryRow], subjects: Mapping[str, str], *, is_gap: bool) -> None:
        self.number = number
        self.is_gap = is_gap
        self._pseudonyms = {subject: pseudonym for pseudonym, subject in subjects.items()}
        names = {pseudonym: subject.removeprefix(AGENT_PREFIX) for pseudonym, subject in subjects.items()}
        self._rows = rows
        self._rows_by_user: dict[str, list[EntryRow]] = {}
        for row in rows:
            self._rows_by_user.setdefault(row[2]["caller"][0] if row[2]["caller"] else "", []).append(row)
        self._entries = {row[0]: TailEntry(row[0], describe_entry(row[2], names)) for row in rows}
        self._shared_matches: dict[object, list[TailEntry]] = {}

    async def list_matches(self, reader: EntryReader, caller: Caller, query: AuditQuery) -> list[TailEntry]:
        """List what matches a query, and its caller may see. Readers of the whole tenant share what they ask alike."""
        key = (query, caller.capabilities) if caller.is_auditor else None
        if key is None or key not in self._shared_matches:
            search = reader.limit_query(caller, query, self._pseudonyms)
            user = None if search.filter is None else search.filter.user
            rows = self._rows if user is None else self._rows_by_user.get(user, [])
            matches = await reader.list_matches(search, [row for row in rows if search.first <= row[0] < search.before])
            entries = [self._entries[row[0]] for row in matches]
            if key is None:
                return entries
            self._shared_matches[key] = entries
        return self._shared_matches[key]
