"""A service that fails often is not asked again and again, and what is not repeated says why."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolContext
from deputize.core.errors import UpstreamRateLimited
from deputize.execute.retry_budgets import RetryBudget
from tests.support.failing_service import SERVICE_TOOLS, services
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("INV-12")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *SERVICE_TOOLS]) as opened_lab:
        yield opened_lab


async def limit_rate(_: ToolContext) -> dict[str, Any]:
    raise UpstreamRateLimited("slow down")


def find_budget(lab: GatewayLab, service: str, tenant: str = "dev") -> RetryBudget:
    contract = next(each.contract for each in SERVICE_TOOLS if each.contract.name == f"read_{service}")
    budget = lab.runtime.retry_budgets.find_budget(tenant, contract)
    assert budget is not None
    return budget


def spend_budget(budget: RetryBudget, lab: GatewayLab) -> None:
    """Spend the budget for the next hour, so that no slow machine waits until it is filled again."""
    while budget.take_retry(lab.runtime.clock.monotonic() + 3600):
        pass


async def test_a_failed_attempt_is_repeated_until_the_budget_is_spent(lab: GatewayLab) -> None:
    service = services["budgets"]
    service.behave = limit_rate
    first = await lab.call("read_budgets", "x")
    assert (error_slug(first), service.calls) == ("upstream-rate-limited", 3)
    assert "not retried" not in parse_body(first)["error"]["message"]
    spend_budget(find_budget(lab, "budgets"), lab)
    second = await lab.call("read_budgets", "x")
    error = parse_body(second)["error"]
    assert (error_slug(second), service.calls) == ("upstream-rate-limited", 4)
    assert error["message"] == "slow down; not retried: the retry budget of the service budgets is spent"
    samples = lab.runtime.metrics.registry
    assert samples.get_sample_value("deputize_retry_refusals_total", {"service": "budgets"}) == 1
    # Five calls, this one among them, have earned one retry.
    for _ in range(3):
        await lab.call("read_budgets", "x")
    calls = service.calls
    assert calls == 7
    await lab.call("read_budgets", "x")
    assert service.calls == calls + 2
    # Another tenant has a budget of its own.
    assert find_budget(lab, "budgets", "globex").take_retry(lab.runtime.clock.monotonic())


async def test_an_unsafe_call_is_never_repeated_whatever_the_budget(lab: GatewayLab) -> None:
    outcome = await lab.call("write_unsafe", "x", key="once")
    assert (outcome.state, services["unsafe"].calls) == ("unknown", 1)
    budget, now = find_budget(lab, "unsafe"), lab.runtime.clock.monotonic()
    assert budget.is_idle(now)
