"""A server that asks back, about a call that people have to approve: they decide about the answers, too."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.doors.mcp.speaking import Answer, Speaker
from tests.integration.doors.people import Office, open_office
from tests.integration.servers.curious import FORMS, SAID, STATE, Curious
from tests.integration.servers.scene import SCOPES, described

pytestmark = pytest.mark.requirement("GOV-3")

ANA = {"name": "Ana"}
WRITE = "orders__cancel_order"
RULES = """
@id("open")
permit (principal, action, resource) unless { resource == Tool::"orders.cancel_order" };

@id("canceling-asks")
@decision("ask")
@approvers("oncall")
permit (principal, action, resource == Tool::"orders.cancel_order");
"""


class Desk:
    def __init__(self, office: Office, server: Curious) -> None:
        self.office, self.server = office, server
        self.speaker = Speaker(office.served, token=office.served.token("ana", scopes=SCOPES[:1]), abilities=FORMS)

    async def call(self, **more: Any) -> Answer:
        return await self.speaker.call(WRITE, ANA, key="approved", **more)

    async def ticket_of(self, waiting: Answer) -> tuple[str, dict[str, Any]]:
        assert waiting.structured["status"] == "awaiting_approval", waiting.told
        call_id: str = waiting.structured["call_id"]
        return call_id, await self.office.show(call_id, token=self.office.person())

    async def approve(self, ticket: dict[str, Any]) -> None:
        said = {"binding": ticket["binding"], "reason": "looks right"}
        done = await self.office.decide("approve", ticket["ticket_id"], token=self.office.person(), **said)
        assert done.status_code == 200, done.text

    async def ended(self, call_id: str) -> dict[str, Any]:
        async with asyncio.timeout(60):
            while True:
                shown = (await self.speaker.call("calls_get", {"call_id": call_id, "wait_ms": 500})).structured
                if shown["status"] not in ("awaiting_approval", "approved", "queued", "running"):
                    return shown


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def desk(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    server = Curious()
    server.start()
    try:
        named = (described(server, slow=(), asks=("elicitation",)),)
        folder = tmp_path_factory.mktemp("office")
        async with open_office(module_database, folder, rules=RULES, tools=(), servers=named) as office:
            yield Desk(office, server)
    finally:
        server.stop()


async def test_each_round_is_approved_by_itself_with_its_answers(desk: Desk) -> None:
    first, ticket = await desk.ticket_of(await desk.call())
    assert ticket.get("answers") is None
    await desk.approve(ticket)
    shown = await desk.ended(first)
    assert (shown["status"], shown["asks"]) == ("needs_input", ["who"])

    asked = await desk.call()
    assert asked.result["resultType"] == "input_required"
    again = {"requestState": asked.result["requestState"], "inputResponses": SAID}
    second, ticket = await desk.ticket_of(await desk.call(**again))
    assert second != first
    assert ticket["answers"] == SAID
    assert ticket["arguments"] == ANA
    assert desk.server.done == []
    same, _ = await desk.ticket_of(await desk.call(**again))
    assert same == second

    await desk.approve(ticket)
    assert (await desk.ended(second))["status"] == "succeeded"
    assert desk.server.done == [("cancel_order", SAID)]
    assert desk.server.heard[-1]["requestState"] == f"{STATE}0"
    replayed = await desk.call(**again)
    assert replayed.result["content"][0]["text"] == "cancel_order done"
    assert len(desk.server.done) == 1
