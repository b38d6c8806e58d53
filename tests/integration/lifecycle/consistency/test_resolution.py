"""What tools say about the same thing is compared, for each user alone, and believed or refused as the rule says."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import orjson
import pytest

from tests.integration.conftest import ADMIN, HttpGateway
from tests.integration.lifecycle.consistency.sources import TOOLS, ask, facts, get_slug, let_say, open_sources

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.requirement("INV-7")]


async def test_the_source_with_the_highest_rank_is_believed(gateway: HttpGateway) -> None:
    let_say(1, "balance", crm=100.0, billing=250.5)
    first = await ask(gateway, "crm", 1)
    assert (first["result"], first["warnings"]) == ({"balance": 100.0}, [])
    second = await ask(gateway, "billing", 1)
    assert second["result"] == {"balance": 250.5}
    (warning,) = second["warnings"]
    assert warning.startswith("sources disagree (rule balances): billing.get_account (call ")
    assert all(each["call_id"] in warning for each in (first, second))
    assert warning.endswith("says something else")
    third = await ask(gateway, "crm", 1)
    assert third["result"] == {"balance": 100.0}
    (warning,) = third["warnings"]
    assert f"billing.get_account (call {second['call_id']}, 2" in warning
    assert warning.endswith("Do not rely on this result, but on that of the believed call")


async def test_equal_ranks_resolve_nothing_and_the_problem_holds_no_value(gateway: HttpGateway) -> None:
    let_say(2, "balance", billing=7171, ledger=8282)
    first = await ask(gateway, "billing", 2)
    refusal = await ask(gateway, "ledger", 2)
    assert (refusal["state"], get_slug(refusal), refusal["error"]["number"]) == ("failed", "sources-disagree", "E3415")
    details = refusal["error"]["details"]
    assert (details["rule"], details["resolution"]) == ("balances", "authority")
    assert {each["tool"]: each["call_id"] for each in details["sources"]} == {
        "billing.get_account": first["call_id"],
        "ledger.get_balance": refusal["call_id"],
    }
    assert all(each["seen_at"].endswith("Z") for each in details["sources"])
    text = orjson.dumps({**refusal, "execution": None}).decode()
    assert "7171" not in text
    assert "8282" not in text
    assert "result" not in refusal
    # Corrected: they agree again.
    let_say(2, "balance", ledger=7171)
    assert (await ask(gateway, "ledger", 2))["warnings"] == []


async def test_the_newest_is_believed(gateway: HttpGateway) -> None:
    let_say(3, "address", crm="Old Road 1", billing="New Road 2")
    await ask(gateway, "crm", 3)
    answer = await ask(gateway, "billing", 3)
    (warning,) = answer["warnings"]
    assert f"billing.get_account (call {answer['call_id']}" in warning.partition(" is believed by freshness")[0]
    assert "crm.get_customer" in warning.partition(" is believed by freshness")[2]


async def test_the_larger_group_is_believed_and_two_alone_are_not_one(gateway: HttpGateway) -> None:
    let_say(4, "state", crm="open", billing="closed", ledger="open")
    await ask(gateway, "crm", 4)
    assert get_slug(await ask(gateway, "billing", 4)) == "sources-disagree"
    agreeing = await ask(gateway, "ledger", 4)
    assert "ledger.get_balance" in agreeing["warnings"][0].partition(" is believed by majority")[0]
    outvoted = await ask(gateway, "billing", 4)
    assert outvoted["result"] == {"state": "closed"}
    assert "Do not rely on this result" in outvoted["warnings"][0]


async def test_a_person_decides_where_the_rule_says_so(gateway: HttpGateway) -> None:
    let_say(5, "limit", crm=1, billing=2)
    assert get_slug(await ask(gateway, "crm", 5)) is None
    for system in ("billing", "crm", "billing"):
        assert get_slug(await ask(gateway, system, 5)) == "sources-disagree"
    # The fact had changed: the other source, called again, says so too.
    let_say(5, "limit", crm=2)
    for system in ("crm", "billing"):
        assert (await ask(gateway, system, 5))["warnings"] == []


@pytest.mark.parametrize(
    ("number", "field", "left", "right", "is_agreement"),
    [
        (10, "balance", 100.00, 100.01, True),
        (11, "balance", 100.00, 100.02, False),
        (12, "balance", 100, 100.0, True),
        (13, "address", "Main Street", "MAIN street", True),
        (14, "address", "Main Street", "Main Streets", False),
        (15, "state", "Open", "open", False),
        (16, "state", 1, True, False),
        (17, "state", "1", 1, False),
        (18, "state", {"a": [1, 2], "b": None}, {"b": None, "a": [1.0, 2]}, True),
        (19, "state", [1], [True], False),
    ],
)
async def test_values_agree_within_the_tolerance(
    gateway: HttpGateway, number: int, field: str, left: Any, right: Any, is_agreement: bool
) -> None:
    let_say(number, field, crm=left, billing=right)
    assert (await ask(gateway, "crm", number))["warnings"] == []
    answer = await ask(gateway, "billing", number)
    assert (not answer["warnings"] and not answer["is_error"]) == is_agreement


@pytest.mark.parametrize(
    ("number", "value"), [(20, None), (21, "x" * 1_100), (22, list(range(1_000))), (23, ["x"] * 3_000)]
)
async def test_nothing_and_too_much_are_not_compared(gateway: HttpGateway, number: int, value: Any) -> None:
    let_say(number, "limit", crm=value, billing="y")
    for system in ("crm", "billing", "crm"):
        assert (await ask(gateway, system, number))["warnings"] == []
    facts["crm", str(number)] = {"something": "else"}
    assert (await ask(gateway, "crm", number))["warnings"] == []


async def test_other_things_and_rules_of_other_tenants_are_not_compared(gateway: HttpGateway) -> None:
    let_say(24, "limit", crm=1)
    let_say(25, "limit", billing=2)
    let_say(26, "elsewhere", crm=1, billing=2)
    for system, id in (("crm", 24), ("billing", 25), ("crm", 26), ("billing", 26)):
        answer = await ask(gateway, system, id)
        assert (answer["is_error"], answer["warnings"]) == (False, [])


async def test_a_value_counts_for_the_window_only(gateway: HttpGateway, db: asyncpg.Connection) -> None:
    let_say(30, "limit", crm=1, billing=2)
    first = await ask(gateway, "crm", 30)
    age = "update deputize.observed_values set seen_at = seen_at - make_interval(secs => $2) where call_id = $1"
    assert await db.execute(age, first["call_id"], 590.0) == "UPDATE 1"
    assert get_slug(await ask(gateway, "billing", 30)) == "sources-disagree"
    assert await db.execute(age, first["call_id"], 20.0) == "UPDATE 1"
    assert (await ask(gateway, "billing", 30))["result"] == {"limit": 2}


async def test_gateways_share_what_was_said_and_a_restart_keeps_it(
    gateway: HttpGateway, module_database: str, folder: Path, changes: dict[str, Any]
) -> None:
    let_say(31, "limit", crm=1, billing=2)
    async with open_sources(module_database, folder, changes) as other:
        assert get_slug(await ask(other, "crm", 31)) is None
    assert get_slug(await ask(gateway, "billing", 31)) == "sources-disagree"
    async with open_sources(module_database, folder, changes) as restarted:
        assert get_slug(await ask(restarted, "crm", 31)) == "sources-disagree"


async def test_of_two_at_the_same_moment_one_sees_the_other(
    gateway: HttpGateway, module_database: str, folder: Path, changes: dict[str, Any]
) -> None:
    async with open_sources(module_database, folder, changes) as other:
        for number in range(200, 230):
            let_say(number, "limit", crm=1, billing=2)
        pairs = [(ask(gateway, "crm", number), ask(other, "billing", number)) for number in range(200, 230)]
        answers = await asyncio.gather(*(each for pair in pairs for each in pair))
    slugs = [{get_slug(crm), get_slug(billing)} for crm, billing in zip(answers[::2], answers[1::2], strict=True)]
    assert all("sources-disagree" in each for each in slugs)


async def test_a_user_learns_nothing_of_what_another_user_saw(gateway: HttpGateway) -> None:
    let_say(32, "limit", crm=1, billing=2)
    eva = gateway.token("eva")
    await ask(gateway, "crm", 32)
    answer = await ask(gateway, "billing", 32, token=eva)
    assert (answer["result"], answer["warnings"]) == ({"limit": 2}, [])
    assert get_slug(await ask(gateway, "crm", 32, token=eva)) == "sources-disagree"
    # An agent acts for its user, and so sees what the user saw.
    agent = await gateway.exchange_token(gateway.token(), agent="bot")
    assert get_slug(await ask(gateway, "billing", 32, token=agent)) == "sources-disagree"


async def test_a_tenant_learns_nothing_of_what_another_tenant_saw(gateway: HttpGateway) -> None:
    admin = gateway.token("olga", scopes=(ADMIN,), tenant="other")
    for each in TOOLS[:2]:
        registered = await gateway.post("/v1/tools", each.contract.model_dump(mode="json"), token=admin)
        assert registered.status_code == 201, registered.text
    let_say(33, "limit", crm=1, billing=2)
    # A user of the same name.
    theirs = gateway.token("ana", tenant="other")
    await ask(gateway, "crm", 33)
    answer = await ask(gateway, "billing", 33, token=theirs)
    assert (answer["result"], answer["warnings"]) == ({"limit": 2}, [])
    assert get_slug(await ask(gateway, "crm", 33, token=theirs)) == "sources-disagree"
