"""A few tools of every kind, for tests that need something real to call."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from deputize import Preview, Result, Sensitive, ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import Problem, find_problem_type

UserId = Annotated[int, Field(description="Which user", ge=1, examples=[7])]

effects: list[tuple[str, Any]] = []
"""What the writing tools really did, in order."""
release_events: dict[str, asyncio.Event] = {}
"""Slow tools wait for the event of their name."""
start_events: dict[str, asyncio.Event] = {}
# So much that no test runs out of it on a busy machine while a gate holds its tool. Through MCP such a tool is queued.
AMPLE_SECONDS = 60.0


@tool(effects="read", namespace="shop", version="1.2.0")
async def get_user(id: UserId) -> dict[str, Any]:
    """Look up one user of the shop by number."""
    return {"id": id, "plan": "pro"}


@tool(effects="read", namespace="shop", returns=list[int])
async def list_users(limit: Annotated[int, Field(description="How many", ge=1, examples=[2])] = 2) -> Result:
    """List users of the shop, a page at a time."""
    return Result(
        payload=list(range(limit)), summary=f"{limit} users", search_text="users", cursor="c2", has_more=True,
        total_count=9, source="crm", data_version="v7", cost=0.25,
    )  # fmt: skip


@tool(
    effects="write",
    namespace="shop",
    resources=["update shop.users/{id}"],
    idempotency="deduplicates",
    scopes=["shop:write"],
    undo="shop.rename_user",
)
async def rename_user(
    id: UserId, name: Annotated[str, Field(description="New name", examples=["Ana"])], context: ToolContext
) -> dict[str, Any]:
    """Give a user of the shop another name."""
    effects.append(("rename", context.key))
    return {"id": id, "name": name, "times": len(effects)}


def preview_delete(id: int) -> Preview:
    gone = {"resource": "shop.users", "op": "delete", "scope": str(id), "count": 1}
    orders = {"resource": "shop.orders", "op": "delete", "scope": f"of/{id}", "count": 14}
    return Preview(changes=[gone, orders], resources=[f"shop.users/{id}"], impact={"by_cascade": 14})


@tool(
    effects="destructive",
    namespace="shop",
    preview=preview_delete,
    resources=["delete shop.users/{id}"],
    scopes=["shop:delete"],
    idempotency="cannot",
)
async def delete_user(id: UserId) -> dict[str, Any]:
    """Delete a user of the shop for good."""
    effects.append(("delete", id))
    return {"deleted": id}


@tool(
    effects="write",
    namespace="shop",
    resources=["create shop.notes/{name}"],
    scopes=["shop:write"],
    idempotency="cannot",
    undo="shop.rename_user",
    timeout=AMPLE_SECONDS,
)
async def slow_note(name: Annotated[str, Field(description="Whose gate to wait for", examples=["a"])]) -> str:
    """Write a note once a test opens the gate of that name."""
    start_events.setdefault(name, asyncio.Event()).set()
    await release_events.setdefault(name, asyncio.Event()).wait()
    effects.append(("note", name))
    return name


@tool(effects="read", namespace="shop", timeout=AMPLE_SECONDS)
async def slow_read(name: Annotated[str, Field(description="Whose gate to wait for", examples=["a"])]) -> str:
    """Read a name once a test opens its gate."""
    start_events.setdefault(name, asyncio.Event()).set()
    await release_events.setdefault(name, asyncio.Event()).wait()
    return name


@tool(
    effects="write",
    namespace="shop",
    resources=["update shop.stock/{name}"],
    scopes=["shop:write"],
    idempotency="deduplicates",
    undo="shop.rename_user",
    checkpoints={"enabled": True},
    timeout=AMPLE_SECONDS,
)
async def count_stock(
    name: Annotated[str, Field(description="Whose gate to wait for", examples=["a"])], context: ToolContext
) -> Any:
    """Count one half of the stock, remember it, and count the rest once a test opens the gate of that name."""
    if context.saved_state is not None:
        return context.saved_state
    await context.save({"counted": 1}, name="half")
    await context.save({"counted": 2}, macro=True)
    start_events.setdefault(name, asyncio.Event()).set()
    await release_events.setdefault(name, asyncio.Event()).wait()
    return {"counted": 2}


@tool(effects="read", namespace="shop", retry={"max_attempts": 1})
async def fail(slug: Annotated[str, Field(description="Which problem to end in", examples=["tool-failed"])]) -> str:
    """End in the problem of that name."""
    kind: type[Problem] = find_problem_type(slug)
    raise kind(f"ended in {slug} as asked", retry_after_ms=1500 if kind.spec.retryable else None)


@tool(effects="read", namespace="shop")
async def login(
    password: Annotated[str, Field(description="A secret", examples=["hunter2"]), Sensitive("secret")],
) -> str:
    """Take a secret and say nothing about it."""
    return "ok"


@tool(effects="read", namespace="shop")
async def hidden_user(id: UserId) -> int:
    """Stay unknown to callers whose token does not list this."""
    return id


TOOLS: list[PythonTool] = [
    getattr(each, ATTRIBUTE)
    for each in (
        get_user,
        list_users,
        rename_user,
        delete_user,
        slow_note,
        slow_read,
        count_stock,
        fail,
        login,
        hidden_user,
    )
]
