"""A judge of undos that found nothing would fail here: one fault of each kind is planted into a record."""

from dataclasses import replace

import pytest

from proofs.undo.judge import (
    Change,
    PreviewRecord,
    UndoRecord,
    compute_figures,
    compute_preview_figures,
    describe_change,
    describe_preview,
    find_undoable,
    take_back,
)
from tests.support.proof_bars import list_missed_bars

pytestmark = pytest.mark.requirement("NEW-2")
_A, _B = ("row", "a"), ("row", "b")
_GOOD = UndoRecord(
    expected_ids=frozenset("1"), ready_ids=frozenset("1"), made_ids=frozenset("1"),
    expected_world={_A: "x", _B: None}, world={_A: "x", _B: None},
)  # fmt: skip
_MANY = [_GOOD] * 1000


def test_a_good_run_misses_no_bar() -> None:
    assert list_missed_bars("undo", compute_figures(_MANY)) == set()


@pytest.mark.parametrize(
    ("figure", "record"),
    [
        ("promised_and_not_possible", replace(_GOOD, ready_ids=frozenset("12"), made_ids=frozenset("12"))),
        ("possible_and_not_promised", replace(_GOOD, ready_ids=frozenset(), made_ids=frozenset())),
        ("promised_and_not_done", replace(_GOOD, made_ids=frozenset())),
        ("wrong_places", replace(_GOOD, world={_A: "y", _B: None})),
    ],
)
def test_a_planted_fault_is_counted(figure: str, record: UndoRecord) -> None:
    assert list_missed_bars("undo", compute_figures([*_MANY, record])) == {figure}


def _make_change(call_id: str, session: str, *names: str, is_reversible: bool = True) -> Change:
    places = [("row", name) for name in names]
    return Change(
        call_id=call_id, session=session, before=dict.fromkeys(places, "old"), after=dict.fromkeys(places, call_id),
        is_reversible=is_reversible,
    )  # fmt: skip


def test_what_stays_covers_what_is_below_it() -> None:
    changes = [
        _make_change("1", "mine", "a"), _make_change("2", "mine", "b"), _make_change("3", "theirs", "a"),
        _make_change("4", "mine", "a", "c"), _make_change("5", "mine", "d"),
        _make_change("6", "mine", "d", is_reversible=False),
    ]  # fmt: skip
    undoable = find_undoable(changes, "mine")
    assert [each.call_id for each in undoable] == ["4", "2"]
    world = {("row", name): "new" for name in "abcd"}
    assert list(take_back(world, undoable).values()) == ["old", "old", "old", "new"]


def test_a_preview_that_shows_something_else_is_counted() -> None:
    preview = {
        "changes": [{"resource": "sql.rows", "op": "update", "scope": "public.proof_items/7",
                     "before": {"id": "7", "value": "a"}, "after": {"id": "7", "value": "b"}}],
        "impact": {"undo": "full"},
    }  # fmt: skip
    promised, place = describe_preview("sql.change", preview), ("sql", "7")
    good, *others = (
        PreviewRecord(promised=promised, happened=describe_change("sql.change", {place: before}, {place: after}))
        for before, after in (("a", "b"), ("a", "c"), ("x", "b"), (None, "b"), ("a", None))
    )
    many = [good] * 2000
    assert list_missed_bars("undo", compute_preview_figures(many)) == set()
    for each in others:
        assert list_missed_bars("undo", compute_preview_figures([*many, each])) == {"previews_that_differ"}
