"""The verdict of the red team: what counts as a success, by the form of the gateway, and when a control is caught."""

import re
from pathlib import Path

import pytest

from proofs.kit.declarations import get_declaration
from proofs.red_team.attack import AttackLog, Control, Finding, Form, find_untried, is_control_caught, judge_attempts
from proofs.red_team.experiment import load_attack_classes
from proofs.red_team.same_user import SAME_USER_LIMITS

pytestmark = pytest.mark.nightly

_LISTED = {"reads the key": "the key lies in a folder of the same user"}


async def _report_success() -> Finding:
    return Finding(succeeded=True, evidence="200")


async def _report_refusal() -> Finding:
    return Finding(succeeded=False, evidence="403")


async def _break_off() -> Finding:
    raise ConnectionError("nothing listens")


@pytest.mark.parametrize(
    ("form", "name", "succeeds", "figure"),
    [
        ("production", "reads the key", True, "succeeded_in_production"),
        ("dev with --user", "reads the key", True, "succeeded_with_user"),
        ("dev as the same user", "another", True, "succeeded_as_same_user_and_unlisted"),
        ("dev as the same user", "reads the key", False, "listed_and_refused"),
        ("dev as the same user", "reads the key", True, None),
        ("production", "another", False, None),
    ],
)
async def test_a_success_is_judged_by_the_form_it_was_tried_in(
    form: Form, name: str, succeeds: bool, figure: str | None
) -> None:
    log = AttackLog("class")
    await log.attempt(name, _report_success if succeeds else _report_refusal, form=form)
    wrong = judge_attempts(log.attempts, _LISTED)
    assert {each for each, sentences in wrong.items() if sentences} == ({figure} if figure else set())


async def test_an_attempt_that_break_offs_shows_nothing_and_is_counted() -> None:
    log = AttackLog("class")
    await log.attempt("opens a connection", _break_off)
    assert judge_attempts(log.attempts, {})["broken_attempts"] == [
        "class: opens a connection: ConnectionError: nothing listens"
    ]


async def test_a_control_is_caught_only_if_all_its_attempts_report_success() -> None:
    control = Control(variant="v", attempts=frozenset({"a", "b"}))
    log = AttackLog("class", only=control.attempts)
    for name, attack in (("a", _report_success), ("b", _report_success), ("c", _report_refusal)):
        await log.attempt(name, attack)
    assert [each.name for each in log.attempts] == ["a", "b"]
    assert is_control_caught(control, log.attempts)
    assert not is_control_caught(control, log.attempts[:1])
    assert not is_control_caught(Control(variant="v", attempts=frozenset()), log.attempts)


async def test_two_attempts_of_one_name_are_refused() -> None:
    log = AttackLog("class")
    await log.attempt("a", _report_refusal)
    with pytest.raises(ValueError, match="two attempts"):
        await log.attempt("a", _report_refusal)


async def test_what_is_listed_for_the_same_user_must_be_tried() -> None:
    log = AttackLog("class")
    await log.attempt("another", _report_refusal, form="dev as the same user")
    assert find_untried(log.attempts, _LISTED) == ["reads the key: listed for the same user, and not tried"]
    assert find_untried([], _LISTED) == []


def test_the_explanation_names_exactly_what_is_listed_for_the_same_user() -> None:
    page = (Path(__file__).parents[3] / "docs" / "explanation" / "security.md").read_text()
    section = page.partition("cannot protect from its own user\n")[2].partition("\n### ")[0]
    assert re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE) == list(SAME_USER_LIMITS)


def test_every_class_of_attacks_has_a_name_of_its_own_and_a_control() -> None:
    classes = load_attack_classes()
    assert len({each.NAME for each in classes}) == len(classes)
    assert all(each.CONTROL.attempts for each in classes)
    assert {each.CONTROL.variant for each in classes} == set(get_declaration("red_team").controls)
