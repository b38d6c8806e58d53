"""Validation of policies: strict types, and rules that never match are found."""

import pytest

from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.cedar_schema import FactTypes
from deputize.govern.policy.checks.validate import MAX_RULES_PER_SCOPE, validate_policies
from tests.support.policy_inputs import ANYTHING, make_files

pytestmark = pytest.mark.requirement("GOV-2")

FACTS: FactTypes = {"amount": "Long", "note": "String", "urgent": "Bool", "to": "Set<String>"}


def make_rule(condition: str, name: str = "a") -> str:
    return f'@id("{name}") permit (principal, action, resource) when {{ {condition} }};'


def test_the_default_policies_have_no_findings() -> None:
    assert validate_policies(load_default_files(), {}) == validate_policies(load_default_files(), FACTS)
    findings = validate_policies(load_default_files(), {})
    assert (findings.errors, findings.warnings) == ((), ())


@pytest.mark.parametrize(
    "condition",
    [
        "context.facts has amount && context.facts.amount < 500",
        'context.facts has note && context.facts.note like "x*"',
        'context has facts.to && context.facts.to.contains("ana")',
        "context.facts has urgent && context.facts.urgent",
        'context has agent && context.agent == Agent::"bot"',
        '!context.agents.contains(Agent::"bot") && context.delegated',
        'context has task && context.task == "t" && context has session && context.session == "s"',
        "context.time.hour < 18 && context.time.weekday < 5 && context.time.epoch > 0 && context.cost < 1000",
        'context.labels.contains("pii") && context.changes.contains(Resource::"crm.orders")',
        'context.operations.contains("delete") && context.scopes.containsAny(["1"])',
        'principal.human && principal.trust == "trusted" && principal.scopes.contains("x") && principal.issuer == ""',
        'principal in Group::"ops" && principal in Tenant::"acme"',
        'resource in Server::"s" && resource in Namespace::"n" && resource.tags.contains("x") && resource.undoable',
    ],
)
def test_every_attribute_passes_the_type_check(condition: str) -> None:
    findings = validate_policies(make_files(make_rule(condition)), FACTS)
    assert (findings.errors, findings.warnings) == ((), ())


UNDONE = "context has undoes && context.undoes.agents"
NAMED = 'context.agents.contains(Agent::"billing-bot")'
CHAIN = 'context.agents == [Agent::"billing-bot"]'
LABEL = 'context has agent_label && context.agent_label == "billing-bot"'
PROOF = 'context has agent && context.agent == Agent::"billing-bot"'


@pytest.mark.parametrize(
    ("rule", "is_refused"),
    [
        (f"permit (principal, action, resource) when {{ {NAMED} }};", True),
        (f'permit (principal == User::"ana", action, resource) when {{ {NAMED} }};', True),
        (f"permit (principal, action, resource) when {{ {LABEL} }};", True),
        (
            'permit (principal, action, resource) when { context has agent_label && context.agent_label like "b*" };',
            True,
        ),
        (f"permit (principal, action, resource) when {{ {CHAIN} }};", True),
        ("permit (principal, action, resource) when { !context.agents.isEmpty() };", True),
        ('permit (principal, action, resource) unless { context.agents == [Agent::"helper"] };', True),
        (f"permit (principal, action, resource) when {{ !(context has agent) && {NAMED} }};", True),
        (f"forbid (principal, action, resource) unless {{ {NAMED} }};", True),
        (f"forbid (principal, action, resource) when {{ !({LABEL}) }};", True),
        ('forbid (principal, action, resource) when { context.agents == [Agent::"helper"] };', True),
        ("permit (principal, action, resource) unless { context has agent };", True),
        ("permit (principal, action, resource) when { !(context has agent) };", True),
        (f"permit (principal, action, resource) when {{ {NAMED} || ({PROOF}) }};", True),
        (f"forbid (principal, action, resource) when {{ {PROOF} && !({NAMED}) }};", True),
        ("permit (principal, action, resource) unless { context has agent || context.delegated };", False),
        ("permit (principal, action, resource) unless { context.delegated };", False),
        (f"permit (principal, action, resource) when {{ {PROOF} }};", False),
        (f"permit (principal, action, resource) when {{ {PROOF} && {NAMED} }};", False),
        (f'permit (principal == User::"ana", action, resource) when {{ {CHAIN} && {LABEL} }};', False),
        (f'permit (principal, action, resource) when {{ [User::"ana"].contains(principal) && {CHAIN} }};', False),
        (f"permit (principal, action, resource) unless {{ {NAMED} }};", False),
        ("permit (principal, action, resource) when { context.agents.isEmpty() };", False),
        (f'permit (principal, action, resource) when {{ {UNDONE}.contains(Agent::"helper") }};', True),
        (f'permit (principal == User::"ana", action, resource) when {{ {UNDONE} == [Agent::"helper"] }};', True),
        (f'forbid (principal, action, resource) unless {{ {UNDONE}.contains(Agent::"helper") }};', True),
        (f"permit (principal, action, resource) when {{ {UNDONE}.isEmpty() }};", False),
        (f'forbid (principal, action, resource) when {{ {UNDONE}.contains(Agent::"helper") }};', False),
        (f"forbid (principal, action, resource) when {{ {NAMED} }};", False),
        (f"forbid (principal, action, resource) when {{ {NAMED} || {LABEL} }};", True),
    ],
)
def test_a_rule_from_which_an_agent_gains_by_a_chosen_name_is_refused(rule: str, is_refused: bool) -> None:
    findings = validate_policies(make_files(f'@id("a") {rule}'), FACTS)
    told = [each.message for each in findings.errors]
    assert [message.startswith("rule a lets an agent gain by a name") for message in told] == [True] * is_refused


def test_a_forbid_that_only_a_proven_agent_meets_is_a_warning() -> None:
    findings = validate_policies(
        make_files(f'@id("a") forbid (principal, action, resource) when {{ {PROOF} }};'), FACTS
    )
    (warning,) = findings.warnings
    assert "reaches only agents whose identity is proven" in warning.message


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (
            'resource.effects == "red"',
            "rule a compares resource.effects with 'red', a value it never has; did you mean read?",
        ),
        ('context.environment != "prodution"', "did you mean production?"),
        ('["trused", "standard"].contains(principal.trust)', "principal.trust with 'trused'"),
        ('context.operations.containsAny(["create", "drop"])', "possible values are create, update, delete"),
        ('"x" == context.trust', "possible values are untrusted, standard, trusted"),
    ],
)
def test_an_impossible_value_is_reported(condition: str, told: str) -> None:
    findings = validate_policies(make_files(make_rule(condition)), FACTS)

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
def test_possible_values_pass(condition: str) -> None:
    assert validate_policies(make_files(make_rule(condition)), FACTS).warnings == ()


@pytest.mark.parametrize(
    ("condition", "part"),
    [
        ('context.trst == "trusted"', "did you mean trust?"),
        ("context.facts.amount < 500", "first test with has whether it exists"),
        ('context.facts has amount && context.facts.amount < "5"', "type"),
        ("resource.efects == 3", "attribute `efects`"),
        ('resource.effects == "read" && context.trust', "type"),
        ('context.agent == Agent::"bot"', "first test with has"),
    ],
)
def test_a_rule_that_could_fail_is_refused(condition: str, part: str) -> None:
    findings = validate_policies(make_files("\n\n" + make_rule(condition)), FACTS)
    (error,) = findings.errors
    assert (error.file, error.line) == ("1.cedar", 3)
    assert part in error.message
    assert "policy0" not in error.message
    with pytest.raises(PolicyInvalid):
        findings.raise_errors()


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
def test_an_impossible_scope_is_refused(scope: str) -> None:
    assert validate_policies(make_files(f'@id("a") permit ({scope});'), FACTS).errors


def test_syntax_and_type_errors_are_reported_together() -> None:
    findings = validate_policies(
        make_files("permit (", make_rule("resource.x") + "\n" + make_rule("true", "b") + "\n" + make_rule("true", "b")),
        FACTS,
    )
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
def test_always_false_conditions_are_found(condition: str) -> None:
    findings = validate_policies(make_files(make_rule(condition)), FACTS)
    assert findings.errors == ()
    assert ["never matches" in each.message for each in findings.warnings] == [True]


@pytest.mark.parametrize(
    ("condition", "name"),
    [
        ("context.facts has amout && context.facts.amout > 5", "context.facts.amout"),
        ("context has labelz", "context.labelz"),
        ("principal has groups", "principal.groups"),
        ("!(resource has effect)", "resource.effect"),
    ],
)
def test_tests_for_unknown_attributes_are_found(condition: str, name: str) -> None:
    (warning,) = validate_policies(make_files(make_rule(condition)), FACTS).warnings
    assert name in warning.message


def test_a_rule_that_ends_in_a_comment_is_validated_too() -> None:
    text = '@id("a") permit (principal, action, resource) // why\n;'
    findings = validate_policies(make_files(text), FACTS)
    assert (findings.errors, findings.warnings) == ((), ())


def test_rules_about_unknown_resources_are_found() -> None:
    text = "\n".join(
        f'@id("{number}") permit (principal, action, resource {scope});'
        for number, scope in enumerate(
            ['== Tool::"crm.gone"', '== Tool::"crm.here"', 'in Namespace::"gone"', 'is Tool in Server::"gone"',
             'in Tenant::"other"', 'in Server::"here"']
        )
    )  # fmt: skip
    known = {
        "Tool": {"crm.here": FACTS},
        "Namespace": {"crm": FACTS},
        "Server": {"here": FACTS},
        "Tenant": {"acme": FACTS},
    }
    assert [each.line for each in validate_policies(make_files(text), FACTS, known_names=known).warnings] == [
        1,
        3,
        4,
        5,
    ]
    assert validate_policies(make_files(text), FACTS).warnings == ()


def test_what_does_not_exist_is_an_error_to_the_author_and_not_when_policies_become_active() -> None:
    rules = [
        '@id("1") permit (principal, action, resource == Tool::"crm.gone");',
        '@id("2") permit (principal, action, resource) when { context.facts has amout };',
        '@id("3") forbid (principal, action, resource) when { resource.effects == "red" };',
        '@id("4") permit (principal in Group::"g", action, resource);',
        '@id("5") forbid (principal in Group::"g", action, resource);',
    ]
    findings = validate_policies(make_files("\n".join(rules)), FACTS, known_names={"Tool": {"crm.here": FACTS}})
    findings.raise_errors()
    assert [each.line for each in findings.warnings] == [1, 2, 3, 4]
    for_author = findings.for_author()
    assert [each.line for each in for_author.errors] == [1, 2, 3]
    assert [each.line for each in for_author.warnings] == [4]


def test_nothing_is_said_of_the_tools_and_facts_of_servers_that_were_not_seen() -> None:
    rules = [
        '@id("1") permit (principal, action, resource == Tool::"files.read");',
        '@id("2") permit (principal, action, resource in Server::"files");',
        '@id("3") forbid (principal, action, resource) when { context.facts has path };',
        '@id("4") permit (principal, action, resource == Tool::"file.read");',
    ]
    known = {"Tool": {"crm.here": FACTS}, "Namespace": {"crm": FACTS}, "Server": {"here": FACTS}}
    findings = validate_policies(make_files("\n".join(rules)), FACTS, known_names=known, unseen_servers={"files"})
    assert [each.line for each in findings.mismatches] == [4]
    assert not findings.errors


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
def test_a_rule_that_never_decides_is_found(first: str, second: str, line: int | None) -> None:
    body = '(principal in Group::"g", action, resource);'
    text = f'@id("a") {first} {body}\n@id("b") {second} {body}\n@id("c") {ANYTHING}'
    assert [each.line for each in validate_policies(make_files(text), FACTS).warnings] == (
        [] if line is None else [line]
    )


def test_rule_messages_are_short_however_long_the_names_are() -> None:
    found = validate_policies(
        make_files(f'@id("a") permit (principal, action, resource) when {{ context.{"a" * 100_000} }};'), {}
    )
    assert len(found.errors[0].message) < 1000


@pytest.mark.parametrize(("scope", "what"), [("resource", "every tool"), ('resource in Namespace::"crm"', "crm")])
def test_the_number_of_rules_per_scope_is_limited(scope: str, what: str) -> None:
    rules = [f'@id("r{number}") permit (principal, action, {scope});\n' for number in range(MAX_RULES_PER_SCOPE + 5)]
    (error,) = validate_policies(make_files("".join(rules)), {}).errors
    assert error.line == MAX_RULES_PER_SCOPE + 1
    assert what in error.message
    assert not validate_policies(make_files("".join(rules[:MAX_RULES_PER_SCOPE])), {}).errors


FILES_FACTS: dict[str, dict[str, tuple[str, ...]]] = {
    "Tool": {"files.move_file": ("source",), "files.write_file": ("path",), "files.list": ()},
    "Namespace": {"files": ("source", "path"), "mail": ()},
    "Server": {"files": ("source", "path")},
    "Tenant": {"acme": ("source", "path", "to")},
}
FILES_TYPES: FactTypes = {"source": "String", "path": "String", "to": "String"}


@pytest.mark.parametrize(
    ("scope", "missing"),
    [
        ('== Tool::"files.move_file"', "path; Tool files.move_file has only source"),
        ('== Tool::"files.list"', "path; Tool files.list has none"),
        ('in Namespace::"mail"', "path; Namespace mail has none"),
        ('is Tool in Namespace::"mail"', "path; Namespace mail has none"),
        ('== Tool::"files.write_file"', None),
        ('in Namespace::"files"', None),
        ('in Server::"files"', None),
        ('in Tenant::"acme"', None),
        ('in Server::"later"', None),
    ],
)
def test_a_fact_that_no_tool_in_the_scope_of_a_rule_has_is_named(scope: str, missing: str | None) -> None:
    rule = f"""@id("a") forbid (principal, action, resource {scope})
        when {{ context.facts has path && !(context.facts.path like "/srv/*") }};"""
    names = {**FILES_FACTS, "Server": {**FILES_FACTS["Server"], "later": ("path",)}}
    findings = validate_policies(make_files(rule), FILES_TYPES, known_names=names)
    assert findings.errors == ()
    messages = [each.message for each in findings.for_author().errors]
    end = f"no tool in this scope has the fact {missing}"
    assert messages == ([] if missing is None else [f"rule a tests for what never exists: {end}"])


def test_nothing_is_said_of_facts_whose_tools_are_not_known() -> None:
    rule = make_rule('context.facts has path && context.facts.path == "/"').replace(
        "resource)", 'resource in Server::"later")'
    )
    findings = validate_policies(make_files(rule), FILES_TYPES, known_names=FILES_FACTS, unseen_servers={"later"})
    assert (findings.errors, findings.warnings) == ((), ())
