"""What tools do to their state is compared with the effects that they declare."""

import asyncio
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
from tests.support.scripted_tools import AMPLE_SECONDS, TOOLS, WRITE_OPTIONS

pytestmark = [pytest.mark.requirement("INV-8"), pytest.mark.requirement("INV-7")]

Account = Annotated[str, Field(description="Whose ledger", examples=["a"])]
ledger: dict[str, int] = {}
unreadable: set[str] = set()
started, finish = asyncio.Event(), asyncio.Event()


def read_ledger(account: str) -> Any:
    if account in unreadable:
        raise OSError("the ledger is closed")
    return {"balance": ledger.get(account)}


@tool(effects="read", namespace="lab", read_state=read_ledger)
def balance(account: Account) -> int:
    """Return the balance of an account."""
    if account == "closes":
        unreadable.add(account)
    return ledger.get(account, 0)


@tool(effects="read", namespace="lab", read_state=read_ledger)
def peek(account: Account) -> int:
    """Return the balance of an account, and charge for it."""
    ledger[account] = ledger.get(account, 0) - 1
    if account == "fails":
        raise ValueError("after the effect")
    return ledger[account]


@tool(effects="read", namespace="lab", read_state=read_ledger, timeout=AMPLE_SECONDS)
async def wait(account: Account) -> int:
    """Return the balance of an account after a while."""
    started.set()
    await finish.wait()
    return ledger.get(account, 0)


@tool(effects="write", resources=["update lab.ledger/{account}"], read_state=read_ledger, **WRITE_OPTIONS)
def deposit(account: Account, amount: Annotated[int, Field(description="How much", examples=[1])]) -> int:
    """Add an amount to an account."""
    ledger[account] = ledger.get(account, 0) + amount
    return ledger[account]


@pytest_asyncio.fixture
async def lab(fresh_database: str, tmp_path: Path) -> AsyncIterator[GatewayLab]:
    ledger.clear()
    unreadable.clear()
    started.clear()
    finish.clear()
    tools = [*TOOLS, *(getattr(each, ATTRIBUTE) for each in (balance, peek, wait, deposit))]
    async with open_lab(fresh_database, tmp_path, tools=tools) as lab:
        yield lab


async def call(lab: GatewayLab, name: str, account: str, **more: Any) -> Any:
    return await lab.call(name, {"account": account, **more}, key=f"{name} {account} {more}" if more else None)


async def fetch_tool_state(lab: GatewayLab, name: str) -> str:
    return str(await lab.db.fetchval("select state from deputize.tool_versions where name = $1", f"lab.{name}"))


@pytest.mark.parametrize("account", ["a", "fails"])
async def test_a_read_that_changes_something_is_disabled_at_its_first_call(lab: GatewayLab, account: str) -> None:
    outcome = await call(lab, "peek", account)
    assert (outcome.state, error_slug(outcome)) == (State.FAILED, "mutation-class-violated")
    assert "result" not in parse_body(outcome)
    assert await fetch_tool_state(lab, "peek") == "disabled"
    assert error_slug(await call(lab, "peek", account)) == "tool-disabled"
    assert ledger[account] == -1
    newest_act = "select entry from deputize.audit_entries where call_id is null order by id desc limit 1"
    entry = await lab.db.fetchval(newest_act)
    assert b"disable_mutating_read" in entry
    assert outcome.call_id.encode() in entry


async def test_honest_tools_are_left_alone(lab: GatewayLab) -> None:
    assert parse_body(await call(lab, "deposit", "a", amount=3))["warnings"] == []
    assert parse_body(await call(lab, "balance", "a"))["result"] == 3
    assert await fetch_tool_state(lab, "balance") == await fetch_tool_state(lab, "deposit") == "available"


async def test_a_write_that_changed_nothing_says_so(lab: GatewayLab) -> None:
    await call(lab, "deposit", "a", amount=1)
    outcome = await call(lab, "deposit", "a", amount=0)
    assert outcome.state is State.SUCCEEDED
    assert parse_body(outcome)["warnings"] == ["the call changed nothing: the state is as before"]


async def test_a_read_is_not_blamed_for_a_write_beside_it(lab: GatewayLab) -> None:
    reading = asyncio.create_task(call(lab, "wait", "a"))
    await started.wait()
    assert (await call(lab, "deposit", "a", amount=5)).state is State.SUCCEEDED
    finish.set()
    assert parse_body(await reading)["result"] == 5
    assert await fetch_tool_state(lab, "wait") == "available"


async def test_a_read_is_not_blamed_for_a_write_of_another_tenant(lab: GatewayLab) -> None:
    reading = asyncio.create_task(call(lab, "wait", "a"))
    await started.wait()
    written = await call(lab, "deposit", "b", amount=1)
    neighbours = "update deputize.calls set tenant = 'neighbour' where id = $1"
    await lab.db.execute("insert into deputize.tenants (tenant) values ('neighbour')")
    await lab.db.execute(neighbours, written.call_id)
    ledger["a"] = 5
    finish.set()
    assert parse_body(await reading)["result"] == 5
    assert await fetch_tool_state(lab, "wait") == "available"


async def test_without_its_state_nothing_is_begun(lab: GatewayLab) -> None:
    unreadable.add("a")
    refused = await call(lab, "deposit", "a", amount=5)
    assert (refused.state, error_slug(refused)) == (State.FAILED, "tool-failed")
    assert ledger == {}
    assert not await lab.has_claim(refused.call_id)
    unreadable.clear()
    assert (await call(lab, "deposit", "a", amount=5)).state is State.SUCCEEDED


async def test_a_state_that_cannot_be_read_afterwards_is_reported(lab: GatewayLab) -> None:
    outcome = await call(lab, "balance", "closes")
    assert outcome.state is State.SUCCEEDED
    assert parse_body(outcome)["warnings"] == [
        "the state could not be read after the call, so its effects were not checked"
    ]
