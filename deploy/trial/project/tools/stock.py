"""Two tools for the trial: one reads and is allowed, one orders and waits for a person."""

from deputize import Preview, tool


@tool(effects="read", scopes=["stock:read"], examples=[{"item": "apple"}])
def count(item: str) -> int:
    """Count the stock of an item.

    Args:
        item: Name of the item.
    """
    return len(item)


def _preview_order(item: str, pieces: int) -> Preview:
    """Show the approver what would be ordered."""
    return Preview(changes=[{"resource": "orders", "op": "create", "after": f"{pieces} × {item}", "count": 1}])


@tool(
    effects="destructive",  # nothing takes an order back
    resources=["create orders"],
    scopes=["stock:write"],
    preview=_preview_order,
    examples=[{"item": "apple", "pieces": 3}],
)
def order(item: str, pieces: int) -> str:
    """Order more of an item.

    Args:
        item: Name of the item.
        pieces: How many.
    """
    return f"ordered {pieces} × {item}"
