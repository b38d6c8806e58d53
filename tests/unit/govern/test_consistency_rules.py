"""Which source is believed follows from the rule alone, and a rule that cannot tell believes none."""

from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from deputize.core.contract.effects import MutationClass
from deputize.core.settings import ConsistencyRule
from deputize.govern.consistency_rules import (
    ObservedValue,
    RuleSource,
    describe_ignored_sources,
    is_agreement,
    judge_sources,
)

pytestmark = pytest.mark.requirement("INV-7")
_START = datetime(2026, 1, 1, tzinfo=UTC)
_LETTERS = "abcdefghij"


def make_rule(resolution: str, **more: Any) -> ConsistencyRule:
    sources = [{"tool": f"{each}.get", "entity": "/input/id", "value": "/output"} for each in _LETTERS]
    return ConsistencyRule.model_validate({"name": "r", "resolution": resolution, "sources": sources, **more})


def make_values(*values: Any, ranks: tuple[int, ...] = ()) -> list[ObservedValue]:
    """Make the values of tools a, b, c and so on, each a second newer than the one before."""
    return [
        ObservedValue(
            tool=f"{_LETTERS[number]}.get",
            authority_rank=ranks[number] if ranks else 0,
            call_id=str(number),
            seen_at=_START + timedelta(seconds=number),
            value=value,
        )
        for number, value in enumerate(values)
    ]


def judge(resolution: str, *values: Any, ranks: tuple[int, ...] = (), **more: Any) -> tuple[str | None, str]:
    """Judge the last value by the ones before it; return the believed tool and those that differ, by their letters."""
    *others, own = make_values(*values, ranks=ranks)
    disagreement = judge_sources(make_rule(resolution, **more), own, others)
    assert disagreement is not None
    source = disagreement.believed_source
    return None if source is None else source.tool[0], "".join(
        sorted(each.tool[0] for each in disagreement.differing_sources)
    )


@pytest.mark.parametrize("resolution", ["authority", "freshness", "majority", "human"])
def test_a_value_that_agrees_with_all_others_is_no_disagreement(resolution: str) -> None:
    # The others are further apart than the tolerance, and that was judged at their calls.
    *others, own = make_values(1.0, 1.02, 1.01)
    assert judge_sources(make_rule(resolution, tolerance=0.01), own, others) is None
    assert judge_sources(make_rule(resolution), own, []) is None


@pytest.mark.parametrize(
    ("values", "ranks", "verdict"),
    [
        ((1, 2), (5, 3), ("a", "b")),
        ((1, 2), (3, 5), ("b", "a")),
        ((1, 2), (5, 5), (None, "")),
        ((1, 2), (0, 0), (None, "")),
        # Two of the highest rank agree: the newer one is named.
        ((1, 1, 2), (5, 5, 3), ("b", "c")),
        ((1, 2, 3), (5, 5, 3), (None, "")),
        ((1, 2, 1), (5, 1, 1), ("a", "b")),
    ],
)
def test_the_highest_rank_is_believed(values: tuple[int, ...], ranks: tuple[int, ...], verdict: Any) -> None:
    assert judge("authority", *values, ranks=ranks) == verdict


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((1, 2), (None, "")),
        ((1, 2, 1), ("c", "b")),
        ((1, 1, 2), ("b", "c")),
        ((1, 1, 2, 2), (None, "")),
        ((1, 1, 2, 2, 2), ("e", "ab")),
        ((1, 2, 3), (None, "")),
        (tuple(range(10)), (None, "")),
        (("x",) * 9 + ("y",), ("i", "j")),
    ],
)
def test_the_strictly_largest_group_is_believed(values: tuple[Any, ...], verdict: Any) -> None:
    assert judge("majority", *values) == verdict


def test_members_of_a_group_all_agree_with_each_other() -> None:
    """1.00 and 1.02 both agree with 1.01, and not with each other: two groups of two."""
    assert judge("majority", 1.01, 1.02, 1.00, tolerance=0.01) == (None, "")


def test_the_verdict_does_not_depend_on_the_order_of_the_others() -> None:
    *others, own = make_values(1, 2, 2, 3)
    for order in permutations(others):
        disagreement = judge_sources(make_rule("majority"), own, order)
        assert disagreement is not None
        assert disagreement.believed_source is not None
        assert disagreement.believed_source.tool == "c.get"


def test_the_newest_is_believed_and_a_person_decides_the_rest() -> None:
    assert judge("freshness", 1, 2) == ("b", "a")
    assert judge("human", 1, 2) == (None, "")
    # Another call was stored later than this one.
    older, newer = make_values(1, 2)
    disagreement = judge_sources(make_rule("freshness"), older, [newer])
    assert disagreement is not None
    assert disagreement.believed_source is newer


@pytest.mark.parametrize(
    ("left", "right", "more", "is_same"),
    [
        (0.1 + 0.2, 0.3, {}, False),
        (0.1 + 0.2, 0.3, {"tolerance": 1e-9}, True),
        (1, 1.0, {}, True),
        (1e300, -1e300, {"tolerance": 1e299}, False),
        ("straße", "STRASSE", {"ignore_case": True}, True),
        ("a", "A", {"tolerance": 5}, False),
        (True, 1, {"tolerance": 5}, False),
        (None, 0, {}, False),
        ({"x": 1, "y": 2}, {"y": 2, "x": 1.0}, {}, True),
    ],
)
def test_values_agree(left: Any, right: Any, more: dict[str, Any], is_same: bool) -> None:
    rule = make_rule("human", **more)
    assert is_agreement(rule, left, right) == is_agreement(rule, right, left) == is_same


@pytest.mark.parametrize(
    ("entity", "text"),
    [
        ("7", "7"), (7, "7"), (7.0, "7"), (7.5, None), (True, None), (None, None), ([7], None), ("", None),
        ("x" * 1025, None), (float("inf"), None),
    ],
)  # fmt: skip
def test_a_thing_is_named_by_a_text_or_a_whole_number(entity: Any, text: str | None) -> None:
    source = RuleSource(rule=make_rule("human"), entity_steps=("input", "id"), value_steps=("output",))
    assert source.read_entity({"input": {"id": entity}, "output": 1}) == text
    assert source.read_entity({"input": {}, "output": 1}) is None


def test_sources_that_are_not_compared_are_described() -> None:
    rule = make_rule("human")
    classes = {f"{each}.get": {MutationClass.READ} for each in _LETTERS}
    assert list(describe_ignored_sources([rule], classes)) == []
    classes["a.get"] = {MutationClass.WRITE_REVERSIBLE}
    del classes["b.get"]
    assert [(tool, reason) for _, tool, reason in describe_ignored_sources([rule], classes)] == [
        ("a.get", "it is not a read"),
        ("b.get", "no such tool is registered"),
    ]
