"""A lab whose calls are limited, and tools that cost something."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
from pydantic import Field

from deputize import Result, ToolContext, tool
from deputize.app import open_gateway
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.limit_settings import LimitRule, Limits
from tests.integration.lifecycle.lab import Lab, lab_settings
from tests.integration.lifecycle.tools import TOOLS

Tag = Annotated[str, Field(description="Which test this belongs to", examples=["a"])]
prices: dict[str, float | None] = {}
"""What a call with this tag says it cost; without a price it says nothing."""
failures: dict[str, Exception] = {}


def _paid(tag: str) -> Result:
    if tag in failures:
        raise failures[tag]
    return Result(payload={"value": tag}, cost=prices.get(tag))


@tool(
    effects="read",
    namespace="lab",
    observability={"cost_per_call": 1.0},
    returns=dict[str, Any],
    retry={"max_attempts": 1},
)
async def pay(tag: Tag) -> Result:
    """Look something up where each look costs one."""
    return _paid(tag)


@tool(effects="read", namespace="lab", returns=dict[str, Any])
async def metered(tag: Tag) -> Result:
    """Look something up where only the answer says what it cost."""
    return _paid(tag)


@tool(
    effects="write",
    namespace="lab",
    resources=["create lab.orders/{tag}"],
    scopes=["lab:write"],
    idempotency="cannot",
    undo="lab.note",
    observability={"cost_per_call": 1.0},
    returns=dict[str, Any],
)
async def buy(tag: Tag, context: ToolContext) -> Result:
    """Buy something once for each key."""
    return _paid(tag)


PAID = [getattr(each, ATTRIBUTE) for each in (pay, metered, buy)]


def rule(kind: str, limit: float, name: str = "some", **more: Any) -> LimitRule:
    # Long enough that nothing runs out while a test runs.
    return LimitRule.model_validate({"name": name, "kind": kind, "limit": limit, "seconds": 86_400, **more})


@asynccontextmanager
async def limited_lab(dsn: str, folder: Path, *rules: LimitRule, redis_url: str | None = None) -> AsyncIterator[Lab]:
    limits = Limits.model_validate({"rules": rules, "redis_url": redis_url, "redis_seconds": 1.0})
    settings = lab_settings(dsn, folder).model_copy(update={"limits": limits})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=[*TOOLS, *PAID], development=True) as gateway:
            assert not gateway.refused, [problem.details for problem in gateway.refused]
            yield Lab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@contextmanager
def costing(tag: str, *costs: float) -> Iterator[None]:
    """Each call with this tag says the next of these costs, and the last one again and again."""
    left = list(costs)

    class Rising(dict[str, float | None]):
        def get(self, key: str, default: Any = None) -> Any:
            return (left.pop(0) if len(left) > 1 else left[0]) if key == tag else super().get(key, default)

    global prices
    before, prices = prices, Rising(prices)
    try:
        yield
    finally:
        prices = before
