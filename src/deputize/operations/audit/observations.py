"""Report what agents did: read the audit and the decision records of a period, and let a job judge the calls.

For administrators. It reads in pages, the newest calls first, at most `MAX_CALLS` and `MAX_REPORT_BYTES`; the report
says if there were more. `govern/observation/` has the rules. Every report is an audit entry.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from deputize.catalog.effect_proposals import propose_effects
from deputize.core.caller import Caller
from deputize.core.clock import parse_id_time_ms
from deputize.core.entry_kinds import DRY_RUN
from deputize.core.errors import TokenExpired, ToolNotFound, Unavailable
from deputize.govern.limits.tenant_slots import TenantSlots
from deputize.govern.observation.observed_call import MAX_TEXT_LENGTH
from deputize.govern.observation.report import report_job
from deputize.govern.token_authorization import require_admin_scope
from deputize.operations.audit.entry_reader import AuditQuery, EntryReader
from deputize.store.queries import load_statements

MAX_CALLS: Final = 50_000
# Agents choose how long arguments are: what is kept of one call's facts, and of all calls of a report.
MAX_FACT_BYTES: Final = 4096
MAX_REPORT_BYTES: Final = 67_108_864
DEFAULT_PERIOD: Final = timedelta(days=7)
_SQL = load_statements("backtest")
_MAX_REPORTS: Final = 2
_PAGE_ROWS: Final = 2000
_JOB_SECONDS: Final = 60
_MAX_ITEMS: Final = 100
_CALL_KINDS: Final = frozenset({"read", "refusal", "intent", "outcome"})
_Row = tuple[UUID, bytes, dict[str, Any]]


class Observations:
    def __init__(self, reader: EntryReader) -> None:
        self._reader = reader
        self._slots = TenantSlots("reports of observations", _MAX_REPORTS)

    async def report_calls(self, caller: Caller, since: datetime | None = None) -> dict[str, Any]:
        """Report the calls of the tenant since a time, by default of the last seven days."""
        require_admin_scope(caller)
        reader = self._reader
        start = since or reader.runtime.clock.now() - DEFAULT_PERIOD
        start = start if start.tzinfo else start.replace(tzinfo=UTC)
        with self._slots.take(caller):
            query = AuditQuery(since=start)
            search = await reader.permit(caller, query)
            await reader.record(caller, "report_observations", search.description)
            collection = CallCollection()
            before: UUID | None = None
            is_complete = False
            while not is_complete and not collection.is_full:
                if 0 < caller.expires_at <= reader.runtime.clock.epoch_ms() // 1000:
                    raise TokenExpired("the token expired, so the report ended")
                await reader.check_caller(caller)
                page = await reader.read_page(caller.tenant, search, before, _PAGE_ROWS)
                await self._collect_page(caller.tenant, collection, page.rows)
                before, is_complete = page.searched_to, page.searched_to is None
            payload = await asyncio.to_thread(lambda: orjson.dumps(list(collection.calls.values())))
            reply = await reader.runtime.admin_jobs.run_job(caller.tenant, report_job, payload, seconds=_JOB_SECONDS)
        if reply is None:
            raise Unavailable(
                "the report took too long or too much memory: ask for a shorter period", retry_after_ms=1000
            )
        return {"since": start.isoformat(), "is_complete": is_complete, **orjson.loads(reply)}

    async def _collect_page(self, tenant: str, collection: "CallCollection", rows: Sequence[_Row]) -> None:
        entries = [entry for _, _, entry in rows if _is_call(entry)]
        names = await self._reader.load_names(tenant, (each for entry in entries for each in entry["caller"]))
        ids = collection.list_new_records(entries)
        records: Mapping[str, bytes] = {}
        if ids:
            async with self._reader.runtime.store.read_transaction(tenant) as connection:
                record_rows = await connection.fetch(_SQL["load_decision_records"], tenant, ids)
            records = {row["id"]: row["record"] for row in record_rows}
        await asyncio.to_thread(collection.add_entries, entries, names, records)


class CallCollection:
    """Calls put together from their entries, newest first, as far as the report needs them."""

    def __init__(self, max_bytes: int = MAX_REPORT_BYTES) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self._max_bytes = max_bytes
        self._size = 0
        self._effects: dict[str, str] = {}

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another page."""
        return len(self.calls) >= MAX_CALLS or self._size >= self._max_bytes

    def list_new_records(self, entries: Sequence[Mapping[str, Any]]) -> list[str]:
        """List the decision records that their calls do not have yet."""
        return list(
            dict.fromkeys(
                record_id
                for entry in entries
                if (record_id := entry.get("decision")) is not None
                and self.calls.get(entry["call"], {}).get("record") != record_id
            )
        )

    def add_entries(
        self, entries: Sequence[Mapping[str, Any]], names: Mapping[str, str], records: Mapping[str, bytes]
    ) -> None:
        """Add a page of entries with the decision records that `list_new_records` named."""
        facts_by_record = {record_id: _read_record(orjson.loads(record)) for record_id, record in records.items()}
        for entry in entries:
            self._add_entry(entry, names, facts_by_record)

    def _add_entry(
        self, entry: Mapping[str, Any], names: Mapping[str, str], records: Mapping[str, dict[str, Any]]
    ) -> None:
        call = self.calls.get(entry["call"])
        old_size = 0 if call is None else _measure_call(call)
        if call is None:
            call = self.calls[entry["call"]] = self._begin_call(entry, names)
        call["at"] = min(call["at"], parse_id_time_ms(entry["id"]))
        # Entries of one millisecond are in no order, and of several ends the newest counts.
        if entry["kind"] != "intent" and not call["outcome"]:
            call |= _read_end(entry)
            if call["error"] == ToolNotFound.spec.e_number:
                # No system has this tool: its name may be any text.
                call["system"] = ""
        record_id = entry.get("decision", "")
        if record_id in records:
            record = records[record_id]
            inferred_effects = self._infer_effects(entry["tool"], record["effects"])
            call |= {"record": record_id, "inferred": inferred_effects, **record}
        call["suspicions"] = sorted({*call["suspicions"], *map(str, entry.get("suspicions", ()))})
        self._size += _measure_call(call) - old_size

    def _begin_call(self, entry: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
        user, *agents = [names.get(each, each) for each in entry["caller"]] or [""]
        return {
            "call": entry["call"], "user": user, "agents": agents, "tool": entry["tool"],
            "system": entry["tool"].partition(".")[0], "effects": "", "inferred": "destructive", "facts": {},
            "lengths": {}, "secret": [], "suspicions": [], "outcome": "", "error": "", "cost": 0, "bytes": 0,
            "session": entry.get("session", ""), "at": parse_id_time_ms(entry["id"]),
        }  # fmt: skip

    def _infer_effects(self, tool: str, effects: str) -> str:
        """Infer what a tool does that no one has confirmed: undeclared effects count as destructive."""
        if effects != "destructive":
            return effects
        if tool not in self._effects:
            self._effects[tool] = propose_effects({"name": tool.partition(".")[2]}).effects.value
        return self._effects[tool]


def _is_call(entry: Mapping[str, Any]) -> bool:
    return entry["kind"] in _CALL_KINDS and "call" in entry and "tool" in entry and entry.get("command") != DRY_RUN


def _read_end(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Read how a call ended from the entry that says it."""
    return {
        "outcome": entry.get("outcome", ""),
        "error": entry.get("error", ""),
        "cost": entry.get("cost_micros", 0),
        "bytes": (entry.get("summary") or {}).get("bytes", 0),
    }


def _measure_call(call: Mapping[str, Any]) -> int:
    return len(orjson.dumps(call))


def _read_record(body: Mapping[str, Any]) -> dict[str, Any]:
    """Read from a decision record what the report needs.

    Long texts and lists are cut, and their length is kept. Facts stay bytes until the job reads them, so that many
    short ones take no more memory than `MAX_FACT_BYTES`.
    """
    values = {name: value for name, value in body["context"]["facts"].items() if value is not None}
    facts: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    # A fact that is cut away keeps its name: an argument that is not known would get no limit in the drafted policy.
    room = MAX_FACT_BYTES - sum(len(name.encode()) for name in values)
    for name, value in values.items():
        kept_value = _cut_value(value, room)
        facts[name] = kept_value
        room -= len(orjson.dumps(kept_value))
        if isinstance(value, str | list):
            lengths[name] = len(value)
    return {
        "system": body["tool"].get("server") or body["tool"]["namespace"],
        "effects": body["tool"]["effects"],
        "facts": orjson.Fragment(orjson.dumps(facts)),
        "lengths": orjson.Fragment(orjson.dumps(lengths)),
        "secret": [each.removeprefix("facts.") for each in body["redacted"]],
    }


def _cut_value(value: Any, room: int) -> Any:
    """Cut a text or a list to what a report compares, and to nothing where there is no room."""
    if isinstance(value, str):
        text = value[:MAX_TEXT_LENGTH]
        return text if len(orjson.dumps(text)) <= room else ""
    if not isinstance(value, list):
        return value
    kept_values: list[str] = []
    for each in value[:_MAX_ITEMS]:
        text = str(each)[:MAX_TEXT_LENGTH]
        room -= len(orjson.dumps(text)) + 1
        if room < 0:
            break
        kept_values.append(text)
    return kept_values
