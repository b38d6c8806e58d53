"""Define the tools of the shop's payments."""

from pydantic import BaseModel

from deputize import ToolPrecondition, tool

_DECLINED_CUSTOMERS = (11,)


class Payment(BaseModel):
    """Payment of an order."""

    customer: int
    order: int


@tool(
    effects="write",
    resources=["create payments/{order}"],
    undo="payments.refund",
    scopes=["orders:write"],
    examples=[{"customer": 7, "order": 1001}],
)
def charge(customer: int, order: int) -> Payment:
    """Charge a customer's card for an order.

    Args:
        customer: The customer's number.
        order: Number of the order.
    """
    if customer in _DECLINED_CUSTOMERS:
        raise ToolPrecondition(f"the bank declined the card of customer {customer}: nothing was charged")
    return Payment(customer=customer, order=order)


@tool(
    effects="write",
    resources=["delete payments/{order}"],
    undo="payments.charge",
    scopes=["orders:write"],
    examples=[{"customer": 7, "order": 1001}],
)
def refund(customer: int, order: int) -> Payment:
    """Refund the payment of an order.

    Args:
        customer: The customer's number.
        order: Number of the order.
    """
    return Payment(customer=customer, order=order)
