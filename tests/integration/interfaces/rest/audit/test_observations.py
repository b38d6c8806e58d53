"""The report of what was observed: real calls, their decision records, and who may read it."""

from typing import Any

import pytest

from tests.integration.conftest import ADMIN, SCOPES, HttpGateway

pytestmark = pytest.mark.requirement("NEW-8")


def _admin(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _report(gateway: HttpGateway, **params: Any) -> dict[str, Any]:
    answer = await gateway.get("/v1/observations", token=_admin(gateway), **params)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    return report


async def test_a_report_counts_each_call_once_by_its_caller_and_names_refusals(gateway: HttpGateway) -> None:
    lent = await gateway.exchange_token(gateway.token("olga"), agent="bot-of-olga")
    for _ in range(3):
        await gateway.call("shop.list_users", token=lent)
    refused = (await gateway.call("shop.no_such", token=gateway.token("olga"))).json()["call_id"]
    report = await _report(gateway)
    uses = {(each["user"], *each["agents"], each["tool"]): each for each in report["uses"]}
    assert uses["olga", "bot-of-olga", "shop.list_users"]["calls"] == 3
    assert uses["olga", "bot-of-olga", "shop.list_users"]["effects"] == "read"
    assert uses["olga", "shop.no_such"]["refusals"] == 1
    unusual = {each["call_id"]: [oddity["kind"] for oddity in each["oddities"]] for each in report["unusual"]}
    assert "unknown-tool" in unusual[refused]
    assert 'Tool::"shop.list_users"' in report["policy"]["text"]
    assert "shop.no_such" not in report["policy"]["text"]
    assert report["is_complete"]


async def test_a_drafted_policy_can_be_put_as_it_is(gateway: HttpGateway) -> None:
    await gateway.call("shop.list_users", token=gateway.token("pia"))
    policy = (await _report(gateway))["policy"]
    files = [{"path": policy["path"], "text": policy["text"]}]
    found = (await gateway.post("/v1/policies/check", {"files": files}, token=_admin(gateway))).json()
    assert found["errors"] == []


async def test_only_administrators_get_a_report_and_each_is_audited(gateway: HttpGateway) -> None:
    assert (await gateway.get("/v1/observations", token=gateway.token("olga"))).status_code == 403
    assert (await _report(gateway, since="2031-01-01T00:00:00Z"))["calls"] == 0
    entries = (await gateway.get("/v1/audit", token=_admin(gateway), kind="command", caller="root")).json()["entries"]
    assert "report_observations" in [each["entry"]["command"] for each in entries]
