"""Describe how far each event sink has got: for the operator, over all tenants."""

from collections.abc import Sequence
from typing import Any, Literal

import asyncpg

from deputize.core.settings import EventSinkSettings
from deputize.operations.background.events.publisher import load_lag, select_tenants
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

_SQL = load_statements("events")


async def describe_sinks(connection: Connection, sinks: Sequence[EventSinkSettings]) -> list[dict[str, Any]]:
    """Describe the sinks of the settings, and those that only the database still knows."""
    rows = {row["name"]: row for row in await connection.fetch(_SQL["list_sinks"])}
    tenants = await connection.fetch(_SQL["list_tenant_names"])
    descriptions = []
    for sink in sinks:
        row, names = rows.pop(sink.name, None), select_tenants(sink, tenants)
        has_started = row is not None and row["started_at"] is not None
        waiting_count = await connection.fetchval(_SQL["count_waiting_entries"], sink.name, names) if has_started else 0
        lag = await load_lag(connection, sink.name, names) if has_started else 0.0
        descriptions.append({"name": sink.name, "kind": sink.kind, **_describe_row(row, waiting_count, lag)})
    for name, row in rows.items():
        descriptions.append({"name": name, "kind": None, **_describe_row(row, None, None), "state": "not configured"})
    return descriptions


def _describe_row(row: asyncpg.Record | None, waiting_count: int | None, lag: float | None) -> dict[str, Any]:
    return {
        "state": _tell_state(row),
        "sent": 0 if row is None else row["sent_count"],
        "waiting": waiting_count,
        "lag_seconds": None if lag is None else round(lag, 3),
        "last_sent_at": _format_time(row, "sent_at"),
        "failures": 0 if row is None else row["failures"],
        "last_error": None if row is None else row["last_error"],
        "last_error_at": _format_time(row, "failed_at"),
    }


def _tell_state(row: asyncpg.Record | None) -> Literal["not started", "failing", "sending", "no publisher"]:
    if row is None or row["started_at"] is None:
        return "not started"
    if row["failures"]:
        return "failing"
    return "sending" if row["is_held"] else "no publisher"


def _format_time(row: asyncpg.Record | None, column: str) -> str | None:
    return None if row is None or row[column] is None else str(row[column].isoformat(timespec="seconds"))
