"""Reconciliation: finds out what became of calls whose outcome is unknown. It never repeats one blindly.

a run whose upstream takes a key once   goes on, with the same key
the contract names a `status`           that tool is asked with the call's key, and answers {"state": …}: `happened`
                                        (and the `result`, where it is still known), `did_not_happen` or `unknown`
otherwise, or when asking led nowhere   a person is asked, by a ticket

Runs beside every worker; they share the work by skipping what another holds. What is unknown is looked into again ever
more rarely, also while a person is asked: a status that comes back settles the call and closes the ticket.
"""

import asyncio
import contextlib
from typing import Any

import asyncpg
import orjson
import structlog

from deputize.core.call import CallRequest
from deputize.core.caller import RECONCILER, Caller, Capability, Epochs
from deputize.core.contract import Effects, MutationClass
from deputize.core.decision import Decision
from deputize.core.errors import GivenUp, Problem, SealBroken
from deputize.core.events import FINAL, State
from deputize.core.frozen import frozen
from deputize.govern.decide import RECONCILIATION
from deputize.lifecycle.claim import may_go_again
from deputize.lifecycle.record import redaction_of
from deputize.lifecycle.recorded import WrittenInput, caller_from
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.settled import Found, Settlement, Unknown, settle_unknown, unknown_from
from deputize.lifecycle.tickets import ELSEWHERE, open_ticket
from deputize.prove.entries import About, entry
from deputize.store.pool import LOST, Connection
from deputize.store.queries import load

_SQL = load("tickets")
_CHECKPOINTS = load("checkpoints")
_RUNS = load("runs")
_AT_ONCE = 10
_RAREST_SECONDS = 6 * 3600.0
_LARGEST_SHOWN = 16_384
_BY_STATUS = Decision(rules=(RECONCILIATION,), epochs=Epochs())
log = structlog.get_logger(__name__)


@frozen
class Answer:
    """What a status said; `found` is None where it does not know either, and then `why` says what came back."""

    found: Found | None
    result: Any = None
    why: str = ""


class Reconciler:
    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._rooms = lifecycle.rooms
        self._settings = lifecycle.rooms.settings.runs
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_looking(), name="reconciler")

    @property
    def alive(self) -> bool:
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _keep_looking(self) -> None:
        while True:
            try:
                busy = await self.round() == _AT_ONCE
            except LOST as error:
                busy = False
                log.warning("reconciliation_failed", reason=repr(error))
            if not busy:
                await asyncio.sleep(self._rooms.settings.timing.sweep_seconds)

    async def round(self) -> int:
        """Looks into what is due, so many at once; how many there were."""
        async with self._rooms.store.writing() as connection:
            due = await connection.fetch(
                _SQL["take_due"], self._settings.reconcile_after_seconds, _AT_ONCE,
                self._settings.reconcile_seconds, _RAREST_SECONDS,
            )  # fmt: skip
        await asyncio.gather(*(self._look(each) for each in due))
        return len(due)

    async def _look(self, due: asyncpg.Record) -> None:
        try:
            await self._look_into(due)
        except (Problem, *LOST) as error:
            # Its turn comes again.
            reason = error.face.slug if isinstance(error, Problem) else repr(error)
            log.warning("not_reconciled", call_id=str(due["id"]), reason=reason)
        except Exception as fault:
            # Of ours, or written by a newer release: it must not keep all the others from being looked into.
            log.exception("not_reconciled", call_id=str(due["id"]), reason=type(fault).__name__)

    async def _look_into(self, due: asyncpg.Record) -> None:
        tenant, tries = due["tenant"], due["tries"]
        async with self._rooms.store.writing() as connection:
            row = await connection.fetchrow(_SQL["unknown_call"], tenant, due["id"])
            if row is None or row["state"] in FINAL:
                await connection.execute(_SQL["resolve_tickets_of_call"], tenant, due["id"], ELSEWHERE)
                await connection.execute(_SQL["forget_reconciliation"], tenant, due["id"], due["again"])
                return
            if row["state"] != State.UNKNOWN:
                # It goes on, by whoever; this look does not count.
                await connection.execute(_SQL["uncount"], tenant, due["id"])
                return
        call = await unknown_from(self._rooms, tenant, row)
        contract = call.tool.contract
        if contract.mutation_class is MutationClass.READ:
            summary = f"{call.tool.name} only reads, so nothing can have happened"
            await self._settle(call, Answer(found="did_not_happen"), "the contract", summary)
        elif tries <= self._settings.reconcile_tries and await self._goes_on(call, row):
            log.info("run_goes_on", call_id=call.call_id, tries=tries)
        elif contract.status is not None:
            await self._ask(call, row, contract.status, tries)
        else:
            await self._ticket(call, row, tries, "its contract names no status to ask")

    async def _goes_on(self, call: Unknown, row: asyncpg.Record) -> bool:
        """What an upstream takes only once is simply tried again, unless that is what killed its workers."""
        poison = call.error == GivenUp.face.slug
        if row["caller"] is None or poison or row["cancel_asked"] or row["ticketed"]:
            return False
        if not may_go_again(call.tool.contract):
            return False
        async with self._rooms.store.writing() as connection:
            queued = await connection.fetchval(
                _CHECKPOINTS["requeue_run"], call.tenant, call.call_id, call.epoch, [State.UNKNOWN]
            )
        return bool(queued)

    async def _ask(self, call: Unknown, row: asyncpg.Record, status: str, tries: int) -> None:
        try:
            caller = await self._asking(call, row, status)
        except (Problem, ValueError) as gone:
            reason = gone.message if isinstance(gone, Problem) else str(gone)
            answer = Answer(found=None, why=f"{status} could not be asked: {reason}")
        else:
            answer = await self._asked(call, caller, status)
        if answer.found is not None:
            said = "happened" if answer.found == "happened" else "did not happen"
            await self._settle(call, answer, status, f"{status} was asked what became of it: it {said}")
        elif tries >= self._settings.reconcile_tries:
            await self._ticket(call, row, tries, answer.why)

    async def _asking(self, call: Unknown, row: asyncpg.Record, status: str) -> Caller:
        """Who asks: of a run, who asked for it, with the grant that was recorded. Of a call inside a request nobody was
        recorded; then the gateway itself, which may read this one tool and nothing else.
        """
        if row["caller"] is not None:
            keys = self._rooms.keys.ready(call.tenant) or await self._rooms.keys.load(self._rooms.store, call.tenant)
            issuers = self._rooms.settings.identity.issuers
            return caller_from(keys.open(call.call_id, "caller", row["caller"]), issuers)
        tools = (await self._rooms.authority.of(call.tenant)).tools
        found = tools.resolve(status)
        return Caller(
            tenant=call.tenant,
            user=RECONCILIATION,
            scopes=frozenset(found.contract.auth.scopes),
            capabilities=(Capability(tool=found.contract.full_name),),
            session=call.session,
            issuer=RECONCILER,
            ceiling=Effects.READ,
        )

    async def _asked(self, call: Unknown, caller: Caller, status: str) -> Answer:
        """Through the one lifecycle, like any read: decided, limited, recorded."""
        request = CallRequest(
            tool=status,
            arguments={"key": call.call_id},
            session=call.session,
            traceparent=f"00-{call.trace}-{call.trace[16:]}-00",
            mode="sync",
        )
        outcome = await self._lifecycle.run(caller, request)
        if outcome.state is not State.SUCCEEDED:
            return Answer(found=None, why=f"{status} could not be asked: {outcome.face.slug if outcome.face else ''}")
        told = orjson.loads(outcome.body)["result"]
        match told:
            case {"state": "happened"}:
                return Answer(found="happened", result=told.get("result"))
            case {"state": "did_not_happen"}:
                return Answer(found="did_not_happen")
            case {"state": "unknown"}:
                return Answer(found=None, why=f"{status} does not know it either")
            case _:
                return Answer(found=None, why=f"{status} answered something that is no status")

    async def _settle(self, call: Unknown, answer: Answer, source: str, summary: str) -> None:
        assert answer.found is not None
        end = Settlement(
            found=answer.found,
            by=Caller(tenant=call.tenant, user=""),
            decision=_BY_STATUS,
            source=source,
            summary=summary,
            result=answer.result,
        )
        async with self._rooms.store.writing() as connection:
            if await settle_unknown(self._rooms, connection, call, end):
                await connection.execute(_SQL["resolve_tickets_of_call"], call.tenant, call.call_id, answer.found)
                log.info("call_settled", call_id=call.call_id, found=answer.found, source=source)

    async def _ticket(self, call: Unknown, row: asyncpg.Record, tries: int, why: str) -> None:
        if row["ticketed"]:
            return
        question = {
            "asked": f"Did {call.tool.name} happen?",
            "why": why,
            "tries": tries,
            "ended_as": call.error,
            "key": call.call_id,
            "arguments": await self._arguments(call, row),
        }
        async with self._rooms.store.writing() as connection:
            ticket = await open_ticket(self._rooms, connection, call.tenant, call.call_id, question)
            if ticket is not None:
                await self._record_ticket(connection, call, ticket)
                log.warning("ticket_opened", call_id=call.call_id, ticket=ticket)

    async def _arguments(self, call: Unknown, row: asyncpg.Record) -> dict[str, Any] | None:
        """Of a run, whose arguments were kept; redacted as everything is that people see of them."""
        if row["input"] is None:
            return None
        keys = self._rooms.keys.ready(call.tenant) or await self._rooms.keys.load(self._rooms.store, call.tenant)
        try:
            written = WrittenInput(keys.open(call.call_id, "input", row["input"]))
        except (SealBroken, ValueError):
            # Whoever is asked has to find out without them; not to ask would leave the call unknown for ever.
            return None
        shown: dict[str, Any] = redaction_of(call.tool, "input").apply(written.arguments)[0]
        return shown if len(orjson.dumps(shown)) <= _LARGEST_SHOWN else None

    async def _record_ticket(self, connection: Connection, call: Unknown, ticket: str) -> None:
        entry_id = self._rooms.clock.new_id()
        body = entry(
            About(
                caller=Caller(tenant=call.tenant, user=""), trace=call.trace, call=call.call_id, session=call.session,
                contract=call.tool.contract,
            ),
            id=entry_id,
            kind="decision",
            time=self._rooms.stamps.now(),
            decision=_BY_STATUS,
            outcome=State.UNKNOWN,
            command="ask_a_person",
            subject=ticket,
        )  # fmt: skip
        await connection.execute(_RUNS["add_entry"], call.tenant, entry_id, call.call_id, body, None)
