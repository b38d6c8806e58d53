"""A run goes on: its call is read back, decided again as of now, taken from whoever had it, and dispatched.

Only `Lifecycle.resume` leads here. What was decided when it was queued counts for nothing: the person may have been
revoked, the delegation may have ended, the policy may have changed, while the run waited.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import asyncpg
import structlog

from deputize.catalog.compiled import CompiledTool
from deputize.core.call import CallRequest
from deputize.core.caller import Caller, Epochs
from deputize.core.canonical import canonical
from deputize.core.clock import Deadline
from deputize.core.decision import Decision
from deputize.core.errors import (
    Canceled,
    GivenUp,
    GrantEnded,
    OutcomeUnknown,
    Problem,
    RequiresSetup,
    SealBroken,
    TokenIssuer,
    ToolNotFound,
    Unavailable,
)
from deputize.core.events import State
from deputize.core.frozen import frozen
from deputize.lifecycle import record
from deputize.lifecycle.approvals.approved import WouldDiffer, ask_again, end_unbegun, require_approval
from deputize.lifecycle.authorize import authorize
from deputize.lifecycle.claim import may_go_again, still_authorized
from deputize.lifecycle.order import needs_of
from deputize.lifecycle.phases import Authorized, Executed, Held, Received, Validated
from deputize.lifecycle.recorded import WrittenInput, caller_from
from deputize.lifecycle.rooms import Rooms
from deputize.store.keys import KeySet
from deputize.store.pool import LOST
from deputize.store.queries import load
from deputize.store.rows import Beginning, Committed, Need

_SQL = load("runs")
_NEVER = Epochs()
# A run has the time its contract gives it from when its tool is started, however long it waited before that.
_NO_DEADLINE: Final = Deadline(at=float("inf"))
_SOON, _LATER = 2.0, 10.0
log = structlog.get_logger(__name__)


class NotNow(Exception):
    """The run is to be handed out again after so many seconds; `unable` if it is for want of what this worker lacks."""

    def __init__(self, why: str, *, seconds: float, unable: bool = False) -> None:
        super().__init__(why)
        self.seconds = seconds
        self.unable = unable


@frozen
class Waiting:
    """A run as it lies there: enough to go on with, and the epoch it was seen at."""

    validated: Validated
    state: State
    epoch: int
    untouched: bool
    over: bool
    takeovers: int
    cancel_asked: bool
    queued_at: datetime
    # People were asked about it, and it is begun only as what they approved.
    asked: bool = False

    @property
    def acted(self) -> bool:
        """Whether an owner before us may have done something."""
        return self.epoch > 0 and not self.untouched


async def waiting(rooms: Rooms, tenant: str, call_id: str) -> Waiting | None:
    """The run, or None where there is nothing left to do for it."""
    async with rooms.store.writing() as connection:
        row = await connection.fetchrow(_SQL["run_to_go_on"], tenant, call_id, rooms.settings.timing.margin_seconds)
    if row is None:
        return None
    if row["owner_alive"]:
        raise NotNow("somebody carries it", seconds=rooms.settings.timing.lease_seconds / 2)
    try:
        return await _read_back(rooms, tenant, call_id, row)
    except NotNow as later:
        if not later.unable or (row["unable_seconds"] or 0.0) < rooms.settings.runs.unable_seconds:
            raise
        problem: Problem = RequiresSetup(f"no worker could carry this call: {later}")
    except SealBroken as broken:
        problem = broken
    nobody, request = Caller(tenant=tenant, user=""), CallRequest(tool=row["tool"], arguments={})
    await _end(rooms, _received(rooms, call_id, nobody, request, row), row, problem)
    return None


async def _read_back(rooms: Rooms, tenant: str, call_id: str, row: asyncpg.Record) -> Waiting | None:
    if row["input"] is None:
        raise SealBroken("what this call was asked to do was deleted while it waited")
    keys = rooms.keys.ready(tenant) or await _keys(rooms, tenant)
    try:
        try:
            written, caller = _unsealed(rooms, keys, call_id, row)
        except SealBroken:
            # Not broken yet: the key may have come since this process looked.
            written, caller = _unsealed(rooms, await _keys(rooms, tenant), call_id, row)
    except ValueError as unknown_form:
        raise NotNow(str(unknown_form), seconds=_LATER, unable=True) from unknown_form
    except TokenIssuer as stranger:
        # Of an issuer that was struck off, or that the others came to know before this worker.
        raise NotNow(stranger.message, seconds=_LATER, unable=True) from stranger
    request = written.request(row["tool"], row["version"], row["session"])
    received = _received(rooms, call_id, caller, request, row, traceparent=written.traceparent)
    try:
        tool = await _carriable(rooms, tenant, row)
    except Problem as gone:
        if gone.face.retryable:
            raise NotNow(gone.message, seconds=_SOON) from gone
        await _end(rooms, received, row, gone)
        return None
    validated = Validated(
        received=received,
        tool=tool,
        deadline=_NO_DEADLINE,
        canonical=canonical(written.arguments),
        call_input=written.call_input,
        mutations=written.mutations,
        round=written.round,
    )
    return Waiting(
        validated=validated,
        state=State(row["state"]),
        epoch=row["owner_epoch"],
        untouched=row["untouched"] == row["owner_epoch"],
        over=row["over"],
        takeovers=row["takeovers"],
        cancel_asked=row["cancel_asked"],
        queued_at=row["queued_at"],
        asked=row["asked"],
    )


async def _keys(rooms: Rooms, tenant: str) -> KeySet:
    """As they are now. A worker that was given another master key breaks nothing that others can open."""
    try:
        return await rooms.keys.load(rooms.store, tenant)
    except SealBroken as foreign:
        raise NotNow(foreign.message, seconds=_LATER, unable=True) from foreign


def _unsealed(rooms: Rooms, keys: KeySet, call_id: str, row: asyncpg.Record) -> tuple[WrittenInput, Caller]:
    written = WrittenInput(keys.open(call_id, "input", row["input"]))
    return written, caller_from(keys.open(call_id, "caller", row["caller"]), rooms.settings.identity.issuers)


def _received(
    rooms: Rooms,
    call_id: str,
    caller: Caller,
    request: CallRequest,
    row: asyncpg.Record,
    traceparent: str | None = None,
) -> Received:
    return Received(
        call_id=call_id, caller=caller, request=request, session=row["session"], started=rooms.clock.monotonic(),
        deadline=None, trail=rooms.tracing.trail(traceparent, call_id),
    )  # fmt: skip


async def _carriable(rooms: Rooms, tenant: str, row: asyncpg.Record) -> CompiledTool:
    """Exactly the version that was decided about when it was asked for, even if newer ones came since; of a worker that
    has its function. One that has not leaves the run to the others for a while: releases of a project run side by side.
    """
    found = (await rooms.authority.of(tenant)).tools.resolve(row["tool"], row["version"])
    if found.digest != row["tool_digest"]:
        raise ToolNotFound(f"{row['tool']} {row['version']} was replaced while the call waited")
    try:
        rooms.driver.find(found.tool.contract)
    except RequiresSetup as missing:
        raise NotNow(missing.message, seconds=_SOON, unable=True) from missing
    return found.tool


async def take(rooms: Rooms, run: Waiting) -> tuple[Authorized, Held] | None:
    """The run as ours, decided again under the commit that made it so; None if it is not to be dispatched here."""
    validated = run.validated
    refused: Problem | None = None
    needs: tuple[Need, ...] = ()
    guards: Mapping[str, Any] | None = None
    try:
        _require_possible(rooms, run)
        authority = await rooms.authority.of(validated.received.caller.tenant)
        authorized = await authorize(rooms, validated, authority, may_ask=run.asked)
        if run.asked:
            yes = await require_approval(rooms, authorized, begun=run.epoch > 0, acted=run.acted)
            authorized, guards = yes.authorized, yes.guards
        needs = needs_of(rooms, validated)
    except WouldDiffer as differs:
        await ask_again(rooms, differs, run.epoch)
        return None
    except Problem as problem:
        if problem.face.retryable:
            raise NotNow(problem.message, seconds=_SOON) from problem
        refused, decided = problem, problem.decision
        authorized = Authorized(validated=validated, decision=decided or Decision(rules=(), epochs=_NEVER))
    if isinstance(refused, OutcomeUnknown):
        await _say_unknown(rooms, authorized, run)
        return None
    if refused is not None and run.asked and run.epoch == 0:
        await end_unbegun(rooms, validated.received, run.queued_at, refused)
        return None
    begun = await _begin(rooms, authorized, run, needs)
    if begun is None:
        return None
    held, epochs = begun
    if refused is not None:
        refused.nothing_happened = not held.taken_over
        await rooms.writer.put(record.abandoned(rooms, authorized, held, refused))
        return None
    return await still_authorized(rooms, authorized, epochs, held), replace(held, guards=guards)


def _require_possible(rooms: Rooms, run: Waiting) -> None:
    contract = run.validated.tool.contract
    if run.state is not State.QUEUED and not may_go_again(contract):
        # Its owner is gone and may have acted: an upstream that cannot tell a repeat from a second wish is not asked.
        raise OutcomeUnknown("the worker that carried this call is gone, and whether it acted is not known")
    if run.cancel_asked:
        raise Canceled("the call was canceled before it was begun again", nothing_happened=run.epoch == 0)
    most = rooms.settings.runs.most_takeovers
    if run.state is not State.QUEUED and run.takeovers >= most:
        raise GivenUp(
            f"{run.takeovers + 1} workers died while they carried this call",
            details={"takeovers": run.takeovers, "most": most},
        )
    if run.over:
        raise GrantEnded("the delegation behind this call ended while it waited", nothing_happened=True)


async def _say_unknown(rooms: Rooms, authorized: Authorized, run: Waiting) -> None:
    """Under the epoch of the owner that is gone: if it was only away, its own outcome still settles this."""
    if run.state is State.RUNNING:
        held = Held(call_id=authorized.validated.received.call_id, epoch=run.epoch)
        await rooms.writer.put(record.lost(rooms, authorized, held))


async def _begin(
    rooms: Rooms, authorized: Authorized, run: Waiting, needs: tuple[Need, ...]
) -> tuple[Held, Epochs] | None:
    validated = authorized.validated
    received, seconds = validated.received, validated.tool.contract.timeout.effective_seconds
    intent = record.intent(rooms, authorized, received.call_id)
    committed = await _put(rooms, received, run.epoch, seconds, intent, needs)
    if committed is None:
        return None
    held = Held(call_id=received.call_id, epoch=run.epoch + 1, needs=needs, untouched=run.untouched)
    return held, committed.epochs


async def _put(
    rooms: Rooms,
    received: Received,
    epoch: int,
    seconds: float,
    entry: tuple[str, bytes, bytes | None],
    needs: tuple[Need, ...] = (),
) -> Committed | None:
    """Compare-and-set: of any number of workers that think the run is theirs, one begins. None where it waits in line,
    or has ended. Waits for the truth however long it takes: nobody else could tell whether the run is ours.
    """
    if not rooms.lease.is_good:
        raise NotNow("this worker cannot prove that it is alive", seconds=_SOON)
    margin = rooms.settings.timing.margin_seconds
    row = Beginning(received.caller.tenant, received.call_id, epoch, seconds, margin, *entry, needs)
    committed = await rooms.queue.put(row, seconds=float("inf"))
    if committed.began in ("busy", "lapsed"):
        raise NotNow("somebody else has it, or this worker is not known to be alive", seconds=_SOON)
    if committed.began == "unapproved":
        # Its time was over just now, or somebody took it back: whoever looks next finds that out and says so.
        raise NotNow("nobody's approval holds for it any more", seconds=_SOON)
    return committed if committed.began == "begun" else None


async def _end(rooms: Rooms, received: Received, row: asyncpg.Record, problem: Problem) -> None:
    """A run that cannot be made any more: begun only to be ended, so that whoever looks for it finds its end."""
    if row["asked"] and row["owner_epoch"] == 0:
        await end_unbegun(rooms, received, row["queued_at"], problem)
        return
    entries = [record.ended_unmade(rooms, received, problem) for _ in range(2)]
    epoch = row["owner_epoch"]
    if await _put(rooms, received, epoch, 1.0, entries[0]) is not None:
        held = Held(call_id=received.call_id, epoch=epoch + 1, untouched=row["untouched"] == epoch)
        problem.nothing_happened = not held.taken_over
        await rooms.writer.put(record.closing_unmade(rooms, received, held, problem, entries[1]))


def is_for_others(executed: Executed) -> bool:
    """Whether the tool was never started because this worker's own life was in doubt: the run is none the worse."""
    problem = executed.problem
    cause = problem.__cause__ if isinstance(problem, OutcomeUnknown) else problem
    return isinstance(cause, Unavailable) and cause.nothing_happened


async def hand_back(rooms: Rooms, executed: Executed) -> None:
    """Into the queue again, as it was before it was begun here; as often as it takes, for nobody else can say it."""
    held, tenant = executed.held, executed.authorized.validated.received.caller.tenant
    while held is not None:
        try:
            async with rooms.store.writing() as connection:
                await connection.execute(
                    _SQL["undo_begin"], tenant, held.call_id, held.epoch, not held.taken_over, _SOON
                )
        except LOST as error:
            log.warning("run_not_handed_back", call_id=held.call_id, reason=repr(error))
            await asyncio.sleep(_SOON)
        else:
            return
