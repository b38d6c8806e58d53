"""A lab whose calls are limited, and tools that cost something."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import asyncpg
from pydantic import Field

from deputize import Result, ToolContext, tool
from deputize.app import open_gateway
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.settings.limits import LimitRule, LimitSettings
from deputize.core.settings.runs import RunSettings
from tests.support.gateway_lab import GatewayLab, lab_settings
from tests.support.scripted_tools import AMPLE_SECONDS, TOOLS

Tag = Annotated[str, Field(description="Which test this belongs to", examples=["a"])]
prices: dict[str, float | None] = {}
"""What a call with this tag says it cost; without a price it says nothing."""
failures: dict[str, Exception] = {}


def _charge(tag: str) -> Result:
    if tag in failures:
        raise failures[tag]
    return Result(payload={"value": tag}, cost=prices.get(tag))


@tool(
    effects="read",
    namespace="lab",
    observability={"cost_per_call": 1.0},
    returns=dict[str, Any],
    retry={"max_attempts": 1},
    timeout=AMPLE_SECONDS,
)
async def pay(tag: Tag) -> Result:
    """Look something up where each look costs one."""
    return _charge(tag)


@tool(effects="read", namespace="lab", returns=dict[str, Any], timeout=AMPLE_SECONDS)
async def metered_look(tag: Tag) -> Result:
    """Look something up where only the answer says what it cost."""
    return _charge(tag)


@tool(
    effects="write",
    namespace="lab",
    resources=["create lab.orders/{tag}"],
    scopes=["lab:write"],
    idempotency="cannot",
    undo="lab.note",
    observability={"cost_per_call": 1.0},
    returns=dict[str, Any],
    timeout=AMPLE_SECONDS,
)
async def buy(tag: Tag, context: ToolContext) -> Result:
    """Buy something once for each key."""
    return _charge(tag)


PAID_TOOLS = [getattr(each, ATTRIBUTE) for each in (pay, metered_look, buy)]


def make_rule(kind: str, limit: float, name: str = "some", **more: Any) -> LimitRule:
    # Long enough that nothing runs out while a test runs.
    return LimitRule.model_validate({"name": name, "kind": kind, "limit": limit, "seconds": 86_400, **more})


@asynccontextmanager
async def open_limited_lab(
    dsn: str,
    folder: Path,
    *rules: LimitRule,
    redis_url: str | None = None,
    tools: Sequence[PythonTool] = (),
    **timing: float,
) -> AsyncIterator[GatewayLab]:
    limits = LimitSettings.model_validate({"rules": rules, "redis_url": redis_url, "redis_seconds": 5.0})
    runs = RunSettings(poll_seconds=0.05, drain_seconds=1)
    settings = lab_settings(dsn, folder, **timing).model_copy(update={"limits": limits, "runs": runs})
    db = await asyncpg.connect(dsn)
    try:
        async with open_gateway(settings, tools=[*TOOLS, *PAID_TOOLS, *tools], development=True) as gateway:
            assert not gateway.startup_problems, [problem.details for problem in gateway.startup_problems]
            yield GatewayLab(gateway=gateway, folder=folder, dsn=dsn, db=db)
    finally:
        await db.close()


@contextmanager
def set_costs(tag: str, *costs: float) -> Iterator[None]:
    """Each call with this tag says the next of these costs, and the last one again and again."""
    left = list(costs)

    class CostSequence(dict[str, float | None]):
        def get(self, key: str, default: Any = None) -> Any:
            return (left.pop(0) if len(left) > 1 else left[0]) if key == tag else super().get(key, default)

    global prices
    before, prices = prices, CostSequence(prices)
    try:
        yield
    finally:
        prices = before
