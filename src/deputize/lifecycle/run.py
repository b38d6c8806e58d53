"""The one way through: request → validate → authorize → execute → verify → reply, on one screen.

Every call from every door passes `Lifecycle.run`. Each phase takes the type the one before it made, so leaving one out
does not type-check. This is the only file that opens spans; deadlines are set in `validate` and only shrink from there.
"""

from collections.abc import Coroutine
from typing import Any

from deputize.core.call import CallRequest
from deputize.core.caller import Caller
from deputize.core.clock import Deadline
from deputize.core.errors import Problem
from deputize.core.outcome import Outcome
from deputize.core.telemetry import Span
from deputize.lifecycle.authorize import allowed_by_token, authorize
from deputize.lifecycle.claim import AnsweredFor
from deputize.lifecycle.execute import execute
from deputize.lifecycle.limit import admit, admit_now
from deputize.lifecycle.phases import Received, Validated
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.settle import refuse, settle
from deputize.lifecycle.validate import validate
from deputize.lifecycle.verify import verify


class Lifecycle:
    def __init__(self, rooms: Rooms) -> None:
        self.rooms = rooms

    def run(self, caller: Caller, request: CallRequest) -> Coroutine[Any, Any, Outcome]:
        """Any call, to its end. Raises nothing a caller could cause: every refusal is an outcome too."""
        received = self._receive(caller, request)
        return self._carry(received) if received.trail.tracer is None else self._trace(received)

    async def _trace(self, received: Received) -> Outcome:
        with received.trail.call(received.request.tool, received.call_id):
            return await self._carry(received)

    async def _carry(self, received: Received) -> Outcome:
        rooms, phase = self.rooms, received.trail.phase
        validated: Validated | None = None
        try:
            authority = rooms.authority.known(received.caller.tenant) or await rooms.authority.of(
                received.caller.tenant
            )
            with phase(Span.VALIDATE):
                validated = validate(received, authority, rooms.metrics)
                hooks = rooms.hooks.around(validated.tool.name)
                if hooks is not None:
                    by_token = allowed_by_token(received.caller, validated.tool.contract, authority)
                    validated = await hooks.before(validated, by_token)
            with phase(Span.AUTHORIZE):
                authorized = await authorize(rooms, validated, authority)
            with admit_now(rooms, authorized) or await admit(rooms, authorized) as limited:
                with phase(Span.EXECUTE):
                    executed = await execute(rooms, limited.noted(authorized))
                if isinstance(executed, Outcome):
                    limited.replayed()
                    return executed
                with AnsweredFor(rooms, executed.authorized, executed.held):
                    with phase(Span.VERIFY):
                        verified = await verify(executed, rooms.driver, rooms.metrics, rooms.credentials)
                        limited.came_to(verified)
                        if hooks is not None:
                            verified = await hooks.ended(verified)
                    with phase(Span.REPLY):
                        return await settle(rooms, verified)
        except Problem as problem:
            if validated is not None and (hooks := rooms.hooks.around(validated.tool.name)) is not None:
                validated = await hooks.failed(validated, problem)
            return await refuse(rooms, received, validated, problem)

    def _receive(self, caller: Caller, request: CallRequest) -> Received:
        clock = self.rooms.clock
        call_id, now = clock.new_id(), clock.monotonic()
        return Received(
            call_id=call_id,
            caller=caller,
            request=request,
            session=request.session or caller.session,
            started=now,
            deadline=None if request.deadline_ms is None else Deadline.after(request.deadline_ms / 1000, now),
            trail=self.rooms.tracing.trail(request.traceparent, call_id),
        )
