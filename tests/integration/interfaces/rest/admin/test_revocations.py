"""The routes of revocations: what is revoked is refused at once, counted, listed, and seen by administrators only."""

import pytest

from tests.integration.conftest import ADMIN, HttpGateway

pytestmark = pytest.mark.requirement("GOV-1")


def _make_admin_token(gateway: HttpGateway) -> str:
    return gateway.token("root", scopes=(ADMIN,))


async def test_a_revoked_agent_cannot_use_the_token_it_got_for_itself(gateway: HttpGateway) -> None:
    own_token = gateway.other_token("batch-bot")
    delegated_token = await gateway.exchange_token(own_token, agent="helper")
    assert (await gateway.get("/v1/tools", token=own_token)).status_code == 200
    admin = gateway.other_token("boss", scopes=(ADMIN,))

    revoked = await gateway.post("/v1/revocations", {"kind": "agent", "value": "batch-bot"}, token=admin)

    assert (revoked.status_code, revoked.json()["ended_grants"]) == (201, 1)
    for token in (own_token, delegated_token):
        assert (await gateway.get("/v1/tools", token=token)).json()["error"]["slug"] == "revoked"
        assert (await gateway.call("shop.get_user", {"id": 1}, token=token)).json()["error"]["slug"] == "revoked"
    refused = await gateway.post_exchange(own_token, agent="helper")
    assert refused.json()["problem"]["error"]["slug"] == "revoked"


async def test_a_person_with_the_name_of_a_revoked_agent_keeps_their_own_token(gateway: HttpGateway) -> None:
    person = gateway.token("carol")
    await gateway.post("/v1/revocations", {"kind": "agent", "value": "carol"}, token=_make_admin_token(gateway))
    assert (await gateway.get("/v1/tools", token=person)).status_code == 200


async def test_revocations_are_listed_newest_first_with_who_and_why(gateway: HttpGateway) -> None:
    admin = _make_admin_token(gateway)
    for number in range(3):
        body = {"kind": "user", "value": f"leaver-{number}", "reason": f"reason {number}"}
        assert (await gateway.post("/v1/revocations", body, token=admin)).status_code == 201

    first = (await gateway.get("/v1/revocations", token=admin, limit=2)).json()
    second = (await gateway.get("/v1/revocations", token=admin, limit=1, before=first["next_before"])).json()

    listed = [*first["revocations"], *second["revocations"]]
    assert [each["value"] for each in listed] == ["leaver-2", "leaver-1", "leaver-0"]
    assert {key: listed[0][key] for key in ("kind", "reason", "revoked_by")} == {
        "kind": "user",
        "reason": "reason 2",
        "revoked_by": "root",
    }
    refused = await gateway.get("/v1/revocations", token=gateway.token("ana"))
    assert (refused.status_code, refused.json()["error"]["slug"]) == (403, "scope-missing")
    other = await gateway.get("/v1/revocations", token=gateway.other_token("chief", scopes=(ADMIN,)))
    assert "leaver-2" not in other.text


async def test_a_revocation_counts_and_marks_the_delegations_it_ends(gateway: HttpGateway) -> None:
    admin, user = _make_admin_token(gateway), gateway.token("giver")
    first = await gateway.exchange_token(user, agent="near")
    await gateway.exchange_token(first, agent="far")
    await gateway.exchange_token(user, agent="third")
    grants = {each["agents"][0]: each for each in (await gateway.get("/v1/grants", token=user)).json()["grants"]}

    body = {"kind": "grant", "value": grants["near"]["grant_id"].upper()}
    revoked = (await gateway.post("/v1/revocations", body, token=admin)).json()
    assert (revoked["value"], revoked["ended_grants"]) == (grants["near"]["grant_id"], 2)

    assert (await gateway.post("/v1/revocations", {"kind": "user", "value": "giver"}, token=admin)).json()[
        "ended_grants"
    ] == 1, "those of the first grant had ended"
    listed = (await gateway.get("/v1/grants", token=admin, limit=200)).json()["grants"]
    assert {each["state"] for each in listed if each["user"] == "giver"} == {"revoked"}
