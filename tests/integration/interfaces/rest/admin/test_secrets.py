"""Secrets over REST: put, listed, deleted by administrators; the value comes back through nothing."""

from typing import Any

import httpx2
import pytest

from tests.integration.conftest import ADMIN, SCOPES, HttpGateway

pytestmark = pytest.mark.requirement("GOV-7")
VALUE = "canary-8d1f40b2"


def _make_admin_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _delete_secret(gateway: HttpGateway, name: str, token: str) -> httpx2.Response:
    return await gateway.http.delete("/v1/secrets", params={"name": name}, headers={"authorization": f"Bearer {token}"})


async def test_a_secret_is_put_replaced_listed_and_deleted_and_never_shown(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    asked = {"name": "crm/api-key", "value": VALUE}
    answers = [await gateway.post("/v1/secrets", asked, token=admin) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert [answer.json()["put"] for answer in answers] == ["created", "replaced"]
    listed = await gateway.get("/v1/secrets", token=admin)
    assert [each["name"] for each in listed.json()["secrets"]] == ["crm/api-key"]
    deleted = await _delete_secret(gateway, "crm/api-key", admin)
    assert deleted.json() == {"name": "crm/api-key", "deleted": True}
    gone = await _delete_secret(gateway, "crm/api-key", admin)
    assert (gone.status_code, gone.json()["error"]["slug"]) == (424, "credential-missing")
    assert not any(VALUE in answer.text for answer in (*answers, listed, deleted, gone))


async def test_they_are_administrators_business_and_one_tenants(gateway: HttpGateway) -> None:
    other = gateway.other_token("olaf", scopes=(*SCOPES, ADMIN))
    await gateway.post("/v1/secrets", {"name": "mine", "value": VALUE}, token=_make_admin_token(gateway))
    assert (await gateway.get("/v1/secrets", token=other)).json() == {"secrets": []}
    assert (await _delete_secret(gateway, "mine", other)).status_code == 424
    ana = gateway.token()
    for answer in (
        await gateway.get("/v1/secrets", token=ana),
        await gateway.post("/v1/secrets", {"name": "mine", "value": VALUE}, token=ana),
        await _delete_secret(gateway, "mine", ana),
    ):
        assert (answer.status_code, answer.json()["error"]["slug"]) == (403, "scope-missing")
        assert VALUE not in answer.text


@pytest.mark.parametrize(
    "asked",
    [
        {"name": "../other/key", "value": VALUE},
        {"name": "Crm", "value": VALUE},
        {"name": "crm//key", "value": VALUE},
        {"name": "crm/", "value": VALUE},
        {"name": "crm", "value": "short"},
        {"name": "crm", "value": [VALUE]},
        {"name": "crm", "value": VALUE, "note": VALUE},
        {"name": "crm"},
        [VALUE],
    ],
)
async def test_what_makes_no_sense_is_refused_without_being_quoted(gateway: HttpGateway, asked: Any) -> None:
    answer = await gateway.post("/v1/secrets", asked, token=_make_admin_token(gateway))
    assert (answer.status_code, answer.json()["error"]["slug"]) == (400, "malformed")
    assert VALUE not in answer.text
