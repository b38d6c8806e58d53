"""What an undo has to leave: worked out from the order of the calls alone, and held against what is there. And what a
preview shows: held against what happened.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SQL_TABLE = "public.proof_items"

Place = tuple[str, str]
World = Mapping[Place, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A call that changed places, with what was there before and after."""

    call_id: str
    session: str
    before: World
    after: World
    tool: str = ""
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


# For each scope of a change: what is done to it, and what is known of it before and after.
Shown = dict[str, tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreviewRecord:
    """What the preview of a call showed, and what was there before and after the call."""

    promised: Shown
    happened: Shown


def describe_preview(tool: str, preview: Mapping[str, Any]) -> Shown:
    """Describe what a preview shows."""
    shown: Shown = {}
    impact = preview["impact"]
    for change in preview["changes"]:
        before, after = change.get("before"), change.get("after")
        if tool in ("files.write", "files.delete", "git.write", "git.delete"):
            lines = impact["diff"][2:] if impact["diff"] != [""] else []
            removed, added = ([each[1:] for each in lines if each.startswith(mark)] for mark in "-+")
            size = None if after is None else after["bytes"]
            shown[change["scope"]] = (change["op"], None if before is None else before["sha256"], size, removed, added)
        else:
            shown[change["scope"]] = (change["op"], before, after, tuple(impact.get("files", ())))
    return shown


def describe_change(tool: str, before: World, after: World, differences: tuple[str, ...] = ()) -> Shown:
    """Describe what happened to places in the words of a preview."""
    shown: Shown = {}
    for (kind, name), old in before.items():
        new = after[kind, name]
        op = "create" if old is None else "delete" if new is None else "update"
        if tool == "files.move":
            shown[name] = (op, _digest(old), _digest(new), ())
        elif kind in ("file", "gitfile") and tool not in ("git.start", "git.drop"):
            is_same = old == new
            removed, added = ([] if each is None or is_same else [each] for each in (old, new))
            shown[name] = (op, _digest(old), None if new is None else len(new.encode()), removed, added)
        elif kind == "sql":
            rows = (None if each is None else {"id": name, "value": each} for each in (old, new))
            shown[f"{SQL_TABLE}/{name}"] = (op, *rows, ())
        elif kind == "branch":
            # The id of a commit is not known before it is made.
            shown[name] = (op, old, None if tool == "git.commit" else new, differences)
    return shown


def compute_preview_figures(records: Sequence[PreviewRecord]) -> dict[str, int]:
    return {
        "previews": len(records),
        "previews_that_differ": sum(each.promised != each.happened for each in records),
    }


def _digest(content: str | None) -> str | None:
    return None if content is None else hashlib.sha256(content.encode()).hexdigest()
