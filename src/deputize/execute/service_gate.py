"""Let a call pass to its external service: the circuit and the rate must allow it, and a slot must be free.

Every call to a service enters here before its claim, so that one that is refused consumes no idempotency key and was
never sent.
"""

import asyncio

from deputize.core.contract.contract import Contract, ServiceLimits
from deputize.core.contract.tools import AnyTool
from deputize.core.errors import CircuitOpen, Problem
from deputize.execute.bulkheads import Bulkheads, ServiceSlot
from deputize.execute.circuits.breakers import CircuitBreakers, TrialPermit
from deputize.execute.service_rates import ServiceRates, Turn


class ServicePermit:
    """What a call to a service was admitted with: its slot, the endpoint, its trial if the circuit of that is not
    closed, and its turn if the rate is limited.
    """

    __slots__ = ("_slot", "_turn", "endpoint", "trial")

    def __init__(
        self, slot: ServiceSlot, trial: TrialPermit | None, turn: Turn | None = None, *, endpoint: int = 0
    ) -> None:
        self._slot = slot
        self._turn = turn
        self.endpoint = endpoint
        self.trial = trial

    def use_turn(self) -> None:
        """Leave the call counted, because its tool may reach the service from now on."""
        self._turn = None

    def end_trial(self, has_succeeded: bool | None, reason: str = "") -> None:
        """Report what the call says about the service, if it was a trial."""
        if self.trial is not None:
            self.trial.end(has_succeeded, reason)

    def hold_for_thread(self, thread: "asyncio.Future[object]") -> None:
        """Keep the slot until a thread that outlives its call has ended."""
        self._slot.hold_for_thread(thread)

    def release(self) -> None:
        """Release the slot, the place of a trial that had no result, and a turn that was not used."""
        self.end_trial(None)
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.give_back()
        self._slot.release()


class ServiceGate:
    """The way to all external services of this process."""

    def __init__(self, circuits: CircuitBreakers, bulkheads: Bulkheads, rates: ServiceRates) -> None:
        self._circuits = circuits
        self._bulkheads = bulkheads
        self.rates = rates

    async def admit_now(self, tenant: str, tool: AnyTool, contract: Contract) -> ServicePermit | None:
        """Let a call pass that has nothing to wait for; None if its circuit, slots or rate may be against it."""
        if not self._circuits.is_closed(tenant, contract):
            return None
        slot = self._bulkheads.take_now(
            self._bulkheads.build_request(tenant, contract, uses_thread=not tool.is_async, is_run=False)
        )
        if slot is None or not self.rates.is_limited(contract):
            return None if slot is None else ServicePermit(slot, None)
        try:
            turn = await self.rates.request_turn(tenant, contract)
        except BaseException:
            slot.release()
            raise
        permit = ServicePermit(slot, None, None if isinstance(turn, Problem) else turn)
        # The circuit may have opened while the call was counted.
        if isinstance(turn, Problem) or not self._circuits.is_closed(tenant, contract):
            permit.release()
            return None
        return permit

    async def admit_call(self, tenant: str, tool: AnyTool, contract: Contract, *, seconds: float) -> ServicePermit:
        """Let a call pass, after a wait within these seconds; raise `CircuitOpen`, `ServiceBusy` or what limits the
        rate.
        """
        endpoint, trial = await self._choose_endpoint(tenant, contract)
        request = self._bulkheads.build_request(tenant, contract, uses_thread=not tool.is_async, is_run=False)
        slot = self._bulkheads.take_now(request)
        if slot is not None and not self.rates.is_limited(contract):
            return ServicePermit(slot, trial, endpoint=endpoint)
        loop = asyncio.get_running_loop()
        # What the contract allows holds for both waits together.
        seconds = min(seconds, (contract.service_limits or ServiceLimits()).effective_wait_seconds)
        ends_at = loop.time() + seconds
        turn = None
        try:
            slot = slot or await self._bulkheads.wait_for_slot(request, seconds)
            # With its slot: so only as many calls wait for the rate as may be made at once.
            turn = await self.rates.wait_for_turn(tenant, contract, ends_at - loop.time())
            if trial is None:
                # The circuit may have opened while the call waited.
                endpoint, trial = await self._choose_endpoint(tenant, contract)
            return ServicePermit(slot, trial, turn, endpoint=endpoint)
        except BaseException:
            if trial is not None:
                trial.end(None)
            if turn is not None:
                turn.give_back()
            if slot is not None:
                slot.release()
            raise

    async def admit_run(self, tenant: str, tool: AnyTool, contract: Contract) -> ServicePermit:
        """Let a run pass, or raise what it waits for in its queue."""
        endpoint, trial = await self._choose_endpoint(tenant, contract)
        request = self._bulkheads.build_request(tenant, contract, uses_thread=not tool.is_async, is_run=True)
        slot, turn = self._bulkheads.take_now(request), None
        try:
            if slot is None:
                raise self._bulkheads.build_refusal(request)
            if self.rates.is_limited(contract):
                turn = await self.rates.take_turn_now(tenant, contract)
        except BaseException:
            if trial is not None:
                trial.end(None)
            if slot is not None:
                slot.release()
            raise
        return ServicePermit(slot, trial, turn, endpoint=endpoint)

    async def move_to_next_endpoint(self, tenant: str, contract: Contract, permit: ServicePermit) -> bool:
        """Move a call to the next endpoint that lets it pass, because the one it has cannot be connected to; False if
        there is none.
        """
        next_endpoint = permit.endpoint + 1
        if not self._circuits.has_endpoint(tenant, contract, next_endpoint):
            return False
        permit.end_trial(None)
        try:
            permit.endpoint, permit.trial = await self._circuits.admit_call(tenant, contract, next_endpoint)
        except CircuitOpen:
            return False
        return True

    async def _choose_endpoint(self, tenant: str, contract: Contract) -> tuple[int, TrialPermit | None]:
        if not self._circuits.unclosed_circuits:
            return 0, None
        return await self._circuits.admit_call(tenant, contract)
