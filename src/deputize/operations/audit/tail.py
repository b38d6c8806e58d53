"""Follow the audit live: entries as they are committed, for as long as the token is valid.

Entries are committed a moment after their ids are made, and by several gateways, so each look goes back a little and
leaves out what was sent. A client that reconnects may get the entries of that moment twice: their ids tell.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, Final
from uuid import UUID

from deputize.core.caller import Caller
from deputize.core.errors import TokenExpired
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader, PermittedSearch

_MAX_TAILS: Final = 8
_POLL_SECONDS: Final = 0.5
_OVERLAP_MS: Final = 2000
_PAGE_ROWS: Final = 200
# Of more entries between two looks, the newest are sent, and that others were left out.
_MAX_ROWS: Final = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class TailEvent:
    """New entries, oldest first; `is_gap` if older new ones were left out. The first event has none: it is open."""

    entries: list[dict[str, Any]]
    is_gap: bool = False


class AuditTail:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("live tails of the audit", _MAX_TAILS)

    async def follow(self, caller: Caller, query: AuditQuery, *, after: UUID | None) -> AsyncIterator[TailEvent]:
        """Follow the audit after an entry, or from now. Raises when the token expires or is revoked."""
        clock = self._reader.runtime.clock
        with self._slots.take(caller):
            search = await self._reader.permit(caller, query)
            # A gateway whose clock is ahead writes ids of the future: they must not hide what comes after them.
            now_ms = clock.epoch_ms()
            start_ms = now_ms if after is None else min(after.int >> 80, now_ms)
            await self._reader.record(caller, "tail_audit", search.description)
            yield TailEvent(entries=[])
            newest_ms, floor_ms = start_ms, start_ms if after is None else start_ms - _OVERLAP_MS
            sent_ids: set[UUID] = set()
            while True:
                if 0 < caller.expires_at <= clock.epoch_ms() // 1000:
                    raise TokenExpired("the token expired, so the tail ended")
                # Again, because a name may get its first entry, or be erased; and the caller may be revoked.
                search = await self._reader.permit(caller, query)
                first_ms = max(floor_ms, newest_ms - _OVERLAP_MS)
                event, ids = await self._look(caller.tenant, search, first_ms, sent_ids)
                sent_ids = {each for each in sent_ids | ids if each.int >> 80 >= first_ms}
                newest_ms = min(max([newest_ms, *(each.int >> 80 for each in ids)]), max(start_ms, clock.epoch_ms()))
                if event.entries or event.is_gap:
                    yield event
                await asyncio.sleep(_POLL_SECONDS)

    async def _look(
        self, tenant: str, search: PermittedSearch, first_ms: int, sent_ids: set[UUID]
    ) -> tuple[TailEvent, set[UUID]]:
        window = replace(search, first=max(search.first, UUID(int=max(first_ms, 0) << 80)))
        rows: list[tuple[UUID, bytes, dict[str, Any]]] = []
        before, is_gap = None, False
        while True:
            page = await self._reader.read_page(tenant, window, before, _PAGE_ROWS)
            rows += [row for row in page.rows if row[0] not in sent_ids]
            before = page.searched_to
            is_gap = before is not None and (page.is_cut or len(rows) >= _MAX_ROWS)
            if before is None or is_gap:
                break
        rows.reverse()
        entries = await self._reader.describe_entries(tenant, rows)
        return TailEvent(entries=entries, is_gap=is_gap), {row[0] for row in rows}
