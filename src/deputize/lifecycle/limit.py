"""Around what follows authorization: the call is let in by its limits, and let go of however it ends.

Comes before the claim, so that a refusal consumes no key; a replay, which only the claim can tell, gives its charge
back. Above: `run.py`. Below: `govern/limits`.
"""

from dataclasses import replace
from types import TracebackType

from deputize.core.errors import OutcomeUnknown, Problem
from deputize.govern.limits.admission import Admission, Concerned, Limits
from deputize.govern.limits.rules import Asked, micros
from deputize.lifecycle.phases import Authorized, Verified
from deputize.lifecycle.rooms import Rooms


class Unlimited:
    """A call that no rule concerns: nothing to note, nothing to give back."""

    __slots__ = ()

    def __enter__(self) -> "Unlimited":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        pass

    def noted(self, authorized: Authorized) -> Authorized:
        """The call as it goes on; where a rule could not be counted, its outcome will say so."""
        return authorized

    def for_nothing(self, authorized: Authorized) -> Authorized:
        """As `noted`, for a call that is counted and will not be made: whatever it would cost, it costs nothing."""
        return authorized

    def replayed(self) -> None:
        """This call's key already had an outcome."""

    def came_to(self, verified: Verified) -> None:
        """The tool has ended, and may have said what it cost."""


class Limited(Unlimited):
    __slots__ = ("_admission", "_cost", "_limits", "_ran", "_replayed")

    def __init__(self, limits: Limits, admission: Admission) -> None:
        self._limits, self._admission = limits, admission
        self._replayed = self._ran = False
        self._cost: int | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        # A coroutine that is thrown away with its loop has nobody left to tell; its slots expire.
        if isinstance(error, GeneratorExit):
            return
        # What is refused on its way to the tool costs nothing; what the gateway lost track of may have cost all of it.
        if isinstance(error, Problem) and not self._ran and not isinstance(error, OutcomeUnknown):
            self._cost = 0
        self._limits.end(self._admission, replayed=self._replayed, cost=self._cost)

    def noted(self, authorized: Authorized) -> Authorized:
        if not self._admission.uncounted:
            return authorized
        validated = authorized.validated
        warnings = validated.warnings + self._admission.uncounted
        return replace(authorized, validated=replace(validated, warnings=warnings))

    def for_nothing(self, authorized: Authorized) -> Authorized:
        self._cost = 0
        return self.noted(authorized)

    def replayed(self) -> None:
        self._replayed = True

    def came_to(self, verified: Verified) -> None:
        self._ran = True
        said, problem = verified.said, verified.problem
        if said is not None and said.cost is not None:
            self._cost = micros(said.cost)
        elif problem is not None and problem.nothing_happened:
            self._cost = 0


UNLIMITED = Unlimited()


def admit_now(rooms: Rooms, authorized: Authorized) -> Unlimited | None:
    """Without waiting, for nearly all calls; None where shared counters or a slice of a budget must be asked for."""
    validated = authorized.validated
    concerned = rooms.limits.concerning(validated.received.caller.tenant, validated.tool.name)
    if concerned is None:
        return UNLIMITED
    admission = rooms.limits.admit_now(concerned, _asked(authorized))
    return None if admission is None else Limited(rooms.limits, admission)


async def admit(rooms: Rooms, authorized: Authorized) -> Unlimited:
    validated = authorized.validated
    concerned = rooms.limits.concerning(validated.received.caller.tenant, validated.tool.name)
    assert isinstance(concerned, Concerned)
    return Limited(rooms.limits, await rooms.limits.admit(concerned, _asked(authorized)))


def _asked(authorized: Authorized) -> Asked:
    validated = authorized.validated
    received = validated.received
    return Asked(
        call_id=received.call_id,
        caller=received.caller,
        contract=validated.tool.contract,
        session=received.session,
        canonical=validated.asked,
    )
