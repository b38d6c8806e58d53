"""What people approve again and again comes back as a draft: exact, tried, ending, and put in force by people only."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import Fact, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.definition import PythonTool
from tests.integration.conftest import ADMIN
from tests.integration.doors.people import Office, open_office

pytestmark = pytest.mark.requirement("NEW-9")

ORDERS = "update till.orders/{order}"
Order = Annotated[int, Fact(), Field(description="Which order", ge=1, examples=[7])]
Amount = Annotated[int, Fact(), Field(description="How much", ge=1, examples=[20])]


@tool(
    effects="write",
    namespace="till",
    resources=["update till.orders/{order}"],
    undo="till.charge",
    scopes=["shop:write"],
)
async def refund(order: Order, amount: Amount) -> str:
    """Give a customer money back."""
    return f"{amount} for {order}"


@tool(
    effects="write",
    namespace="till",
    resources=["update till.orders/{order}"],
    undo="till.refund",
    scopes=["shop:write"],
)
async def charge(order: Order, amount: Amount) -> str:
    """Take money from a customer."""
    return f"{amount} from {order}"


@tool(effects="write", namespace="till", resources=["create till.notes"], undo="till.note", scopes=["shop:write"])
async def note(text: Annotated[str, Field(description="What to write", examples=["hello"])]) -> str:
    """Write a note."""
    return text


TOOLS: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (refund, charge, note)]
RULES = """
@id("writes-ask")
@reason("Somebody looks.")
@decision("ask")
@approvers("oncall")
permit (principal, action, resource);

@id("charges-ask")
@decision("ask")
@approvers("oncall")
forbid (principal, action, resource == Tool::"till.charge");
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def office(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Office]:
    folder = tmp_path_factory.mktemp("till")
    async with open_office(module_database, folder, rules=RULES, tools=TOOLS) as opened:
        yield opened


async def answered(
    office: Office, name: str, arguments: dict[str, Any], key: str, word: str = "approve", by: str = "bo"
) -> None:
    told = await office.asked(name, key=key, **arguments)
    said = await office.decide(word, told["call_id"], token=office.person(by), reason="so be it")
    assert said.status_code == 200, said.text


async def approved(office: Office, name: str, *several: dict[str, Any], key: str) -> None:
    for number, arguments in enumerate(several):
        await answered(office, name, arguments, f"{key}-{number}", by=("bo", "cy")[number % 2])


async def suggested(office: Office, token: str | None = None) -> dict[str, Any]:
    root = token or office.served.token("root", scopes=[ADMIN])
    answer = await office.served.get("/v1/approvals/suggestions", token=root)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def in_a_terminal(office: Office) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "deputize", "approvals", "suggest", "--url", office.served.url]
    env = {**os.environ, "DEPUTIZE_TOKEN": office.served.token("root", scopes=[ADMIN])}
    return await asyncio.to_thread(subprocess.run, words, env=env, capture_output=True, text=True, timeout=60)


async def put(office: Office, files: list[dict[str, str]]) -> None:
    root = office.served.token("root", scopes=[ADMIN])
    answer = await office.served.http.put(
        "/v1/policies", json={"files": files}, headers={"authorization": f"Bearer {root}"}
    )
    assert answer.status_code == 200, answer.text


async def test_from_approvals_to_a_permit_that_a_person_puts_in_force(office: Office) -> None:
    root = office.served.token("root", scopes=[ADMIN])
    before = (await office.served.get("/v1/policies", token=root)).json()
    assert (await suggested(office))["suggestions"] == []
    usual = [{"order": 7, "amount": amount} for amount in (20, 20, 25, 20, 25)]
    await approved(office, "till.refund", *usual[:4], key="few")
    assert (await suggested(office))["suggestions"] == []
    await approved(office, "till.refund", *usual[4:], key="enough")

    told = await suggested(office)
    (draft,) = told["suggestions"]
    assert (draft["tool"], draft["user"], draft["asked_by"]) == ("till.refund", "ana", ["writes-ask"])
    assert (draft["calls"], draft["people"], told["withheld"]) == (5, ["bo", "cy"], [])
    for said in (
        "[20, 25].contains(context.facts.amount)",
        "context.facts.order == 7",
        f"context.time.epoch < {draft['until']}",
    ):
        assert said in draft["rule"]
    tried = told["backtest"]
    assert (tried["looser"], tried["stricter"], tried["asked_of_others"], tried["untold"]) == (5, 0, 0, 0)
    assert [each["after"]["rules"][0]["id"] for each in tried["changes"]] == [draft["id"]]
    shown = await in_a_terminal(office)
    assert shown.stdout.rstrip("\n") == told["file"]["text"].rstrip("\n")
    assert "5 that asked would be allowed, 0 refused, 0 cannot be told" in shown.stderr
    assert "nothing was changed" in shown.stderr
    # It was a draft: nothing changed, and what it would permit still asks.
    assert (await office.served.get("/v1/policies", token=root)).json() == before
    still = await office.asked("till.refund", key="still", order=7, amount=20)
    await office.decide("deny", still["call_id"], token=office.person(), reason="only to see")

    await put(office, [*before["files"], told["file"]])
    went = await office.served.call("till.refund", {"order": 7, "amount": 25}, key="went")
    assert (went.status_code, went.json()["result"]) == (200, "25 for 7")
    for number, other in enumerate(({"order": 7, "amount": 22}, {"order": 8, "amount": 20})):
        assert (await office.served.call("till.refund", other, key=f"other-{number}")).status_code == 202
    await put(office, before["files"])


async def test_what_was_denied_is_not_suggested(office: Office) -> None:
    """The test before denied one of the same kind."""
    withheld = {each["tool"]: each["why"] for each in (await suggested(office))["withheld"]}
    assert withheld["till.refund"] == "people denied 1 of these calls"


async def test_what_no_permit_could_be_narrow_enough_for_is_withheld_and_told_why(office: Office) -> None:
    await approved(office, "till.note", *({"text": "hello"} for _ in range(5)), key="note")
    await approved(office, "till.charge", *({"order": 7, "amount": 5} for _ in range(5)), key="charge")

    told, shown = await suggested(office), await in_a_terminal(office)
    withheld = {each["tool"]: each["why"] for each in told["withheld"]}
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "no permit for 5 calls of till.note by ana, all approved: rules cannot read text" in shown.stderr
    assert "Nothing to suggest from 16 decided tickets since" in shown.stderr
    assert (told["suggestions"], told["file"], told["backtest"]) == ([], None, None)
    assert "rules cannot read text" in withheld["till.note"]
    assert "no permit lifts what charges-ask (asking.cedar:8) says" in withheld["till.charge"]


async def test_only_an_administrator_sees_and_only_their_own_tenant(office: Office) -> None:
    at, served = "/v1/approvals/suggestions", office.served
    assert (await served.get(at)).status_code == 403
    assert (await served.get(at, token=office.person("bo"))).status_code in (401, 403)
    other = await suggested(office, served.other_token("root", scopes=[ADMIN]))
    assert (other["tickets"], other["suggestions"], other["withheld"]) == (0, [], [])
