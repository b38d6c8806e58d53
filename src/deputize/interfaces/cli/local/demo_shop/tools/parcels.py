"""Define the tools of the shop's parcels."""

from pydantic import BaseModel

from deputize import tool


class Parcel(BaseModel):
    """Parcel of an order."""

    number: int
    order: int


@tool(
    effects="write",
    resources=["create parcels/{order}"],
    undo="parcels.release",
    scopes=["orders:write"],
    examples=[{"order": 1001}],
)
def book(order: int) -> Parcel:
    """Book a parcel for an order.

    Args:
        order: Number of the order.
    """
    return Parcel(number=order * 10, order=order)


@tool(
    effects="write",
    resources=["delete parcels"],
    undo="parcels.book",
    scopes=["orders:write"],
    examples=[{"number": 10010}],
)
def release(number: int) -> Parcel:
    """Release a parcel that was booked.

    Args:
        number: Number of the parcel.
    """
    return Parcel(number=number, order=number // 10)
