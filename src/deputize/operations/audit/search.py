"""Search the audit page by page, and show one entry."""

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import AuditEntryNotFound
from deputize.evidence.agent_tool_events import list_events
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.operations.audit.entry_reader import (
    PAGE_SECONDS,
    SEARCH_MS,
    AuditQuery,
    EntryPage,
    EntryReader,
    PermittedSearch,
    get_time_of_id,
)
from deputize.store.queries import load_statements

_SQL = load_statements("audit_search")
# Each uses a connection of the pool for at most a few seconds; calls need some too.
_MAX_SEARCHES: Final = 4


class AuditSearch:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("searches of the audit", _MAX_SEARCHES)

    async def search(
        self, caller: Caller, query: AuditQuery, *, before: UUID | None, limit: int, is_page: bool = False
    ) -> dict[str, Any]:
        """Search newest first. The search is recorded before its result is released; that of a page of the console,
        once in a minute.
        """
        with self._slots.take(caller):
            search = await self._reader.permit(caller, query)
            page = await self._fill_page(caller.tenant, search, before, limit)
            entries = await self._reader.describe_entries(caller.tenant, page.rows)
        if is_page:
            look = search.description if before is None else f"{search.description} before={before}"
            await self._reader.record_look(caller, "search_audit", look, seconds=PAGE_SECONDS)
        else:
            await self._reader.record(caller, "search_audit", search.description)
        return {
            "entries": entries,
            "next_before": None if page.searched_to is None else str(page.searched_to),
            "is_complete": not page.is_cut,
            "detail": _explain_cut(page),
        }

    async def _fill_page(self, tenant: str, search: PermittedSearch, before: UUID | None, limit: int) -> EntryPage:
        """Read on while the index let entries pass that do not match, which is rare, for as long as one search may."""
        clock = self._reader.runtime.clock
        ends_at = clock.monotonic() + SEARCH_MS / 1000
        rows: list[tuple[UUID, bytes, dict[str, Any]]] = []
        while True:
            page = await self._reader.read_page(tenant, search, before, limit - len(rows))
            rows += page.rows
            if page.is_cut or page.searched_to is None or len(rows) >= limit:
                return EntryPage(rows=rows, searched_to=page.searched_to, is_cut=page.is_cut)
            if clock.monotonic() > ends_at:
                return EntryPage(rows=rows, searched_to=page.searched_to, is_cut=True)
            before = page.searched_to

    async def find_calls_from(
        self, caller: Caller, query: AuditQuery, call_ids: Sequence[str], first: UUID
    ) -> set[str]:
        """Find which of these calls have an entry that matches and is not older than an id.

        A list with a row for each call, newest first, has shown them on an earlier page.
        """
        search = await self._reader.permit(caller, query)
        async with self._reader.runtime.store.read_transaction(caller.tenant) as connection:
            rows = await connection.fetch(
                _SQL["list_entries_of_calls_from"], caller.tenant, list(call_ids), first, search.before
            )
        entries = [orjson.loads(row["entry"]) for row in rows]
        return {each["call"] for each in entries if await self._reader.is_match(search, each)}

    async def show_entry(self, caller: Caller, entry_id: str) -> dict[str, Any]:
        """Show one entry with the events that it records."""
        search = await self._reader.permit(caller, AuditQuery())
        entry = await self._reader.load_entry(caller.tenant, entry_id)
        if entry is None or not await self._reader.is_match(search, entry):
            raise AuditEntryNotFound(
                "no audit entry has this id, or it is not yours", details={"entry_id": entry_id[:64]}
            )
        (description,) = await self._reader.describe_entries(caller.tenant, [(UUID(entry["id"]), b"", entry)])
        await self._reader.record(caller, "show_audit_entry", f"entry={entry['id']}")
        return {**description, "events": list_events(entry)}


def _explain_cut(page: EntryPage) -> str | None:
    if not page.is_cut or page.searched_to is None:
        return None
    return (
        "The search stopped after about a second: everything since "
        f"{get_time_of_id(page.searched_to).isoformat(timespec='seconds')} was searched. Narrow it by time, caller, "
        "tool, session or trace, or continue with older entries."
    )
