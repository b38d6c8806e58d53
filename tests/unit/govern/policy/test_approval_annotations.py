"""Approval annotations: parsed with helpful errors, and part of the digest that approvals are bound to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import ApprovalRequirement, Behavior
from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.approval_annotations import ApprovalTerms
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.policy_parser import parse_policies
from tests.support.policy_inputs import ANYTHING, compile_policies, make_files, make_question, make_tool, rule_ids

pytestmark = pytest.mark.requirement("GOV-3")

ASK = '@decision("ask")'


def parse_annotations(annotations: str) -> ApprovalTerms:
    (rule,) = parse_policies(make_files(f'@id("a") {ASK} {annotations} {ANYTHING}'))
    return rule.approval_terms


def parse_errors(text: str) -> list[tuple[str, int, str]]:
    with pytest.raises(PolicyInvalid) as refused:
        parse_policies(make_files(text))
    return [(each["file"], each["line"], each["message"]) for each in refused.value.details["errors"]]


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ("", ApprovalTerms()),
        ('@approvers("oncall")', ApprovalTerms(groups=("oncall",))),
        (
            '@approvers(" oncall,leads , Platform Team/EU ")',
            ApprovalTerms(groups=("oncall", "leads", "Platform Team/EU")),
        ),
        ('@approvers("Ärzte")', ApprovalTerms(groups=("Ärzte",))),
        ('@quorum("1")', ApprovalTerms()),
        ('@quorum("20")', ApprovalTerms(quorum=20)),
        ('@deadline("30m")', ApprovalTerms(deadline_seconds=1800)),
        ('@deadline("24h")', ApprovalTerms(deadline_seconds=86_400)),
        ('@deadline("7d")', ApprovalTerms(deadline_seconds=604_800)),
        ('@deadline("30d")', ApprovalTerms(deadline_seconds=2_592_000)),
        ('@step_up("hwk")', ApprovalTerms(step_up="hwk")),
        ('@step_up("https://refeds.org/profile/mfa")', ApprovalTerms(step_up="https://refeds.org/profile/mfa")),
    ],
)
def test_annotations_set_approvers_quorum_deadline_and_step_up(marks: str, wanted: ApprovalTerms) -> None:
    assert parse_annotations(marks) == wanted


@pytest.mark.parametrize(
    ("mark", "how"),
    [
        *((f"@approvers{value}", '@approvers("oncall, leads")') for value in (
            "", '("")', '(" ")', '("a,")', '(",a")', '("a,,b")', '("a, a")', f'("{"g" * 256}")',
            f'("{",".join(f"g{n}" for n in range(11))}")', '("a\\nb")', '("a\\u{7}")', '("a\\"b")', '("a\\u{202e}b")',
        )),
        *((f"@quorum{value}", "from 1 to 20") for value in (
            "", '("")', '("0")', '("21")', '("-1")', '("2.0")', '("two")', '("02")', '("²")', '("1 ")', '("٣")',
        )),
        *((f"@deadline{value}", "at most 30d") for value in (
            "", '("")', '("0h")', '("24")', '("h")', '("24 h")', '("1.5h")', '("31d")', '("721h")', '("43201m")',
            '("10s")', '("1w")', '("24H")', '("-1h")', '("9999999d")', '("٣h")', '("1h\\n")',
        )),
        *((f"@step_up{value}", '@step_up("hwk")') for value in (
            "", '("")', '("a b")', '(" hwk")', f'("{"a" * 129}")', '("a\\nb")', '("a\\"b")', '("ä")',
        )),
    ],
)  # fmt: skip
def test_an_invalid_annotation_explains_its_syntax(mark: str, how: str) -> None:
    ((file, line, message),) = parse_errors(f'\n@id("a") {ASK} {mark} {ANYTHING}')
    assert (file, line) == ("1.cedar", 2)
    assert how in message


@pytest.mark.parametrize("rule", ['@drifted("yes") permit', "@drifted permit", '@drifted("allow") forbid'])
def test_only_a_permit_lets_calls_read_by_changed_tools(rule: str) -> None:
    ((_, _, message),) = parse_errors(f'@id("a") {rule} (principal, action, resource);')
    assert message.startswith('@drifted must be "allow" for reads or "allow-writes"')


@pytest.mark.parametrize("rule", ['@idempotency_key("none") permit', '@idempotency_key("optional") forbid'])
def test_only_a_permit_makes_the_idempotency_key_optional(rule: str) -> None:
    ((_, _, message),) = parse_errors(f'@id("a") {rule} (principal, action, resource);')
    assert message.startswith('@idempotency_key must be "optional", on a permit')


@pytest.mark.parametrize("rule", ['@backend("microvm") forbid', "@backend forbid", '@backend("gvisor") permit'])
def test_a_forbid_demands_a_backend_that_exists(rule: str) -> None:
    ((_, _, message),) = parse_errors(f'@id("a") {rule} (principal, action, resource);')
    assert message.startswith('@backend must be "namespaces" or "gvisor", on a forbid')


@pytest.mark.parametrize("mark", ['@approvers("a")', '@quorum("2")', '@deadline("1h")', '@step_up("hwk")'])
def test_a_rule_without_approval_rejects_approval_annotations(mark: str) -> None:
    ((file, line, message),) = parse_errors(f'\n\n@id("a") {mark} {ANYTHING}')
    assert (file, line) == ("1.cedar", 3)
    assert 'add @decision("ask")' in message


def test_every_error_of_one_rule_is_reported_at_once() -> None:
    found = parse_errors(f'@id("a") @approvers("") @quorum("0") @deadline("1y") @step_up("") @aprovers("b") {ANYTHING}')
    assert len(found) == 9
    names = "@id, @reason, @decision, @drifted, @idempotency_key, @backend, @approvers, @quorum, @deadline and @step_up"
    assert f"use {names}" in found[-1][2]


@given(st.text(max_size=12), st.sampled_from(["approvers", "quorum", "deadline", "step_up"]))
def test_any_annotation_value_is_parsed_within_bounds_or_rejected(value: str, name: str) -> None:
    written = "".join(f"\\u{{{ord(sign):x}}}" for sign in value if not 0xD800 <= ord(sign) <= 0xDFFF)
    try:
        wanted = parse_annotations(f'@{name}("{written}")')
    except PolicyInvalid:
        return
    assert 1 <= wanted.quorum <= 20
    assert wanted.deadline_seconds is None or 60 <= wanted.deadline_seconds <= 30 * 86_400
    assert all(group and group == group.strip() and group.isprintable() for group in wanted.groups)
    assert wanted.step_up == "" or wanted.step_up.isascii()


ALL = '@approvers("oncall, leads") @quorum("2") @deadline("24h") @step_up("hwk")'


def test_an_ask_verdict_has_a_requirement_per_rule() -> None:
    whole = compile_policies(
        f'@id("one") @reason("Why.") {ASK} {ALL} {ANYTHING}\n@id("two") {ASK} {ANYTHING}\n'
        f'@id("silent") {ASK} @approvers("x") permit (principal, action, resource) when {{ false }};'
    )
    verdict = whole.decide(make_question())
    assert verdict.behavior is Behavior.ASK
    assert verdict.requirements == (
        ApprovalRequirement(
            rule="one", where="1.cedar:1", reason="Why.", groups=("oncall", "leads"), quorum=2,
            deadline_seconds=86_400, step_up="hwk",
        ),
        ApprovalRequirement(rule="two", where="1.cedar:2", reason=""),
    )  # fmt: skip


FORBID = f'@id("no") {ASK} @approvers("security") forbid (principal, action, resource);'


def test_a_forbid_with_approval_keeps_the_permits_approval() -> None:
    asking = compile_policies(f'@id("yes") {ASK} {ALL} {ANYTHING}', FORBID).decide(make_question())
    assert (asking.behavior, [each.rule for each in asking.requirements]) == (Behavior.ASK, ["yes", "no"])
    plain = compile_policies(f'@id("yes") {ASK} {ALL} {ANYTHING}', FORBID, f'@id("plain") {ANYTHING}').decide(
        make_question()
    )
    assert (plain.behavior, [each.rule for each in plain.requirements]) == (Behavior.ASK, ["no"])


def test_allowed_and_denied_calls_have_no_requirements() -> None:
    allowed = compile_policies(f'@id("a") {ASK} {ALL} {ANYTHING}', f'@id("b") {ANYTHING}').decide(make_question())
    assert (allowed.behavior, allowed.requirements) == (Behavior.ALLOW, ())
    denied = compile_policies(f'@id("a") {ASK} {ALL} {ANYTHING}', '@id("b") forbid (principal, action, resource);')
    assert (denied.decide(make_question()).behavior, denied.decide(make_question()).requirements) == (Behavior.DENY, ())
    nothing = compile_policies(FORBID).decide(make_question())
    assert (nothing.behavior, nothing.requirements) == (Behavior.DENY, ())


QUESTION = make_question(what=make_tool("crm.refund"))


def compute_digest(*texts: str) -> str:
    return compile_policies(*texts).get_request_slice(QUESTION).digest


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", '@approvers("oncall")'),
        ('@approvers("oncall")', ""),
        ('@approvers("oncall, leads")', '@approvers("leads, oncall")'),
        ('@approvers("oncall, leads")', '@approvers("oncall")'),
        ("", '@quorum("2")'),
        ('@quorum("2")', '@quorum("3")'),
        ("", '@deadline("1h")'),
        ('@deadline("1h")', '@deadline("2h")'),
        ("", '@step_up("hwk")'),
        ('@step_up("hwk")', '@step_up("pop")'),
    ],
)
@pytest.mark.parametrize("effect", ["permit", "forbid"])
def test_the_policy_digest_changes_with_the_approvers(effect: str, before: str, after: str) -> None:
    rule = f'{effect} (principal, action, resource == Tool::"crm.refund");'
    plain = f'@id("plain") {ANYTHING}'
    one, other = (compute_digest(plain, f'@id("a") {ASK} {marks} {rule}') for marks in (before, after))
    assert one != other


def test_the_policy_digest_ignores_equal_terms_and_other_tools() -> None:
    rule = 'permit (principal, action, resource == Tool::"crm.refund");'
    said = compute_digest(f'@id("a") {ASK} @approvers("a,b") @deadline("24h") {rule}')
    assert said == compute_digest(
        f'// a comment\n@deadline("1d")\n@approvers("a,  b") @quorum("1") @id("a") {ASK} {rule}'
    )
    other = f'@id("b") {ASK} @quorum("%s") permit (principal, action, resource == Tool::"x.y");'
    assert compute_digest(f'@id("a") {ASK} {rule}', other % 2) == compute_digest(f'@id("a") {ASK} {rule}', other % 3)


def test_rules_with_equal_conditions_keep_their_own_approvers() -> None:
    def list_warnings(*texts: str) -> list[str]:
        return [each.message.split()[1] for each in validate_policies(make_files(*texts), {}).warnings]

    one = f'@id("one") {ASK} @approvers("a") {ANYTHING}'
    assert list_warnings(one, f'@id("two") {ASK} @approvers("b") {ANYTHING}') == []
    assert list_warnings(one, f'@id("two") {ASK} @approvers("a") {ANYTHING}') == ["two"]
    assert rule_ids(
        compile_policies(one, f'@id("two") {ASK} @approvers("b") {ANYTHING}').decide(make_question()).rules
    ) == ["one", "two"]
