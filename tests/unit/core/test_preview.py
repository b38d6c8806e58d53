"""What a preview may say, and when two of them say the same."""

import copy
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from deputize.core.canonical import canonical
from deputize.core.contract import PreviewRules
from deputize.core.preview import MOST_PARTS, Preview, ReadPreview, preview_digest

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


def digest(document: dict[str, Any]) -> bytes:
    return preview_digest(KEY, document, VOLATILE)


def shuffled(value: Any, dice: random.Random) -> Any:
    """The same fields in another order, at every depth."""
    if isinstance(value, dict):
        return {name: shuffled(value[name], dice) for name in dice.sample(list(value), len(value))}
    return [shuffled(each, dice) for each in value] if isinstance(value, list) else value


@given(documents, st.randoms(use_true_random=False))
def test_the_order_in_which_things_are_listed_means_nothing(document: dict[str, Any], dice: random.Random) -> None:
    other = shuffled(document, dice)
    for name in ("changes", "resources", "preconditions"):
        dice.shuffle(other[name])
    assert digest(other) == digest(document)


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

    assert digest(with_(one)) == digest(with_(other))
    without = with_(one)
    for change in without["changes"]:
        del change["before"]["seen_at"]
    del without["impact"]["took_ms"], without["guards"]["cursor"]["at"]
    assert digest(without) == digest(with_(one))


@given(documents, documents)
def test_anything_else_that_differs_is_another_preview(one: dict[str, Any], other: dict[str, Any]) -> None:
    def settled(document: dict[str, Any]) -> bytes:
        kept = copy.deepcopy(document)
        for each in kept["preconditions"]:
            del each["detail"]
        for name in ("changes", "resources", "preconditions"):
            kept[name] = sorted(canonical({"": each}) for each in kept[name])
            kept[name] = [each.decode() for each in kept[name]]
        return canonical(kept)

    assert (digest(one) == digest(other)) is (settled(one) == settled(other))


@given(documents, st.data())
def test_one_changed_value_is_noticed_wherever_it_stands(document: dict[str, Any], data: st.DataObject) -> None:
    places = [place for name in ("changes", "resources", "impact", "guards") for place in _leaves(document[name])]
    assume(places)
    holder, name = data.draw(st.sampled_from(places))
    before, was = digest(document), copy.deepcopy(holder[name])
    holder[name] = data.draw(values)
    same = canonical({"": holder[name]}) == canonical({"": was})
    # Elements of the outer lists may trade places, which one changed value cannot make them do.
    assert (digest(document) == before) is same


def _leaves(value: Any) -> Any:
    entries = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    for name, each in entries:
        if isinstance(each, dict | list) and each:
            yield from _leaves(each)
        else:
            yield value, name


def test_it_says_nothing_without_the_key() -> None:
    document = {"changes": [], "resources": [], "preconditions": [], "impact": {"salary": 4200}, "guards": {}}
    assert preview_digest(KEY, document) != preview_digest(b"x" * 32, document)


def test_a_preview_is_read_as_plain_json() -> None:
    said = Preview(
        changes=[{"resource": "users", "op": "delete", "before": None, "count": 1}],
        preconditions=[{"name": "exists", "holds": True}],
    )
    assert ReadPreview.of(said).document() == {
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
        ReadPreview.of(Preview(**wrong))


@pytest.mark.parametrize(
    "changes", [{"a": 1}, "users", iter([]), [{"resource": "u", "op": "delete"}] * (MOST_PARTS + 1)]
)
def test_what_cannot_be_counted_or_is_too_much_is_not_even_looked_at(changes: Any) -> None:
    with pytest.raises(ValueError, match="changes is a list of at most"):
        ReadPreview.of(Preview(changes=changes))


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
