"""A call that people are asked about waits for them, goes on by itself when they say yes, and never otherwise."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio

from deputize.core.errors import ApprovalChanged, NotAnApprover, Problem, TicketClosed, TicketNotFound
from deputize.lifecycle.carried import Desk
from tests.integration.approvals.house import RULES, House, open_house
from tests.integration.lifecycle.lab import body, slug, until
from tests.integration.lifecycle.tools import effects_of

pytestmark = pytest.mark.requirement("GOV-3")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def house(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[House]:
    async with open_house(module_database, tmp_path_factory.mktemp("house")) as opened:
        yield opened


async def test_an_approved_call_goes_on_by_itself_once(house: House) -> None:
    call, ticket = await house.asked("put", "a1")
    assert effects_of("a1") == []
    shown = await house.approvals.show(await house.person("bo"), ticket)
    assert shown["arguments"] == {"tag": "a1"}
    assert (shown["for_user"], shown["may_decide"], shown["groups"]) == ("ana", True, ["approvers"])
    answer = await house.approvals.approve(await house.person("bo"), ticket, binding=shown["binding"])
    assert (answer["state"], answer["call_state"]) == ("approved", "queued")
    await house.lab.until_state(call, "succeeded")
    assert [effect.key for effect in effects_of("a1")] == [call]
    assert (await house.ticket(ticket))["state"] == "used"
    assert await house.lab.kinds(call) == ["intent", "decision", "intent", "outcome"]


async def test_the_same_key_is_the_same_ticket_and_later_the_outcome(house: House) -> None:
    call, ticket = await house.asked("put", "a2")
    assert await house.asked("put", "a2") == (call, ticket)
    await house.approvals.approve(await house.person("bo"), ticket)
    await house.lab.until_state(call, "succeeded")
    again = await house.lab.call("put", "a2", key="put-a2")
    assert (again.replayed, body(again)["result"]) == (True, {"value": "a2"})


async def test_a_no_ends_the_call_with_a_reason_its_caller_reads(house: House) -> None:
    call, ticket = await house.asked("note", "a3")
    await house.approvals.deny(await house.person("bo"), ticket, reason="not on a Sunday")
    assert await house.lab.state(call) == "denied"
    again = await house.lab.call("note", "a3", key="note-a3")
    assert slug(again) == "approval-rejected"
    assert "not on a Sunday" in body(again)["error"]["message"]
    with pytest.raises(TicketClosed):
        await house.approvals.approve(await house.person("cy"), ticket)
    assert effects_of("a3") == []


async def test_how_long_people_took_is_measured_when_they_have_decided(house: House) -> None:
    def measured() -> dict[str, float]:
        [family] = house.lab.rooms.metrics.approval_time.collect()
        found = (each for each in family.samples if each.name.endswith("_count"))
        return {each.labels["resolution"]: each.value for each in found if each.labels["tool"] == "lab.put"}

    before = measured()
    _, ticket = await house.asked("put", "a3-measured")
    assert measured() == before
    await house.approvals.deny(await house.person("bo"), ticket, reason="no")
    assert measured().get("denied", 0) == before.get("denied", 0) + 1


@pytest.mark.parametrize(
    ("user", "change", "rule"),
    [
        ("ana", {}, "no-self-approval"),
        ("bo", {"human": False}, "humans-only"),
        ("bo", {"agents": ("bot",)}, "humans-only"),
        ("bo", {"console": False}, "console-audience"),
        ("bo", {"auth_time": 1}, "fresh-sign-in"),
    ],
)
async def test_who_may_not_decide_is_refused_and_on_record(
    house: House, user: str, change: dict[str, Any], rule: str
) -> None:
    tag = f"a4-{user}-{rule}-{len(change)}-{min(change, default='')}"
    call, ticket = await house.asked("put", tag)
    person = replace(await house.person(user), **{"scopes": frozenset({"deputize:admin"}), **change})
    with pytest.raises(NotAnApprover) as refused:
        await house.approvals.approve(person, ticket)
    assert refused.value.details["rule"] == rule
    assert await house.lab.state(call) == "awaiting_approval"
    found = await house.lab.db.fetchval(
        "select count(*) from deputize.audit_entries where convert_from(entry, 'utf8') like '%' || $1 || '%'"
        " and convert_from(entry, 'utf8') like '%\"refusal\"%'",
        ticket,
    )
    assert found == 1


async def test_whoever_has_nothing_to_do_with_it_learns_nothing(house: House) -> None:
    _, ticket = await house.asked("put", "a5")
    stranger = await house.person("eve", groups=("gardeners",))
    for act in (house.approvals.show, house.approvals.approve):
        with pytest.raises(TicketNotFound):
            await act(stranger, ticket)
    assert await house.approvals.page(stranger) == []
    assert ticket in [each["ticket_id"] for each in await house.approvals.page(await house.person("bo"))]


async def test_every_demand_needs_its_people(house: House) -> None:
    call, ticket = await house.asked("erase", "a6")
    first = await house.approvals.approve(await house.person("k1", groups=("keepers",)), ticket)
    assert first["state"] == "open"
    with pytest.raises(NotAnApprover, match="already"):
        await house.approvals.approve(await house.person("k1", groups=("keepers",)), ticket)
    with pytest.raises(NotAnApprover):
        await house.approvals.approve(await house.person("e1", groups=("elders",)), ticket)
    second = await house.approvals.approve(await house.person("k2", groups=("keepers",)), ticket)
    assert second["state"] == "approved"
    await house.lab.until_state(call, "succeeded")
    assert len(effects_of("a6")) == 1


async def test_a_ticket_is_about_what_was_seen(house: House) -> None:
    _, ticket = await house.asked("put", "a7")
    with pytest.raises(ApprovalChanged):
        await house.approvals.approve(await house.person("bo"), ticket, binding="00" * 32)


async def test_changed_rules_void_what_was_approved(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "v1")
        await house.approvals.approve(await house.person("bo"), ticket)
        await house.put_rules(RULES.replace("Somebody agrees", "Anybody agrees"))
        await _carried(house, call)
        assert await house.lab.state(call) == "denied"
        outcome = await house.lab.call("put", "v1", key="put-v1")
        assert slug(outcome) == "approval-void"
        assert effects_of("v1") == []


async def test_an_approval_that_is_not_used_in_time_is_void(fresh_database: str, tmp_path: Path) -> None:
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, ticket = await house.asked("put", "v2")
        await house.approvals.approve(await house.person("bo"), ticket)
        await house.lab.db.execute(
            "update deputize.approvals set expires_at = now() - interval '1 second' where id = $1", ticket
        )
        await _carried(house, call)
        assert await house.lab.state(call) == "denied"
        assert effects_of("v2") == []


async def test_what_nobody_approved_is_not_begun_whoever_hands_it_out(fresh_database: str, tmp_path: Path) -> None:
    """Somebody with access to the queue, or a fault of ours, hands out what still waits."""
    async with open_house(fresh_database, tmp_path, working=False) as house:
        call, _ = await house.asked("put", "v3")
        await house.lab.db.execute("update deputize.calls set state = 'queued' where id = $1", call)
        await _carried(house, call)
        assert await house.lab.state(call) == "denied"
        assert effects_of("v3") == []


async def test_many_say_yes_at_once_and_it_happens_once(house: House) -> None:
    call, ticket = await house.asked("note", "a8")
    people = [await house.person(f"p{number}") for number in range(8)]
    answers = await asyncio.gather(
        *(house.approvals.approve(person, ticket) for person in people), return_exceptions=True
    )
    assert sum(isinstance(each, dict) for each in answers) == 1
    assert all(isinstance(each, dict | Problem) for each in answers), answers
    await house.lab.until_state(call, "succeeded")
    assert len(effects_of("a8")) == 1


async def test_who_made_the_call_takes_it_back(house: House) -> None:
    call, ticket = await house.asked("put", "a9")
    answer = await house.lab.gateway.cancellations.cancel(await house.lab.caller(), call)
    assert answer["state"] == "canceled"
    assert (await house.ticket(ticket))["state"] == "canceled"
    with pytest.raises(TicketClosed):
        await house.approvals.approve(await house.person("bo"), ticket)


async def test_calls_that_are_alike_are_decided_together_each_listed(house: House) -> None:
    made = [await house.asked("put", f"many-{number}") for number in range(3)]
    odd = await house.asked("note", "many-odd")
    bo = await house.person("bo")
    with pytest.raises(Problem, match="differs"):
        await house.approvals.decide_many(bo, [made[0][1], odd[1]], "approve", reason="", vary=["tag"])
    with pytest.raises(Problem, match="tag"):
        await house.approvals.decide_many(bo, [each[1] for each in made], "approve", reason="", vary=[])
    answers = await house.approvals.decide_many(bo, [each[1] for each in made], "approve", reason="", vary=["tag"])
    assert [each["arguments"]["tag"] for each in answers] == ["many-0", "many-1", "many-2"]
    for call, _ in made:
        await house.lab.until_state(call, "succeeded")


async def test_who_may_not_even_see_one_of_many_is_on_record_for_it(house: House) -> None:
    _, ticket = await house.asked("put", "many-unseen")
    stranger = await house.person("eve", groups=("sales",))
    with pytest.raises(TicketNotFound):
        await house.approvals.decide_many(stranger, [ticket], "approve", reason="", vary=[])
    kept = await house.lab.db.fetch(
        "select convert_from(entry, 'utf8')::json as entry from deputize.audit_entries"
        " where convert_from(entry, 'utf8')::json ->> 'subject' = $1",
        ticket,
    )
    (entry,) = [orjson.loads(row["entry"]) for row in kept]
    assert (entry["kind"], entry["command"], entry["error"]) == ("refusal", "approve", TicketNotFound.face.e_number)


async def test_two_people_break_the_glass_and_everybody_is_told(house: House) -> None:
    call, ticket = await house.asked("put", "glass")
    first, second = (
        [await house.person(name, groups=("approvers",), scopes=frozenset({"deputize:break-glass"})) for name in "xy"]
    )  # fmt: skip
    opened = await house.approvals.break_glass(first, ticket, reason="the site is down")
    assert opened["state"] == "open"
    with pytest.raises(NotAnApprover):
        await house.approvals.break_glass(first, ticket, reason="still down")
    answer = await house.approvals.break_glass(second, ticket, reason="the site is down")
    assert answer["state"] == "approved"
    await house.lab.until_state(call, "succeeded")

    async def told() -> bool:
        kinds = await house.lab.db.fetch("select kind from deputize.notices where ticket = $1", ticket)
        return "broken-glass" in {each["kind"] for each in kinds}

    assert await told() or await house.lab.db.fetchval("select count(*) from deputize.notices") == 0
    entries = await house.lab.entries(call)
    assert [each.get("command") for each in entries if each["kind"] == "decision"] == ["break_glass"]


async def test_a_read_that_rules_ask_about_waits_too(house: House) -> None:
    call, ticket = await house.asked("look", "a10", key=None)
    await house.approvals.approve(await house.person("bo"), ticket)
    await house.lab.until_state(call, "succeeded")


async def _carried(house: House, call: str) -> None:
    """One try of a worker."""
    await house.lab.gateway.lifecycle.resume("dev", call, Desk(house.lab.rooms))

    async def ended() -> bool:
        return await house.lab.state(call) not in ("queued", "running")

    await until(ended)


async def test_what_waits_for_a_yes_is_no_ticket_about_what_happened(house: House) -> None:
    _, ticket = await house.asked("put", "a-other-door")
    admin = await house.lab.admin()
    assert ticket not in [each["ticket_id"] for each in await house.lab.gateway.tickets.page(admin, limit=200)]
    with pytest.raises(TicketNotFound):
        await house.lab.gateway.tickets.resolve(admin, ticket, "happened", "seen")
