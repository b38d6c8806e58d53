"""Change the circuits that all gateways share, each change of state with its audit entry in the same transaction."""

from collections.abc import Sequence

import structlog

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.evidence.audit_entries import AuditContext, TimestampFormatter, encode_entry
from deputize.execute.circuits.circuit import Circuit, CircuitEvent
from deputize.execute.circuits.storage import (
    SQL,
    CircuitKey,
    StoredCircuit,
    list_pauses,
    list_unclosed_circuits,
    lock_circuit,
    save_circuit,
    to_time,
)
from deputize.store.pool import Connection, Store
from deputize.store.queries import load_statements

_RUNS = load_statements("runs")
log = structlog.get_logger(__name__)


class SharedCircuits:
    """The circuits in the database. A row's lock makes one change follow the other."""

    def __init__(self, store: Store, clock: Clock, stamps: TimestampFormatter) -> None:
        self._store, self._clock, self._stamps = store, clock, stamps

    async def request_trial(self, key: CircuitKey, trial_id: str, seconds: float) -> tuple[StoredCircuit, bool]:
        """Request a trial of at most these seconds; return the circuit, and whether it allows the trial."""
        async with self._store.write_transaction() as connection:
            stored_circuit = await lock_circuit(connection, key)
            circuit = stored_circuit.circuit.grant_trial(trial_id, now=stored_circuit.now, seconds=seconds)
            if circuit is None:
                return stored_circuit, False
            await self._save_change(connection, key, stored_circuit.circuit, circuit)
        return StoredCircuit(key=key, circuit=circuit, now=stored_circuit.now), True

    async def apply_events(self, key: CircuitKey, events: Sequence[CircuitEvent]) -> StoredCircuit:
        """Apply what happened in this process, in order, and return the circuit."""
        async with self._store.write_transaction() as connection:
            stored_circuit = await lock_circuit(connection, key)
            offset = stored_circuit.now - self._clock.monotonic()
            circuit = stored_circuit.circuit
            for event in events:
                before, circuit = circuit, event.apply(circuit, offset)
                if circuit.epoch != before.epoch:
                    await self._record_transition(connection, key, before, circuit)
            if circuit != stored_circuit.circuit:
                await save_circuit(connection, key, circuit)
        return StoredCircuit(key=key, circuit=circuit, now=stored_circuit.now)

    async def store_pause(self, key: CircuitKey, seconds: float) -> None:
        """Store that a service asked not to be called for so long."""
        async with self._store.write_transaction() as connection:
            await connection.execute(SQL["store_pause"], *key, seconds)

    async def list_circuits_and_pauses(self) -> tuple[list[StoredCircuit], list[tuple[CircuitKey, float]]]:
        """List the circuits of all tenants that are not closed, and the services that asked for a pause, with the
        seconds that are left of it.
        """
        async with self._store.write_transaction() as connection:
            return await list_unclosed_circuits(connection), await list_pauses(connection)

    async def _save_change(self, connection: Connection, key: CircuitKey, before: Circuit, after: Circuit) -> None:
        if after.epoch != before.epoch:
            await self._record_transition(connection, key, before, after)
        await save_circuit(connection, key, after)

    async def _record_transition(
        self, connection: Connection, key: CircuitKey, before: Circuit, after: Circuit
    ) -> None:
        tenant, service = key
        entry_id = self._clock.new_id()
        entry = encode_entry(
            # It names no caller: the calls of many may have led to it.
            AuditContext(caller=Caller(tenant=tenant, user=""), trace_id=entry_id.replace("-", "")),
            id=entry_id,
            kind="circuit",
            time=self._stamps.now(),
            subject=service,
            outcome=after.state,
        )
        await connection.execute(_RUNS["insert_audit_entry"], tenant, entry_id, None, entry, None)
        await connection.execute(
            SQL["insert_transition"],
            tenant,
            entry_id,
            service,
            after.epoch,
            before.state,
            after.state,
            to_time(after.changed_at),
            after.reason,
        )
        log.warning(
            "circuit_changed", tenant=tenant, service=service, state=after.state, before=before.state,
            reason=after.reason,
        )  # fmt: skip
