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
from deputize.lifecycle.approvals.ask import ask
from deputize.lifecycle.authorize import allowed_by_token, authorize
from deputize.lifecycle.carried import Desk
from deputize.lifecycle.claim import AnsweredFor
from deputize.lifecycle.dry_run import dry_run
from deputize.lifecycle.execute import dispatch, execute
from deputize.lifecycle.limit import UNLIMITED, Unlimited, admit, admit_now
from deputize.lifecycle.order import leave
from deputize.lifecycle.phases import Authorized, Executed, Held, Received, Validated
from deputize.lifecycle.resume import hand_back, is_for_others, take, waiting
from deputize.lifecycle.retry import request_again
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.rounds import answered
from deputize.lifecycle.settle import refuse, settle
from deputize.lifecycle.submit import go_on, goes_on, outlives, require_tellable, submit
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
                if received.request.answers is not None:
                    validated = await answered(rooms, validated, received.request.answers)
                hooks = rooms.hooks.around(validated.tool.name)
                if hooks is not None:
                    by_token = allowed_by_token(received.caller, validated.tool.contract, authority)
                    validated = await hooks.before(validated, by_token)
            with phase(Span.AUTHORIZE):
                authorized = await authorize(rooms, validated, authority, may_ask=True)
                require_tellable(rooms, authorized)
            with admit_now(rooms, authorized) or await admit(rooms, authorized) as limited:
                if received.request.dry_run:
                    return await dry_run(rooms, limited.for_nothing(authorized))
                if authorized.decision.demands:
                    return await ask(rooms, limited.noted(authorized))
                if outlives(authorized):
                    return await submit(rooms, limited.noted(authorized))
                with phase(Span.EXECUTE):
                    executed = await execute(rooms, limited.noted(authorized))
                if isinstance(executed, Outcome):
                    limited.replayed()
                    return executed
                with AnsweredFor(rooms, executed.authorized, executed.held):
                    if goes_on(executed) and (taken_on := await go_on(rooms, executed)) is not None:
                        return taken_on
                    return await self._end(executed, limited)
        except Problem as problem:
            if validated is not None and (hooks := rooms.hooks.around(validated.tool.name)) is not None:
                validated = await hooks.failed(validated, problem)
            return await refuse(rooms, received, validated, problem)

    async def retry(self, caller: Caller, call_id: str) -> Outcome:
        """A run that came to no good end, once more, where that can do no harm. Raises where it cannot be asked for."""
        return await self.run(caller, await request_again(self.rooms, caller, call_id))

    async def resume(self, tenant: str, call_id: str, desk: Desk) -> None:
        """A run, from where it was written down to its end. Enters behind validation and passes everything after it."""
        rooms = self.rooms
        run = await waiting(rooms, tenant, call_id)
        taken = None if run is None else await take(rooms, run)
        if taken is None:
            return
        authorized, held = taken
        try:
            with AnsweredFor(rooms, authorized, held):
                await self._carry_on(authorized, held, desk)
        finally:
            leave(rooms, tenant, held.call_id, held.needs)

    async def _carry_on(self, authorized: Authorized, held: Held, desk: Desk) -> None:
        rooms = self.rooms
        phase = authorized.validated.received.trail.phase
        with phase(Span.EXECUTE), desk.carrying(authorized, held) as (held, carried):
            tool = rooms.driver.find(authorized.validated.tool.contract)
            executed = await carried.through(dispatch(rooms, authorized, tool, held))
        if is_for_others(executed):
            await hand_back(rooms, executed)
            return
        await self._end(executed)

    async def _end(self, executed: Executed, limited: Unlimited = UNLIMITED) -> Outcome:
        """What the tool came to: held against its contract, recorded, and only then told."""
        rooms, validated = self.rooms, executed.authorized.validated
        phase, hooks = validated.received.trail.phase, rooms.hooks.around(validated.tool.name)
        with phase(Span.VERIFY):
            verified = await verify(rooms, executed)
            limited.came_to(verified)
            if hooks is not None:
                verified = await hooks.ended(verified)
        with phase(Span.REPLY):
            return await settle(rooms, verified)

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
