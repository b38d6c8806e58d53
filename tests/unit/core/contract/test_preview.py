"""What a preview may say, and when two of them say the same."""

import copy
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from deputize.core.canonical import canonicalize
from deputize.core.contract.contract import PreviewRules
from deputize.core.contract.preview import MAX_PARTS, Preview, ValidPreview, compute_preview_digest

pytestmark = pytest.mark.requirement("GOV-4")

KEY = b"k" * 32
VOLATILE = ("/changes/*/before/seen_at", "/preconditions/*/detail", "/impact/took_ms", "/guards/cursor/at")
names = st.text("abc", min_size=1, max_size=3)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False, width=16)
leaves = st.none() | st.booleans() | numbers | texts
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))
objects = st.dictionaries(names, values, max_size=3)
changes = st.fixed_dictionaries(
    {"resource": names, "op": st.sampled_from(["create", "update", "delete"]), "scope": names},
    optional={"before": objects, "after": objects, "count": st.integers(0, 9)},
)
preconditions = st.fixed_dictionaries({"name": names, "holds": st.booleans(), "detail": texts})
documents = st.fixed_dictionaries(
    {
        "changes": st.lists(changes, max_size=4),
        "resources": st.lists(names, max_size=4),
        "preconditions": st.lists(preconditions, max_size=3),
        "impact": objects,
        "guards": objects,
    }
)


def compute_digest(document: dict[str, Any]) -> bytes:
    return compute_preview_digest(KEY, document, VOLATILE)


def shuffle_fields(value: Any, dice: random.Random) -> Any:
    """The same fields in another order, at every depth."""
    if isinstance(value, dict):
        return {name: shuffle_fields(value[name], dice) for name in dice.sample(list(value), len(value))}
    return [shuffle_fields(each, dice) for each in value] if isinstance(value, list) else value


@given(documents, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_listed_means_nothing(document: dict[str, Any], dice: random.Random) -> None:
    other = shuffle_fields(document, dice)
    for name in ("changes", "resources", "preconditions"):
        dice.shuffle(other[name])
    assert compute_digest(other) == compute_digest(document)


@given(documents, values, values)
def test_what_is_volatile_may_be_anything(document: dict[str, Any], one: Any, other: Any) -> None:
    def with_(value: Any) -> dict[str, Any]:
        made = copy.deepcopy(document)
        for change in made["changes"]:
            change.setdefault("before", {})["seen_at"] = value
        for precondition in made["preconditions"]:
            precondition["detail"] = str(value)
        made["impact"]["took_ms"] = value
        made["guards"]["cursor"] = {"at": value}
        return made

    assert compute_digest(with_(one)) == compute_digest(with_(other))
    without = with_(one)
    for change in without["changes"]:
        del change["before"]["seen_at"]
    del without["impact"]["took_ms"], without["guards"]["cursor"]["at"]
    assert compute_digest(without) == compute_digest(with_(one))


@given(documents, documents)
def test_anything_else_that_differs_is_another_preview(one: dict[str, Any], other: dict[str, Any]) -> None:
    def digest_without_volatile(document: dict[str, Any]) -> bytes:
        kept = copy.deepcopy(document)
        for each in kept["preconditions"]:
            del each["detail"]
        for name in ("changes", "resources", "preconditions"):
            kept[name] = sorted(canonicalize({"": each}) for each in kept[name])
            kept[name] = [each.decode() for each in kept[name]]
        return canonicalize(kept)

    assert (compute_digest(one) == compute_digest(other)) is (
        digest_without_volatile(one) == digest_without_volatile(other)
    )


@given(documents, st.data())
def test_one_changed_value_is_noticed_wherever_it_stands(document: dict[str, Any], data: st.DataObject) -> None:
    places = [place for name in ("changes", "resources", "impact", "guards") for place in _iter_leaves(document[name])]
    assume(places)
    holder, name = data.draw(st.sampled_from(places))
    before, was = compute_digest(document), copy.deepcopy(holder[name])
    holder[name] = data.draw(values)
    same = canonicalize({"": holder[name]}) == canonicalize({"": was})
    # Elements of the outer lists may trade places, which one changed value cannot make them do.
    assert (compute_digest(document) == before) is same


def _iter_leaves(value: Any) -> Any:
    entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for name, each in entries:
        if isinstance(each, dict | list) and each:
            yield from _iter_leaves(each)
        else:
            yield value, name


def test_it_says_nothing_without_the_key() -> None:
    document = {"changes": [], "resources": [], "preconditions": [], "impact": {"salary": 4200}, "guards": {}}
    assert compute_preview_digest(KEY, document) != compute_preview_digest(b"x" * 32, document)


def test_a_preview_is_read_as_plain_json() -> None:
    said = Preview(
        changes=[{"resource": "users", "op": "delete", "before": None, "count": 1}],
        preconditions=[{"name": "exists", "holds": True}],
    )
    assert ValidPreview.from_preview(said).to_document() == {
        # Nothing is there now; what would be there afterwards is not said.
        "changes": [{"resource": "users", "op": "delete", "scope": "*", "before": None, "count": 1}],
        "resources": [],
        "preconditions": [{"name": "exists", "holds": True, "detail": ""}],
        "impact": {},
        "guards": {},
    }


@pytest.mark.parametrize(
    "wrong",
    [
        {"changes": [{"resource": "users", "op": "drop"}]},
        {"changes": [{"resource": "users", "op": "delete", "rows": 3}]},
        {"changes": [{"resource": "users", "op": "delete", "count": -1}]},
        {"changes": [{"resource": "users", "op": "delete", "count": True}]},
        {"changes": ["users"]},
        {"preconditions": [{"name": "exists", "holds": "false"}]},
        {"preconditions": [{"name": "exists", "holds": 0}]},
        {"preconditions": [{"name": "exists"}]},
        {"resources": [7]},
        {"impact": [1]},
        {"guards": "etag"},
    ],
)
def test_what_has_another_form_is_no_preview(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ValidPreview.from_preview(Preview(**wrong))


@pytest.mark.parametrize(
    "changes", [{"a": 1}, "users", iter([]), [{"resource": "u", "op": "delete"}] * (MAX_PARTS + 1)]
)
def test_an_oversized_preview_is_rejected_before_it_is_read(changes: Any) -> None:
    with pytest.raises(ValueError, match="changes must be a list of at most"):
        ValidPreview.from_preview(Preview(changes=changes))


@pytest.mark.parametrize("pointer", [*VOLATILE, "/changes/*/count", "/changes/*/after", "/impact/a/*/b"])
def test_what_may_be_volatile(pointer: str) -> None:
    assert PreviewRules(volatile=(pointer,)).volatile == (pointer,)


@pytest.mark.parametrize(
    "pointer",
    ["", "/", "changes", "/changes", "/changes/*", "/changes/0/before", "/changes/*/op", "/changes/*/resource",
     "/changes/*/scope", "/preconditions/*/holds", "/preconditions/*/name", "/resources", "/resources/*", "/impact",
     "/guards", "/by", "/changes/*/before/"],
)  # fmt: skip
def test_what_people_decide_about_is_never_volatile(pointer: str) -> None:
    with pytest.raises(ValidationError):
        PreviewRules(volatile=(pointer,))
