"""Whom an asking rule asks: read from its annotations, every mistake told with how to write it, and part of what
approvals are bound to.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.decision import Behavior, Demand
from deputize.core.errors import PolicyInvalid
from deputize.govern.policy.check import check
from deputize.govern.policy.rules import parse
from deputize.govern.policy.wants import Wants
from tests.unit.govern.policy.asking import ANYTHING, files, ids, policies, question, tool

pytestmark = pytest.mark.requirement("GOV-3")

ASK = '@decision("ask")'


def wants(marks: str) -> Wants:
    (rule,) = parse(files(f'@id("a") {ASK} {marks} {ANYTHING}'))
    return rule.wants


def mistakes(text: str) -> list[tuple[str, int, str]]:
    with pytest.raises(PolicyInvalid) as refused:
        parse(files(text))
    return [(each["file"], each["line"], each["message"]) for each in refused.value.details["errors"]]


@pytest.mark.parametrize(
    ("marks", "wanted"),
    [
        ("", Wants()),
        ('@approvers("oncall")', Wants(groups=("oncall",))),
        ('@approvers(" oncall,leads , Platform Team/EU ")', Wants(groups=("oncall", "leads", "Platform Team/EU"))),
        ('@approvers("Ärzte")', Wants(groups=("Ärzte",))),
        ('@quorum("1")', Wants()),
        ('@quorum("20")', Wants(quorum=20)),
        ('@deadline("30m")', Wants(deadline_seconds=1800)),
        ('@deadline("24h")', Wants(deadline_seconds=86_400)),
        ('@deadline("7d")', Wants(deadline_seconds=604_800)),
        ('@deadline("30d")', Wants(deadline_seconds=2_592_000)),
        ('@step_up("hwk")', Wants(step_up="hwk")),
        ('@step_up("https://refeds.org/profile/mfa")', Wants(step_up="https://refeds.org/profile/mfa")),
    ],
)
def test_annotations_say_who_how_many_until_when_and_how_signed_in(marks: str, wanted: Wants) -> None:
    assert wants(marks) == wanted


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
def test_a_value_that_is_not_understood_is_a_mistake_told_with_how_to_write_it(mark: str, how: str) -> None:
    ((file, line, message),) = mistakes(f'\n@id("a") {ASK} {mark} {ANYTHING}')
    assert (file, line) == ("1.cedar", 2)
    assert how in message


@pytest.mark.parametrize("mark", ['@approvers("a")', '@quorum("2")', '@deadline("1h")', '@step_up("hwk")'])
def test_a_rule_that_asks_nobody_wants_nobody(mark: str) -> None:
    ((file, line, message),) = mistakes(f'\n\n@id("a") {mark} {ANYTHING}')
    assert (file, line) == ("1.cedar", 3)
    assert 'add @decision("ask")' in message


def test_every_mistake_of_one_rule_is_told_at_once() -> None:
    found = mistakes(f'@id("a") @approvers("") @quorum("0") @deadline("1y") @step_up("") @aprovers("b") {ANYTHING}')
    assert len(found) == 9
    assert "there are @id, @reason, @decision, @approvers, @quorum, @deadline and @step_up" in found[-1][2]


@given(st.text(max_size=12), st.sampled_from(["approvers", "quorum", "deadline", "step_up"]))
def test_any_value_is_understood_within_its_bounds_or_refused(value: str, name: str) -> None:
    written = "".join(f"\\u{{{ord(sign):x}}}" for sign in value if not 0xD800 <= ord(sign) <= 0xDFFF)
    try:
        wanted = wants(f'@{name}("{written}")')
    except PolicyInvalid:
        return
    assert 1 <= wanted.quorum <= 20
    assert wanted.deadline_seconds is None or 60 <= wanted.deadline_seconds <= 30 * 86_400
    assert all(group and group == group.strip() and group.isprintable() for group in wanted.groups)
    assert wanted.step_up == "" or wanted.step_up.isascii()


ALL = '@approvers("oncall, leads") @quorum("2") @deadline("24h") @step_up("hwk")'


def test_a_verdict_that_asks_has_a_demand_for_each_rule_that_asked() -> None:
    whole = policies(
        f'@id("one") @reason("Why.") {ASK} {ALL} {ANYTHING}\n@id("two") {ASK} {ANYTHING}\n'
        f'@id("silent") {ASK} @approvers("x") permit (principal, action, resource) when {{ false }};'
    )
    verdict = whole.decide(question())
    assert verdict.behavior is Behavior.ASK
    assert verdict.demands == (
        Demand(
            rule="one", where="1.cedar:1", reason="Why.", groups=("oncall", "leads"), quorum=2,
            deadline_seconds=86_400, step_up="hwk",
        ),
        Demand(rule="two", where="1.cedar:2", reason=""),
    )  # fmt: skip


FORBID = f'@id("no") {ASK} @approvers("security") forbid (principal, action, resource);'


def test_a_forbid_that_asks_does_not_spare_a_permit_that_asks_its_question() -> None:
    asking = policies(f'@id("yes") {ASK} {ALL} {ANYTHING}', FORBID).decide(question())
    assert (asking.behavior, [each.rule for each in asking.demands]) == (Behavior.ASK, ["yes", "no"])
    plain = policies(f'@id("yes") {ASK} {ALL} {ANYTHING}', FORBID, f'@id("plain") {ANYTHING}').decide(question())
    assert (plain.behavior, [each.rule for each in plain.demands]) == (Behavior.ASK, ["no"])


def test_what_is_allowed_or_denied_demands_nobody() -> None:
    allowed = policies(f'@id("a") {ASK} {ALL} {ANYTHING}', f'@id("b") {ANYTHING}').decide(question())
    assert (allowed.behavior, allowed.demands) == (Behavior.ALLOW, ())
    denied = policies(f'@id("a") {ASK} {ALL} {ANYTHING}', '@id("b") forbid (principal, action, resource);')
    assert (denied.decide(question()).behavior, denied.decide(question()).demands) == (Behavior.DENY, ())
    nothing = policies(FORBID).decide(question())
    assert (nothing.behavior, nothing.demands) == (Behavior.DENY, ())


ASKED = question(what=tool("crm.refund"))


def digest(*texts: str) -> str:
    return policies(*texts).slice_of(ASKED).digest


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
def test_the_digest_approvals_are_bound_to_changes_with_whom_a_rule_asks(effect: str, before: str, after: str) -> None:
    rule = f'{effect} (principal, action, resource == Tool::"crm.refund");'
    plain = f'@id("plain") {ANYTHING}'
    one, other = (digest(plain, f'@id("a") {ASK} {marks} {rule}') for marks in (before, after))
    assert one != other


def test_the_digest_stays_where_annotations_say_the_same_or_are_about_another_tool() -> None:
    rule = 'permit (principal, action, resource == Tool::"crm.refund");'
    said = digest(f'@id("a") {ASK} @approvers("a,b") @deadline("24h") {rule}')
    assert said == digest(f'// a comment\n@deadline("1d")\n@approvers("a,  b") @quorum("1") @id("a") {ASK} {rule}')
    other = f'@id("b") {ASK} @quorum("%s") permit (principal, action, resource == Tool::"x.y");'
    assert digest(f'@id("a") {ASK} {rule}', other % 2) == digest(f'@id("a") {ASK} {rule}', other % 3)


def test_of_two_rules_about_the_same_each_has_the_people_it_wants() -> None:
    def warned(*texts: str) -> list[str]:
        return [each.message.partition(" ")[0] for each in check(files(*texts), {}).warnings]

    one = f'@id("one") {ASK} @approvers("a") {ANYTHING}'
    assert warned(one, f'@id("two") {ASK} @approvers("b") {ANYTHING}') == []
    assert warned(one, f'@id("two") {ASK} @approvers("a") {ANYTHING}') == ["two"]
    assert ids(policies(one, f'@id("two") {ASK} @approvers("b") {ANYTHING}').decide(question()).rules) == ["one", "two"]
