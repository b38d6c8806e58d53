"""Where tools stand for one caller: each with its reason, and what is hidden not there at all."""

import pytest

from deputize.core.contract import Effects, LifecycleState
from deputize.govern.policy.rules import PolicyFile
from deputize.lifecycle.standing import Selection
from tests.integration.lifecycle.lab import Lab
from tests.policies import OPEN_FILES

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


async def _standings(lab: Lab, selection: Selection | None = None, **who: object) -> dict[str, tuple[str, str]]:
    caller = await lab.caller(**who)  # type: ignore[arg-type]  # a test's own shorthand
    shown = await lab.gateway.surface.standings(caller, selection or Selection())
    return {each["name"]: (each["status"], each["reason"]["code"]) for each in shown["tools"]}


async def test_each_tool_stands_where_policy_token_and_state_put_it(lab: Lab) -> None:
    admin = await lab.admin()
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="surface.cedar", text=_POLICY)])
    try:
        seen = await _standings(lab)
        assert seen["lab.look"] == ("loaded", "permitted")
        assert seen["lab.note"] == ("loaded", "needs_approval")
        assert seen["lab.put"] == ("loaded", "decided_per_call")
        assert seen["lab.erase"] == ("blocked", "policy_blocked")
        assert (await _standings(lab, scopes=()))["lab.note"] == ("blocked", "role_not_allowed")
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_a_rule_that_blocks_is_named_with_its_place(lab: Lab) -> None:
    admin = await lab.admin()
    forbid = '@id("open") permit (principal, action, resource);\n@id("not-this") @reason("It is broken.")\n'
    text = forbid + 'forbid (principal, action, resource == Tool::"lab.note");'
    await lab.gateway.commands.put_policies(admin, [PolicyFile(path="blocks.cedar", text=text)])
    try:
        shown = await lab.gateway.surface.standings(await lab.caller(), Selection())
        note = next(each for each in shown["tools"] if each["name"] == "lab.note")
        assert note["reason"]["message"] == "It is broken."
        assert note["reason"]["rules"] == [{"id": "not-this", "where": "blocks.cedar:2", "reason": "It is broken."}]
    finally:
        await lab.gateway.commands.put_policies(admin, OPEN_FILES)


async def test_what_a_token_hides_is_not_there_whatever_else_holds(lab: Lab) -> None:
    seen = await _standings(lab, tools={"lab.note": "*", "lab.nothing": "*"})
    assert set(seen) == {"lab.note"}


async def test_a_caller_excludes_what_it_does_not_want(lab: Lab) -> None:
    seen = await _standings(lab, Selection(worst=Effects.READ))
    assert seen["lab.look"][0] == "loaded"
    assert seen["lab.erase"] == ("excluded", "outside_selection")
    elsewhere = await _standings(lab, Selection(namespaces=frozenset({"elsewhere"})))
    assert set(elsewhere.values()) == {("excluded", "outside_selection")}


async def test_states_defer_and_block(lab: Lab) -> None:
    admin, commands = await lab.admin(), lab.gateway.commands
    version = (await lab.rooms.authority.of("dev")).tools.resolve("lab.note").version
    for state, expected in (
        (LifecycleState.DEFERRED, ("deferred", "deferred_until_discovered")),
        (LifecycleState.DISABLED, ("blocked", "feature_disabled")),
        (LifecycleState.REQUIRES_SETUP, ("blocked", "setup_required")),
        (LifecycleState.AVAILABLE, ("loaded", "permitted")),
    ):
        await commands.set_state(admin, "lab.note", version, state)
        assert (await _standings(lab))["lab.note"] == expected


async def test_pages_join_without_gap_or_overlap(lab: Lab) -> None:
    caller, names, after = await lab.caller(), [], ""
    while after is not None:
        page = await lab.gateway.surface.standings(caller, Selection(), after=after, limit=3)
        names += [each["name"] for each in page["tools"]]
        after = page["next_after"]
    assert names == sorted(await _standings(lab))
