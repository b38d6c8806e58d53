"""The judges of restores, upgrades, deploys, hostile tenants and stalls find one planted fault of each category."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from proofs.kit.ledger import Effect
from proofs.kit.write_load import Load
from proofs.restore.judge import (
    RestoreFacts,
    count_forbidden,
    count_repeats,
    judge_promotions,
    judge_restore,
    judge_restores,
    judge_rolling_restart,
)
from proofs.run_overhead.deployment import judge_deploy
from proofs.run_overhead.read_latency import is_disturbed
from proofs.stalls.experiment import build_verdict as judge_stalls
from proofs.stalls.testbed import Measurement
from proofs.tenant_isolation.experiment import Round, compute_ratios
from proofs.upgrade.judge import UpgradeFacts, judge_upgrade
from proofs.upstreams.experiment import Sample as CircuitSample
from proofs.upstreams.experiment import measure_disagreement
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

# A restore: twenty acknowledged writes that the backup does not know, each with its one effect.

LOST = [f"lost-{number}" for number in range(20)]
FACTS = RestoreFacts(
    forbidden_count=0,
    acknowledged_after_stop=0,
    has_new_gateway_served=False,
    kept_keys=["kept-1"],
    lost_keys=LOST,
    keys_during=["during-1"],
    answers_after=Counter({"409": 20}),
    seconds_to_stop=0.5,
    is_confirmed=True,
    status_of_statement=200,
)


def make_effects(*calls: str) -> list[Effect]:
    return [Effect(sequence=number, key=call, tool="send", call=call) for number, call in enumerate(calls)]


EFFECTS = make_effects("kept-1", *LOST, "during-1", "before-1", "before-1")


RESTORE_CASES: list[tuple[dict[str, Any], list[Effect], set[str]]] = [
    ({}, EFFECTS, set()),
    ({"forbidden_count": 1}, EFFECTS, {"calls_on_authority_taken_back"}),
    ({"acknowledged_after_stop": 1}, EFFECTS, {"acknowledged_while_stopped"}),
    ({"has_new_gateway_served": True}, EFFECTS, {"new_gateways_that_served"}),
    ({}, [*EFFECTS, *make_effects("lost-3")], {"silent_repeats"}),
    ({}, [*EFFECTS, *make_effects("during-1")], {"silent_repeats"}),
    ({}, [*EFFECTS, *make_effects("kept-1")], {"silent_repeats"}),
    ({"kept_keys": ["kept-1", "lost-0"]}, EFFECTS, {"kept_keys_lost"}),
    ({"lost_keys": LOST[:19], "answers_after": {"409": 19}}, EFFECTS, {"lost_keys"}),
    ({"answers_after": {"409": 19, "200": 1}}, EFFECTS, {"lost_keys_not_refused"}),
    ({"answers_after": {}}, EFFECTS, {"lost_keys_not_refused"}),
    ({"seconds_to_stop": 1.1}, EFFECTS, {"seconds_to_stop"}),
    ({"is_confirmed": False}, EFFECTS, {"confirmations_that_failed"}),
    ({"status_of_statement": 409}, EFFECTS, {"confirmations_that_failed"}),
]


@pytest.mark.parametrize(("changes", "effects", "missed"), RESTORE_CASES)
def test_a_restore_is_judged_by_answers_and_effects(
    changes: dict[str, Any], effects: list[Effect], missed: set[str]
) -> None:
    assert list_missed_bars("restore", judge_restore(replace(FACTS, **changes), effects)) == missed


def test_every_exact_bar_of_a_restore_has_a_planted_fault() -> None:
    planted = set().union(*(missed for _, _, missed in RESTORE_CASES))
    assert list_exact_bars("restore", among=judge_restore(FACTS, EFFECTS)) <= planted


def test_restores_are_judged_together() -> None:
    good, slow = judge_restore(FACTS, EFFECTS), judge_restore(replace(FACTS, seconds_to_stop=2.0), EFFECTS)
    bad = judge_restore(replace(FACTS, forbidden_count=1), EFFECTS)

    assert list_missed_bars("restore", judge_restores([good] * 5)) == set()
    assert list_missed_bars("restore", judge_restores([good] * 4)) == {"restores"}
    assert list_missed_bars("restore", judge_restores([*[good] * 4, bad])) == {"calls_on_authority_taken_back"}
    assert list_missed_bars("restore", judge_restores([slow, *[good] * 4])) == {"seconds_to_stop"}


def test_a_call_on_authority_that_was_taken_back_counts_by_its_answer_and_by_its_effect() -> None:
    assert count_forbidden(0, EFFECTS) == 0
    assert count_forbidden(2, EFFECTS) == 2
    assert count_forbidden(0, make_effects("forbidden-send")) == 1


def test_a_write_that_happened_again_is_found() -> None:
    assert count_repeats(LOST[:5], EFFECTS, EFFECTS) == 0
    assert count_repeats(LOST[:5], EFFECTS, [*EFFECTS, *make_effects("lost-0", "lost-9")]) == 1


@pytest.mark.parametrize(
    ("counts", "missed"),
    [
        ((10, 0, 100, 100), set()),
        ((9, 0, 100, 100), {"promotions"}),
        ((10, 1, 100, 100), {"false_alarms"}),
        ((10, 0, 99, 99), {"acknowledged"}),
        ((10, 0, 100, 99), {"acknowledged_and_lost"}),
    ],
)
def test_a_promotion_that_loses_or_alarms_is_found(counts: tuple[int, int, int, int], missed: set[str]) -> None:
    assert list_missed_bars("restore", judge_promotions(*counts)) == missed


@pytest.mark.parametrize(
    ("load", "missed"),
    [
        (Load(acknowledged=["k"] * 500), set()),
        (Load(acknowledged=["k"] * 499), {"rolling_calls"}),
        (Load(acknowledged=["k"] * 500, failures=Counter({"502": 1})), {"rolling_calls_failed"}),
        (Load(acknowledged=["k"] * 500, failures=Counter({"ConnectionResetError": 1})), {"rolling_calls_failed"}),
    ],
)
def test_a_call_that_fails_in_a_rolling_restart_is_found(load: Load, missed: set[str]) -> None:
    assert list_missed_bars("restore", judge_rolling_restart(load)) == missed


# An upgrade: calls at a rate, with runs and approved calls, each of which has succeeded and has one effect.

KEYS, RUNS, APPROVALS = ([f"{kind}-{number}" for number in range(1200)] for kind in ("call", "run", "approval"))
UPGRADE_FACTS = UpgradeFacts(
    load=Load(acknowledged=KEYS, call_ids=KEYS),
    seconds=20.0,
    runs={each: each for each in RUNS},
    approvals={each: each for each in APPROVALS},
    other_failures={},
    states=dict.fromkeys((*KEYS, *RUNS, *APPROVALS), "succeeded"),
    open_counts=[(8, 4)] * 12,
)
UPGRADE_EFFECTS = make_effects(*KEYS, *RUNS, *APPROVALS)
UPGRADE_CASES: list[tuple[dict[str, Any], list[Effect], set[str]]] = [
    ({}, UPGRADE_EFFECTS, set()),
    (
        {"load": Load(acknowledged=KEYS, call_ids=KEYS, failures=Counter({"503": 1}))},
        UPGRADE_EFFECTS,
        {"failed"},
    ),
    ({"other_failures": {"ConnectionResetError": 1}}, UPGRADE_EFFECTS, {"failed"}),
    ({"states": {**UPGRADE_FACTS.states, "run-7": "unknown"}}, UPGRADE_EFFECTS, {"lost"}),
    ({"states": {**UPGRADE_FACTS.states, "approval-7": "awaiting_approval"}}, UPGRADE_EFFECTS, {"lost"}),
    ({"states": dict.fromkeys((*RUNS, *APPROVALS), "succeeded")}, UPGRADE_EFFECTS, {"lost"}),
    ({}, UPGRADE_EFFECTS[1:], {"lost"}),
    ({}, [*UPGRADE_EFFECTS, *make_effects("run-3")], {"twice"}),
    ({"seconds": 30.0}, UPGRADE_EFFECTS, {"calls_per_second"}),
    ({"open_counts": [(8, 4)] * 11}, UPGRADE_EFFECTS, {"steps"}),
    ({"open_counts": [*[(8, 4)] * 11, (0, 4)]}, UPGRADE_EFFECTS, {"fewest_open_runs"}),
    ({"open_counts": [*[(8, 4)] * 11, (8, 0)]}, UPGRADE_EFFECTS, {"fewest_open_approvals"}),
]


@pytest.mark.parametrize(("changes", "effects", "missed"), UPGRADE_CASES)
def test_an_upgrade_is_judged_by_answers_rows_and_effects(
    changes: dict[str, Any], effects: list[Effect], missed: set[str]
) -> None:
    assert list_missed_bars("upgrade", judge_upgrade(replace(UPGRADE_FACTS, **changes), effects)) == missed


def test_every_exact_bar_of_an_upgrade_has_a_planted_fault() -> None:
    planted = set().union(*(missed for _, _, missed in UPGRADE_CASES))
    assert list_exact_bars("upgrade", among=judge_upgrade(UPGRADE_FACTS, UPGRADE_EFFECTS)) <= planted


# A deploy: five hundred runs of three steps, of two versions.

LABELS = [f"run-{number}" for number in range(500)]
ROWS = [{"state": "succeeded", "version": f"0.{1 + number % 2}.0"} for number in range(500)]
DONE = dict.fromkeys(LABELS, 3)


@pytest.mark.parametrize(
    ("labels", "rows", "effects", "attempts", "missed"),
    [
        (LABELS, ROWS, DONE, {1: 1500}, set()),
        (LABELS[:499], ROWS, DONE, {1: 1500}, {"deploy_runs"}),
        (LABELS, [{**ROWS[0], "state": "unknown"}, *ROWS[1:]], DONE, {1: 1500}, {"deploy_lost"}),
        (LABELS, ROWS, {**DONE, "run-1": 2}, {1: 1500}, {"deploy_lost"}),
        (LABELS, ROWS, {**DONE, "run-1": 4}, {1: 1500}, {"deploy_lost"}),
        (LABELS, ROWS, DONE, {1: 1499, 2: 1}, {"deploy_repeated"}),
        (LABELS, [{**row, "version": "0.1.0"} for row in ROWS], DONE, {1: 1500}, {"deploy_versions"}),
    ],
)
def test_a_deploy_that_loses_or_repeats_a_step_is_found(
    labels: list[str], rows: list[dict[str, str]], effects: dict[str, int], attempts: dict[int, int], missed: set[str]
) -> None:
    assert list_missed_bars("run_overhead", judge_deploy(labels, rows, effects, attempts)) == missed


def test_reads_are_disturbed_if_they_miss_the_bar_of_the_quick_form() -> None:
    assert not is_disturbed(0.010, 0.045)
    assert is_disturbed(0.010, 0.046)


# Hostile tenants: rounds alone and beside.

ALONE = Round(calls_per_second=100.0, p50_ms=5.0, p99_ms=10.0, failures=0)


def test_a_tenant_that_slows_another_down_is_found_round_by_round() -> None:
    beside = [replace(ALONE, p99_ms=21.0, calls_per_second=69.0)] * 2 + [replace(ALONE, p99_ms=1.0)]
    assert compute_ratios([ALONE] * 3, [ALONE] * 3) == (1.0, 1.0)
    p99, throughput = compute_ratios([ALONE] * 3, beside)
    figures = {"p99 in a storm": p99, "throughput in a storm": throughput}
    assert list_missed_bars("tenant_isolation", figures) == figures.keys()


# Stalls: stretches of the event loop's thread.

MEASURED = Measurement(name="x", status=200, stretch_ms=50.0, wait_ms=1.0)
MEMORY: dict[str, float] = {"peak_memory_growth_mb": 600.0, "memory_growth_when_repeated_mb": 100.0}


@pytest.mark.parametrize(
    ("measured", "memory", "missed"),
    [
        (MEASURED, {}, set()),
        (replace(MEASURED, stretch_ms=50.1), {}, {"longest_stretch_ms"}),
        (replace(MEASURED, status=500), {}, {"internal_errors"}),
        (replace(MEASURED, name="framing: chunks"), {}, {"framing_accepted"}),
        (MEASURED, {"peak_memory_growth_mb": 600.1}, {"peak_memory_growth_mb"}),
        (MEASURED, {"memory_growth_when_repeated_mb": 100.1}, {"memory_growth_when_repeated_mb"}),
    ],
)
def test_a_stall_is_found_among_all_measurements(
    measured: Measurement, memory: dict[str, float], missed: set[str]
) -> None:
    quick = replace(MEASURED, stretch_ms=1.0)
    verdict = judge_stalls([quick, measured, quick], {**MEMORY, **memory}, {"slow": 51.0, "fast": 50.0}, 50)
    assert list_missed_bars("stalls", verdict.figures) == missed
    assert verdict.controls == {"slow": True, "fast": False}


def test_gateways_that_know_different_things_of_a_circuit_are_timed_until_they_agree() -> None:
    known, unknown = frozenset({"svc01"}), frozenset[str]()
    samples = [
        CircuitSample(0.0, (unknown, unknown)),
        CircuitSample(1.0, (known, unknown)),
        CircuitSample(3.5, (known, unknown)),
        CircuitSample(4.0, (known, known)),
        CircuitSample(5.0, (unknown, known)),
    ]
    assert measure_disagreement(samples) == 2.5
