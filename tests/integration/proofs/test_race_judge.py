"""The judge of the idempotency race finds one planted fault of each category, in that category and in no other."""

from collections import Counter
from typing import Any

import pytest

from proofs.idempotency_race import (
    RaceResult,
    build_verdict,
    check_answers,
    check_later_answers,
    check_other_caller,
    count_executions,
)
from proofs.kit.http_client import HttpResponse
from tests.support.proof_bars import list_exact_bars, list_missed_bars

pytestmark = pytest.mark.nightly

EXECUTED = HttpResponse(status=200, headers={}, body=b'{"number": 1}')
REPLAYED = HttpResponse(status=200, headers={"idempotency-replayed": "true"}, body=EXECUTED.body)
IN_FLIGHT = HttpResponse(status=409, headers={}, body=b"{}")
OTHER_INPUT = HttpResponse(status=422, headers={}, body=b"{}")
OTHER_BYTES = HttpResponse(status=200, headers=REPLAYED.headers, body=b'{"number": 2}')
BROKEN = HttpResponse(status=500, headers={}, body=b"{}")
RACE = [("k", EXECUTED), ("k", REPLAYED), ("k", IN_FLIGHT), ("changed", OTHER_INPUT), ("changed", IN_FLIGHT)]


def judge(
    answers: list[tuple[str, HttpResponse]] = RACE,
    *,
    retry: HttpResponse = REPLAYED,
    other_input: HttpResponse = OTHER_INPUT,
    other_caller: HttpResponse = EXECUTED,
    effects: dict[str, int] | None = None,
    deadlocks: int = 0,
    surplus_intents: int = 0,
    shared_batches: int = 1,
) -> set[str]:
    result = RaceResult(shared_batch_count=shared_batches, labels_by_key=[("k", "changed")])
    check_answers(result, "k", answers)
    check_later_answers(result, "k", EXECUTED, retry=retry, other_input=other_input)
    check_other_caller(result, "bob", other_caller)
    executions = count_executions(result, {"k": 1, "bob": 1} if effects is None else effects)
    return list_missed_bars(
        "idempotency_race", build_verdict(result, executions, deadlocks, surplus_intents, True, 1, 500).figures
    )


CASES: list[tuple[dict[str, Any], set[str]]] = [
    ({}, set()),
    ({"effects": {"changed": 1, "bob": 1}}, set()),
    ({"effects": {"k": 2, "bob": 1}}, {"keys_not_executed_exactly_once"}),
    ({"effects": {"k": 1, "changed": 1, "bob": 1}}, {"keys_not_executed_exactly_once"}),
    ({"effects": {"bob": 1}}, {"keys_not_executed_exactly_once"}),
    ({"effects": {"k": 1}}, {"keys_not_executed_exactly_once"}),
    ({"answers": [*RACE, ("k", EXECUTED)]}, {"wrong_answers"}),
    ({"answers": RACE[1:]}, {"wrong_answers"}),
    ({"answers": [*RACE, ("k", OTHER_BYTES)]}, {"wrong_answers"}),
    ({"answers": [*RACE, ("k", OTHER_INPUT)]}, {"wrong_answers"}),
    ({"answers": [*RACE, ("changed", REPLAYED)]}, {"wrong_answers"}),
    ({"answers": [*RACE, ("k", BROKEN)]}, {"wrong_answers", "server_errors"}),
    ({"retry": EXECUTED}, {"wrong_answers"}),
    ({"retry": OTHER_BYTES}, {"wrong_answers"}),
    ({"other_input": REPLAYED}, {"wrong_answers"}),
    ({"other_caller": REPLAYED}, {"wrong_answers"}),
    ({"other_caller": IN_FLIGHT}, {"wrong_answers"}),
    ({"deadlocks": 1}, {"deadlocks_in_postgres"}),
    ({"surplus_intents": 1}, {"intents_beyond_one_per_key"}),
    ({"surplus_intents": -1}, {"intents_beyond_one_per_key"}),
    ({"shared_batches": 0}, {"share_of_keys_with_racers_in_one_batch"}),
]


@pytest.mark.parametrize(("changes", "missed"), CASES)
def test_a_fault_is_found_in_its_category(changes: dict[str, Any], missed: set[str]) -> None:
    assert judge(**changes) == missed


def test_every_exact_bar_has_a_planted_fault() -> None:
    figures = build_verdict(RaceResult(), Counter(), 0, 0, True, 1, 1).figures
    planted = set().union(*(missed for _, missed in CASES))
    assert list_exact_bars("idempotency_race", among=figures) <= planted
