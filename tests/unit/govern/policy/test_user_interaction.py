"""A contract that requires a person gets one, whatever the policies and engines allow."""

import asyncio

import pytest

from deputize.core.caller import Caller
from deputize.core.decision import Behavior, PolicyRequest, Verdict
from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.engines import Engine, consult_engines
from deputize.govern.policy.user_interaction import INTERACTION_RULE
from tests.support.policy_inputs import ANYTHING, compile_policies, make_caller, make_question, make_tool, rule_ids

pytestmark = pytest.mark.requirement("GOV-3")

TOOL = make_tool(requires_user_interaction=True)
PERMIT, ASK = f'@id("a") {ANYTHING}', f'@id("a") @decision("ask") @approvers("keepers") {ANYTHING}'
FORBID = f'@id("b") {ANYTHING.replace("permit", "forbid")}'


@pytest.mark.parametrize(
    ("rules", "caller", "expected"),
    [
        (PERMIT, make_caller(), (Behavior.ASK, [INTERACTION_RULE])),
        (PERMIT, make_caller(agents=("bot",)), (Behavior.ASK, [INTERACTION_RULE])),
        (PERMIT, make_caller(human=True), (Behavior.ALLOW, ["a"])),
        (ASK, make_caller(), (Behavior.ASK, ["a"])),
        (PERMIT + FORBID, make_caller(), (Behavior.DENY, ["b"])),
    ],
)
def test_what_is_permitted_waits_for_a_person(rules: str, caller: Caller, expected: tuple[Behavior, list[str]]) -> None:
    verdict = compile_policies(rules).decide(make_question(caller, TOOL))
    assert (verdict.behavior, rule_ids(verdict.rules)) == expected
    assert [each.rule for each in verdict.requirements] == (expected[1] if expected[0] is Behavior.ASK else [])


def test_other_tools_do_not_wait() -> None:
    assert compile_policies(PERMIT).decide(make_question(what=make_tool())).behavior is Behavior.ALLOW


@pytest.mark.parametrize("engine", ["authzen", "both"])
def test_an_external_engine_cannot_leave_the_person_out(engine: Engine) -> None:
    class Permissive:
        async def decide(self, request: PolicyRequest) -> Verdict:
            return Verdict(behavior=Behavior.ALLOW, rules=(), digest="d", source="authzen")

    question = make_question(what=TOOL)
    cedar = compile_policies(PERMIT).decide(question)
    verdict = asyncio.run(consult_engines(cedar, question, Permissive(), engine))
    assert (verdict.behavior, verdict.requirements[0].rule) == (Behavior.ASK, INTERACTION_RULE)


def test_no_rule_of_a_tenant_can_take_the_name() -> None:
    with pytest.raises(PolicyInvalid, match="is reserved for the gateway"):
        compile_policies(f'@id("{INTERACTION_RULE}") {ANYTHING}')
