"""The routes for anyone who writes policy: shown, checked, tried on recorded calls, put in force, and explained."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import orjson
import pytest

from deputize.operations.admin.policy import backtests as pages
from tests.integration.conftest import ADMIN, SCOPES, HttpGateway
from tests.support.policies import OPEN_POLICY

OPEN_FILE = {"path": "open.cedar", "text": OPEN_POLICY}
NO_RENAMES = {
    "path": "renames.cedar",
    "text": '@id("no-renames")\n@reason("Names are for life.")\n'
    'forbid (principal, action, resource == Tool::"shop.rename_user")\nunless { principal.scopes.contains("x") };\n',
}
WALLED = {
    "path": "walled.cedar",
    "text": '@id("walled")\n@reason("Users are strangers.")\n@backend("gvisor")\n'
    'forbid (principal, action, resource == Tool::"shop.get_user");\n',
}
UNKNOWN_CALL = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def admin_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(*SCOPES, ADMIN))


async def _send_request(gateway: HttpGateway, method: str, path: str, body: Any, token: str) -> httpx2.Response:
    return await gateway.http.request(method, path, json=body, headers={"authorization": f"Bearer {token}"})


async def _put_policies(gateway: HttpGateway, token: str, *files: dict[str, str]) -> httpx2.Response:
    return await _send_request(gateway, "PUT", "/v1/policies", {"files": list(files)}, token)


async def _run_backtest(gateway: HttpGateway, token: str, *files: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    answer = await _send_request(gateway, "POST", "/v1/policies/backtest", {"files": list(files), **more}, token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [orjson.loads(line) for line in answer.text.splitlines()]


@pytest.mark.requirement("GOV-2")
async def test_what_is_in_force_is_shown_to_administrators(gateway: HttpGateway, admin_token: str) -> None:
    shown = (await gateway.get("/v1/policies", token=admin_token)).json()

    assert (shown["default"], shown["put_by"]) == (False, "operator")
    assert [rule["id"] for rule in shown["rules"]] == ["open"]
    assert shown["files"][0]["text"] == OPEN_POLICY
    assert (await gateway.get("/v1/policies")).status_code == 403


@pytest.mark.requirement("GOV-2")
async def test_a_draft_is_checked_with_every_mistake_by_file_and_line(gateway: HttpGateway, admin_token: str) -> None:
    wrong = {
        "path": "w.cedar",
        "text": '\n@id("a")\npermit (principal, action, resource) when { resource.efects == 1 };',
    }
    vain = {"path": "v.cedar", "text": '@id("v")\npermit (principal, action, resource == Tool::"shop.nothing");'}

    found = (await _send_request(gateway, "POST", "/v1/policies/check", {"files": [wrong, vain]}, admin_token)).json()

    assert [(each["file"], each["line"]) for each in found["errors"]] == [("v.cedar", 1), ("w.cedar", 2)]
    # What does not exist may still come, as the tools of a server that was not seen yet.
    activated = (await _put_policies(gateway, admin_token, OPEN_FILE, vain)).json()
    assert [(each["file"], each["line"]) for each in activated["warnings"]] == [("v.cedar", 1)]
    refused = await _put_policies(gateway, admin_token, wrong)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "policy-invalid")
    refused = await _send_request(gateway, "POST", "/v1/policies/backtest", {"files": [wrong]}, admin_token)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "policy-invalid")


@pytest.mark.requirement("GOV-2", "NEW-7")
async def test_policies_that_are_put_decide_the_next_call_and_name_their_rule(
    gateway: HttpGateway, admin_token: str
) -> None:
    put = await _put_policies(gateway, admin_token, OPEN_FILE, NO_RENAMES)
    again = await _put_policies(gateway, admin_token, OPEN_FILE, NO_RENAMES)
    refused = await gateway.call("shop.rename_user", {"id": 1, "name": "A"})
    agent = gateway.token("ana", agent="bot")
    refused_agent = await gateway.call("shop.rename_user", {"id": 1, "name": "A"}, token=agent)
    back = await _put_policies(gateway, admin_token, OPEN_FILE)
    allowed = await gateway.call("shop.rename_user", {"id": 1, "name": "A"})

    assert (put.status_code, put.json()["changed"], again.json()["changed"]) == (200, True, False)
    assert again.json()["epoch"] == put.json()["epoch"]
    error = refused.json()["error"]
    assert error["details"]["rules"] == [
        {"id": "no-renames", "where": "renames.cedar:1", "reason": "Names are for life."}
    ]
    # An agent learns which rule and why, and no names of files.
    error = refused_agent.json()["error"]
    assert error["details"]["rules"] == [{"id": "no-renames", "reason": "Names are for life."}]
    assert "renames.cedar" not in refused_agent.text
    assert "suggestion" not in error["details"]
    assert back.json()["epoch"] == put.json()["epoch"] + 1
    assert allowed.status_code == 200


@pytest.mark.requirement("GOV-2")
async def test_no_files_stand_for_the_default_set(gateway: HttpGateway, admin_token: str) -> None:
    await _put_policies(gateway, admin_token)
    shown = (await gateway.get("/v1/policies", token=admin_token)).json()
    asks = await gateway.call("shop.delete_user", {"id": 1}, key="default")
    await _put_policies(gateway, admin_token, OPEN_FILE)

    assert shown["default"] is True
    assert (asks.status_code, asks.json()["state"]) == (202, "awaiting_approval")
    assert [rule["id"] for rule in asks.json()["approval"]["rules"]] == ["destructive-needs-human"]


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/policies"), ("POST", "/v1/policies/check"), ("POST", "/v1/policies/backtest")]
)
async def test_only_administrators_change_check_and_try(gateway: HttpGateway, method: str, path: str) -> None:
    refused = await _send_request(gateway, method, path, {"files": []}, gateway.token())

    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "scope-missing")


@pytest.mark.requirement("NEW-4")
async def test_a_backtest_lists_the_recorded_calls_that_a_draft_answers_otherwise(
    gateway: HttpGateway, admin_token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _put_policies(gateway, admin_token, OPEN_FILE)
    began = datetime.now(UTC).isoformat()
    for number in range(3):
        await gateway.call("shop.rename_user", {"id": 1, "name": f"N{number}"}, token=gateway.token("eva", agent="bot"))
    await gateway.call("shop.get_user", {"id": 1}, token=gateway.token("eva"))
    await gateway.call("shop.delete_user", {"id": 1}, token=gateway.token("eva", scopes=()), key="k")

    *progress, last = await _run_backtest(gateway, admin_token, OPEN_FILE, NO_RENAMES, since=began)

    result = last["result"]
    assert all(line["progress"]["share"] <= 1 for line in progress)
    assert (result["calls"], result["changed"], result["stricter"], result["same"]) == (4, 3, 3, 1)
    (change,) = result["changes"]
    assert (change["tool"], change["user"], change["agents"]) == ("shop.rename_user", "eva", ["bot"])
    assert change["before"]["rules"] == [{"id": "open", "where": "open.cedar:1"}]
    assert change["after"]["rules"] == [{"id": "no-renames", "where": "renames.cedar:1"}]
    monkeypatch.setattr(pages, "PAGE_SIZE", 2)
    *more, again = await _run_backtest(gateway, admin_token, OPEN_FILE, NO_RENAMES, since=began)
    assert len(more) > len(progress)
    assert {**again["result"], "seconds": 0, "until_ms": 0} == {**result, "seconds": 0, "until_ms": 0}
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert (await _run_backtest(gateway, admin_token, OPEN_FILE, since=later))[-1]["result"]["calls"] == 0


@pytest.mark.requirement("NEW-4")
async def test_a_refused_call_is_replayed_too_and_may_become_allowed(gateway: HttpGateway, admin_token: str) -> None:
    await _put_policies(gateway, admin_token, OPEN_FILE, NO_RENAMES)
    began = datetime.now(UTC).isoformat()
    await gateway.call("shop.rename_user", {"id": 1, "name": "A"}, token=gateway.token("ida"))
    result = (await _run_backtest(gateway, admin_token, OPEN_FILE, since=began))[-1]["result"]
    await _put_policies(gateway, admin_token, OPEN_FILE)

    assert (result["looser"], result["changes"][0]["user"]) == (1, "ida")


@pytest.mark.requirement("NEW-4")
async def test_a_backtest_names_the_rules_that_can_match_nothing(gateway: HttpGateway, admin_token: str) -> None:
    vain = {"path": "v.cedar", "text": '@id("v")\nforbid (principal, action, resource == Tool::"shop.nothing");'}

    result = (await _run_backtest(gateway, admin_token, OPEN_FILE, vain))[-1]["result"]

    assert [(each["file"], each["line"]) for each in result["mismatches"]] == [("v.cedar", 1)]
    assert "never matches: unknown tool shop.nothing" in result["mismatches"][0]["message"]


@pytest.mark.requirement("GOV-1", "NEW-4")
async def test_a_backtest_sees_one_tenant(gateway: HttpGateway) -> None:
    await gateway.call("shop.get_user", {"id": 1})
    other = gateway.other_token("otto", scopes=(ADMIN,))

    assert (await _run_backtest(gateway, other, OPEN_FILE))[-1]["result"]["calls"] == 0


@pytest.mark.requirement("GOV-2")
async def test_who_made_a_call_sees_the_rules_and_an_administrator_sees_what_they_read(
    gateway: HttpGateway, admin_token: str
) -> None:
    await _put_policies(gateway, admin_token, OPEN_FILE, NO_RENAMES)
    refused = await gateway.call("shop.rename_user", {"id": 1, "name": "A"})
    path = f"/v1/calls/{refused.json()['call_id']}/decision"
    mine, all_of_it = (await gateway.get(path)).json(), (await gateway.get(path, token=admin_token)).json()
    stranger = await gateway.get(path, token=gateway.token("eva"))
    await _put_policies(gateway, admin_token, OPEN_FILE)
    later = (await gateway.get(path, token=admin_token)).json()

    rule = {"id": "no-renames", "where": "renames.cedar:1", "reason": "Names are for life."}
    assert (mine["behavior"], mine["rules"], mine["is_active"]) == ("deny", [rule], True)
    assert {"principal", "context", "now"}.isdisjoint(mine)
    assert all_of_it["rules"][0]["read"] == {"principal.scopes": ["shop:delete", "shop:write"]}
    assert (all_of_it["principal"]["user"], all_of_it["confirmed"], later["confirmed"]) == ("ana", True, True)
    assert all_of_it["now"]["behavior"] == "deny"
    assert any(each.endswith("the scope x") for each in all_of_it["now"]["allowed_if"])
    assert (later["is_active"], later["now"]["behavior"], later["rules"][0]["read"]) == (
        False,
        "allow",
        all_of_it["rules"][0]["read"],
    )
    nobody = await gateway.get(f"/v1/calls/{UNKNOWN_CALL}/decision")
    assert stranger.status_code == nobody.status_code == 404
    assert stranger.json()["detail"] == nobody.json()["detail"]
    assert (await gateway.get("/v1/calls/nonsense/decision")).status_code == 404


async def test_a_call_without_the_sandbox_that_a_rule_demands_is_explained_as_it_was_refused(
    gateway: HttpGateway, admin_token: str
) -> None:
    await _put_policies(gateway, admin_token, OPEN_FILE, WALLED)
    began = datetime.now(UTC).isoformat()
    refused = (await gateway.call("shop.get_user", {"id": 1})).json()
    path = f"/v1/calls/{refused['call_id']}/decision"
    mine, why = (await gateway.get(path)).json(), (await gateway.get(path, token=admin_token)).json()
    case = {"tool": "shop.get_user", "caller": {"user": "ana"}, "arguments": {"id": 1}}
    tried = await _send_request(gateway, "POST", "/v1/policies/simulate", case, admin_token)
    same, changed = [
        (await _run_backtest(gateway, admin_token, *files, since=began))[-1]["result"]
        for files in ((OPEN_FILE, WALLED), (OPEN_FILE,))
    ]
    await _put_policies(gateway, admin_token, OPEN_FILE)

    reason = "it would run in no sandbox here, and the rule demands gvisor: Users are strangers."
    assert refused["error"]["message"].endswith(f"not allowed by walled (walled.cedar:1), because {reason}")
    assert ("narrow the rule" in refused["error"]["advice"], refused["error"]["details"].get("suggestion")) == (
        True,
        None,
    )
    assert tried.status_code == 200, tried.text
    for each in (mine, why, tried.json()):
        assert (each["behavior"], each["reason"]) == ("deny", reason), each
        assert [(rule["id"], rule["reason"]) for rule in each["rules"]] == [("walled", reason)]
        assert "narrow the rule" in each["suggestion"]
    assert (mine["state"], why["confirmed"], why["now"]["behavior"]) == ("denied", True, "deny")
    assert (why["now"]["allowed_if"], same["changed"], changed["looser"]) == ([], 0, 1)


@pytest.mark.requirement("GOV-2")
async def test_reads_allowed_calls_and_refusals_by_token_are_explained_as_well(
    gateway: HttpGateway, admin_token: str
) -> None:
    read = (await gateway.call("shop.get_user", {"id": 1})).json()["call_id"]
    write = (await gateway.call("shop.rename_user", {"id": 1, "name": "A"})).json()["call_id"]
    poor = (await gateway.call("shop.rename_user", {"id": 1, "name": "A"}, token=gateway.token(scopes=()))).json()

    for call_id in (read, write):
        told = (await gateway.get(f"/v1/calls/{call_id}/decision")).json()
        assert (told["behavior"], told["rules"][0]["id"], told["state"]) == ("allow", "open", "succeeded")
    told = (await gateway.get(f"/v1/calls/{poor['call_id']}/decision")).json()
    assert (told["decided_by"], told["error_number"]) == ("token", "E3211")
    needed = "the token lacked a scope of those that it needs: shop:write"
    assert told["rules"] == [{"id": "token-scopes", "where": "", "reason": needed}]


@pytest.mark.nightly
async def test_ten_thousand_rules_can_be_sent(gateway: HttpGateway, admin_token: str) -> None:
    text = "".join(
        f'@id("r{n}")\n@reason("{"because " * 10}")\npermit (principal, action, resource == Tool::"shop.t{n % 500}");\n'
        for n in range(10_000)
    )

    checked = await _send_request(
        gateway, "POST", "/v1/policies/check", {"files": [{"path": "x.cedar", "text": text}]}, admin_token
    )

    assert len(text) > 1_048_576
    assert (checked.status_code, len(checked.json()["errors"])) == (200, 10_000)
