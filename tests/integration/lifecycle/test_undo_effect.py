"""A result that breaks its contract takes its effect back where the tool can, and says truthfully whether it did."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import BRIEF_WRITE_OPTIONS, TOOLS, WRITE_OPTIONS

pytestmark = pytest.mark.requirement("INV-7")

Account = Annotated[str, Field(description="Whose ledger", examples=["a"])]
Amount = Annotated[int, Field(description="How much", examples=[1])]
ledger: dict[str, list[int]] = {}
rollbacks: list[tuple[dict[str, Any], Any]] = []
totals = {"all": 0}
release = threading.Event()
started, finish = asyncio.Event(), asyncio.Event()


def read_ledger(account: str) -> Any:
    entries = ledger.get(account, [])
    return {"rows": len(entries), "total": sum(entries)}


def take_back(arguments: dict[str, Any], output: Any) -> None:
    rollbacks.append((arguments, output))
    if arguments["account"] == "stuck":
        raise OSError("the ledger at /srv/ledger is closed")
    if arguments["account"] != "forgetful":
        ledger[arguments["account"]].pop()


def _book(account: str, amount: int) -> int:
    """Book an amount, and twice if it is 13."""
    entries = ledger.setdefault(account, [])
    entries.append(amount)
    if amount == 13:
        entries.append(amount)
    return amount


_INTEGRITY = {"one_row": "/change/rows == 1", "the_amount": "/change/total == /input/amount"}


@tool(
    effects="write", resources=["create lab.ledger/{account}"], read_state=read_ledger, rollback=take_back,
    predicates={**_INTEGRITY, "small": "/output <= 100"}, **WRITE_OPTIONS,
)  # fmt: skip
def book(account: Account, amount: Amount) -> int:
    """Book an amount on an account."""
    return _book(account, amount)


@tool(
    effects="write", resources=["create lab.ledger/{account}"], rollback=take_back,
    predicates={"small": "/output <= 100"}, **WRITE_OPTIONS,
)  # fmt: skip
def book_unseen(account: Account, amount: Amount) -> int:
    """Book an amount on an account whose state cannot be seen."""
    return _book(account, amount)


@tool(
    effects="write", resources=["create lab.ledger/{account}"], read_state=lambda: totals, rollback=take_back,
    predicates={"the_amount": "/change/all == /input/amount"}, **WRITE_OPTIONS,
)  # fmt: skip
def add(account: Account, amount: Amount) -> int:
    """Add an amount to the total, in the object that the state is read from."""
    totals["all"] += amount
    ledger.setdefault(account, []).append(amount)
    return amount


@tool(
    effects="write", resources=["create lab.ledger/{account}"], read_state=read_ledger, rollback=take_back,
    predicates=_INTEGRITY | {"small": "/output <= 100"}, **BRIEF_WRITE_OPTIONS,
)  # fmt: skip
def book_slowly(account: Account, amount: Amount) -> int:
    """Book an amount on an account, as soon as the test lets it."""
    release.wait(20)
    return _book(account, amount)


@tool(
    effects="write", resources=["create lab.ledger/{account}"], rollback=take_back,
    predicates={"small": "/output <= 100"}, **WRITE_OPTIONS,
)  # fmt: skip
async def book_and_wait(account: Account, amount: Amount) -> int:
    """Book an amount on an account, and wait for the test."""
    _book(account, amount)
    started.set()
    await finish.wait()
    return amount


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    ledger.clear()
    rollbacks.clear()
    for event in (release, started, finish):
        event.clear()
    own_tools = (book, book_unseen, add, book_slowly, book_and_wait)
    tools = [*TOOLS, *(getattr(each, ATTRIBUTE) for each in own_tools)]
    async with open_lab(fresh_database, tmp_path, tools=tools) as lab:
        yield lab


async def call(lab: GatewayLab, name: str, account: str, amount: int) -> Any:
    return await lab.call(name, {"account": account, "amount": amount}, key=f"{name} {account} {amount}")


async def fetch_degradations(lab: GatewayLab, call_id: str) -> list[str]:
    newest_entry = "select entry from deputize.audit_entries where call_id = $1 order by id desc limit 1"
    return list(json.loads(await lab.db.fetchval(newest_entry, call_id)).get("degradations", []))


async def test_what_a_call_changed_is_compared_with_what_it_was_to_change(lab: GatewayLab) -> None:
    assert (await call(lab, "book", "a", 5)).state is State.SUCCEEDED
    twice = await call(lab, "book", "a", 13)
    assert (twice.state, error_slug(twice)) == (State.FAILED, "predicate-failed")
    assert [each["name"] for each in parse_body(twice)["error"]["details"]["predicates"]] == ["one_row", "the_amount"]


@pytest.mark.parametrize("name", ["book", "book_unseen"])
async def test_a_rejected_result_takes_its_effect_back(lab: GatewayLab, name: str) -> None:
    await call(lab, name, "a", 5)
    outcome = await call(lab, name, "a", 500)
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "predicate-failed")
    body = parse_body(outcome)
    assert body["detail"].endswith("; its effect was rolled back")
    assert body["error"]["details"]["rolled_back"] is True
    assert "result" not in body
    assert ledger == {"a": [5]}
    assert rollbacks == [({"account": "a", "amount": 500}, 500)]
    assert await fetch_degradations(lab, outcome.call_id) == ["rolled_back"]
    again = await call(lab, name, "a", 500)
    assert (again.body, again.is_replay) == (outcome.body, True)
    assert len(rollbacks) == 1


@pytest.mark.parametrize(
    ("account", "reason"),
    [("stuck", "the rollback of lab.book failed: OSError"), ("forgetful", "the state is not as before the call")],
)
async def test_an_effect_that_is_still_there_is_reported(lab: GatewayLab, account: str, reason: str) -> None:
    outcome = await call(lab, "book", account, 500)
    body = parse_body(outcome)
    assert body["detail"].endswith(f"; its effect was not rolled back: {reason}")
    assert "/srv" not in body["detail"]
    assert body["error"]["details"]["rolled_back"] is False
    assert ledger == {account: [500]}
    assert await fetch_degradations(lab, outcome.call_id) == ["not_rolled_back"]


async def test_a_result_that_keeps_its_contract_stays(lab: GatewayLab) -> None:
    outcome = await call(lab, "book", "a", 5)
    assert outcome.state is State.SUCCEEDED
    assert rollbacks == []
    assert await fetch_degradations(lab, outcome.call_id) == []


async def test_a_state_is_compared_as_it_was_when_it_was_read(lab: GatewayLab) -> None:
    assert (await call(lab, "add", "a", 5)).state is State.SUCCEEDED
    assert rollbacks == []


@pytest.mark.requirement("NEW-3")
@pytest.mark.parametrize(("amount", "state"), [(5, "succeeded"), (500, "failed")])
async def test_a_late_result_is_checked_without_its_state_and_never_taken_back(
    lab: GatewayLab, amount: int, state: str
) -> None:
    outcome = await call(lab, "book_slowly", "a", amount)
    assert outcome.state is State.UNKNOWN
    release.set()
    await lab.wait_for_state(outcome.call_id, state)
    assert (ledger, rollbacks) == ({"a": [amount]}, [])


@pytest.mark.requirement("NEW-3")
async def test_a_call_that_was_settled_meanwhile_is_not_taken_back(lab: GatewayLab) -> None:
    running = asyncio.create_task(call(lab, "book_and_wait", "a", 500))
    await started.wait()
    call_id = await lab.find_running_call("book_and_wait")
    await lab.db.execute("update deputize.calls set deadline_at = now() - interval '1 hour' where id = $1", call_id)
    assert await lab.run_sweeper() == 1
    finish.set()
    assert (await running).state is not State.SUCCEEDED
    assert (ledger, rollbacks) == ({"a": [500]}, [])
