"""Keep the circuits of this process, and let calls pass or refuse them.

A closed circuit costs a call nothing: calls look only whether any circuit is not closed. What happens here acts at once
on this process's copy and waits in `pending_events` until the background task has applied it to the circuit that all
gateways share (`operations/background/circuit_sync.py`). Trials are granted by the shared circuit alone, so that all
gateways together never make more of them than it allows; while the database does not answer, none is granted.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract, MutationClass, UpstreamIdempotency
from deputize.core.errors import CircuitOpen
from deputize.execute.circuits.circuit import Circuit, CircuitEvent, CircuitState, EndedTrial, FailedCall
from deputize.execute.circuits.storage import MAX_CIRCUITS, MAX_TENANT_CIRCUITS, CircuitKey, StoredCircuit
from deputize.store.pool import CONNECTION_ERRORS

# Of one circuit, until they are applied; more say nothing new.
_MAX_PENDING: Final = 200
# How long a call waits for the database to grant it a trial.
_GRANT_SECONDS: Final = 10.0
# A trial gives its place to another call so long after the time of its own is over, and after a minute at the latest:
# one long call must not keep the others from finding out that the service works.
_TRIAL_MARGIN_SECONDS: Final = 5.0
_MAX_TRIAL_SECONDS: Final = 60.0
# After the last trial was given away, no other one is requested for so long.
_FULL_SECONDS: Final = 0.5
_RETRY_AFTER_MS: Final = 1000
_LEVELS: Final = {CircuitState.CLOSED: 0, CircuitState.HALF_OPEN: 1, CircuitState.OPEN: 2}

# Requests a trial from the shared circuit: its key, the trial's id and seconds. Returns the circuit and whether it was
# granted.
RequestTrial = Callable[[CircuitKey, str, float], Awaitable[tuple[StoredCircuit, bool]]]


@dataclass(kw_only=True, slots=True)
class _LocalCircuit:
    """A circuit in the time of this process, and what is not applied to the shared one yet."""

    circuit: Circuit = field(default_factory=Circuit)
    pending_events: list[CircuitEvent] = field(default_factory=list)
    is_requesting: bool = False
    full_until: float = 0.0
    # How often a trial was requested: what was read before is older than what the request returned.
    request_count: int = 0

    def apply(self, event: CircuitEvent) -> None:
        self.circuit = event.apply(self.circuit, 0.0)
        if len(self.pending_events) < _MAX_PENDING:
            self.pending_events.append(event)


@dataclass(kw_only=True, slots=True)
class TrialPermit:
    """The permission of one call to try a service whose circuit is not closed."""

    key: CircuitKey
    trial_id: str
    breakers: "CircuitBreakers"
    has_ended: bool = False

    def end(self, has_succeeded: bool | None, reason: str = "") -> None:
        """Report the result, once; None if the service was not reached."""
        if not self.has_ended:
            self.has_ended = True
            self.breakers.end_trial(self.key, self.trial_id, has_succeeded, reason)


class CircuitBreakers:
    """The circuits of this process, at most so many of each tenant.

    `further_circuits` names those of the further URLs of HTTP services, by the circuit of the first. An `endpoint` is
    the place of a URL in that order.
    """

    def __init__(
        self,
        clock: Clock,
        request_trial: RequestTrial,
        further_circuits: Mapping[CircuitKey, tuple[str, ...]] | None = None,
    ) -> None:
        self._clock = clock
        self._request_trial = request_trial
        self._further_circuits = further_circuits or {}
        self._circuits: dict[CircuitKey, _LocalCircuit] = {}
        self._counts_by_tenant: Counter[str] = Counter()
        # Those that are not closed; empty nearly always, which is all that a call looks at.
        self.unclosed_circuits: dict[CircuitKey, _LocalCircuit] = {}
        # Set when something waits to be shared.
        self.wake_event = asyncio.Event()

    async def admit_call(
        self, tenant: str, contract: Contract, first_endpoint: int = 0
    ) -> tuple[int, TrialPermit | None]:
        """Let a call pass to the first endpoint whose circuit allows it, as a trial where that is half open, or raise
        `CircuitOpen`.
        """
        refusal: CircuitOpen | None = None
        for endpoint, key in enumerate(self._list_keys(tenant, contract)):
            if endpoint < first_endpoint:
                continue
            try:
                return endpoint, await self._admit_to_endpoint(key, contract)
            except CircuitOpen as problem:
                refusal = refusal or problem
        if refusal is not None:
            raise refusal
        return 0, None

    def has_endpoint(self, tenant: str, contract: Contract, endpoint: int) -> bool:
        """Tell whether calls of a contract may go to an endpoint."""
        return endpoint < len(self._list_keys(tenant, contract))

    def _list_keys(self, tenant: str, contract: Contract) -> tuple[CircuitKey, ...]:
        """List the circuits of the endpoints that calls of a contract may go to, in their order."""
        if contract.external_service is None:
            return ()
        key = (tenant, contract.external_service)
        # A write that may be repeated stays at one endpoint: another may not recognize the repetition.
        is_bound = contract.mutation_class is not MutationClass.READ and (
            contract.idempotency.upstream is not UpstreamIdempotency.CANNOT
        )
        if contract.handler.driver != "http" or is_bound:
            return (key,)
        return key, *((tenant, name) for name in self._further_circuits.get(key, ()))

    async def _admit_to_endpoint(self, key: CircuitKey, contract: Contract) -> TrialPermit | None:
        local_circuit = self.unclosed_circuits.get(key)
        if local_circuit is None:
            return None
        circuit, now = local_circuit.circuit, self._clock.monotonic()
        is_paused = circuit.state is CircuitState.OPEN and now < circuit.retry_at
        if is_paused or local_circuit.is_requesting or now < local_circuit.full_until:
            raise self._build_refusal(key, circuit)
        trial_id = self._clock.new_id()
        seconds = min(contract.timeout.effective_seconds + _TRIAL_MARGIN_SECONDS, _MAX_TRIAL_SECONDS)
        local_circuit.is_requesting = True
        try:
            async with asyncio.timeout(_GRANT_SECONDS):
                stored_circuit, is_granted = await self._request_trial(key, trial_id, seconds)
        except CONNECTION_ERRORS as error:
            raise self._build_refusal(key, circuit) from error
        finally:
            local_circuit.is_requesting = False
        local_circuit.request_count += 1
        self._replace_circuit(local_circuit, stored_circuit)
        self._note_state(key, local_circuit)
        if is_granted:
            return TrialPermit(key=key, trial_id=trial_id, breakers=self)
        if stored_circuit.circuit.state is CircuitState.CLOSED:
            return None
        local_circuit.full_until = self._clock.monotonic() + _FULL_SECONDS
        raise self._build_refusal(key, local_circuit.circuit)

    def is_closed(self, tenant: str, contract: Contract, endpoint: int = 0) -> bool:
        """Tell whether calls to an endpoint of a contract's service pass freely."""
        if not self.unclosed_circuits or contract.external_service is None:
            return True
        return self._list_keys(tenant, contract)[endpoint] not in self.unclosed_circuits

    def find_pause(self, tenant: str, contract: Contract) -> CircuitOpen | None:
        """Return the refusal that calls get for now, or None if they pass or may try an endpoint again."""
        pauses = [self._find_endpoint_pause(key) for key in self._list_keys(tenant, contract)]
        return pauses[0] if pauses and None not in pauses else None

    def _find_endpoint_pause(self, key: CircuitKey) -> CircuitOpen | None:
        local_circuit = self.unclosed_circuits.get(key)
        if local_circuit is None or local_circuit.circuit.state is not CircuitState.OPEN:
            return None
        is_over = self._clock.monotonic() >= local_circuit.circuit.retry_at
        return None if is_over else self._build_refusal(key, local_circuit.circuit)

    def record_failure(self, tenant: str, contract: Contract, reason: str, endpoint: int = 0) -> None:
        """Count a call that failed because of an endpoint of its service."""
        if contract.external_service is None:
            return
        key = self._list_keys(tenant, contract)[endpoint]
        local_circuit = self._circuits.get(key) or self._add_circuit(key)
        if local_circuit is None or local_circuit.circuit.state is not CircuitState.CLOSED:
            return
        self._apply_event(key, FailedCall(at=self._clock.monotonic(), rules=contract.breaker, reason=reason))

    def end_trial(self, key: CircuitKey, trial_id: str, has_succeeded: bool | None, reason: str) -> None:
        """Count the result of a trial."""
        local_circuit = self._circuits.get(key)
        if local_circuit is not None:
            local_circuit.full_until = 0.0
            event = EndedTrial(
                at=self._clock.monotonic(), trial_id=trial_id, has_succeeded=has_succeeded, reason=reason
            )
            self._apply_event(key, event)

    def iterate_states(self) -> Iterator[tuple[CircuitKey, CircuitState]]:
        """Iterate over the circuits that this process knows, and their states."""
        return ((key, each.circuit.state) for key, each in list(self._circuits.items()))

    def iterate_levels(self) -> Iterator[tuple[str, int]]:
        """Iterate over the services of all tenants, and how far each circuit is from closed."""
        return ((service, _LEVELS[state]) for (_, service), state in self.iterate_states())

    # For the background task that shares circuits.

    def take_events(self) -> dict[CircuitKey, list[CircuitEvent]]:
        """Take what is not shared yet."""
        self.wake_event.clear()
        events = {key: each.pending_events for key, each in self._circuits.items() if each.pending_events}
        for key in events:
            self._circuits[key].pending_events = []
        return events

    def return_events(self, key: CircuitKey, events: list[CircuitEvent]) -> None:
        """Take back what could not be shared, before what happened since."""
        local_circuit = self._circuits.get(key)
        if local_circuit is not None:
            local_circuit.pending_events = [*events, *local_circuit.pending_events][:_MAX_PENDING]

    def count_requests(self) -> dict[CircuitKey, int]:
        """Count the requests for trials so far, to recognize what changes while the shared circuits are read."""
        return {key: each.request_count for key, each in self.unclosed_circuits.items()}

    def update_circuit(self, stored_circuit: StoredCircuit) -> None:
        """Take over one shared circuit; what happened since is applied again."""
        key = stored_circuit.key
        local_circuit = self._circuits.get(key) or self._add_circuit(key)
        if local_circuit is not None:
            self._replace_circuit(local_circuit, stored_circuit)
            self._note_state(key, local_circuit)

    def update_circuits(self, stored_circuits: list[StoredCircuit], request_counts: dict[CircuitKey, int]) -> None:
        """Take over all shared circuits that are not closed; every other one is."""
        stored_keys = set()
        for stored_circuit in stored_circuits:
            stored_keys.add(key := stored_circuit.key)
            local_circuit = self.unclosed_circuits.get(key)
            if local_circuit is None or local_circuit.request_count == request_counts.get(key):
                self.update_circuit(stored_circuit)
        for key in [each for each in request_counts if each not in stored_keys]:
            local_circuit = self.unclosed_circuits.get(key)
            has_news = local_circuit is None or bool(local_circuit.pending_events)
            if local_circuit is not None and not has_news and local_circuit.request_count == request_counts[key]:
                local_circuit.circuit = Circuit()
                self._note_state(key, local_circuit)

    def drop_idle_circuits(self, seconds: float) -> None:
        """Drop closed circuits whose last failure or change is so long ago."""
        now = self._clock.monotonic()
        for key, each in list(self._circuits.items()):
            circuit = each.circuit
            newest = max((circuit.changed_at, *circuit.failures))
            if circuit.state is CircuitState.CLOSED and not each.pending_events and newest < now - seconds:
                del self._circuits[key]
                self._counts_by_tenant[key[0]] -= 1

    def _apply_event(self, key: CircuitKey, event: CircuitEvent) -> None:
        local_circuit = self._circuits[key]
        local_circuit.apply(event)
        self._note_state(key, local_circuit)
        self.wake_event.set()

    def _replace_circuit(self, local_circuit: _LocalCircuit, stored_circuit: StoredCircuit) -> None:
        circuit = stored_circuit.circuit.shift_times(self._clock.monotonic() - stored_circuit.now)
        for event in local_circuit.pending_events:
            circuit = event.apply(circuit, 0.0)
        local_circuit.circuit = circuit

    def _note_state(self, key: CircuitKey, local_circuit: _LocalCircuit) -> None:
        if local_circuit.circuit.state is CircuitState.CLOSED:
            self.unclosed_circuits.pop(key, None)
        else:
            self.unclosed_circuits[key] = local_circuit

    def _add_circuit(self, key: CircuitKey) -> _LocalCircuit | None:
        """Add a circuit; None if there are too many."""
        if len(self._circuits) >= MAX_CIRCUITS or self._counts_by_tenant[key[0]] >= MAX_TENANT_CIRCUITS:
            return None
        self._counts_by_tenant[key[0]] += 1
        local_circuit = self._circuits[key] = _LocalCircuit()
        return local_circuit

    def _build_refusal(self, key: CircuitKey, circuit: Circuit) -> CircuitOpen:
        now, service = self._clock.monotonic(), key[1]
        open_seconds = max(now - circuit.changed_at, 0.0)
        details = {"service": service, "state": str(circuit.state), "for_seconds": round(open_seconds, 1)}
        if circuit.state is CircuitState.HALF_OPEN or now >= circuit.retry_at:
            return CircuitOpen(
                f"{service} failed before, and only a few calls at a time try whether it works again",
                details=details,
                retry_after_ms=_RETRY_AFTER_MS,
            )
        return CircuitOpen(
            f"calls to {service} have been paused for {open_seconds:.0f} s, because it kept failing: {circuit.reason}",
            details=details,
            retry_after_ms=int((circuit.retry_at - now) * 1000) + 1,
        )
