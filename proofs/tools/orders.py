"""The tools the overhead proof calls: a read and a write with schemas of ordinary size, doing nothing themselves, so
that what is measured is the way to them and back."""

from typing import Annotated, Any

from pydantic import Field

from deputize import tool

_CUSTOMER = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "Full name", "examples": ["Ann Lee"]},
        "email": {"type": "string", "format": "email", "description": "Address", "examples": ["ann@example.com"]},
        "phone": {"type": "string", "pattern": r"^\+?[0-9 ]{6,20}$", "description": "Phone", "examples": ["+49 30 1"]},
    },
    "required": ["name", "email"],
    "additionalProperties": False,
}
_ITEM = {
    "type": "object",
    "properties": {
        "sku": {"type": "string", "pattern": "^[A-Z0-9-]{3,20}$", "description": "Article", "examples": ["SKU-1"]},
        "quantity": {"type": "integer", "minimum": 1, "description": "How many", "examples": [2]},
        "cents": {"type": "integer", "minimum": 0, "description": "Price of one", "examples": [999]},
    },
    "required": ["sku", "quantity", "cents"],
    "additionalProperties": False,
}
_RECEIPT = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "description": "The order"},
        "ok": {"type": "boolean", "description": "Whether it stands"},
    },
    "required": ["id", "ok"],
    "additionalProperties": False,
}

OrderId = Annotated[
    str,
    Field(
        description="The order",
        examples=["3fa85f64-5717-4562-b3fc-2c963f66afa6"],
        json_schema_extra={"format": "uuid"},
    ),
]
Buyer = Annotated[
    dict[str, Any],
    Field(
        description="Who orders",
        examples=[{"name": "Ann Lee", "email": "ann@example.com"}],
        json_schema_extra=_CUSTOMER,
    ),
]
Items = Annotated[
    list[Any],
    Field(
        description="What is ordered",
        examples=[[{"sku": "SKU-1", "quantity": 1, "cents": 999}]],
        json_schema_extra={"items": _ITEM, "minItems": 1, "maxItems": 100},
    ),
]
Receipt = Annotated[dict[str, Any], Field(json_schema_extra=_RECEIPT)]


@tool(effects="read")
async def check(order_id: OrderId, customer: Buyer, items: Items) -> Receipt:
    """Check whether an order could be placed as it is."""
    return {"id": order_id, "ok": True}


@tool(
    effects="write",
    undo="orders.check",
    resources=["create orders/{order_id}"],
    scopes=["proof:write"],
    idempotency="deduplicates",
)
async def place(order_id: OrderId, customer: Buyer, items: Items) -> Receipt:
    """Place an order for a customer."""
    return {"id": order_id, "ok": True}
