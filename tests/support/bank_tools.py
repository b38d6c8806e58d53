"""A bank whose tools keep or break what their contracts declare, for tests that test tools."""

import itertools
from typing import Annotated, Any

from pydantic import Field

from deputize import ToolPrecondition, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool

Account = Annotated[str, Field(description="Which account", pattern="^[a-z]{3,5}$", examples=["ana"])]
Amount = Annotated[int, Field(description="How much", ge=1, le=50, examples=[2])]
WRITE: dict[str, Any] = {"effects": "write", "namespace": "bank", "scopes": ["bank:write"], "idempotency": "cannot"}

balances: dict[str, int] = {}
notes: list[str] = []
_quotes = itertools.count(1)


def reset_bank() -> None:
    balances.clear()
    balances.update(ana=1000, bob=1000)
    notes.clear()


@tool(effects="read", namespace="bank")
async def get_accounts() -> dict[str, Any]:
    """Show all balances and notes of the bank."""
    return {"balances": dict(balances), "notes": list(notes)}


@tool(
    **WRITE,
    resources=["update bank.accounts/{source}"],
    undo="bank.move",
    behaviours=["conserving", "reversible"],
    examples=[{"source": "ana", "target": "bob", "amount": 2}],
)
async def move(source: Account, target: Account, amount: Amount) -> dict[str, Any]:
    """Move money from one account to another."""
    _require_accounts(source, target)
    balances[source] -= amount
    balances[target] += amount
    return {"moved": amount}


@tool(
    **WRITE,
    resources=["update bank.accounts/{source}"],
    undo="bank.leak",
    behaviours=["conserving"],
    examples=[{"source": "ana", "target": "bob", "amount": 2}],
)
async def leak(source: Account, target: Account, amount: Amount) -> dict[str, Any]:
    """Move money from one account to another, and lose more than half of a large amount."""
    _require_accounts(source, target)
    balances[source] -= amount
    balances[target] += 1 if amount > 1 else amount
    return {"moved": amount}


@tool(**WRITE, resources=["create bank.notes"], undo="bank.add_note", examples=[{"text": "paid"}])
async def add_note(text: Annotated[str, Field(description="The note", max_length=40)]) -> dict[str, Any]:
    """Append a note to the bank's book."""
    notes.append(text)
    return {"notes": len(notes)}


@tool(effects="read", namespace="bank", examples=[{"amount": 6, "parts": 3}])
async def divide(
    amount: Annotated[int, Field(description="What to divide", ge=0, le=1000)],
    parts: Annotated[int, Field(description="Into how many parts", ge=0, le=10)],
    currency: Annotated[str, Field(description="Of which currency")] = "eur",
) -> dict[str, Any]:
    """Divide an amount into equal parts; its schema also allows zero parts, which it cannot handle."""
    return {"each": amount // parts, "currency": currency}


@tool(effects="read", namespace="bank", examples=[{"amount": 6}])
async def quote(amount: Amount) -> dict[str, Any]:
    """Quote a price that is different each time."""
    return {"price": amount + next(_quotes)}


def _require_accounts(*names: str) -> None:
    for name in names:
        if name not in balances:
            raise ToolPrecondition(f"there is no account {name}")


TOOLS: list[PythonTool] = [getattr(each, ATTRIBUTE) for each in (get_accounts, move, leak, add_note, divide, quote)]
