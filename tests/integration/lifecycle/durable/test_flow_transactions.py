"""A flow whose steps share a transaction of their upstream commits it as a whole, or rolls it back."""

from typing import Annotated, Any

import pytest
from pydantic import Field

from deputize import Preview, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import FlowTool
from deputize.core.errors import ToolFailed, ToolPrecondition
from deputize.operations.gateway import UndoSelection
from tests.integration.lifecycle.durable.test_flow_compensation import (
    list_reasons,
    list_steps,
    load_tasks,
    make_person,
    open_saga_lab,
    start,
    wait_for_report,
)
from tests.support.flows import call_step, make_flow_tool
from tests.support.scripted_tools import Gate, set_behaviour

pytestmark = pytest.mark.requirement("RES-6")

Transaction = Annotated[str, Field(description="The name of the transaction", examples=["t1"])]
Account = Annotated[str, Field(description="Which account", examples=["a"])]
Cents = Annotated[int, Field(description="How much is added", examples=[5])]

balances: dict[str, int] = {}
open_transactions: dict[str, dict[str, int]] = {}
lost_answers: set[str] = set()
_OPTIONS: dict[str, Any] = {"scopes": ["book:write"], "namespace": "money", "idempotency": "idempotent"}
_CHANGES = ["update money.transactions/{transaction}"]
_ROLLED_BACK: dict[str, Any] = {
    "compensation_class": "full", "tool": "money.rollback", "bind": {"transaction": "/arguments/transaction"},
}  # fmt: skip


@tool(
    effects="write", resources=["create money.transactions/{transaction}"], undo="money.rollback",
    compensation=_ROLLED_BACK, **_OPTIONS,
)  # fmt: skip
def begin(transaction: Transaction) -> dict[str, str]:
    """Begin a transaction."""
    open_transactions[transaction] = {}
    return {"transaction": transaction}


@tool(effects="write", resources=_CHANGES, undo="money.rollback", compensation=_ROLLED_BACK, **_OPTIONS)
def add(transaction: Transaction, account: Account, cents: Cents) -> dict[str, str]:
    """Add to the balance of an account, once the transaction is committed."""
    if account == "closed":
        raise ToolPrecondition("the account is closed")
    open_transactions[transaction][account] = cents
    return {"account": account}


def preview_commit(transaction: str) -> Preview:
    changes = open_transactions.get(transaction, {})
    return Preview(changes=[{"resource": "money.transactions", "op": "update", "scope": transaction, "after": changes}])


@tool(effects="destructive", resources=_CHANGES, preview=preview_commit, **_OPTIONS)
def commit(transaction: Transaction) -> dict[str, str]:
    """Make the changes of a transaction visible."""
    for account, cents in open_transactions.pop(transaction, {}).items():
        balances[account] = balances.get(account, 0) + cents
    if transaction in lost_answers:
        raise ConnectionError("reset")
    return {"transaction": transaction}


@tool(effects="write", resources=_CHANGES, undo="money.begin", **_OPTIONS)
def rollback(transaction: Transaction) -> dict[str, str]:
    """Forget a transaction; to forget it again changes nothing."""
    open_transactions.pop(transaction, None)
    return {"transaction": transaction}


MONEY_TOOLS = tuple(getattr(each, ATTRIBUTE) for each in (begin, add, commit, rollback))


@pytest.fixture(autouse=True)
def bank() -> None:
    balances.clear()
    open_transactions.clear()
    lost_answers.clear()


def money_step(step: str, tool: str, transaction: str, **arguments: Any) -> dict[str, Any]:
    return {"name": step, "tool": f"money.{tool}", "constants": {"transaction": transaction, **arguments}}


def make_transfer(name: str, transaction: str, to: str = "b", *more: dict[str, Any]) -> FlowTool:
    return make_flow_tool(
        name,
        money_step("begun", "begin", transaction),
        money_step("taken", "add", transaction, account="a", cents=-5),
        money_step("given", "add", transaction, account=to, cents=5),
        *more,
        money_step("committed", "commit", transaction),
        effects="destructive",
    )


async def test_a_transaction_is_committed_as_a_whole_and_stays(fresh_database: str, tmp_path: Any) -> None:
    flow = make_transfer("transfer", "t1")
    async with open_saga_lab(fresh_database, tmp_path, *MONEY_TOOLS, flow) as lab:
        flow_id = await start(lab, "transfer")
        await lab.wait_for_state(flow_id, "succeeded")
        assert (balances, open_transactions) == ({"a": -5, "b": 5}, {})
        # Once it is committed, nothing promises to roll it back.
        plan = await lab.gateway.undo.plan_undo(await make_person(lab), UndoSelection(call_id=flow_id))
        assert [each["reason"] for each in plan["steps"]] == ["irreversible", *["changed_since"] * 3]


async def test_a_transaction_is_rolled_back_if_a_step_fails_beside_another_one(
    fresh_database: str, tmp_path: Any
) -> None:
    gate = Gate(ToolFailed("no such account"))
    set_behaviour("tx-slow", gate)
    slow = make_transfer("slow", "t1", "b", call_step("broken", "look", "tx-slow"))
    closed = make_transfer("closed", "t2", "closed")
    transfer = make_transfer("transfer", "t3")
    async with open_saga_lab(fresh_database, tmp_path, *MONEY_TOOLS, slow, closed, transfer) as lab:
        slow_id = await start(lab, "slow")
        await gate.began.wait()
        report = await wait_for_report(lab, await start(lab, "closed"))
        assert (report["state"], list_steps(report["compensated"])) == ("compensated", ["taken", "begun"])
        assert list(open_transactions) == ["t1"]
        await lab.wait_for_state(await start(lab, "transfer"), "succeeded")
        gate.open.set()
        report = await wait_for_report(lab, slow_id)
        assert (report["state"], list_steps(report["compensated"])) == ("compensated", ["given", "taken", "begun"])
        assert (balances, open_transactions) == ({"a": -5, "b": 5}, {})


async def test_a_commit_whose_end_is_unknown_is_not_followed_by_a_rollback(fresh_database: str, tmp_path: Any) -> None:
    flow = make_transfer("transfer", "t1")
    async with open_saga_lab(fresh_database, tmp_path, *MONEY_TOOLS, flow) as lab:
        lost_answers.add("t1")
        flow_id = await start(lab, "transfer")
        report = await wait_for_report(lab, flow_id)
        assert list_reasons(report) == [
            ("committed", "uncertain"), ("given", "not_tried"), ("taken", "not_tried"), ("begun", "not_tried"),
        ]  # fmt: skip
        assert (balances, len(await load_tasks(lab, flow_id))) == ({"a": -5, "b": 5}, 1)
