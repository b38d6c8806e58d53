"""What people are shown before they decide: the tool's own preview, why there is none, or no question at all."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import Preview, ToolContext
from deputize.core.errors import HumanTaskNotFound
from tests.support.approval_lab import RULES, ApprovalLab, open_approval_lab
from tests.support.gateway_lab import error_slug, open_lab, parse_body
from tests.support.scripted_tools import list_effects, previews, set_behaviour

pytestmark = [pytest.mark.requirement("GOV-4"), pytest.mark.requirement("GOV-3")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def approval_lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ApprovalLab]:
    async with open_approval_lab(module_database, tmp_path_factory.mktemp("house")) as opened:
        yield opened


async def test_a_dry_run_says_who_would_be_asked_and_asks_nobody(approval_lab: ApprovalLab) -> None:
    outcome = await approval_lab.lab.call("erase", "w1", dry_run=True)
    would = parse_body(outcome)["would"]
    assert would["behavior"] == "ask"
    (demand,) = would["approvals"]
    assert (demand["rule"], demand["groups"], demand["quorum"]) == ("erasing-asks-two", ["keepers", "elders"], 2)
    assert (await approval_lab.lab.fetch_entries(outcome.call_id))[0]["rules"][-1:] == ["erasing-asks-two"]
    (usual,) = parse_body(await approval_lab.lab.call("note", "w1", dry_run=True))["would"]["approvals"]
    assert usual["groups"] == ["approvers"], "the settings' own, where a rule names nobody"
    assert not await approval_lab.lab.db.fetchval("select count(*) from deputize.approvals")


async def test_people_see_what_the_tool_says_and_its_guards_go_to_the_effect_alone(approval_lab: ApprovalLab) -> None:
    got: list[Any] = []

    def erase(context: ToolContext) -> dict[str, Any]:
        got.append(dict(context.guards))
        return {"value": "gone"}

    set_behaviour("g1", erase)
    change = {"resource": "lab.notes", "op": "delete", "scope": "g1", "count": 14}
    previews["g1"] = lambda _: Preview(changes=[change], guards={"etag": "canary-7"})
    call, ticket = await approval_lab.request_approval("erase", "g1")
    keepers = [await approval_lab.make_approver(name, groups=("keepers",)) for name in ("k1", "k2")]
    shown = await approval_lab.approvals.get_request(keepers[0], ticket)
    assert shown["preview"]["changes"] == [change]
    assert "canary-7" not in str(shown)
    for keeper in keepers:
        await approval_lab.approve(keeper, ticket)
    await approval_lab.lab.wait_for_state(call, "succeeded")
    assert got == [{"etag": "canary-7"}]


async def test_what_would_fail_is_put_to_nobody_and_its_key_stays_free(approval_lab: ApprovalLab) -> None:
    unmet = {"name": "unlocked", "holds": False, "detail": "it is locked"}
    previews["p1"] = lambda _: Preview(preconditions=[unmet])
    refused = await approval_lab.lab.call("erase", "p1", key="p1")
    assert (error_slug(refused), refused.http_status) == ("precondition-failed", 412)
    told = parse_body(refused)["error"]
    assert (told["number"], told["code"], told["details"]) == (
        "E3308", "PRECONDITION_FAILED", {"preconditions": [unmet]},
    )  # fmt: skip
    assert not await approval_lab.lab.has_claim(refused.call_id)
    with pytest.raises(HumanTaskNotFound):
        await approval_lab.approvals.get_request(
            await approval_lab.make_approver("k1", groups=("keepers",)), refused.call_id
        )
    (entry,) = await approval_lab.lab.fetch_entries(refused.call_id)
    assert (entry["kind"], entry["error"]) == ("refusal", "E3308")
    del previews["p1"]
    assert (await approval_lab.lab.call("erase", "p1", key="p1")).http_status == 202


async def test_a_preview_that_breaks_is_shown_as_broken_and_people_decide_all_the_same(
    approval_lab: ApprovalLab,
) -> None:
    def fail_preview(_: ToolContext) -> Preview:
        raise RuntimeError("no such table")

    previews["b1"] = fail_preview
    call, ticket = await approval_lab.request_approval("erase", "b1")
    keepers = [await approval_lab.make_approver(name, groups=("keepers",)) for name in ("k1", "k2")]
    shown = (await approval_lab.approvals.get_request(keepers[0], ticket))["preview"]
    assert (shown["by"], "no such table" in shown["problem"]) == ("contract", True)
    for keeper in keepers:
        await approval_lab.approve(keeper, ticket)
    await approval_lab.lab.wait_for_state(call, "succeeded")
    assert len(list_effects("b1")) == 1


async def test_a_gateway_that_has_not_the_function_asks_with_what_the_contract_says(
    fresh_database: str, tmp_path: Path
) -> None:
    async with (
        open_approval_lab(fresh_database, tmp_path, with_worker=False) as approval_lab,
        open_lab(fresh_database, tmp_path, tools=()) as without,
    ):
        await approval_lab.put_policies(RULES)
        # By the old rules the call is allowed, and refused because its function is missing.
        await without.runtime.authority.reload_tenant("dev")
        asked = await without.call("erase", "f1", key="f1")
        assert asked.http_status == 202
        keeper = await approval_lab.make_approver("k1", groups=("keepers",))
        shown = (await approval_lab.approvals.get_request(keeper, parse_body(asked)["approval"]["approval_id"]))[
            "preview"
        ]
        assert (shown["by"], "not loaded" in shown["problem"]) == ("contract", True)
        assert shown["changes"] == [{"resource": "lab.notes", "op": "delete", "scope": "f1"}]
