"""What an undo has to leave: worked out from the order of the calls alone, and held against what is there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Place = tuple[str, str]
World = Mapping[Place, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A call that changed places, with what was there before and after."""

    call_id: str
    session: str
    before: World
    after: World
    is_reversible: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class UndoRecord:
    """An undo of a session: what its plan said was ready, and what was there afterwards."""

    expected_ids: frozenset[str]
    ready_ids: frozenset[str]
    made_ids: frozenset[str]
    expected_world: World
    world: World


def find_undoable(changes: Sequence[Change], session: str) -> list[Change]:
    """Find what of a session can be taken back, newest first: that on which nothing stands which stays."""
    undoable: list[Change] = []
    staying: set[Place] = set()
    for change in reversed(changes):
        if change.session == session and change.is_reversible and staying.isdisjoint(change.before):
            undoable.append(change)
        else:
            staying |= change.before.keys()
    return undoable


def take_back(world: World, undone: Sequence[Change]) -> dict[Place, str | None]:
    """What is there after these were taken back, newest first."""
    left = dict(world)
    for change in undone:
        left |= change.before
    return left


def compute_figures(records: Sequence[UndoRecord]) -> dict[str, int]:
    return {
        "undos": len(records),
        "calls_taken_back": sum(len(each.made_ids) for each in records),
        "promised_and_not_possible": sum(len(each.ready_ids - each.expected_ids) for each in records),
        "possible_and_not_promised": sum(len(each.expected_ids - each.ready_ids) for each in records),
        "promised_and_not_done": sum(len(each.ready_ids - each.made_ids) for each in records),
        "wrong_places": sum(
            each.world[place] != value for each in records for place, value in each.expected_world.items()
        ),
    }
