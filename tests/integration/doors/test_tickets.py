"""Tickets over REST: listed, shown and answered by administrators of their own tenant."""

import asyncpg
import pytest

from deputize.lifecycle.reconcile import Reconciler
from tests.integration.conftest import ADMIN, Served

pytestmark = [pytest.mark.requirement("NEW-3"), pytest.mark.requirement("INV-4")]

LOST = "update deputize.calls set state = 'unknown', deadline_at = now() - interval '1 hour' where id = $1"


async def ticket_about_a_lost_call(served: Served, key: str) -> tuple[str, str]:
    """The ids of a call whose outcome nobody knows, and of the ticket about it."""
    made = (await served.call("shop.rename_user", {"id": 1, "name": "Ana"}, key=key)).json()
    assert served.settings.database.url is not None
    database = await asyncpg.connect(served.settings.database.url.get_secret_value())
    try:
        await database.execute(LOST, made["call_id"])
        await database.execute("update deputize.reconciliations set due_at = now() - interval '1 hour'")
    finally:
        await database.close()
    assert served.gateway is not None
    await Reconciler(served.gateway.lifecycle).round()
    listed = (await served.get("/v1/tickets", token=served.token("root", scopes=[ADMIN]))).json()["tickets"]
    return made["call_id"], next(each["ticket_id"] for each in listed if each["call"]["call_id"] == made["call_id"])


async def test_an_administrator_finds_and_answers_a_ticket(served: Served) -> None:
    admin = served.token("root", scopes=[ADMIN])
    call, ticket = await ticket_about_a_lost_call(served, "answered")
    shown = (await served.get(f"/v1/tickets/{ticket}", token=admin)).json()
    assert (shown["state"], shown["kind"], shown["question"]["key"]) == ("open", "reconcile", call)
    answer = {"outcome": "happened", "reason": "the new name is there"}
    resolved = await served.post(f"/v1/tickets/{ticket}/resolve", answer, token=admin)
    assert (resolved.status_code, resolved.json()["call"]["state"]) == (200, "succeeded")
    assert (await served.get(f"/v1/calls/{call}")).json()["result"]["settled"]["happened"] is True
    again = await served.post(f"/v1/tickets/{ticket}/resolve", answer, token=admin)
    assert (again.status_code, again.json()["error"]["slug"]) == (409, "ticket-closed")
    assert (await served.get("/v1/tickets", token=admin)).json()["tickets"] == []
    every = (await served.get("/v1/tickets", token=admin, state="all")).json()["tickets"]
    assert [each["resolved_by"] for each in every] == ["root"]


async def test_nobody_else_sees_or_answers_them(served: Served) -> None:
    _, ticket = await ticket_about_a_lost_call(served, "hidden")
    answer = {"outcome": "happened", "reason": "I say so"}
    assert (await served.get("/v1/tickets")).status_code == 403
    assert (await served.get(f"/v1/tickets/{ticket}")).status_code == 403
    assert (await served.post(f"/v1/tickets/{ticket}/resolve", answer)).status_code == 403
    other = served.other_token("otto", scopes=[ADMIN])
    assert (await served.get("/v1/tickets", token=other)).json() == {"tickets": [], "next_before": None}
    assert (await served.get(f"/v1/tickets/{ticket}", token=other)).status_code == 404
    assert (await served.post(f"/v1/tickets/{ticket}/resolve", answer, token=other)).status_code == 404


@pytest.mark.parametrize(
    ("case", "body"),
    list(enumerate([{}, {"outcome": "happened"}, {"outcome": "maybe", "reason": "x"}, [], {"reason": "x"}])),
)
async def test_an_answer_says_what_and_why(case: int, body: object, served: Served) -> None:
    _, ticket = await ticket_about_a_lost_call(served, f"unsaid-{case}")
    admin = served.token("root", scopes=[ADMIN])
    assert (await served.post(f"/v1/tickets/{ticket}/resolve", body, token=admin)).status_code == 400
