"""Policies that need two operators: one proposes, another confirms exactly the same set, and neither does both."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from deputize.app import open_gateway
from deputize.core.caller import ADMIN_SCOPE, Caller
from deputize.core.errors import OperatorConfirmationRequired, PolicyInvalid, Unavailable
from deputize.core.settings import PolicySettings
from deputize.govern.policy.policy_parser import PolicyFile
from tests.support.gateway_lab import GatewayLab, lab_settings
from tests.support.scripted_tools import TOOLS

pytestmark = pytest.mark.requirement("GOV-2")


def make_files(name: str) -> list[PolicyFile]:
    return [PolicyFile(path=f"{name}.cedar", text=f'@id("{name}") permit (principal, action, resource);')]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    folder = tmp_path_factory.mktemp("two")
    settings = lab_settings(module_database, folder).model_copy(update={"policy": PolicySettings(approvals=2)})
    db = await asyncpg.connect(module_database)
    try:
        async with open_gateway(settings, tools=TOOLS, development=True) as gateway:
            yield GatewayLab(gateway=gateway, folder=folder, dsn=module_database, db=db)
    finally:
        await db.close()


async def sign_in(lab: GatewayLab, name: str, **more: Any) -> Caller:
    return await lab.make_caller(name, scopes=(ADMIN_SCOPE,), **more)


async def show_policies(lab: GatewayLab, caller: Caller) -> dict[str, Any]:
    return await lab.gateway.explanations.show_active_policies(caller)


async def test_the_second_operator_activates_what_the_first_proposed(two_lab: GatewayLab) -> None:
    ana, bo = await sign_in(two_lab, "ana"), await sign_in(two_lab, "bo")
    commands, before = two_lab.gateway.commands, await show_policies(two_lab, ana)
    proposed = await commands.put_policies(ana, make_files("first"))
    assert proposed.proposal is not None
    assert (proposed.is_new, (await show_policies(two_lab, bo))["digest"]) == (False, before["digest"])
    (shown,) = (await show_policies(two_lab, bo))["proposals"]
    assert (shown["digest"], shown["proposed_by"], shown["files"][0]["path"]) == (
        proposed.digest, ana.user, "first.cedar",
    )  # fmt: skip
    confirmed = await commands.put_policies(bo, make_files("first"))
    assert (confirmed.is_new, confirmed.proposal, confirmed.digest) == (True, None, proposed.digest)
    after = await show_policies(two_lab, ana)
    assert (after["digest"], after["proposals"]) == (proposed.digest, [])
    rows = await two_lab.db.fetch("select entry from deputize.audit_entries where call_id is null order by id")
    entries = [entry for entry in map(orjson.loads, (row["entry"] for row in rows)) if entry["kind"] == "command"]
    done = [each["command"] for each in entries if each.get("subject") == proposed.digest]
    assert done == ["propose_policies", "confirm_policies"]


async def test_one_operator_cannot_do_both(two_lab: GatewayLab) -> None:
    ana = await sign_in(two_lab, "ana")
    before = await show_policies(two_lab, ana)
    await two_lab.gateway.commands.put_policies(ana, make_files("alone"))
    for _ in range(2):
        with pytest.raises(OperatorConfirmationRequired) as refused:
            await two_lab.gateway.commands.put_policies(ana, make_files("alone"))
        assert refused.value.details["rule"] == "operator-second-person"
    assert (await show_policies(two_lab, ana))["digest"] == before["digest"]


async def test_other_policies_than_the_proposed_ones_are_another_proposal(two_lab: GatewayLab) -> None:
    ana, bo = await sign_in(two_lab, "ana"), await sign_in(two_lab, "bo")
    await two_lab.gateway.commands.put_policies(ana, make_files("wanted"))
    other = await two_lab.gateway.commands.put_policies(bo, [*make_files("wanted"), *make_files("more")])
    assert other.proposal is not None
    assert other.proposal.proposed_by == bo.user


async def test_a_proposal_counts_only_for_the_policies_it_was_made_for(two_lab: GatewayLab) -> None:
    ana, bo = await sign_in(two_lab, "ana"), await sign_in(two_lab, "bo")
    commands = two_lab.gateway.commands
    await commands.put_policies(ana, make_files("outrun"))
    await commands.put_policies(ana, make_files("faster"))
    assert (await commands.put_policies(bo, make_files("faster"))).is_new
    again = await commands.put_policies(bo, make_files("outrun"))
    assert again.proposal is not None, "its difference to the active policies is not the one that was proposed"


async def test_a_proposal_expires(two_lab: GatewayLab) -> None:
    ana, bo = await sign_in(two_lab, "ana"), await sign_in(two_lab, "bo")
    proposed = await two_lab.gateway.commands.put_policies(ana, make_files("late"))
    await two_lab.db.execute(
        "update deputize.policy_proposals set expires_at = now() where digest = $1", proposed.digest
    )
    assert proposed.digest not in [each["digest"] for each in (await show_policies(two_lab, bo))["proposals"]]
    assert (await two_lab.gateway.commands.put_policies(bo, make_files("late"))).proposal is not None


async def test_a_proposal_needs_an_operator_too_and_is_checked(two_lab: GatewayLab) -> None:
    ana = await sign_in(two_lab, "ana")
    agent = await sign_in(two_lab, "ana", agent="bot")
    with pytest.raises(OperatorConfirmationRequired):
        await two_lab.gateway.commands.put_policies(agent, make_files("by-an-agent"))
    with pytest.raises(PolicyInvalid):
        await two_lab.gateway.commands.put_policies(ana, [PolicyFile(path="bad.cedar", text="permit (")])
    paths = [each["files"][0]["path"] for each in (await show_policies(two_lab, ana))["proposals"]]
    assert not {"by-an-agent.cedar", "bad.cedar"} & set(paths)


async def test_another_tenants_operator_confirms_nothing_here(two_lab: GatewayLab) -> None:
    ana = await sign_in(two_lab, "ana")
    stranger = await sign_in(two_lab, "olga", tenant="other")
    proposed = await two_lab.gateway.commands.put_policies(ana, make_files("ours"))
    theirs = await two_lab.gateway.commands.put_policies(stranger, make_files("ours"))
    assert (theirs.digest, theirs.proposal is not None) == (proposed.digest, True)
    assert (await show_policies(two_lab, ana))["digest"] != proposed.digest


async def test_of_many_confirmations_at_once_one_activates(two_lab: GatewayLab) -> None:
    people = [await sign_in(two_lab, f"p{number}") for number in range(4)]
    proposed = await two_lab.gateway.commands.put_policies(people[0], make_files("raced"))
    results = await asyncio.gather(
        *(two_lab.gateway.commands.put_policies(each, make_files("raced")) for each in people[1:]),
        return_exceptions=True,
    )
    activated = [each for each in results if not isinstance(each, BaseException) and each.is_new]
    assert len(activated) == 1, results
    assert all(isinstance(each, Unavailable) or not isinstance(each, BaseException) for each in results), results
    assert (await show_policies(two_lab, people[0]))["digest"] == proposed.digest
