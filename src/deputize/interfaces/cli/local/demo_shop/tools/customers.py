"""Define the tools of the shop's customers."""

import json
import threading
from pathlib import Path

from pydantic import BaseModel

from deputize import Preview, ToolConflict, ToolContext, ToolPrecondition, tool

_FILE = Path("customers.json")
_lock = threading.Lock()


class Customer(BaseModel):
    """Customer of the shop."""

    number: int
    name: str
    invoices: int


def _load() -> dict[str, Customer]:
    return {number: Customer(**customer) for number, customer in json.loads(_FILE.read_text()).items()}


def _find(customers: dict[str, Customer], number: int) -> Customer:
    if str(number) not in customers:
        raise ToolPrecondition(f"there is no customer {number}")
    return customers[str(number)]


@tool(effects="read", examples=[{"number": 7}])
def show(number: int) -> Customer:
    """Show a customer.

    Args:
        number: The customer's number.
    """
    return _find(_load(), number)


@tool(effects="read", scopes=["customers:export"])
def export() -> list[Customer]:
    """Export all customers with what they bought."""
    return list(_load().values())


def _preview_delete(number: int) -> Preview:
    customer = _find(_load(), number)
    return Preview(
        changes=[
            {"resource": "customers", "op": "delete", "scope": str(number), "before": customer.name, "count": 1},
            {"resource": "invoices", "op": "delete", "scope": f"of/{number}", "count": customer.invoices},
        ],
        guards={"name": customer.name},
    )


@tool(
    effects="destructive",
    resources=["delete customers/{number}", "delete invoices"],
    scopes=["customers:delete"],
    preview=_preview_delete,
    examples=[{"number": 7}],
)
def delete(number: int, context: ToolContext) -> str:
    """Delete a customer with all their invoices, for good.

    Args:
        number: The customer's number.
    """
    with _lock:
        customers = _load()
        customer = _find(customers, number)
        if context.guards.get("name", customer.name) != customer.name:
            raise ToolConflict(f"customer {number} is no longer the one that was approved")
        del customers[str(number)]
        _FILE.write_text(json.dumps({key: each.model_dump() for key, each in customers.items()}, indent=1))
        return f"{customer.name} is gone, with {customer.invoices} invoices"
