"""The judge of the vault proof finds one planted fault of each category, in that category and in no other."""

from typing import Any

import orjson
import pytest

from proofs.kit.http_client import HttpResponse
from proofs.kit.ledger import Effect
from proofs.vault import (
    PLAIN_TOOLS,
    FaultRound,
    TrafficPhase,
    count_acts,
    count_released,
    count_wrong_repeats,
    judge_local_store,
    judge_rounds,
)
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.nightly

FINGERPRINT, CANARY = "f" * 64, "canary-1"
SUCCESS = HttpResponse(status=200, headers={}, body=orjson.dumps({"result": {"fingerprint": FINGERPRINT}}))
OTHER_SECRET = HttpResponse(status=200, headers={}, body=orjson.dumps({"result": {"fingerprint": "0" * 64}}))


def refuse(number: str, status: int = 503) -> HttpResponse:
    return HttpResponse(status=status, headers={}, body=orjson.dumps({"error": {"number": number}}))


def make_phase(*keyed: HttpResponse, acts: int, plain: HttpResponse = SUCCESS, ms: float = 1.0) -> TrafficPhase:
    """Make a phase of as many plain calls as the full form needs, and these calls that need the secret."""
    phase = TrafficPhase(name="p", plain_ms={tool: [ms] * 2000 for tool in PLAIN_TOOLS}, act_count=acts)
    phase.record_plain_answer(plain)
    for number, answer in enumerate(keyed):
        phase.keyed_count += 1
        phase.record_keyed_answer("keyed_act", f"p-{number}", answer, FINGERPRINT)
    return phase


HEALTHY = make_phase(SUCCESS, acts=1)
CLOSED = [refuse("E3601")] * 900
FAULT = make_phase(*CLOSED, acts=0)


def judge(**changes: Any) -> set[str]:
    """Judge one round of each fault, of which this one is changed."""
    good: dict[str, Any] = {"healthy": HEALTHY, "fault": FAULT, "recovery_seconds": 0.1, "wrong_repeat_count": 0}
    last = changes.pop("last", HEALTHY)
    rounds = {"sealed": [FaultRound(**{**good, **changes})], "slow": [FaultRound(**good)]}
    return list_missed_bars("vault", judge_rounds(rounds, last))


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"fault": make_phase(*CLOSED, SUCCESS, acts=0)}, {"open"}),
        ({"fault": make_phase(*CLOSED, acts=1)}, {"open"}),
        ({"fault": make_phase(*CLOSED, refuse("E5001", 500), acts=0)}, {"open"}),
        ({"fault": make_phase(*CLOSED, acts=0, plain=refuse("E3601"))}, {"plain_failed"}),
        ({"fault": make_phase(*CLOSED, acts=0, ms=2.1)}, {"slower_at_p50"}),
        ({"healthy": make_phase(SUCCESS, refuse("E3601"), acts=1)}, {"not_served_when_healthy"}),
        ({"healthy": make_phase(SUCCESS, acts=2)}, {"not_served_when_healthy"}),
        ({"healthy": make_phase(SUCCESS, acts=0)}, {"not_served_when_healthy"}),
        ({"healthy": make_phase(OTHER_SECRET, acts=1)}, {"not_served_when_healthy"}),
        ({"healthy": make_phase(SUCCESS, acts=1, plain=refuse("E3601"))}, {"not_served_when_healthy"}),
        ({"last": make_phase(refuse("E3601"), acts=0)}, {"not_served_when_healthy"}),
        ({"wrong_repeat_count": 1}, {"repeats_not_once"}),
    ],
)
def test_rounds_are_judged_against_the_healthy_stretch_before_them(changes: dict[str, Any], missed: set[str]) -> None:
    assert judge(**changes) == missed


def test_too_few_calls_show_nothing() -> None:
    few = TrafficPhase(name="p", plain_ms={tool: [1.0] for tool in PLAIN_TOOLS})
    rounds = {"sealed": [FaultRound(healthy=HEALTHY, fault=few, recovery_seconds=0.1, wrong_repeat_count=0)]}
    assert list_missed_bars("vault", judge_rounds(rounds, HEALTHY)) == {"refused_closed", "plain_calls"}


def test_a_refused_write_is_remembered_for_its_repeat() -> None:
    assert make_phase(SUCCESS, refuse("E3601"), acts=1).refused_writes == ["p-1"]


def make_effects(*labels: str, tool: str = "keyed_act") -> list[Effect]:
    return [Effect(sequence=number, key=label, tool=tool, call=label) for number, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("answer", "effects", "count"),
    [
        (SUCCESS, make_effects("w"), 0),
        (SUCCESS, make_effects("w", "w"), 1),
        (SUCCESS, [], 1),
        (refuse("E3601"), make_effects("w"), 1),
    ],
)
def test_a_repeat_acts_exactly_once(answer: HttpResponse, effects: list[Effect], count: int) -> None:
    assert count_wrong_repeats(["w"], [answer], effects) == count


def test_only_acts_of_the_phase_that_needed_a_secret_are_counted() -> None:
    assert count_acts("p", [*make_effects("p-1", "p-1", "other-1", "pp-1"), *make_effects("p-2", tool="act")]) == 2


@pytest.mark.parametrize(
    ("answer", "count"),
    [
        (refuse("E3603", 502), 0),
        (SUCCESS, 1),
        (HttpResponse(status=502, headers={}, body=f'{{"error": "{CANARY}"}}'.encode()), 1),
    ],
)
def test_an_answer_that_quotes_the_secret_is_found(answer: HttpResponse, count: int) -> None:
    assert count_released([answer, refuse("E3603", 502)], CANARY) == count


@pytest.mark.parametrize(
    ("missing", "leaks", "phase", "missed"),
    [
        (refuse("E3602", 424), 0, HEALTHY, set()),
        (refuse("E3601", 424), 0, HEALTHY, {"local_store_wrong"}),
        (SUCCESS, 0, HEALTHY, {"local_store_wrong"}),
        (refuse("E3602", 424), 1, HEALTHY, {"local_store_wrong"}),
        (refuse("E3602", 424), 0, make_phase(SUCCESS, acts=2), {"local_store_failures"}),
    ],
)
def test_the_local_store_is_judged_alike(
    missing: HttpResponse, leaks: int, phase: TrafficPhase, missed: set[str]
) -> None:
    assert list_missed_bars("vault", judge_local_store(missing, leaks, phase)) == missed
