"""Approval requests, token exchanges and backtests are limited without any rule in the settings."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import pytest_asyncio

from deputize.core.settings import LimitSettings, PolicySettings, Settings
from tests.integration.conftest import HttpGateway, serve_gateway

pytestmark = pytest.mark.requirement("GOV-8")
ASKING = """
@id("open") permit (principal, action, resource) unless { resource == Tool::"shop.rename_user" };
@id("ask") @decision("ask") @approvers("leads") permit (principal, action, resource == Tool::"shop.rename_user");
"""


def _tighten(settings: Settings) -> Settings:
    policy_file = settings.folder / "asking.cedar"
    policy_file.write_text(ASKING)
    limits = LimitSettings(
        approval_requests_per_hour=2, token_exchanges_per_minute=3, failed_exchanges_per_minute=4, backtests_at_once=1
    )
    return settings.model_copy(update={"limits": limits, "policy": PolicySettings(files=(str(policy_file),))})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def limited_gateway(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    folder: Path = tmp_path_factory.mktemp("limited")
    async with serve_gateway(module_database, folder, change=_tighten) as gateway:
        yield gateway


async def test_one_user_cannot_flood_the_token_endpoint(limited_gateway: HttpGateway) -> None:
    token = limited_gateway.token("busy")
    answers = [await limited_gateway.post_exchange(token, agent=f"bot-{number}") for number in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    refused = answers[-1]
    assert refused.json()["error"] == "temporarily_unavailable"
    assert refused.json()["problem"]["error"]["details"]["rule"] == "default:token-exchanges"
    assert int(refused.headers["retry-after"]) > 0
    assert (await limited_gateway.post_exchange(limited_gateway.token("calm"))).status_code == 200


async def test_approval_requests_of_one_user_are_limited_and_a_repeated_key_is_not_counted(
    limited_gateway: HttpGateway,
) -> None:
    token = limited_gateway.token("asker")
    states = [
        (await limited_gateway.call("shop.rename_user", {"id": 1, "name": "x"}, token=token, key=key)).status_code
        for key in ("a", "a", "b", "c")
    ]
    assert states == [202, 202, 202, 429]


@pytest.mark.parametrize("forwarded", ["198.51.100.7", None], ids=["forwarded", "one-address-for-all"])
async def test_failures_are_refused_by_client_and_a_valid_token_is_exchanged_all_the_same(
    limited_gateway: HttpGateway, forwarded: str | None
) -> None:
    async def exchange(token: str, client: str | None) -> httpx2.Response:
        # What a client sends itself is before the address that its proxy, here this machine, appends.
        limited_gateway.http.headers = {} if client is None else {"x-forwarded-for": f"192.0.2.1, {client}"}
        return await limited_gateway.post_exchange(token)

    answers = [await exchange("not-a-token", forwarded) for _ in range(5)]
    assert [each.status_code for each in answers] == [400, 400, 400, 400, 429]
    assert answers[-1].json()["problem"]["error"]["details"]["rule"] == "default:failed-exchanges"
    assert int(answers[-1].headers["retry-after"]) > 0
    assert (await exchange("not-a-token", "198.51.100.8")).status_code == 400
    user = f"innocent-{forwarded}"
    assert (await exchange(limited_gateway.token(user), forwarded)).status_code == 200
