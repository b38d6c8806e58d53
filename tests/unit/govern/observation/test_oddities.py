"""Test the rules that name unusual calls on scripted weeks: they find what was planted, and hardly anything else."""

from typing import Any

import pytest

from deputize.core.sensitive.text import redact_secrets
from deputize.govern.observation.observed_call import MAX_TEXT_LENGTH, ObservedCall
from deputize.govern.observation.oddities import OddityKind
from deputize.govern.observation.report import build_report, find_odd_calls
from proofs.observe.week import PLANTS, ScriptedCall, Week, script_week

pytestmark = pytest.mark.requirement("NEW-8")

READ_VERBS = ("get", "list", "read", "search", "fetch")
CALLS = 2_500
ENDINGS = {str: "text", int: "number", bool: "flag", list: "list"}


def to_observed_call(number: int, call: ScriptedCall) -> ObservedCall:
    facts: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    secret_facts: list[str] = []
    for argument, value in call.arguments.items():
        # As `record_arguments` names facts.
        name = f"{argument}_{ENDINGS[type(value)]}"
        if isinstance(value, str) and redact_secrets(value) != value:
            secret_facts.append(name)
            continue
        facts[name] = tuple(value) if isinstance(value, list) else value
        if isinstance(value, str | list):
            lengths[name] = len(value)
            facts[name] = value[:MAX_TEXT_LENGTH] if isinstance(value, str) else facts[name]
    system, _, verb = call.tool.partition(".")
    is_read = verb.partition("_")[0] in READ_VERBS
    return ObservedCall(
        call_id=str(number), at_ms=call.at_ms, user=call.user, agents=(call.agent, *call.extra_agents), tool=call.tool,
        system=system, effects="destructive", inferred_effects="read" if is_read else "destructive", facts=facts,
        lengths=lengths, secret_facts=tuple(secret_facts), suspicions=(),
        outcome="failed" if call.fails else "succeeded", error="E3701" if call.fails else "",
        cost_micros=call.cost_micros, session="", result_bytes=call.result_bytes,
    )  # fmt: skip


def observe(week: Week) -> list[ObservedCall]:
    return [to_observed_call(number, call) for number, call in enumerate(week.calls)]


@pytest.mark.parametrize("seed", range(6))
def test_every_planted_oddity_is_named_with_few_false_alarms(seed: int) -> None:
    week = script_week(seed, calls=CALLS, oddities=12)
    odd_calls = find_odd_calls(observe(week)).by_call
    named: dict[str, set[str]] = {}
    false_alarms = []
    for number, call in enumerate(week.calls):
        kinds = {each.kind.value for each in odd_calls.get(str(number), ())}
        named.setdefault(call.kind, set()).update(kinds)
        if kinds and not call.kind:
            false_alarms.append((call.tool, dict(call.arguments), kinds))
    missing = [kind for kind in week.kinds if kind not in named[kind]]
    assert not missing
    assert len(false_alarms) <= CALLS // 100, false_alarms


@pytest.mark.parametrize("kind", sorted(PLANTS))
def test_each_kind_is_found_alone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proofs.observe.week.PLANTS", {kind: PLANTS[kind]})
    week = script_week(1, calls=CALLS, oddities=1)
    odd_calls = find_odd_calls(observe(week)).by_call
    planted = [str(number) for number, call in enumerate(week.calls) if call.kind]
    assert any(each.kind.value == kind for number in planted for each in odd_calls.get(number, ()))


def test_a_week_without_oddities_has_hardly_any() -> None:
    week = script_week(3, calls=CALLS, oddities=0)
    assert len(find_odd_calls(observe(week)).by_call) <= CALLS // 100


def test_few_calls_have_no_habits_to_compare_with() -> None:
    week = script_week(3, calls=20, oddities=0)
    assert not find_odd_calls(observe(week)).by_call


def test_there_are_twenty_kinds_to_draw_from_and_each_is_documented() -> None:
    assert len(PLANTS) >= 20
    assert set(PLANTS) <= {kind.value for kind in OddityKind}


def test_a_report_says_who_called_what() -> None:
    week = script_week(4, calls=500, oddities=0)
    report = build_report(observe(week))
    assert report["calls"] == 500 == sum(each["calls"] for each in report["uses"])
    assert sum(report["hours"]) == 500
    assert {each["system"] for each in report["uses"]} <= {"crm", "mail", "files", "billing", "web", "git"}


def test_an_empty_period_has_an_empty_report() -> None:
    report = build_report([])
    assert report["calls"] == 0
    assert report["unusual"] == []
