"""The routes for whoever writes policy: shown, checked, tried on recorded calls, put in force, and explained."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import orjson
import pytest

from deputize.lifecycle import backtest as pages
from tests.integration.conftest import ADMIN, SCOPES, Served
from tests.policies import OPEN

OPEN_FILE = {"path": "open.cedar", "text": OPEN}
NO_RENAMES = {
    "path": "renames.cedar",
    "text": '@id("no-renames")\n@reason("Names are for life.")\n'
    'forbid (principal, action, resource == Tool::"shop.rename_user")\nunless { principal.scopes.contains("x") };\n',
}
UNKNOWN_CALL = "01890000-0000-7000-8000-000000000000"


@pytest.fixture
def root(served: Served) -> str:
    return served.token("root", scopes=(*SCOPES, ADMIN))


async def _send(served: Served, method: str, path: str, body: Any, token: str) -> httpx2.Response:
    return await served.http.request(method, path, json=body, headers={"authorization": f"Bearer {token}"})


async def _put(served: Served, token: str, *files: dict[str, str]) -> httpx2.Response:
    return await _send(served, "PUT", "/v1/policies", {"files": list(files)}, token)


async def _backtest(served: Served, token: str, *files: dict[str, str], **more: Any) -> list[dict[str, Any]]:
    answer = await _send(served, "POST", "/v1/policies/backtest", {"files": list(files), **more}, token)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [orjson.loads(line) for line in answer.text.splitlines()]


@pytest.mark.requirement("GOV-2")
async def test_what_is_in_force_is_shown_to_administrators(served: Served, root: str) -> None:
    shown = (await served.get("/v1/policies", token=root)).json()

    assert (shown["default"], shown["put_by"]) == (False, "operator")
    assert [rule["id"] for rule in shown["rules"]] == ["open"]
    assert shown["files"][0]["text"] == OPEN
    assert (await served.get("/v1/policies")).status_code == 403


@pytest.mark.requirement("GOV-2")
async def test_a_draft_is_checked_with_every_mistake_by_file_and_line(served: Served, root: str) -> None:
    wrong = {
        "path": "w.cedar",
        "text": '\n@id("a")\npermit (principal, action, resource) when { resource.efects == 1 };',
    }
    vain = {"path": "v.cedar", "text": '@id("v")\npermit (principal, action, resource == Tool::"shop.nothing");'}

    found = (await _send(served, "POST", "/v1/policies/check", {"files": [wrong, vain]}, root)).json()

    assert [(each["file"], each["line"]) for each in found["errors"]] == [("w.cedar", 2)]
    assert [(each["file"], each["line"]) for each in found["warnings"]] == [("v.cedar", 1)]
    refused = await _put(served, root, wrong)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "policy-invalid")
    refused = await _send(served, "POST", "/v1/policies/backtest", {"files": [wrong]}, root)
    assert (refused.status_code, refused.json()["error"]["slug"]) == (422, "policy-invalid")


@pytest.mark.requirement("GOV-2", "NEW-7")
async def test_policies_that_are_put_decide_the_next_call_and_name_their_rule(served: Served, root: str) -> None:
    put = await _put(served, root, OPEN_FILE, NO_RENAMES)
    again = await _put(served, root, OPEN_FILE, NO_RENAMES)
    refused = await served.call("shop.rename_user", {"id": 1, "name": "A"})
    back = await _put(served, root, OPEN_FILE)
    allowed = await served.call("shop.rename_user", {"id": 1, "name": "A"})

    assert (put.status_code, put.json()["changed"], again.json()["changed"]) == (200, True, False)
    assert again.json()["epoch"] == put.json()["epoch"]
    error = refused.json()["error"]
    assert error["details"]["rules"] == [
        {"id": "no-renames", "where": "renames.cedar:1", "reason": "Names are for life."}
    ]
    assert back.json()["epoch"] == put.json()["epoch"] + 1
    assert allowed.status_code == 200


@pytest.mark.requirement("GOV-2")
async def test_no_files_stand_for_the_default_set(served: Served, root: str) -> None:
    await _put(served, root)
    shown = (await served.get("/v1/policies", token=root)).json()
    asks = await served.call("shop.delete_user", {"id": 1}, key="default")
    await _put(served, root, OPEN_FILE)

    assert shown["default"] is True
    assert (asks.status_code, asks.json()["state"]) == (202, "awaiting_approval")
    assert [rule["id"] for rule in asks.json()["approval"]["rules"]] == ["destructive-needs-human"]


@pytest.mark.parametrize(
    ("method", "path"), [("PUT", "/v1/policies"), ("POST", "/v1/policies/check"), ("POST", "/v1/policies/backtest")]
)
async def test_only_administrators_change_check_and_try(served: Served, method: str, path: str) -> None:
    refused = await _send(served, method, path, {"files": []}, served.token())

    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "scope-missing")


@pytest.mark.requirement("NEW-4")
async def test_a_backtest_lists_the_recorded_calls_that_a_draft_answers_otherwise(
    served: Served, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = datetime.now(UTC).isoformat()
    for number in range(3):
        await served.call("shop.rename_user", {"id": 1, "name": f"N{number}"}, token=served.token("eva", agent="bot"))
    await served.call("shop.get_user", {"id": 1}, token=served.token("eva"))
    await served.call("shop.delete_user", {"id": 1}, token=served.token("eva", scopes=()), key="k")

    *progress, last = await _backtest(served, root, OPEN_FILE, NO_RENAMES, since=began)

    result = last["result"]
    assert all(line["progress"]["share"] <= 1 for line in progress)
    assert (result["calls"], result["changed"], result["stricter"], result["same"]) == (4, 3, 3, 1)
    (change,) = result["changes"]
    assert (change["tool"], change["user"], change["agents"]) == ("shop.rename_user", "eva", ["bot"])
    assert change["before"]["rules"] == [{"id": "open", "where": "open.cedar:1"}]
    assert change["after"]["rules"] == [{"id": "no-renames", "where": "renames.cedar:1"}]
    monkeypatch.setattr(pages, "PAGE", 2)
    *more, again = await _backtest(served, root, OPEN_FILE, NO_RENAMES, since=began)
    assert len(more) > len(progress)
    assert {**again["result"], "seconds": 0, "until_ms": 0} == {**result, "seconds": 0, "until_ms": 0}
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    assert (await _backtest(served, root, OPEN_FILE, since=later))[-1]["result"]["calls"] == 0


@pytest.mark.requirement("NEW-4")
async def test_a_refused_call_is_replayed_too_and_may_become_allowed(served: Served, root: str) -> None:
    await _put(served, root, OPEN_FILE, NO_RENAMES)
    began = datetime.now(UTC).isoformat()
    await served.call("shop.rename_user", {"id": 1, "name": "A"}, token=served.token("ida"))
    result = (await _backtest(served, root, OPEN_FILE, since=began))[-1]["result"]
    await _put(served, root, OPEN_FILE)

    assert (result["looser"], result["changes"][0]["user"]) == (1, "ida")


@pytest.mark.requirement("GOV-1", "NEW-4")
async def test_a_backtest_sees_one_tenant(served: Served) -> None:
    await served.call("shop.get_user", {"id": 1})
    other = served.other_token("otto", scopes=(ADMIN,))

    assert (await _backtest(served, other, OPEN_FILE))[-1]["result"]["calls"] == 0


@pytest.mark.requirement("GOV-2")
async def test_who_made_a_call_sees_the_rules_and_an_administrator_sees_what_they_read(
    served: Served, root: str
) -> None:
    await _put(served, root, OPEN_FILE, NO_RENAMES)
    refused = await served.call("shop.rename_user", {"id": 1, "name": "A"})
    path = f"/v1/calls/{refused.json()['call_id']}/decision"
    mine, all_of_it = (await served.get(path)).json(), (await served.get(path, token=root)).json()
    stranger = await served.get(path, token=served.token("eva"))
    await _put(served, root, OPEN_FILE)
    later = (await served.get(path, token=root)).json()

    rule = {"id": "no-renames", "where": "renames.cedar:1", "reason": "Names are for life."}
    assert (mine["behavior"], mine["rules"], mine["in_force"]) == ("deny", [rule], True)
    assert {"principal", "context", "now"}.isdisjoint(mine)
    assert all_of_it["rules"][0]["read"] == {"principal.scopes": ["shop:delete", "shop:write"]}
    assert (all_of_it["principal"]["user"], all_of_it["confirmed"], later["confirmed"]) == ("ana", True, True)
    assert all_of_it["now"]["behavior"] == "deny"
    assert any(each.endswith("the scope x") for each in all_of_it["now"]["allowed_if"])
    assert (later["in_force"], later["now"]["behavior"], later["rules"][0]["read"]) == (
        False,
        "allow",
        all_of_it["rules"][0]["read"],
    )
    nobody = await served.get(f"/v1/calls/{UNKNOWN_CALL}/decision")
    assert stranger.status_code == nobody.status_code == 404
    assert stranger.json()["detail"] == nobody.json()["detail"]
    assert (await served.get("/v1/calls/nonsense/decision")).status_code == 404


async def test_reads_allowed_calls_and_refusals_by_token_are_explained_as_well(served: Served, root: str) -> None:
    read = (await served.call("shop.get_user", {"id": 1})).json()["call_id"]
    write = (await served.call("shop.rename_user", {"id": 1, "name": "A"})).json()["call_id"]
    poor = (await served.call("shop.rename_user", {"id": 1, "name": "A"}, token=served.token(scopes=()))).json()

    for call_id in (read, write):
        told = (await served.get(f"/v1/calls/{call_id}/decision")).json()
        assert (told["behavior"], told["rules"][0]["id"], told["state"]) == ("allow", "open", "succeeded")
    told = (await served.get(f"/v1/calls/{poor['call_id']}/decision")).json()
    assert (told["decided_by"], told["error_number"]) == ("token", "E3211")


async def test_ten_thousand_rules_can_be_sent(served: Served, root: str) -> None:
    text = "".join(
        f'@id("r{n}")\n@reason("{"because " * 10}")\npermit (principal, action, resource == Tool::"shop.t{n % 500}");\n'
        for n in range(10_000)
    )

    checked = await _send(served, "POST", "/v1/policies/check", {"files": [{"path": "x.cedar", "text": text}]}, root)

    assert len(text) > 1_048_576
    assert (checked.status_code, checked.json()["errors"]) == (200, [])
