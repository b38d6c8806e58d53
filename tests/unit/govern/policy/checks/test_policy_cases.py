"""Policy cases in YAML: parsed strictly, reported by line, and judged with a suggestion if they fail."""

import pytest

from deputize.core.decision import Behavior
from deputize.govern.policy.checks.policy_cases import NOON, CaseResult, build_case_query, judge_case, read_cases
from tests.support.policy_inputs import compile_policies

pytestmark = pytest.mark.requirement("GOV-2")

RULES = """
@id("reads") @reason("Reading is free.") permit (principal, action, resource) when { resource.effects == "read" };
@id("ops") permit (principal in Group::"ops", action, resource);
@id("late") forbid (principal, action, resource) when { context.time.hour > 20 };
@id("asks") @decision("ask") permit (principal, action, resource) when { resource.tags.contains("asks") };
"""


def make_case(**fields: object) -> str:
    lines = [f"{name}: {value}" for name, value in ({"name": "a case", "expect": "allow"} | fields).items()]
    return "cases:\n  - " + "\n    ".join(lines) + "\n"


def run_case(text: str, rules: str = RULES, usual: tuple[str, ...] = ("approvers",)) -> CaseResult:
    (placed,), mistakes = read_cases("t.yaml", text)
    assert not mistakes
    tool = placed.case.tool
    assert not isinstance(tool, str)
    asked = build_case_query(
        placed.case, "acme", tool.describe_tool(), placed.case.facts or {}, placed.case.scopes or ()
    )
    return judge_case(placed, compile_policies(rules).evaluate_query(asked), default_groups=usual)


def test_a_passed_case_has_no_suggestion() -> None:
    found = run_case(make_case(tool="{name: crm.list, effects: read}", by="reads"))

    assert (found.has_passed, found.suggestion, found.located_case.line) == (True, "", 2)


def test_an_inline_tool_is_destructive_by_default() -> None:
    assert run_case(make_case(tool="{name: crm.drop}", expect="deny", by="[nothing-permits]")).has_passed


def test_groups_agents_and_time_reach_the_rules() -> None:
    assert run_case(make_case(tool="{name: crm.drop}", caller="{user: ana, groups: ops}", by="ops")).has_passed
    late = run_case(make_case(tool="{name: crm.list, effects: read}", time="2026-11-14T22:30:00Z"))
    assert (late.has_passed, late.verdict.behavior, late.verdict.rules[0].id) == (False, Behavior.DENY, "late")
    assert NOON.isoweekday() == 1


def test_what_a_call_takes_back_reaches_the_rules() -> None:
    rules = """@id("open") permit (principal, action, resource);
    @id("words") forbid (principal, action, resource) when { context has undoes && context.undoes.delegated };"""
    for undoes, by in (("{tool: bank.cancel, agents: helper}", "words"), ("{tool: bank.cancel}", "open")):
        case = make_case(
            tool="{name: bank.transfer}", undoes=undoes, by=by, expect="deny" if by == "words" else "allow"
        )
        assert run_case(case, rules).has_passed


@pytest.mark.parametrize(
    ("fields", "suggestion"),
    [
        ({"tool": "{name: a.b, effects: read}", "expect": "deny"}, "Write a forbid that matches, or narrow reads"),
        ({"tool": "{name: a.b, effects: read}", "expect": "ask"}, 'Add @decision("ask") to reads (1.cedar:2)'),
        ({"tool": "{name: a.b}", "expect": "allow"}, "Add a rule that permits a.b"),
        (
            {"tool": "{name: a.b, tags: asks}", "expect": "allow"},
            "asks (1.cedar:5) requires approval: add a matching permit without",
        ),
        (
            {"tool": "{name: a.b, effects: read}", "by": "ops"},
            "other rules match: if these should decide, write by: [reads]",
        ),
    ],
)
def test_a_failed_case_suggests_a_fix(fields: dict[str, str], suggestion: str) -> None:
    found = run_case(make_case(**fields))

    assert not found.has_passed
    assert suggestion in found.suggestion


WANTS = """
@id("first") @decision("ask") @approvers("oncall, leads") @quorum("2") permit (principal, action, resource);
@id("second") @decision("ask") permit (principal, action, resource) when { resource.tags.contains("asks") };
"""


@pytest.mark.requirement("GOV-3")
@pytest.mark.parametrize(
    ("tags", "approvers", "holds"),
    [
        ("none", "[oncall, leads]", True),
        ("none", "[leads, oncall]", True),
        ("none", "oncall", False),
        ("none", "[]", False),
        ("none", "[oncall, leads, approvers]", False),
        ("asks", "[oncall, leads, approvers]", True),
        ("asks", "[oncall, leads]", False),
    ],
)
def test_a_case_may_expect_approvers(tags: str, approvers: str, holds: bool) -> None:
    found = run_case(make_case(tool=f"{{name: a.b, tags: {tags}}}", expect="ask", approvers=approvers), WANTS)

    assert found.has_passed is holds
    if not holds:
        everybody = "oncall, leads, approvers" if tags == "asks" else "oncall, leads"
        assert f" {everybody}: change @approvers" in found.suggestion
    said = found.to_json()["said"]["demands"]
    assert said[0] == {
        "rule": "first", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": None, "step_up": "",
    }  # fmt: skip
    assert [each["groups"] for each in said[1:]] == ([["approvers"]] if tags == "asks" else [])


@pytest.mark.requirement("GOV-3")
def test_approvers_need_the_expected_verdict_ask() -> None:
    placed, (mistake,) = read_cases("t.yaml", make_case(tool="a.b", approvers="oncall"))

    assert (placed, mistake.line) == ([], 2)
    assert mistake.message == "this has approvers but expects allow: expect ask, or remove approvers"


def test_an_evaluation_error_is_named() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { context.facts.amount < 10 };'

    found = run_case(make_case(tool="{name: a.b}"), broken)

    assert found.suggestion.startswith("Fix the rule that could not be evaluated: broken (1.cedar:1)")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("cases: [", 1, "this is not valid YAML"),
        ("- name: x", 1, "list them under cases:"),
        ("cases: []\nmore: 1", 1, "list them under cases:"),
        (make_case(tool="a.b", expects="deny"), 5, "expects is not a field of a case"),
        (make_case(tool="a.b", expect="perhaps"), 3, "expect input should be 'allow', 'ask' or 'deny'"),
        ("cases:\n  - name: x\n    expect: deny\n", 2, "tool is missing"),
        (make_case(tool="a.b", caller="{usr: ana}"), 5, "caller.usr is not a field of a case"),
        (make_case(tool="a.b", facts="{amount: 1.5}"), 5, "facts.amount"),
        ("cases:\n  - name: x\n    name: y\n    tool: a.b\n    expect: deny\n", 2, "name occurs twice"),
    ],
)
def test_case_errors_name_their_line(text: str, line: int, message: str) -> None:
    placed, mistakes = read_cases("t.yaml", text)

    assert placed == []
    assert (mistakes[0].file, mistakes[0].line) == ("t.yaml", line)
    assert message in mistakes[0].message


def test_expanding_aliases_are_rejected() -> None:
    bomb = "cases:\n - &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f" - &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
    )

    assert "too large" in read_cases("t.yaml", bomb)[1][0].message
