"""Phase four: the tool really runs. A mutation is claimed first, checked against the barrier, and dispatched only
under a live lease; whatever happens after that is either known or said to be unknown.
"""

import asyncio
from dataclasses import replace
from typing import Any

from deputize.core.contract import Contract, MutationClass, Upstream
from deputize.core.definition import AnyTool, Secret, ToolContext
from deputize.core.errors import (
    Canceled,
    CredentialExpired,
    Execution,
    OutcomeUnknown,
    Problem,
    ResultInvalid,
    ToolFailed,
    UpstreamUnavailable,
)
from deputize.core.outcome import Outcome
from deputize.execute.drivers.python import StillRunning
from deputize.execute.retry import retried
from deputize.lifecycle.authorize import authorize_again
from deputize.lifecycle.claim import AnsweredFor, claim
from deputize.lifecycle.keeping import kept, undeclared
from deputize.lifecycle.phases import Authorized, Executed, Held
from deputize.lifecycle.rooms import Rooms
from deputize.runs.keeper import Keeper


async def execute(rooms: Rooms, authorized: Authorized) -> Executed | Outcome:
    """The tool's end, or the outcome that this call's key already had."""
    contract = authorized.validated.tool.contract
    tool = rooms.driver.find(contract)
    authorized.validated.deadline.require(rooms.clock.monotonic())
    if contract.mutation_class is MutationClass.READ:
        return await dispatch(rooms, authorized, tool, None)
    claimed = await claim(rooms, authorized)
    if isinstance(claimed, Outcome):
        return claimed
    authorized, held = claimed
    with AnsweredFor(rooms, authorized, held):
        return await dispatch(rooms, authorized, tool, held)


async def dispatch(rooms: Rooms, authorized: Authorized, tool: AnyTool, held: Held | None) -> Executed:
    clock = rooms.clock.monotonic
    validated = authorized.validated
    began = clock()
    # A mutation's own time starts at dispatch, as its row says; a read's is what is left.
    ends = min(validated.deadline.at, began + validated.tool.contract.timeout.effective_seconds)
    output, problem, attempts = None, None, 1
    keeper: Keeper | None = None
    try:
        keeper = await kept(rooms, authorized, held)
        if tool.validate is not None:
            await rooms.driver.preflight(tool, validated.call_input, ends - clock())
        try:
            output = await _attempt(rooms, authorized, tool, held, keeper, 1, ends)
        except Problem as first:
            output, attempts = await _again(rooms, authorized, tool, held, keeper, first, ends)
    except Problem as last:
        problem = last if held is None else honest(validated.tool.contract, last, held)
        attempts = last.attempts
    except asyncio.CancelledError:
        rooms.credentials.forget(authorized)
        raise
    finally:
        if keeper is not None:
            keeper.close()
    return Executed(
        authorized=authorized,
        held=held,
        output=output,
        problem=problem,
        attempts=attempts,
        seconds=clock() - began,
    )


async def _attempt(
    rooms: Rooms,
    authorized: Authorized,
    tool: AnyTool,
    held: Held | None,
    keeper: Keeper | None,
    number: int,
    ends: float,
) -> Any:
    credential = None
    if authorized.validated.tool.contract.auth.credential != "none":
        left = ends - rooms.clock.monotonic()
        credential = await rooms.credentials.for_attempt(authorized, _call_id(authorized, held), left)
    try:
        # After the credential, which may have taken its time: the lease must hold when the tool is started.
        if held is not None:
            rooms.lease.require()
        left = ends - rooms.clock.monotonic()
        run = None if held is None else held.run
        context = _context(authorized, held, keeper, number, left, credential) if tool.takes_context else None
        if context is not None and credential is not None:
            context = replace(context, tell=rooms.credentials.discreet(authorized, context.tell))
        if run is None:
            return await rooms.driver.run(tool, authorized.validated.call_input, context, left)
        with run.inside(thread=not tool.is_async):
            return await rooms.driver.run(tool, authorized.validated.call_input, context, left)
    except CredentialExpired as refused:
        if credential is not None:
            await rooms.credentials.turned_away(authorized, credential, refused)
        raise
    finally:
        if credential is not None:
            credential.close()


async def _again(
    rooms: Rooms,
    authorized: Authorized,
    tool: AnyTool,
    held: Held | None,
    keeper: Keeper | None,
    first: Problem,
    ends: float,
) -> tuple[Any, int]:
    contract = authorized.validated.tool.contract

    async def attempt(number: int) -> Any:
        await _require_still_allowed(rooms, authorized)
        return await _attempt(rooms, authorized, tool, held, keeper, number, ends)

    return await retried(
        attempt,
        first,
        policy=contract.retry,
        may_repeat=lambda problem: may_repeat(contract, problem) and not _is_stopping(held),
        seconds_left=lambda: ends - rooms.clock.monotonic(),
    )


async def _require_still_allowed(rooms: Rooms, authorized: Authorized) -> None:
    """A further attempt begins something: whoever was revoked or switched off since the first one begins nothing."""
    authority = await rooms.authority.of(authorized.validated.received.caller.tenant)
    if authorized.decision.epochs.covers(authority.epochs):
        return
    try:
        await authorize_again(rooms, authorized, authority, authority.epochs)
    except Problem as refused:
        # By this attempt; whether by the ones before it, they said themselves.
        refused.nothing_happened = True
        raise


def _is_stopping(held: Held | None) -> bool:
    return held is not None and held.run is not None and held.run.stopping


def may_repeat(contract: Contract, problem: Problem) -> bool:
    """Whether trying again can do no harm: reads, what proves nothing happened, and upstreams that take it once."""
    if isinstance(problem, StillRunning):
        return contract.mutation_class is MutationClass.READ
    return (
        contract.mutation_class is MutationClass.READ
        or problem.nothing_happened
        or contract.idempotency.upstream is not Upstream.CANNOT
    )


def honest(contract: Contract, problem: Problem, held: Held) -> Problem:
    """What a dispatched mutation's problem really says. A lost answer is not a failure: it is not known.

    The tool's own verdict (it failed, it stopped when it was asked to, its result cannot be used) is known. What proves
    that nothing happened proves it for one attempt: of a call that was taken over, or tried before, it says nothing.
    """
    if contract.mutation_class is MutationClass.READ or (problem.nothing_happened and not held.taken_over):
        return problem
    verdict = isinstance(problem, Execution | ResultInvalid | Canceled) and not problem.face.retryable
    if verdict and not (problem.nothing_happened or problem.proves_nothing_happened):
        return problem
    return unknown(contract, problem)


def unknown(contract: Contract, problem: Problem) -> OutcomeUnknown:
    made = OutcomeUnknown(
        f"{problem.message}; whether it acted is not known",
        details={"cause": problem.face.slug, **_way_on(contract)},
    )
    made.__cause__ = problem
    return made


def _way_on(contract: Contract) -> dict[str, str]:
    if contract.idempotency.upstream is not Upstream.CANNOT:
        return {"next": "repeat the call with the same idempotency key: the upstream takes it only once"}
    if contract.status is not None:
        return {"next": f"ask {contract.status} what became of it"}
    return {"next": "look at the system it acts on, and settle the call by hand"}


def _call_id(authorized: Authorized, held: Held | None) -> str:
    """A call that was taken over keeps the id it was first made under."""
    return authorized.validated.received.call_id if held is None else held.call_id


def _context(
    authorized: Authorized,
    held: Held | None,
    keeper: Keeper | None,
    attempt: int,
    left: float,
    credential: Secret | None,
) -> ToolContext:
    received = authorized.validated.received
    declared = authorized.validated.tool.contract.checkpoints.enabled
    call_id, run = _call_id(authorized, held), None if held is None else held.run
    return ToolContext(
        call_id=call_id,
        tenant=received.caller.tenant,
        user=received.caller.user,
        agent=received.caller.agent,
        session=received.session,
        key=call_id,
        attempt=attempt,
        seconds_left=left,
        traceparent=received.trail.traceparent,
        credential=credential,
        restored=None if keeper is None else keeper.restored(),
        guards=(None if held is None else held.guards) or {},
        can_answer=received.request.can_answer,
        round=authorized.validated.round,
        tell=received.request.tell if run is None else run.tell,
        stopping=None if run is None else run.is_stopping,
        saving=keeper.save if keeper is not None else None if declared else undeclared,
    )


def late_end(executed: Executed) -> "asyncio.Future[Any] | None":
    """The end a thread may still come to after its call was answered as unknown."""
    cause = executed.problem.__cause__ if executed.problem else None
    return cause.late if isinstance(cause, StillRunning) else None


def ended_late(executed: Executed, held: Held, late: "asyncio.Future[Any]") -> Executed:
    error = late.exception()
    problem = None if error is None else honest(executed.authorized.validated.tool.contract, _late(error), held)
    return Executed(
        authorized=executed.authorized, held=held, output=None if error else late.result(),
        problem=problem, attempts=executed.attempts, seconds=executed.seconds,
    )  # fmt: skip


def _late(error: BaseException) -> Problem:
    """As the driver would have told it in time: a lost upstream leaves open what happened, a failure does not."""
    if isinstance(error, Problem):
        return error
    kind = UpstreamUnavailable if isinstance(error, OSError) else ToolFailed
    return kind(f"the tool failed late: {type(error).__name__}")
