"""Cases in YAML: read strictly, placed by line, and judged with a way out where they fail."""

import pytest

from deputize.core.decision import Behavior
from deputize.govern.policy.cases import NOON, Judged, asked_of, judged, read_cases
from tests.unit.govern.policy.asking import policies

pytestmark = pytest.mark.requirement("GOV-2")

RULES = """
@id("reads") @reason("Reading is free.") permit (principal, action, resource) when { resource.effects == "read" };
@id("ops") permit (principal in Group::"ops", action, resource);
@id("late") forbid (principal, action, resource) when { context.time.hour > 20 };
@id("asks") @decision("ask") permit (principal, action, resource) when { resource.tags.contains("asks") };
"""


def case(**fields: object) -> str:
    lines = [f"{name}: {value}" for name, value in ({"name": "a case", "expect": "allow"} | fields).items()]
    return "cases:\n  - " + "\n    ".join(lines) + "\n"


def run(text: str, rules: str = RULES, usual: tuple[str, ...] = ("approvers",)) -> Judged:
    (placed,), mistakes = read_cases("t.yaml", text)
    assert not mistakes
    tool = placed.case.tool
    assert not isinstance(tool, str)
    asked = asked_of(placed.case, "acme", tool.described(), placed.case.facts or {}, placed.case.scopes or ())
    return judged(placed, policies(rules).replay(asked), usual=usual)


def test_a_case_that_holds_needs_no_suggestion() -> None:
    found = run(case(tool="{name: crm.list, effects: read}", by="reads"))

    assert (found.holds, found.suggestion, found.placed.line) == (True, "", 2)


def test_a_tool_described_in_place_is_destructive_until_it_says_otherwise() -> None:
    assert run(case(tool="{name: crm.drop}", expect="deny", by="[nothing-permits]")).holds


def test_groups_agents_and_time_reach_the_rules() -> None:
    assert run(case(tool="{name: crm.drop}", caller="{user: ana, groups: ops}", by="ops")).holds
    late = run(case(tool="{name: crm.list, effects: read}", time="2026-11-14T22:30:00Z"))
    assert (late.holds, late.verdict.behavior, late.verdict.rules[0].id) == (False, Behavior.DENY, "late")
    assert NOON.isoweekday() == 1


@pytest.mark.parametrize(
    ("fields", "suggestion"),
    [
        ({"tool": "{name: a.b, effects: read}", "expect": "deny"}, "Write a forbid that speaks here, or narrow reads"),
        ({"tool": "{name: a.b, effects: read}", "expect": "ask"}, 'Mark reads (1.cedar:2) with @decision("ask")'),
        ({"tool": "{name: a.b}", "expect": "allow"}, "Ask for a rule that permits a.b"),
        ({"tool": "{name: a.b, tags: asks}", "expect": "allow"}, "asks (1.cedar:5) asks: a permit without"),
        (
            {"tool": "{name: a.b, effects: read}", "by": "ops"},
            "by other rules: if they should have the say, write by: [reads]",
        ),
    ],
)
def test_a_case_that_fails_says_what_to_do(fields: dict[str, str], suggestion: str) -> None:
    found = run(case(**fields))

    assert not found.holds
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
def test_a_case_may_say_who_has_to_be_asked(tags: str, approvers: str, holds: bool) -> None:
    found = run(case(tool=f"{{name: a.b, tags: {tags}}}", expect="ask", approvers=approvers), WANTS)

    assert found.holds is holds
    if not holds:
        everybody = "oncall, leads, approvers" if tags == "asks" else "oncall, leads"
        assert f" {everybody}: name others in @approvers" in found.suggestion
    said = found.to_json()["said"]["demands"]
    assert said[0] == {
        "rule": "first", "groups": ["oncall", "leads"], "quorum": 2, "deadline_seconds": None, "step_up": "",
    }  # fmt: skip
    assert [each["groups"] for each in said[1:]] == ([["approvers"]] if tags == "asks" else [])


@pytest.mark.requirement("GOV-3")
def test_only_who_is_asked_has_approvers() -> None:
    placed, (mistake,) = read_cases("t.yaml", case(tool="a.b", approvers="oncall"))

    assert (placed, mistake.line) == ([], 2)
    assert mistake.message == "this names approvers and expects allow: expect ask, or leave approvers out"


def test_an_evaluation_error_is_named() -> None:
    broken = '@id("broken") permit (principal, action, resource) when { context.facts.amount < 10 };'

    found = run(case(tool="{name: a.b}"), broken)

    assert found.suggestion.startswith("Mend what could not be evaluated: broken (1.cedar:1)")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("cases: [", 1, "this is not YAML"),
        ("- name: x", 1, "write a list of them under cases:"),
        ("cases: []\nmore: 1", 1, "write a list of them under cases:"),
        (case(tool="a.b", expects="deny"), 5, "expects is nothing a case can say"),
        (case(tool="a.b", expect="perhaps"), 3, "expect input should be 'allow', 'ask' or 'deny'"),
        ("cases:\n  - name: x\n    expect: deny\n", 2, "tool is missing"),
        (case(tool="a.b", caller="{usr: ana}"), 5, "caller.usr is nothing a case can say"),
        (case(tool="a.b", facts="{amount: 1.5}"), 5, "facts.amount"),
        ("cases:\n  - name: x\n    name: y\n    tool: a.b\n    expect: deny\n", 2, "name is given twice"),
    ],
)
def test_mistakes_are_told_by_line(text: str, line: int, message: str) -> None:
    placed, mistakes = read_cases("t.yaml", text)

    assert placed == []
    assert (mistakes[0].file, mistakes[0].line) == ("t.yaml", line)
    assert message in mistakes[0].message


def test_repeated_parts_do_not_fill_the_memory() -> None:
    bomb = "cases:\n - &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f" - &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(9)
    )

    assert "too large" in read_cases("t.yaml", bomb)[1][0].message
