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
from deputize.core.contract.tools import PythonTool
from tests.integration.conftest import ADMIN
from tests.support.approval_gateway import ApprovalGateway, open_approval_gateway

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
async def approval_gateway(
    module_database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ApprovalGateway]:
    folder = tmp_path_factory.mktemp("till")
    async with open_approval_gateway(module_database, folder, rules=RULES, tools=TOOLS) as opened:
        yield opened


async def decide_call(
    approval_gateway: ApprovalGateway,
    name: str,
    arguments: dict[str, Any],
    key: str,
    verb: str = "approve",
    by: str = "bo",
) -> None:
    told = await approval_gateway.request_approval(name, key=key, **arguments)
    said = await approval_gateway.decide(
        verb, told["call_id"], token=approval_gateway.sign_token(by), reason="so be it"
    )
    assert said.status_code == 200, said.text


async def approve_calls(approval_gateway: ApprovalGateway, name: str, *several: dict[str, Any], key: str) -> None:
    for number, arguments in enumerate(several):
        await decide_call(approval_gateway, name, arguments, f"{key}-{number}", by=("bo", "cy")[number % 2])


async def fetch_suggestions(approval_gateway: ApprovalGateway, token: str | None = None) -> dict[str, Any]:
    root = token or approval_gateway.gateway.token("root", scopes=[ADMIN])
    answer = await approval_gateway.gateway.get("/v1/approvals/suggestions", token=root)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def run_suggest_command(approval_gateway: ApprovalGateway) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "deputize", "approvals", "suggest", "--url", approval_gateway.gateway.url]
    env = {**os.environ, "DEPUTIZE_TOKEN": approval_gateway.gateway.token("root", scopes=[ADMIN])}
    return await asyncio.to_thread(subprocess.run, words, env=env, capture_output=True, text=True, timeout=240)


async def put_policies(approval_gateway: ApprovalGateway, files: list[dict[str, str]]) -> None:
    root = approval_gateway.gateway.token("root", scopes=[ADMIN])
    answer = await approval_gateway.gateway.http.put(
        "/v1/policies", json={"files": files}, headers={"authorization": f"Bearer {root}"}
    )
    assert answer.status_code == 200, answer.text


async def test_from_approvals_to_a_permit_that_a_person_puts_in_force(approval_gateway: ApprovalGateway) -> None:
    root = approval_gateway.gateway.token("root", scopes=[ADMIN])
    before = (await approval_gateway.gateway.get("/v1/policies", token=root)).json()
    assert (await fetch_suggestions(approval_gateway))["suggestions"] == []
    usual = [{"order": 7, "amount": amount} for amount in (20, 20, 25, 20, 25)]
    await approve_calls(approval_gateway, "till.refund", *usual[:4], key="few")
    assert (await fetch_suggestions(approval_gateway))["suggestions"] == []
    await approve_calls(approval_gateway, "till.refund", *usual[4:], key="enough")

    told = await fetch_suggestions(approval_gateway)
    (draft,) = told["suggestions"]
    assert (draft["tool"], draft["user"], draft["required_by"]) == ("till.refund", "ana", ["writes-ask"])
    assert (draft["calls"], draft["people"], told["withheld"]) == (5, ["bo", "cy"], [])
    for said in (
        "[20, 25].contains(context.facts.amount)",
        "context.facts.order == 7",
        f"context.time.epoch < {draft['until']}",
    ):
        assert said in draft["rule"]
    tried = told["backtest"]
    assert (tried["looser"], tried["stricter"], tried["asked_of_others"], tried["undetermined"]) == (5, 0, 0, 0)
    assert [each["after"]["rules"][0]["id"] for each in tried["changes"]] == [draft["id"]]
    shown = await run_suggest_command(approval_gateway)
    assert shown.stdout.rstrip("\n") == told["file"]["text"].rstrip("\n")
    assert "5 would no longer need approval, 0 would be refused, 0 undetermined" in shown.stderr
    assert "Nothing was changed" in shown.stderr
    # It was a draft: nothing changed, and what it would permit still asks.
    assert (await approval_gateway.gateway.get("/v1/policies", token=root)).json() == before
    still = await approval_gateway.request_approval("till.refund", key="still", order=7, amount=20)
    await approval_gateway.decide("deny", still["call_id"], token=approval_gateway.sign_token(), reason="only to see")

    await put_policies(approval_gateway, [*before["files"], told["file"]])
    went = await approval_gateway.gateway.call("till.refund", {"order": 7, "amount": 25}, key="went")
    assert (went.status_code, went.json()["result"]) == (200, "25 for 7")
    for number, other in enumerate(({"order": 7, "amount": 22}, {"order": 8, "amount": 20})):
        assert (await approval_gateway.gateway.call("till.refund", other, key=f"other-{number}")).status_code == 202
    await put_policies(approval_gateway, before["files"])


async def test_what_was_denied_is_not_suggested(approval_gateway: ApprovalGateway) -> None:
    """The test before denied one of the same kind."""
    withheld = {each["tool"]: each["why"] for each in (await fetch_suggestions(approval_gateway))["withheld"]}
    assert withheld["till.refund"] == "people denied 1 of these calls"


async def test_a_permit_that_cannot_be_narrow_enough_is_withheld_with_its_reason(
    approval_gateway: ApprovalGateway,
) -> None:
    await approve_calls(approval_gateway, "till.note", *({"text": "hello"} for _ in range(5)), key="note")
    await approve_calls(approval_gateway, "till.charge", *({"order": 7, "amount": 5} for _ in range(5)), key="charge")

    told, shown = await fetch_suggestions(approval_gateway), await run_suggest_command(approval_gateway)
    withheld = {each["tool"]: each["why"] for each in told["withheld"]}
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "no permit for 5 calls of till.note by ana, all approved: rules cannot read text" in shown.stderr
    assert f"No permit to suggest from {told['request_count']} decided approval requests since" in shown.stderr
    assert (told["suggestions"], told["file"], told["backtest"]) == ([], None, None)
    assert "rules cannot read text" in withheld["till.note"]
    assert "no permit overrides charges-ask (asking.cedar:8)" in withheld["till.charge"]


async def test_only_an_administrator_sees_and_only_their_own_tenant(approval_gateway: ApprovalGateway) -> None:
    at, gateway = "/v1/approvals/suggestions", approval_gateway.gateway
    assert (await gateway.get(at)).status_code == 403
    assert (await gateway.get(at, token=approval_gateway.sign_token("bo"))).status_code in (401, 403)
    other = await fetch_suggestions(approval_gateway, gateway.other_token("root", scopes=[ADMIN]))
    assert (other["request_count"], other["suggestions"], other["withheld"]) == (0, [], [])
