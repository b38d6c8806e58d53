"""A call that people were asked about is begun only as what they said yes to.

Everything the ticket is bound to is worked out again from what holds now, and compared. Above: `resume.py`, between the
decision and the commit that begins the run; that commit uses the ticket up.
"""

import hmac
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import structlog

from deputize.core.decision import Demand
from deputize.core.errors import ApprovalExpired, ApprovalVoid, Problem
from deputize.core.frozen import frozen
from deputize.core.outcome import failure_body
from deputize.govern.approvals.binding import binding, changed
from deputize.lifecycle.approvals.ask import tell_terminal, times
from deputize.lifecycle.approvals.tickets import Sealed, asked_for, bound_to, new_ticket
from deputize.lifecycle.phases import Approved, Authorized, Received
from deputize.lifecycle.preview import Previewed, look
from deputize.lifecycle.reply import state_of_refusal
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.queries import load

_SQL = load("approvals")
log = structlog.get_logger(__name__)


class WouldDiffer(Exception):
    """What the call would do now is not what people saw."""

    def __init__(self, previewed: Previewed, authorized: Authorized, hooked: tuple[Demand, ...]) -> None:
        super().__init__("the preview differs")
        self.previewed = previewed
        self.authorized = authorized
        self.hooked = hooked


@frozen
class Yes:
    """The call as it was approved, and what the preview that was decided on hands to the effect."""

    authorized: Authorized
    guards: Mapping[str, Any]


async def require_approval(rooms: Rooms, authorized: Authorized, *, begun: bool, acted: bool) -> Yes:
    """Raises `ApprovalExpired`, `ApprovalVoid` or `WouldDiffer`. A call that was begun before used its ticket then; if
    its owner may have acted, the time to use it does not end any more, but it must still be the same call.
    """
    received = authorized.validated.received
    tenant, call_id = received.caller.tenant, received.call_id
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    async with rooms.store.writing() as connection:
        row = await connection.fetchrow(_SQL["ticket_of_call"], tenant, call_id)
    if row is None or row["state"] not in (("approved", "used") if begun else ("approved",)):
        raise ApprovalVoid("nobody approved this call", details={"changed": ["ticket"]}, nothing_happened=True)
    ticket = str(row["id"])
    if not acted and (row["expired"] or is_over(rooms, row["expires_at"])):
        raise ApprovalExpired(
            "the approval was not used before its time was over", details={"ticket_id": ticket}, nothing_happened=True
        )
    sealed = Sealed.opened(keys, ticket, row["shown"])
    by_policy = authorized.decision
    demands = by_policy.demands + sealed.hooked
    authorized = replace(authorized, decision=replace(by_policy, demands=demands))
    bound = bound_to(rooms, authorized, call_id, sealed.preview, row["expires_at"])
    if not hmac.compare_digest(binding(keys.fingerprint, bound), row["binding"]):
        raise ApprovalVoid(
            "what was approved is not what would be done now",
            details={"changed": changed(sealed.bound, bound), "ticket_id": ticket},
            nothing_happened=True,
        )
    guards = sealed.guards
    if row["stale"] and not acted:
        renewed = await look(rooms, authorized)
        if renewed.digest != sealed.preview or renewed.failing:
            raise WouldDiffer(renewed, authorized, sealed.hooked)
        guards = renewed.guards
    approved = Approved(ticket=ticket, demands=by_policy.demands, policy_digest=by_policy.policy_digest)
    return Yes(authorized=replace(authorized, decision=by_policy, approved=approved), guards=guards)


def is_over(rooms: Rooms, at: datetime) -> bool:
    """By this process's own clock. PostgreSQL's is asked too: either of them says that it is too late."""
    return at.timestamp() * 1000 <= rooms.clock.epoch_ms()


async def ask_again(rooms: Rooms, differs: WouldDiffer, epoch: int) -> None:
    """The same call waits once more, with a new ticket that shows what it would change now."""
    authorized = differs.authorized
    received = authorized.validated.received
    tenant = received.caller.tenant
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    entry_id = rooms.clock.new_id()
    about = About(
        caller=received.caller, trace=received.trail.trace_id, call=received.call_id, session=received.session,
        contract=authorized.validated.tool.contract,
    )  # fmt: skip
    body = entry(
        about, id=entry_id, kind="refusal", time=rooms.stamps.now(), decision=authorized.decision,
        outcome="awaiting_approval", error=ApprovalVoid.face.e_number, command="ask_again",
    )  # fmt: skip
    async with rooms.store.writing() as connection:
        _, expires_at = await times(rooms, connection, authorized, asked_for(rooms, authorized))
        ticket = new_ticket(rooms, authorized, received.call_id, differs.previewed, expires_at, keys)
        ticket = replace(ticket, sealed=replace(ticket.sealed, hooked=differs.hooked))
        asked = await connection.fetchval(
            _SQL["ask_again"], tenant, received.call_id, epoch, *ticket.columns_again(keys), entry_id, body
        )
    if asked:
        log.info("people_asked_again", call_id=received.call_id)
        tell_terminal(rooms, tenant, ticket)


async def end_unbegun(rooms: Rooms, received: Received, queued_at: datetime, problem: Problem) -> None:
    """A call that people were asked about and that nobody may begin any more: ended as it lies there. Not if they were
    asked again since it was seen, by another who was handed the same run: then it is theirs to decide.
    """
    tenant, call_id = received.caller.tenant, received.call_id
    keys = rooms.keys.ready(tenant) or await rooms.keys.load(rooms.store, tenant)
    problem.nothing_happened = True
    state, entry_id = state_of_refusal(problem), rooms.clock.new_id()
    outcome = failure_body(problem, call_id=call_id, state=state, trace_id=received.trail.trace_id, more={})
    about = About(
        caller=received.caller, trace=received.trail.trace_id, call=call_id, session=received.session,
        tool=received.request.tool,
    )  # fmt: skip
    body = entry(
        about, id=entry_id, kind="outcome", time=rooms.stamps.now(), decision=problem.decision, outcome=state,
        error=problem.face.e_number,
    )  # fmt: skip
    async with rooms.store.writing() as connection:
        await connection.execute(
            _SQL["end_unbegun"], tenant, call_id, queued_at, problem.message, state, problem.face.slug,
            keys.seal(call_id, "outcome", outcome), entry_id, body,
        )  # fmt: skip
