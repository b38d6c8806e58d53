"""Test proposals of effects: the stricter of what a server says and what a name says."""

from typing import Any

import pytest

from deputize.catalog.effect_proposals import is_stricter, propose_effects
from deputize.core.contract.contract import Effects

pytestmark = pytest.mark.requirement("REG-2")
R, W, D = Effects.READ, Effects.WRITE, Effects.DESTRUCTIVE


@pytest.mark.parametrize(
    ("name", "annotations", "effects"),
    [
        ("list_directory", None, R),
        ("getOrder", {"readOnlyHint": True}, R),
        ("directory_tree", {}, R),
        ("order-get", None, R),
        ("create_directory", None, W),
        ("create_directory", {"readOnlyHint": False, "destructiveHint": False}, W),
        ("get_or_create_user", None, W),
        ("write_file", None, D),
        ("write_file", {"destructiveHint": False}, D),
        ("write_file", {"readOnlyHint": True}, D),
        ("get_and_delete", {"readOnlyHint": True}, D),
        ("user_delete", None, D),
        ("get_post", None, R),
        ("get_order", {"destructiveHint": True}, D),
        ("get_order", {"readOnlyHint": False}, D),
        ("frobnicate", {"readOnlyHint": True}, R),
        ("frobnicate", {"destructiveHint": False}, W),
        ("frobnicate", {"readOnlyHint": "yes"}, D),
        ("frobnicate", "read only", D),
        ("", None, D),
        ("a" * 100_000, None, D),
    ],
)
def test_the_stricter_reading_is_proposed(name: str, annotations: Any, effects: Effects) -> None:
    declaration = {"name": name} | ({} if annotations is None else {"annotations": annotations})
    proposal = propose_effects(declaration)
    assert proposal.effects is effects
    assert proposal.reason


def test_a_proposal_says_where_it_comes_from() -> None:
    assert propose_effects({"name": "list_a", "annotations": {"readOnlyHint": True}}).reason == (
        "the server says it only reads, and its name says list"
    )
    assert propose_effects({"name": "delete_a", "annotations": {"readOnlyHint": True}}).reason == (
        "its name says delete, although the server says it only reads"
    )


def test_effects_are_ordered() -> None:
    assert [is_stricter(one, other) for one in (R, W, D) for other in (R, W, D)] == [
        False, False, False, True, False, False, True, True, False,
    ]  # fmt: skip
