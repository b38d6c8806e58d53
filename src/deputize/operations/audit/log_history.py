"""Show what it takes to verify a whole log: checkpoints, entries that it lacks, and the receipt of any entry."""

from typing import Any, Final
from uuid import UUID

from deputize.core.caller import Caller
from deputize.core.errors import AuditEntryNotFound
from deputize.evidence.tenant_log.receipts import make_receipt
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader
from deputize.operations.audit.log_reader import LogReader
from deputize.store.queries import load_statements

# How many entries one request compares with the log.
_COMPARED_ENTRIES: Final = 5000
_MAX_COMPARISONS: Final = 2
_SQL = load_statements("log")
_AUDIT = load_statements("audit_search")


class LogHistory:
    def __init__(self, entries: EntryReader, log_reader: LogReader) -> None:
        self._entries = entries
        self._log_reader = log_reader
        self._slots = TenantSlots("comparisons of the audit with its log", _MAX_COMPARISONS)

    async def list_checkpoints(self, caller: Caller, tenant: str, *, after: int, limit: int) -> dict[str, Any]:
        """List signed checkpoints by size, beginning after a size."""
        await self._log_reader.require_reader(caller, tenant)
        async with self._entries.runtime.store.read_transaction(tenant) as connection:
            rows = await connection.fetch(_SQL["list_checkpoints"], tenant, after, limit)
        checkpoints = [
            {
                "size": row["size"],
                "note": row["note"].decode(errors="replace"),
                "signed_at": row["signed_at"].isoformat(timespec="seconds"),
            }
            for row in rows
        ]
        return {"checkpoints": checkpoints}

    async def find_unlogged_entries(self, caller: Caller, tenant: str, *, after: UUID) -> dict[str, Any]:
        """Find entries that are neither in the log nor about to be: no gateway writes such an entry."""
        await self._log_reader.require_reader(caller, tenant)
        with self._slots.take(caller):
            async with self._entries.runtime.store.read_transaction(tenant) as connection:
                row = await connection.fetchrow(_SQL["find_unlogged_entries"], tenant, after, _COMPARED_ENTRIES)
        assert row is not None
        is_last = row["entries"] < _COMPARED_ENTRIES
        return {
            "entry_ids": [] if row["has_backlog"] else [str(each) for each in row["ids"]],
            "next_after": None if is_last or row["has_backlog"] else str(row["last_id"]),
            "has_backlog": row["has_backlog"],
        }

    async def make_receipt(self, caller: Caller, entry_id: str) -> dict[str, Any]:
        """Make the receipt of an entry that the caller may see, and record that it was given out."""
        search = await self._entries.permit(caller, AuditQuery())
        entry = await self._entries.load_entry(caller.tenant, entry_id)
        if entry is None or not await self._entries.is_match(search, entry):
            raise AuditEntryNotFound(
                "no audit entry has this id, or it is not yours", details={"entry_id": entry_id[:64]}
            )
        async with self._entries.runtime.store.read_transaction(caller.tenant, repeatable=True) as connection:
            row = await connection.fetchrow(_AUDIT["load_entry"], caller.tenant, UUID(entry_id))
            content = b"" if row is None else row["entry"]
            receipt, keys = await make_receipt(connection, caller.tenant, str(UUID(entry_id)), content)
        await self._entries.record(caller, "prove_audit_entry", f"entry={UUID(entry_id)}")
        return {"entry_id": str(UUID(entry_id)), "receipt": receipt, "verifier_keys": keys}
