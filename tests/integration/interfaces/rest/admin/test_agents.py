"""The list of agents: everyone sees their own, an administrator those of the tenant, and revoking one is seen there."""

from typing import Any

import pytest

from tests.integration.conftest import ADMIN, HttpGateway

pytestmark = pytest.mark.requirement("GOV-1")


async def list_agents(gateway: HttpGateway, token: str, **query: Any) -> dict[str, dict[str, Any]]:
    answer = await gateway.get("/v1/agents", token=token, **query)
    assert answer.status_code == 200, answer.text
    return {each["name"]: each for each in answer.json()["agents"]}


async def test_agents_are_listed_with_whom_they_act_for_and_what_they_did(gateway: HttpGateway) -> None:
    admin = gateway.token("root", scopes=(ADMIN,))
    ana, ben = gateway.token("agents-ana"), gateway.token("agents-ben")
    notes_token = await gateway.exchange_token(ana, agent="list-notes")
    await gateway.exchange_token(ben, agent="list-mail")
    made = await gateway.call("shop.get_user", {"id": 1}, token=notes_token)

    all_agents = await list_agents(gateway, admin)
    assert {"list-notes", "list-mail"} <= all_agents.keys()
    notes = all_agents["list-notes"]
    assert (notes["users"], notes["active_grants"], notes["revoked"]) == (["agents-ana"], 1, False)
    assert notes["last_call"]["call_id"] == made.json()["call_id"]
    assert (notes["last_call"]["tool"], notes["last_call"]["user"]) == ("shop.get_user", "agents-ana")
    assert not notes["last_call"]["dry_run"]
    await gateway.call("shop.get_user", {"id": 1}, token=notes_token, dry_run=True)
    assert (await list_agents(gateway, ana))["list-notes"]["last_call"]["dry_run"]
    assert list(await list_agents(gateway, ana)) == ["list-notes"]
    assert list(await list_agents(gateway, ben)) == ["list-mail"]
    assert not await list_agents(gateway, gateway.token("agents-carl"))
    assert "list-notes" not in await list_agents(gateway, gateway.other_token("chief", scopes=(ADMIN,)))
    first = (await gateway.get("/v1/agents", token=admin, limit=1)).json()
    names = list(all_agents)
    assert (first["agents"][0]["name"], first["next_after"]) == (names[0], names[0])
    assert list(await list_agents(gateway, admin, after=names[0])) == names[1:]

    switch = {"kind": "agent", "value": "list-notes", "off": True, "reason": "it books twice"}
    assert (await gateway.post("/v1/switches", switch, token=admin)).status_code == 200
    off = (await list_agents(gateway, admin))["list-notes"]["switched_off"]
    assert (off["by"], off["reason"]) == ("root", "it books twice")
    assert (await gateway.post("/v1/switches", {**switch, "off": False}, token=admin)).status_code == 200
    assert (await list_agents(gateway, admin))["list-notes"]["switched_off"] is None

    await gateway.post("/v1/revocations", {"kind": "agent", "value": "list-notes"}, token=admin)
    assert (await list_agents(gateway, admin))["list-notes"]["revoked"]


async def test_revoking_an_unknown_agent_says_so_and_names_those_like_it(gateway: HttpGateway) -> None:
    admin = gateway.token("root", scopes=(ADMIN,))
    await gateway.exchange_token(gateway.token("dora"), agent="support-bot")

    async def revoke(kind: str, value: str) -> tuple[bool | None, list[str]]:
        answer = await gateway.post("/v1/revocations", {"kind": kind, "value": value}, token=admin)
        assert answer.status_code == 201
        return answer.json()["known"], answer.json()["similar"]

    assert await revoke("agent", "suport-bott") == (False, ["support-bot"])
    assert await revoke("agent", "support-bot") == (True, [])
    assert await revoke("user", "dorra") == (False, ["dora"])
    assert await revoke("user", "dora") == (True, [])
    assert await revoke("grant", "01930000-0000-7000-8000-000000000000") == (False, [])
    assert await revoke("token", "some-id") == (None, [])
