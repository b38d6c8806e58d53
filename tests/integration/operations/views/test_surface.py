"""Where tools stand for one caller: each with its reason, and what is hidden not there at all."""

from typing import Any, cast

import pytest

from deputize.core.contract.contract import Effects, LifecycleState
from deputize.core.contract.tools import PythonTool
from deputize.execute.driver import Drivers
from deputize.execute.drivers.python import PythonDriver
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.operations.views.tool_status import ToolSelection
from deputize.tools.code import declare_tool
from tests.support.contracts import make_contract
from tests.support.gateway_lab import GatewayLab
from tests.support.policies import OPEN_FILES

pytestmark = pytest.mark.requirement("REG-3")

_POLICY = """
@id("reads")
@reason("Reading is free.")
permit (principal, action, resource) when { resource.effects == "read" };
@id("notes-need-a-human")
@decision("ask")
permit (principal, action, resource == Tool::"lab.note");
@id("puts-in-the-morning")
permit (principal, action, resource == Tool::"lab.put") when { context.time.hour < 12 };
"""


async def _fetch_tool_status(
    lab: GatewayLab, selection: ToolSelection | None = None, **who: object
) -> dict[str, tuple[str, str]]:
    caller = await lab.make_caller(**who)  # type: ignore[arg-type]  # a test's own shorthand
    shown = await lab.gateway.surface.list_availability(caller, selection or ToolSelection())
    return {each["name"]: (each["status"], each["reason"]["code"]) for each in shown["tools"]}


async def test_each_tool_stands_where_policy_token_and_state_put_it(lab: GatewayLab) -> None:
    admin = await lab.make_admin()
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="surface.cedar", text=_POLICY)])
    try:
        seen = await _fetch_tool_status(lab)
        assert seen["lab.look"] == ("loaded", "permitted")
        assert seen["lab.note"] == ("loaded", "needs_approval")
        assert seen["lab.put"] == ("loaded", "decided_per_call")
        assert seen["lab.erase"] == ("blocked", "policy_blocked")
        assert (await _fetch_tool_status(lab, scopes=()))["lab.note"] == ("blocked", "role_not_allowed")
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_a_rule_that_blocks_is_named_with_its_place(lab: GatewayLab) -> None:
    admin = await lab.make_admin()
    forbid = '@id("open") permit (principal, action, resource);\n@id("not-this") @reason("It is broken.")\n'
    text = forbid + 'forbid (principal, action, resource == Tool::"lab.note");'
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="blocks.cedar", text=text)])
    try:
        shown = await lab.gateway.surface.list_availability(await lab.make_caller(), ToolSelection())
        note = next(each for each in shown["tools"] if each["name"] == "lab.note")
        assert note["reason"]["message"] == "It is broken."
        assert note["reason"]["rules"] == [{"id": "not-this", "where": "blocks.cedar:2", "reason": "It is broken."}]
        agent = await lab.make_caller(agent="bot")
        shown = await lab.gateway.surface.list_availability(agent, ToolSelection())
        note = next(each for each in shown["tools"] if each["name"] == "lab.note")
        assert note["reason"]["rules"] == [{"id": "not-this", "where": "", "reason": "It is broken."}]
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_a_sandbox_that_a_rule_demands_and_a_tool_lacks_is_named_with_the_reason(lab: GatewayLab) -> None:
    admin = await lab.make_admin()
    demand = (
        '@id("open") permit (principal, action, resource);\n@id("walled") @backend("gvisor") @reason("It is new.")\n'
    )
    text = demand + 'forbid (principal, action, resource == Tool::"lab.note");'
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="walls.cedar", text=text)])
    try:
        shown = await lab.gateway.surface.list_availability(await lab.make_caller(), ToolSelection())
        note = next(each for each in shown["tools"] if each["name"] == "lab.note")
        reason = "it would run in no sandbox here, and the rule demands gvisor: It is new."
        assert (note["status"], note["reason"]["message"]) == ("blocked", reason)
        assert [each["id"] for each in note["reason"]["rules"]] == ["walled"]
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_a_sandbox_counts_only_if_it_is_certain_and_no_function_has_one_by_its_name(lab: GatewayLab) -> None:
    driver = lab.runtime.driver
    # Outside production, programs run without one on a host that can start none.
    assert driver.find_placement(declare_tool().contract, "any") == "uncertain"
    impostor = PythonTool(contract=make_contract(namespace="browser", name="click"), run=lambda: 1, is_async=False)
    functions = PythonDriver([impostor])
    drivers = Drivers(functions, cast("Any", None), cast("Any", None), cast("Any", None))
    assert drivers.find_placement(impostor.contract, "any") == "none"
    functions.close()


async def test_what_a_token_hides_is_not_there_whatever_else_holds(lab: GatewayLab) -> None:
    seen = await _fetch_tool_status(lab, tools={"lab.note": "*", "lab.nothing": "*"})
    assert set(seen) == {"lab.note"}


async def test_a_caller_excludes_what_it_does_not_want(lab: GatewayLab) -> None:
    seen = await _fetch_tool_status(lab, ToolSelection(max_effects=Effects.READ))
    assert seen["lab.look"][0] == "loaded"
    assert seen["lab.erase"] == ("excluded", "outside_selection")
    elsewhere = await _fetch_tool_status(lab, ToolSelection(namespaces=frozenset({"elsewhere"})))
    assert set(elsewhere.values()) == {("excluded", "outside_selection")}


async def test_states_defer_and_block(lab: GatewayLab) -> None:
    admin, commands = await lab.make_admin(), lab.gateway.commands
    version = (await lab.runtime.authority.load_tenant("dev")).tools.resolve_version("lab.note").version
    for state, expected in (
        (LifecycleState.DEFERRED, ("deferred", "deferred_until_discovered")),
        (LifecycleState.DISABLED, ("blocked", "feature_disabled")),
        (LifecycleState.REQUIRES_SETUP, ("blocked", "setup_required")),
        (LifecycleState.AVAILABLE, ("loaded", "permitted")),
    ):
        await commands.set_state(admin, "lab.note", version, state)
        assert (await _fetch_tool_status(lab))["lab.note"] == expected


async def test_pages_join_without_gap_or_overlap(lab: GatewayLab) -> None:
    caller, names, after = await lab.make_caller(), [], ""
    while after is not None:
        page = await lab.gateway.surface.list_availability(caller, ToolSelection(), after=after, limit=3)
        names += [each["name"] for each in page["tools"]]
        after = page["next_after"]
    assert names == sorted(await _fetch_tool_status(lab))
