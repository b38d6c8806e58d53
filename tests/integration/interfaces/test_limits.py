"""A refusal by a limit says through every interface when to come again, and which rule it was."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.conftest import HttpGateway, serve_gateway

pytestmark = pytest.mark.requirement("GOV-8")

RULES = [
    {"name": "hourly", "kind": "rate", "limit": 1, "seconds": 3600, "tools": "shop.get_user", "per": ["caller"]},
    {"name": "purse", "kind": "budget", "limit": 0.2, "seconds": 86_400, "tools": "shop.list_users"},
]


@pytest.fixture
async def limited_gateway(
    fresh_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpGateway]:
    monkeypatch.setenv("DEPUTIZE_LIMITS__RULES", json.dumps(RULES))
    async with serve_gateway(fresh_database, tmp_path) as gateway:
        yield gateway


async def test_every_interface_returns_retry_after(limited_gateway: HttpGateway) -> None:
    assert (await limited_gateway.call("shop.get_user", {"id": 1})).status_code == 200
    refused = await limited_gateway.call("shop.get_user", {"id": 2})
    assert (refused.status_code, refused.json()["error"]["slug"]) == (429, "rate-limited")
    assert refused.json()["error"]["details"]["rule"] == "hourly"
    told = refused.json()["error"]["retry_after_ms"]
    assert 3_500_000 < told <= 3_604_000
    assert refused.headers["retry-after"] == str(-(-told // 1000))
    request = {"tool": "shop.get_user", "arguments": {"id": 3}}
    over_rpc = await limited_gateway.post(
        "/rpc", {"jsonrpc": "2.0", "id": 1, "method": "calls.create", "params": request}
    )
    error = over_rpc.json()["error"]["data"]["error"]
    assert (over_rpc.status_code, error["slug"]) == (200, "rate-limited")
    assert over_rpc.headers["retry-after"] == str(-(-error["retry_after_ms"] // 1000))
    assert (
        await limited_gateway.call("shop.get_user", {"id": 4}, token=limited_gateway.token("bea"))
    ).status_code == 200


async def test_a_spent_budget_says_when_it_begins_anew(limited_gateway: HttpGateway) -> None:
    # The tool says that it costs 0.25, which is more than there is: the first call overdraws, and is the last.
    assert (await limited_gateway.call("shop.list_users")).status_code == 200
    refused = await limited_gateway.call("shop.list_users")
    assert (refused.status_code, refused.json()["error"]["slug"]) == (429, "budget-spent")
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    assert refused.json()["error"]["retryable"] is False


async def test_what_was_refused_is_counted_by_rule_and_nothing_else(limited_gateway: HttpGateway) -> None:
    for _ in range(3):
        await limited_gateway.call("shop.get_user", {"id": 1})
    async with httpx2.AsyncClient(timeout=60) as client:
        text = (await client.get(f"{limited_gateway.metrics_url}/metrics")).text
    assert 'deputize_limit_refusals_total{rule="hourly"} 2.0' in text
