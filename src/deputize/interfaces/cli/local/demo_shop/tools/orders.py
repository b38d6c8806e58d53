"""Define the tools of the shop's orders. They are kept in a file, so that everyone can look at them."""

import json
import threading
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from deputize import ToolPrecondition, tool

_FILE = Path("orders.json")
_lock = threading.Lock()


class Order(BaseModel):
    """Order of the shop."""

    number: int
    customer: int
    item: str
    count: int


def _load() -> dict[str, Order]:
    orders = json.loads(_FILE.read_text()) if _FILE.exists() else {}
    return {number: Order(**order) for number, order in orders.items()}


def _save(orders: dict[str, Order]) -> None:
    _FILE.write_text(json.dumps({number: order.model_dump() for number, order in orders.items()}, indent=1))


@tool(effects="read", examples=[{"customer": 7}])
def find(customer: int) -> list[Order]:
    """List the orders of a customer.

    Args:
        customer: The customer's number.
    """
    with _lock:
        return [order for order in _load().values() if order.customer == customer]


@tool(
    effects="write",
    resources=["create orders/of/{customer}"],
    undo="orders.cancel",
    scopes=["orders:write"],
    examples=[{"customer": 7, "item": "lamp", "count": 1}],
)
def place(customer: int, item: str, count: Annotated[int, Field(ge=1, le=1000)]) -> Order:
    """Place an order. It can be cancelled.

    Args:
        customer: The customer's number.
        item: What is ordered.
        count: How many.
    """
    with _lock:
        orders = _load()
        number = max((order.number for order in orders.values()), default=1000) + 1
        order = Order(number=number, customer=customer, item=item, count=count)
        _save({**orders, str(number): order})
        return order


@tool(
    effects="write",
    resources=["delete orders/{number}"],
    undo="orders.place",
    scopes=["orders:write"],
    examples=[{"number": 1001}],
)
def cancel(number: int) -> Order:
    """Cancel an order. It can be placed again.

    Args:
        number: Number of the order.
    """
    with _lock:
        orders = _load()
        if str(number) not in orders:
            raise ToolPrecondition(f"there is no order {number}")
        order = orders.pop(str(number))
        _save(orders)
        return order
