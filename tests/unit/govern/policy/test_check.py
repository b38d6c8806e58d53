"""Whether policies may take force: types are strict, and rules that can never speak are found."""

import pytest

from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.check import MOST_ABOUT_ONE, check
from deputize.govern.policy.force import default_files
from deputize.govern.policy.world import FactTypes
from tests.unit.govern.policy.asking import ANYTHING, files

pytestmark = pytest.mark.requirement("GOV-2")

FACTS: FactTypes = {"amount": "Long", "note": "String", "urgent": "Bool", "to": "Set<String>"}


def when(condition: str, name: str = "a") -> str:
    return f'@id("{name}") permit (principal, action, resource) when {{ {condition} }};'


def test_the_default_set_is_without_fault() -> None:
    assert check(default_files(), {}) == check(default_files(), FACTS)
    findings = check(default_files(), {})
    assert (findings.errors, findings.warnings) == ((), ())


@pytest.mark.parametrize(
    "condition",
    [
        "context.facts has amount && context.facts.amount < 500",
        'context.facts has note && context.facts.note like "x*"',
        'context has facts.to && context.facts.to.contains("ana")',
        "context.facts has urgent && context.facts.urgent",
        'context has agent && context.agent == Agent::"bot"',
        'context.agents.contains(Agent::"bot") && context.delegated',
        'context has task && context.task == "t" && context has session && context.session == "s"',
        "context.time.hour < 18 && context.time.weekday < 5 && context.time.epoch > 0 && context.cost < 1000",
        'context.labels.contains("pii") && context.changes.contains(Resource::"crm.orders")',
        'context.operations.contains("delete") && context.scopes.containsAny(["1"])',
        'principal.human && principal.trust == "trusted" && principal.scopes.contains("x") && principal.issuer == ""',
        'principal in Group::"ops" && principal in Tenant::"acme"',
        'resource in Server::"s" && resource in Namespace::"n" && resource.tags.contains("x") && resource.undoable',
    ],
)
def test_the_whole_world_passes_the_type_check(condition: str) -> None:
    findings = check(files(when(condition)), FACTS)
    assert (findings.errors, findings.warnings) == ((), ())


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        ('resource.effects == "red"', "a compares resource.effects with 'red', which it never is; did you mean read?"),
        ('context.environment != "prodution"', "did you mean production?"),
        ('["trused", "standard"].contains(principal.trust)', "principal.trust with 'trused'"),
        ('context.operations.containsAny(["create", "drop"])', "there are create, update, delete"),
        ('"x" == context.trust', "there are untrusted, standard, trusted"),
    ],
)
def test_a_value_that_nothing_has_is_pointed_out(condition: str, told: str) -> None:
    findings = check(files(when(condition)), FACTS)

    assert findings.errors == ()
    assert [told in each.message for each in findings.warnings] == [True]


@pytest.mark.parametrize(
    "condition",
    [
        'resource.effects == "read" || ["write", "destructive"].contains(resource.effects)',
        'context.environment != "production" && context.operations.contains("delete")',
        'resource.mutation_class == "write-reversible" && resource.kind == "mcp_tool" && resource.name == "red"',
    ],
)
def test_values_there_are_pass(condition: str) -> None:
    assert check(files(when(condition)), FACTS).warnings == ()


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ('context.trst == "trusted"', "did you mean trust?"),
        ("context.facts.amount < 500", "ask first whether it is there, with has"),
        ('context.facts has amount && context.facts.amount < "5"', "type"),
        ("resource.efects == 3", "attribute `efects`"),
        ('resource.effects == "read" && context.trust', "type"),
        ('context.agent == Agent::"bot"', "ask first whether it is there"),
    ],
)
def test_a_rule_that_could_fail_is_refused(condition: str, part: str) -> None:
    findings = check(files("\n\n" + when(condition)), FACTS)
    (error,) = findings.errors
    assert (error.file, error.line) == ("1.cedar", 3)
    assert part in error.message
    assert "policy0" not in error.message
    with pytest.raises(PolicyInvalid):
        findings.require()


@pytest.mark.parametrize(
    "scope",
    [
        'principal, action == Action::"delete", resource',
        "principal is Agent, action, resource",
        'principal, action, resource == Server::"x"',
        'principal, action, resource in User::"x"',
        'principal == Person::"x", action, resource',
    ],
)
def test_a_scope_that_fits_nothing_is_refused(scope: str) -> None:
    assert check(files(f'@id("a") permit ({scope});'), FACTS).errors


def test_what_cannot_be_read_and_what_does_not_fit_are_told_together() -> None:
    findings = check(files("permit (", when("resource.x") + "\n" + when("true", "b") + "\n" + when("true", "b")), FACTS)
    assert [(each.file, each.line) for each in findings.errors] == [("1.cedar", 1), ("2.cedar", 1), ("2.cedar", 3)]


@pytest.mark.parametrize(
    "condition",
    [
        "false",
        "1 == 2 && principal.human",
        "principal.human && false",
        'principal in Tool::"x"',
        "context.facts has amount && !(context.facts has amount)",
        'context.trust == "trusted" } when { false } when { principal.human',
        "true } unless { true",
    ],
)
def test_conditions_that_can_never_hold_are_found(condition: str) -> None:
    findings = check(files(when(condition)), FACTS)
    assert findings.errors == ()
    assert ["never speak" in each.message for each in findings.warnings] == [True]


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("context.facts has amout && context.facts.amout > 5", "context.facts.amout"),
        ("context has labelz", "context.labelz"),
        ("principal has groups", "principal.groups"),
        ("!(resource has effect)", "resource.effect"),
    ],
)
def test_asking_for_what_there_is_not_is_found(condition: str, name: str) -> None:
    (warning,) = check(files(when(condition)), FACTS).warnings
    assert name in warning.message


def test_a_rule_that_ends_in_a_comment_is_looked_at_too() -> None:
    text = '@id("a") permit (principal, action, resource) // why\n;'
    findings = check(files(text), FACTS)
    assert (findings.errors, findings.warnings) == ((), ())


def test_rules_about_what_does_not_exist_are_found() -> None:
    text = "\n".join(
        f'@id("{number}") permit (principal, action, resource {scope});'
        for number, scope in enumerate(
            ['== Tool::"crm.gone"', '== Tool::"crm.here"', 'in Namespace::"gone"', 'is Tool in Server::"gone"',
             'in Tenant::"other"', 'in Server::"here"']
        )
    )  # fmt: skip
    known = {"Tool": {"crm.here"}, "Namespace": {"crm"}, "Server": {"here"}, "Tenant": {"acme"}}
    assert [each.line for each in check(files(text), FACTS, known=known).warnings] == [1, 3, 4, 5]
    assert check(files(text), FACTS).warnings == ()


@pytest.mark.parametrize(
    ("first", "second", "line"),
    [
        ("permit", "permit", 2),
        ("permit", '@decision("ask") permit', 2),
        ('@decision("ask") permit', "permit", 1),
        ("forbid", "permit", 2),
        ("forbid", '@decision("ask") forbid', 2),
        ('@decision("ask") forbid', "permit", None),
        ('@decision("ask") forbid', '@decision("ask") permit', None),
    ],
)
def test_a_rule_that_never_has_the_say_is_found(first: str, second: str, line: int | None) -> None:
    body = '(principal in Group::"g", action, resource);'
    text = f'@id("a") {first} {body}\n@id("b") {second} {body}\n@id("c") {ANYTHING}'
    assert [each.line for each in check(files(text), FACTS).warnings] == ([] if line is None else [line])


def test_what_is_told_of_a_rule_is_short_however_long_its_names_are() -> None:
    found = check(files(f'@id("a") permit (principal, action, resource) when {{ context.{"a" * 100_000} }};'), {})
    assert len(found.errors[0].message) < 1000


@pytest.mark.parametrize(("scope", "what"), [("resource", "every tool"), ('resource in Namespace::"crm"', "crm")])
def test_no_call_has_to_wait_for_thousands_of_rules(scope: str, what: str) -> None:
    rules = [f'@id("r{number}") permit (principal, action, {scope});\n' for number in range(MOST_ABOUT_ONE + 5)]
    (error,) = check(files("".join(rules)), {}).errors
    assert error.line == MOST_ABOUT_ONE + 1
    assert what in error.message
    assert not check(files("".join(rules[:MOST_ABOUT_ONE])), {}).errors
