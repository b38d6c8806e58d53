"""A person answers a ticket: the call gets the end they found, once, and it is recorded as their decision."""

import asyncio
from dataclasses import replace

import pytest

from deputize.core.contract import Effects
from deputize.core.errors import Malformed, NotInCapability, ScopeMissing, TicketClosed, TicketNotFound
from deputize.core.events import State
from deputize.lifecycle.settled import Found
from deputize.lifecycle.tickets import Tickets
from tests.integration.lifecycle.lab import Lab, body
from tests.integration.lifecycle.tools import effects_of, on
from tests.integration.runs.test_reconcile import _open, again, look, lost

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

NOBODYS = "01890000-0000-7000-8000-000000000000"


async def ticketed(lab: Lab, tag: str) -> tuple[str, str]:
    """The ids of an unknown call and of the ticket about it."""
    call = await lost(lab, "drop", tag)
    await look(lab, call)
    (ticket,) = await _open(lab, call)
    return call, str(ticket["ticket_id"])


async def test_it_happened(depot: Lab) -> None:
    call, ticket = await ticketed(depot, "happened")
    answer = await Tickets(depot.rooms).resolve(await depot.admin(), ticket, "happened", "it lies on the shelf")
    assert (answer["state"], answer["resolution"], answer["resolved_by"]) == ("resolved", "happened", "root")
    assert answer["call"]["state"] == "succeeded"
    told = body(await again(depot, "drop", "happened"))
    assert told["state"] == "succeeded"
    assert "A person looked into it" in told["result"]["settled"]["said"]
    assert "it lies on the shelf" in told["warnings"][0]
    last = (await depot.entries(call))[-1]
    assert (last["kind"], last["command"], last["subject"]) == ("decision", "settle:happened", ticket)
    assert last["rules"] == ["admin-scope", "a-person-decided"]
    assert len(last["caller"]) == 1
    assert len(effects_of("happened")) == 1


async def test_it_did_not_happen(depot: Lab) -> None:
    call, ticket = await ticketed(depot, "did-not")
    await Tickets(depot.rooms).resolve(await depot.admin(), ticket, "did_not_happen", "the shelf is empty")
    row = await depot.row(call)
    assert (row["state"], row["error"], row["nothing_happened"]) == ("failed", "did-not-happen", True)
    assert not await depot.claimed(call)
    on("did-not", lambda _: {"value": "now"})
    assert (await again(depot, "drop", "did-not")).state is State.SUCCEEDED
    assert await depot.db.fetchval("select count(*) from deputize.reconciliations where id = $1", call) == 0


async def test_of_many_answers_one_counts(depot: Lab) -> None:
    call, ticket = await ticketed(depot, "many")
    admin = await depot.admin()
    found: list[Found] = ["happened", "did_not_happen"] * 3
    answers = await asyncio.gather(
        *(Tickets(depot.rooms).resolve(admin, ticket, each, "I looked") for each in found), return_exceptions=True
    )
    assert [type(each).__name__ for each in answers].count("dict") == 1
    assert all(isinstance(each, dict | TicketClosed) for each in answers)
    won = next(each for each in answers if isinstance(each, dict))
    assert (await depot.row(call))["state"] == ("succeeded" if won["resolution"] == "happened" else "failed")
    assert [entry["kind"] for entry in await depot.entries(call)].count("decision") == 2


async def test_a_call_that_was_settled_meanwhile_stays_as_it_is(depot: Lab) -> None:
    call, ticket = await ticketed(depot, "meanwhile")
    await depot.db.execute("update deputize.calls set state = 'succeeded' where id = $1", call)
    with pytest.raises(TicketClosed):
        await Tickets(depot.rooms).resolve(await depot.admin(), ticket, "did_not_happen", "I looked")
    assert await depot.state(call) == "succeeded"
    shown = await Tickets(depot.rooms).show(await depot.admin(), ticket)
    assert (shown["state"], shown["resolution"]) == ("resolved", "settled_elsewhere")


async def test_only_administrators_see_and_answer_and_say_why(depot: Lab) -> None:
    _, ticket = await ticketed(depot, "whose")
    tickets, admin, ana = Tickets(depot.rooms), await depot.admin(), await depot.caller()
    with pytest.raises(ScopeMissing):
        await tickets.page(ana)
    with pytest.raises(ScopeMissing):
        await tickets.show(ana, ticket)
    with pytest.raises(ScopeMissing):
        await tickets.resolve(ana, ticket, "happened", "I say so")
    with pytest.raises(Malformed):
        await tickets.resolve(admin, ticket, "happened", "  ")
    for unknown in (NOBODYS, "no id"):
        with pytest.raises(TicketNotFound):
            await tickets.show(admin, unknown)
        with pytest.raises(TicketNotFound):
            await tickets.resolve(admin, unknown, "happened", "I looked")


@pytest.mark.parametrize("ceiling", [Effects.READ, Effects.WRITE])
async def test_who_was_lent_to_administer_without_changing_anything_sees_and_answers_nothing(
    depot: Lab, ceiling: Effects
) -> None:
    call, ticket = await ticketed(depot, f"lent-{ceiling}")
    tickets, looking = Tickets(depot.rooms), replace(await depot.admin(), ceiling=ceiling)
    assert (await tickets.show(looking, ticket))["state"] == "open"
    with pytest.raises(NotInCapability) as refused:
        await tickets.resolve(looking, ticket, "happened", "I looked")
    assert refused.value.details["rule"] == "grant-ceiling"
    assert await depot.state(call) == "unknown"
    acting = replace(looking, ceiling=Effects.DESTRUCTIVE)
    assert (await tickets.resolve(acting, ticket, "happened", "I looked"))["state"] == "resolved"


async def test_pages_go_on_where_the_last_one_ended(depot: Lab) -> None:
    made = [(await ticketed(depot, f"page-{n}"))[1] for n in range(3)]
    tickets, admin = Tickets(depot.rooms), await depot.admin()
    first = await tickets.page(admin, limit=2)
    rest = await tickets.page(admin, before=first[-1]["ticket_id"], limit=200)
    assert [each["ticket_id"] for each in first] == made[:0:-1]
    assert made[0] == rest[0]["ticket_id"]
    assert all(each["state"] == "open" for each in first + rest)
