"""Read and change the circuits that all gateways share, in PostgreSQL. Times there are those of the database."""

from datetime import UTC, datetime
from typing import Any, Final

import asyncpg

from deputize.core.contract.reliability import CircuitBreaker
from deputize.core.value_types import frozen
from deputize.execute.circuits.circuit import Circuit, CircuitState
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

SQL: Final = load_statements("circuits")
# How many circuits that are not closed a gateway follows, and how many of one tenant.
MAX_CIRCUITS: Final = 10_000
MAX_TENANT_CIRCUITS: Final = 200

# Tenant and service.
CircuitKey = tuple[str, str]


@frozen
class StoredCircuit:
    """A circuit in the database's time, and what its clock said when it was read."""

    key: CircuitKey
    circuit: Circuit
    now: float


async def lock_circuit(connection: Connection, key: CircuitKey) -> StoredCircuit:
    """Lock a circuit until the transaction ends, and load it; a service without one gets a closed one."""
    row = await connection.fetchrow(SQL["lock_circuit"], *key)
    if row is None:
        await connection.execute(SQL["ensure_circuit"], *key)
        row = await connection.fetchrow(SQL["lock_circuit"], *key)
    assert row is not None
    return _parse_row(row)


async def save_circuit(connection: Connection, key: CircuitKey, circuit: Circuit) -> None:
    """Save a circuit that this transaction has locked."""
    await connection.execute(
        SQL["save_circuit"],
        *key,
        circuit.state,
        circuit.epoch,
        to_time(circuit.changed_at),
        circuit.reason,
        [to_time(each) for each in circuit.failures],
        circuit.rules.success_threshold,
        circuit.rules.timeout_seconds,
        circuit.rules.half_open_max_calls,
        circuit.successes,
        list(circuit.trials),
        [to_time(each) for each in circuit.trials.values()],
    )


async def list_unclosed_circuits(connection: Connection) -> list[StoredCircuit]:
    """List the circuits of all tenants that are not closed."""
    rows = await connection.fetch(SQL["list_unclosed_circuits"], MAX_TENANT_CIRCUITS, MAX_CIRCUITS)
    return [_parse_row(row) for row in rows]


async def list_pauses(connection: Connection) -> list[tuple[CircuitKey, float]]:
    """List the services of all tenants that asked not to be called, and for how many seconds more."""
    rows = await connection.fetch(SQL["list_pauses"], MAX_TENANT_CIRCUITS, MAX_CIRCUITS)
    return [((row["tenant"], row["service"]), row["seconds"]) for row in rows]


async def report_circuits(connection: Connection, tenant: str, limit: int) -> list[dict[str, Any]]:
    """Report a tenant's circuits that are not closed or have counted failures lately, the newest first."""
    rows = await connection.fetch(SQL["list_circuits"], tenant, limit)
    return [
        {
            "service": row["service"],
            "state": row["state"],
            "since": format_time(row["changed_at"]) if row["epoch"] else None,
            "retry_at": format_time(row["retry_at"]) if row["state"] == CircuitState.OPEN else None,
            "reason": row["reason"] or None,
            "failures": row["failures"],
        }
        for row in rows
    ]


def format_time(time: datetime) -> str:
    """Format a time of a circuit for people and programs."""
    return time.isoformat(timespec="milliseconds")


def _parse_row(row: asyncpg.Record) -> StoredCircuit:
    trials = zip(row["trial_ids"], row["trial_ends"], strict=True)
    rules = CircuitBreaker(
        success_threshold=row["success_threshold"],
        timeout_seconds=row["timeout_seconds"],
        half_open_max_calls=row["half_open_max_calls"],
    )
    circuit = Circuit(
        state=CircuitState(row["state"]),
        epoch=row["epoch"],
        changed_at=row["changed_at"].timestamp(),
        reason=row["reason"],
        failures=tuple(each.timestamp() for each in row["failures"]),
        rules=rules,
        successes=row["successes"],
        trials={str(trial_id): ends_at.timestamp() for trial_id, ends_at in trials},
    )
    return StoredCircuit(key=(row["tenant"], row["service"]), circuit=circuit, now=row["now"].timestamp())


def to_time(seconds: float) -> datetime:
    """Convert seconds since 1970 to a time."""
    return datetime.fromtimestamp(max(seconds, 0.0), UTC)
