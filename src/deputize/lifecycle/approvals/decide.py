"""People decide. Who may is asked inside the transaction that records what they said, under the tenant's barrier.

A yes that completes what every rule demands puts the call's run into the queue in the same commit; a no ends the call.
Nobody answers for anybody: what nobody decides is denied when its time is over. Every try that is refused is on record.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import structlog

from deputize.core.caller import TERMINAL, Caller
from deputize.core.errors import (
    ApprovalChanged,
    ApprovalExpired,
    ApprovalRejected,
    Malformed,
    NotAnApprover,
    Permission,
    Problem,
    TicketClosed,
    TicketNotFound,
)
from deputize.core.events import State
from deputize.core.outcome import failure_body
from deputize.govern.approvals import deciders
from deputize.govern.approvals.codes import at_the_terminal
from deputize.govern.approvals.demands import Vote, met
from deputize.lifecycle.approvals.approved import is_over
from deputize.lifecycle.approvals.seen import Seen, seen
from deputize.lifecycle.approvals.shown import in_a_list
from deputize.lifecycle.barrier import add
from deputize.lifecycle.rooms import Rooms
from deputize.prove.entries import About, entry
from deputize.store.pool import Connection
from deputize.store.queries import load
from deputize.store.rows import Entry

Word = Literal["approve", "deny", "break_glass"]
_SQL = load("approvals")
_LONGEST_REASON = 2000
TERMINAL_CODE = "terminal-code"
log = structlog.get_logger(__name__)


class Approvals:
    """`complete` gives a person whom no token named what every entry knows callers by."""

    def __init__(self, rooms: Rooms, complete: Callable[[Caller], Awaitable[Caller]]) -> None:
        self._rooms = rooms
        self._complete = complete

    async def page(
        self, caller: Caller, *, state: str | None = "open", before: str | None = None, limit: int = 50
    ) -> list[dict[str, Any]]:
        """What waits for this person's groups; of an administrator's tenant everything; of anybody else their own."""
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            if caller.console and not caller.is_admin and state == "open":
                rows = await connection.fetch(
                    _SQL["waiting_for_groups"], caller.tenant, sorted(caller.groups), before, limit
                )
            else:
                user = None if caller.is_admin else caller.user
                acting = caller.acting if caller.agents and not caller.is_admin else None
                rows = await connection.fetch(_SQL["list_tickets"], caller.tenant, user, acting, state, before, limit)
        return [in_a_list(self._rooms, row) for row in rows]

    async def show(self, caller: Caller, ticket_id: str) -> dict[str, Any]:
        """Everything there is to decide about, and whether this person may."""
        await self._check(caller)
        async with self._rooms.store.reading(caller.tenant) as connection:
            ticket = await seen(self._rooms, connection, caller, ticket_id)
        no = self._why_not(caller, ticket, "approve")
        return {
            **ticket.told(self._rooms),
            "may_decide": no is None,
            "may_deny": self._why_not(caller, ticket, "deny") is None,
            "why_not": "" if no is None else no.message,
            "why_not_rule": None if no is None else no.details.get("rule"),
        }

    async def approve(
        self, caller: Caller, ticket_id: str, *, reason: str = "", binding: str | None = None
    ) -> dict[str, Any]:
        """One person's yes. `binding` is that of the ticket they saw: they decide about nothing else."""
        return await self._decide(caller, "approve", ticket_id, reason, binding)

    async def deny(self, caller: Caller, ticket_id: str, *, reason: str, binding: str | None = None) -> dict[str, Any]:
        """One person's no is enough. Whoever made the call reads the reason."""
        return await self._decide(caller, "deny", ticket_id, reason, binding)

    async def break_glass(
        self, caller: Caller, ticket_id: str, *, reason: str, binding: str | None = None
    ) -> dict[str, Any]:
        """Two people who may let a call go on that its approvers do not decide; everybody who was asked is told."""
        return await self._decide(caller, "break_glass", ticket_id, reason, binding)

    async def decide_many(
        self, caller: Caller, ticket_ids: Sequence[str], word: Word, *, reason: str, vary: Sequence[str]
    ) -> list[dict[str, Any]]:
        """The same word on calls that are equal but for the named arguments. Looked at first, every one of them; then
        decided one by one, each as it was seen.
        """
        await self._check(caller)
        tickets = [await self._looked_at(caller, word, each) for each in dict.fromkeys(ticket_ids)]
        _require_alike(tickets, frozenset(vary))
        return [await self._one_of_many(caller, word, ticket, reason) for ticket in tickets]

    async def at_terminal(self, caller: Caller, ticket_id: str, code: str) -> Caller:
        """Who decides in development: whoever knows the code that the gateway's own terminal shows for this ticket."""
        rooms = self._rooms
        try:
            async with rooms.store.reading(caller.tenant) as connection:
                ticket = await seen(rooms, connection, caller, ticket_id)
            if rooms.codes is None or not rooms.codes.verify(ticket.id, bytes(ticket.row["binding"]), code):
                raise _wrong_code(rooms, ticket.id)
        except Problem as refused:
            await self._note_refusal(caller, "code", ticket_id, refused)
            raise
        return await self._complete(at_the_terminal(ticket.deciding, now=rooms.clock.epoch_ms() // 1000))

    async def _looked_at(self, caller: Caller, word: Word, ticket_id: str) -> Seen:
        try:
            async with self._rooms.store.reading(caller.tenant) as connection:
                return await seen(self._rooms, connection, caller, ticket_id)
        except Problem as refused:
            await self._note_refusal(caller, word, ticket_id, refused)
            raise

    async def _one_of_many(self, caller: Caller, word: Word, ticket: Seen, reason: str) -> dict[str, Any]:
        told: dict[str, Any] = {"ticket_id": ticket.id, "arguments": ticket.sealed.shown["arguments"]}
        try:
            return told | await self._decide(caller, word, ticket.id, reason, ticket.binding)
        except (Permission, TicketClosed, TicketNotFound) as no:
            return told | {"state": ticket.row["state"], "refused": no.face.slug, "why_not": no.message}

    async def _decide(
        self, caller: Caller, word: Word, ticket_id: str, reason: str, binding: str | None
    ) -> dict[str, Any]:
        if word != "approve" and not reason.strip():
            raise Malformed("say why: it is on record, and whoever asked reads it", details={"field": "reason"})
        if len(reason) > _LONGEST_REASON:
            raise Malformed(f"a reason has at most {_LONGEST_REASON} characters", details={"field": "reason"})
        await self._rooms.keys.load(self._rooms.store, caller.tenant)

        async def act(connection: Connection) -> tuple[dict[str, Any], Seen]:
            ticket = await seen(self._rooms, connection, caller, ticket_id, locked=True)
            return await self._recorded(connection, caller, word, ticket, reason, binding), ticket

        try:
            answer, ticket = await add(self._rooms, caller, word, ticket_id, act, ())
        except Problem as refused:
            if not refused.face.retryable:
                await self._note_refusal(caller, word, ticket_id, refused)
            raise
        if self._rooms.codes is not None and caller.issuer == TERMINAL and answer["state"] == "open":
            self._rooms.codes.spend(answer["ticket_id"])
        if answer["state"] != "open":
            waited = (ticket.row["now"] - ticket.row["opened_at"]).total_seconds()
            self._rooms.metrics.approval_time.labels(ticket.row["tool"], answer["state"]).observe(waited)
        return answer

    async def _recorded(
        self, connection: Connection, caller: Caller, word: Word, ticket: Seen, reason: str, binding: str | None
    ) -> dict[str, Any]:
        counts = self._require(caller, ticket, word)
        if binding is not None and binding != ticket.binding:
            raise ApprovalChanged("the ticket changed since it was seen", details={"ticket_id": ticket.id})
        vote = Vote(voter=caller.user, approve=word != "deny", counts=counts, glass=word == "break_glass")
        written = await connection.fetchval(
            _SQL["add_vote"], caller.tenant, ticket.id, vote.voter, vote.approve, sorted(counts),
            sorted(caller.methods), reason, vote.glass,
        )  # fmt: skip
        if written is None:
            raise NotAnApprover("you decided about this already", details={"rule": deciders.ONE_VOTE_EACH})
        if word == "deny":
            return await self._end(connection, caller, ticket, reason)
        votes = (*ticket.deciding.votes, vote)
        if not (met(ticket.deciding.asked, votes) or deciders.glass_broken(votes)):
            return {"ticket_id": ticket.id, "call_id": ticket.call_id, "state": "open", "call_state": ticket.call_state}
        if word == "break_glass":
            log.critical("glass_broken", tenant=caller.tenant, ticket_id=ticket.id, call_id=ticket.call_id)
            await connection.execute(_SQL["tell_of_glass"], caller.tenant, ticket.id)
        if not await connection.fetchval(_SQL["approve_asked"], caller.tenant, ticket.id, caller.user, reason):
            raise _too_late(ticket)
        await self._entry(connection, caller, ticket, word, State.APPROVED)
        return {
            "ticket_id": ticket.id, "call_id": ticket.call_id, "state": "approved", "call_state": State.QUEUED
        }  # fmt: skip

    def _why_not(self, caller: Caller, ticket: Seen, word: Word) -> Problem | None:
        try:
            self._require(caller, ticket, word)
        except Problem as no:
            return no
        return None

    def _require(self, caller: Caller, ticket: Seen, word: Word) -> frozenset[int]:
        """For which demands this person's word counts; or the refusal."""
        rooms = self._rooms
        if ticket.row["state"] != "open":
            if ticket.row["state"] == "expired":
                raise _too_late(ticket)
            raise TicketClosed(f"this ticket is {ticket.row['state']} already", details={"ticket_id": ticket.id})
        if ticket.row["expired"] or is_over(rooms, ticket.row["expires_at"]):
            raise _too_late(ticket)
        # A sign-in is fresh only if both clocks say so.
        now = max(rooms.clock.epoch_ms() // 1000, int(ticket.row["now"].timestamp()))
        if word == "break_glass":
            deciders.check_glass(caller, ticket.deciding, now=now, settings=rooms.settings.approvals)
            return frozenset()
        return deciders.check(
            caller, ticket.deciding, now=now, settings=rooms.settings.approvals, denying=word == "deny"
        )

    async def _end(self, connection: Connection, caller: Caller, ticket: Seen, reason: str) -> dict[str, Any]:
        """The call ends here: its outcome says who said no, and why."""
        problem = ApprovalRejected(
            f"a person said no: {reason}",
            details={"ticket_id": ticket.id, "reason": reason},
            nothing_happened=True,
        )
        rooms, call_id, tenant = self._rooms, ticket.call_id, caller.tenant
        keys = rooms.keys.ready(tenant)
        assert keys is not None  # loaded before the transaction began
        outcome = failure_body(problem, call_id=call_id, state=State.DENIED, trace_id=ticket.row["trace"], more={})
        entry_id, body = self._entry_of(caller, ticket, "deny", State.DENIED, problem)
        ended = await connection.fetchval(
            _SQL["end_asked"], [tenant], "denied", caller.user, reason, [tenant], [call_id],
            [ticket.row["owner_epoch"]], [State.DENIED], [problem.face.slug], [keys.seal(call_id, "outcome", outcome)],
            [entry_id], [body],
        )  # fmt: skip
        if ended is None:
            raise TicketClosed("the call ended in another way", details={"ticket_id": ticket.id})
        return {"ticket_id": ticket.id, "call_id": call_id, "state": "denied", "call_state": State.DENIED}

    async def _entry(self, connection: Connection, caller: Caller, ticket: Seen, word: Word, outcome: State) -> None:
        entry_id, body = self._entry_of(caller, ticket, word, outcome)
        await connection.execute(_SQL["add_entry"], caller.tenant, entry_id, ticket.call_id, body)

    def _entry_of(
        self, caller: Caller, ticket: Seen, word: Word, outcome: State, problem: Problem | None = None
    ) -> tuple[str, bytes]:
        """What became of the call by what was decided; each word of each person has an entry of its own beside it."""
        entry_id, row = self._rooms.clock.new_id(), ticket.row
        about = About(caller=caller, trace=row["trace"], call=ticket.call_id, session=row["session"], tool=row["tool"])
        body = entry(
            about, id=entry_id, kind="decision", time=self._rooms.stamps.now(), outcome=outcome, command=word,
            subject=ticket.id, error=problem.face.e_number if problem else None,
        )  # fmt: skip
        return entry_id, body

    async def _note_refusal(self, caller: Caller, word: str, ticket_id: str, refused: Problem) -> None:
        entry_id = self._rooms.clock.new_id()
        body = entry(
            About(caller=caller, trace=entry_id.replace("-", ""), session=caller.session),
            id=entry_id, kind="refusal", time=self._rooms.stamps.now(), outcome="refused", command=word,
            subject=ticket_id[:64], error=refused.face.e_number,
        )  # fmt: skip
        await self._rooms.writer.put(Entry(caller.tenant, entry_id, None, body, None))

    async def _check(self, caller: Caller) -> None:
        (await self._rooms.authority.of(caller.tenant)).revocations.check(caller)


def _wrong_code(rooms: Rooms, ticket_id: str) -> NotAnApprover:
    if rooms.codes is None:
        why, advice = "this gateway takes no codes", "Sign in for the console: only deputize dev shows codes."
    elif (seconds := rooms.codes.locked_seconds(ticket_id)) > 0:
        why, advice = (
            "too many wrong codes were tried",
            f"Wait {seconds:.0f} seconds; the terminal shows the right one.",
        )
    else:
        why, advice = "this is not the ticket's code", "Read it in the terminal that deputize dev runs in."
    return NotAnApprover(why, details={"rule": TERMINAL_CODE, "ticket_id": ticket_id}, advice=advice)


def _too_late(ticket: Seen) -> ApprovalExpired:
    return ApprovalExpired("the time to decide is over", details={"ticket_id": ticket.id}, nothing_happened=True)


def _require_alike(tickets: Sequence[Seen], vary: frozenset[str]) -> None:
    """What differs in anything but what was named is not decided in one go."""
    if not tickets:
        raise Malformed("no ticket was named", details={"field": "tickets"})
    first = tickets[0]
    for other in tickets[1:]:
        differ = {"tool"} if other.row["group_key"] != first.row["group_key"] else other.differs_from(first) - vary
        if differ:
            raise Malformed(
                f"ticket {other.id} differs from {first.id} in {', '.join(sorted(differ))}",
                details={"ticket_id": other.id, "differ": sorted(differ)},
                advice="Name what may differ, or decide about it by itself.",
            )
