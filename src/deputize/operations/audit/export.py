"""Export the audit as JSON lines or CSV, newest first, batch by batch: memory stays flat however much there is."""

import asyncio
import csv
import io
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, Literal
from uuid import UUID

import orjson

from deputize.core.caller import Caller
from deputize.core.errors import TokenExpired
from deputize.evidence.entry_filters import get_decision, list_resources
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader

AuditFormat = Literal["jsonl", "csv"]
_MAX_EXPORTS: Final = 2
_BATCH_ROWS: Final = 2000
_Row = tuple[UUID, bytes, dict[str, Any]]
_COLUMNS: Final = (
    "time", "id", "kind", "user", "agents", "tool", "version", "decision", "rules", "outcome", "error", "resources",
    "session", "trace", "call", "approval", "latency_us", "cost_micros", "command", "subject", "caller",
)  # fmt: skip
# A spreadsheet would run a cell that begins like this as a formula, some also if the sign is of full width.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


class AuditExport:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("exports of the audit", _MAX_EXPORTS)

    async def export(self, caller: Caller, query: AuditQuery, export_format: AuditFormat) -> AsyncIterator[bytes]:
        """Export what matches. The first chunk comes after the export was recorded; it may be empty.

        Raises in the middle when the token expires or is revoked, so that the response breaks off.
        """
        reader, tenant, clock = self._reader, caller.tenant, self._reader.runtime.clock
        with self._slots.take(caller):
            search = await reader.permit(caller, query)
            await reader.record(caller, "export_audit", f"{search.description} format={export_format}")
            yield b"" if export_format == "jsonl" else _encode_header()
            render: Callable[[Sequence[_Row], Mapping[str, str]], bytes]
            render = _render_lines if export_format == "jsonl" else _render_cells
            before: UUID | None = None
            while True:
                if 0 < caller.expires_at <= clock.epoch_ms() // 1000:
                    raise TokenExpired("the token expired, so the export ended")
                await reader.check_caller(caller)
                page = await reader.read_page(tenant, search, before, _BATCH_ROWS)
                if page.rows:
                    names = await reader.load_names(tenant, (each for row in page.rows for each in row[2]["caller"]))
                    yield await asyncio.to_thread(render, page.rows, names)
                if page.searched_to is None:
                    return
                before = page.searched_to


def _render_lines(rows: Sequence[_Row], names: Mapping[str, str]) -> bytes:
    """Render entries as JSON lines; the bytes of an entry stay as they are stored."""
    lines = []
    for _, raw, entry in rows:
        people = [names.get(each) for each in entry["caller"]]
        facts = orjson.dumps(
            {
                "id": entry["id"],
                "time": entry["time"],
                "user": people[0] if people else None,
                "agents": people[1:],
                "decision": get_decision(entry),
            }
        )
        lines.append(facts[:-1] + b',"entry":' + raw + b"}\n")
    return b"".join(lines)


def _encode_header() -> bytes:
    return (",".join(_COLUMNS) + "\r\n").encode()


def _render_cells(rows: Sequence[_Row], names: Mapping[str, str]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text)
    for _, _, entry in rows:
        caller = entry["caller"]
        people = [names.get(each, each) for each in caller]
        facts = {
            **entry,
            "user": people[0] if people else "",
            "agents": " ".join(people[1:]),
            "decision": get_decision(entry) or "",
            "rules": " ".join(entry.get("rules", ())),
            "resources": " ".join(list_resources(entry)),
            "caller": " ".join(caller),
        }
        writer.writerow([_guard_cell(facts.get(name, "")) for name in _COLUMNS])
    return text.getvalue().encode()


def _guard_cell(value: object) -> str:
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text
