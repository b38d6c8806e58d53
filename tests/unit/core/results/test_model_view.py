"""What a model sees of a stored result keeps its tool's budget, at the first level that fits."""

import json
import random
from typing import Any

import pytest

from deputize.core.results.model_view import MIN_LENGTH, ModelView, build_model_view
from deputize.core.results.outline import measure_length
from tests.unit.core.results.test_reader import make_document, make_rows

pytestmark = [pytest.mark.requirement("INV-10"), pytest.mark.requirement("RES-5")]
REFERENCE = "result_" + "0" * 32


def view(payload: Any, max_length: int, summary: str | None = None) -> ModelView:
    return build_model_view(
        payload,
        summary=summary,
        reference=REFERENCE,
        size=1_000_000,
        expires_at="2026-01-01T00:00:00Z",
        max_length=max_length,
    )


@pytest.mark.parametrize("budget", [1, 800, 1_000, 2_000, 10_000])
@pytest.mark.parametrize("seed", range(30))
def test_the_budget_is_kept_whatever_the_result(seed: int, budget: int) -> None:
    payload = [
        make_document(random.Random(seed), 4),
        {"x" * 500: ["\u0000" * 900] * 50, "\u0000" * 500: 1, "\u0001" * 500: 2},
    ]
    random.Random(seed).shuffle(payload)
    for each in (payload, payload[0], {"rows": payload}, '"' * 100_000):
        content = view(each, budget).content
        assert measure_length(content) <= max(budget, MIN_LENGTH)
        assert content["reference"] == REFERENCE
        assert REFERENCE in content["read_on"]


def test_the_first_parts_are_shown_where_they_fit() -> None:
    shown = view({"rows": make_rows(5_000), "total": 5_000}, 2_000)
    assert shown.level == "L1"
    assert shown.content["preview"]["rows"][0] == {"id": 0, "name": "row 0", "tags": ["a", "b"]}
    assert shown.content["preview"]["rows"][-1].startswith("… 49")
    assert shown.content["shape"].startswith("object {rows: list of 5000 × object {id: integer, name: text of 5 char")
    assert '"path": "/rows"' in shown.content["read_on"]


def test_the_summary_comes_before_facts_and_facts_before_the_size() -> None:
    wide = {f"{'long name ' * 5}{number}": "y" * 300 for number in range(100)} | {"total": 7}
    assert view(wide, 1, "100 texts").level == "L2"
    assert view(wide, 1, "100 texts").content["preview"] == "100 texts"
    facts = {"total": 7, **wide}
    assert view(facts, 1).level == "L3"
    assert view(facts, 1).content["preview"] == {"/total": 7}
    assert view([["y" * 90] * 3] * 9, 1).level in ("L1", "L4")


def test_a_result_that_was_not_stored_says_so() -> None:
    content = build_model_view(
        "x" * 9_000, summary=None, reference=None, size=9_002, expires_at=None, max_length=1_000
    ).content
    assert content["reference"] is None
    assert "could not be stored" in content["read_on"]
    assert json.dumps(content)
