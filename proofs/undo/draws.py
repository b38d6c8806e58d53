"""Draw calls that the places of a pair allow, and say what each will leave."""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Any

from proofs.undo.judge import SQL_TABLE, Place, World

# Stands for the commit that a call makes, whose id its result has.
NEW_HEAD = "the new head"


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnCall:
    """A call, and what the places will hold after it. One that is guarded names the state that it expects."""

    tool: str
    arguments: dict[str, Any]
    after: dict[Place, str | None]
    has_preview: bool = True
    is_guarded: bool = False
    # Paths with how they differ, as the preview of a move of a branch has them.
    differences: tuple[str, ...] = ()

    @property
    def is_reversible(self) -> bool:
        return self.tool != "rows.stamp"


@dataclass(kw_only=True, slots=True)
class Branch:
    """The branch of a pair: the commit before each commit, and the files in each."""

    name: str
    base: str
    parents: dict[str, str] = field(default_factory=dict)
    trees: dict[str, dict[Place, str | None]] = field(default_factory=dict)

    @property
    def place(self) -> Place:
        return "branch", self.name

    @property
    def files(self) -> dict[Place, str | None]:
        return self.trees[self.base]

    def add_commit(self, head: str, parent: str, world: World) -> None:
        self.parents[head] = parent
        self.trees[head] = {place: world[place] for place in self.files}

    def compare(self, before: World, after: World) -> tuple[str, ...]:
        names = {place: place[1].removeprefix(f"{self.name}/") for place in self.files}
        return tuple(
            f"{'added' if before[place] is None else 'deleted' if after[place] is None else 'modified'} {name}"
            for place, name in sorted(names.items(), key=lambda each: each[1])
            if before[place] != after[place]
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """The draws of one pair."""

    rng: random.Random
    branch: Branch

    def draw(self, world: World, place: Place | None = None) -> DrawnCall:
        """Draw a call; one that only sets what a place holds if the place is given."""
        rng = self.rng
        only_sets = place is not None
        if place is None:
            kind = rng.choice(sorted({each[0] for each in world}))
            place = rng.choice([each for each in world if each[0] == kind])
        if place[0] in ("branch", "gitfile") and world[self.branch.place] is None:
            return self._start()
        value = rng.choice("abcdefgh") * rng.randint(1, 9)
        match place[0]:
            case "item":
                return self._put_item(place, world[place], value)
            case "row":
                return self._change_row(place, world[place], value)
            case "sql":
                return self._change_sql(place, world[place], value)
            case "branch":
                return self._move_branch(world)
            case _:
                return self._change_file(world, place, value, only_sets=only_sets)

    def _put_item(self, place: Place, held: str | None, value: str) -> DrawnCall:
        item = None if held is not None and self.rng.random() < 0.3 else value
        arguments = {"name": place[1], "body": {"value": item}}
        return DrawnCall(tool="shelf.put", arguments=arguments, after={place: item}, has_preview=False)

    def _change_row(self, place: Place, held: str | None, value: str) -> DrawnCall:
        tool, after = "rows.change", value
        if held is None:
            tool = "rows.add"
        elif self.rng.random() < 0.1:
            tool, after = "rows.stamp", held + "!"
        elif self.rng.random() < 0.3:
            return DrawnCall(tool="rows.remove", arguments={"row_id": place[1]}, after={place: None}, has_preview=False)
        arguments = {"row_id": place[1]} | ({} if tool == "rows.stamp" else {"value": value})
        return DrawnCall(tool=tool, arguments=arguments, after={place: after}, has_preview=False)

    def _change_sql(self, place: Place, held: str | None, value: str) -> DrawnCall:
        arguments: dict[str, Any] = {"table": SQL_TABLE, "key": place[1]}
        after: str | None = value
        if held is None:
            arguments |= {"op": "insert", "values": {"value": value}}
        elif self.rng.random() < 0.3:
            after = None
            arguments |= {"op": "delete", "expected": {"value": held}}
        else:
            arguments |= {"op": "update", "values": {"value": value}, "expected": {"value": held}}
        return DrawnCall(tool="sql.change", arguments=arguments, after={place: after}, is_guarded=True)

    def _change_file(self, world: World, place: Place, value: str, *, only_sets: bool) -> DrawnCall:
        (kind, name), held = place, world[place]
        namespace, where = ("files", {"path": name})
        if kind == "gitfile":
            namespace = "git"
            where = {"branch": self.branch.name, "path": name.removeprefix(f"{self.branch.name}/")}
        where["expected_sha256"] = "absent" if held is None else hashlib.sha256(held.encode()).hexdigest()
        free = [each for each in world if each[0] == "file" and world[each] is None]
        if not only_sets and kind == "file" and held is not None and free and self.rng.random() < 0.3:
            target = self.rng.choice(free)
            arguments = {**where, "to": target[1]}
            return DrawnCall(tool="files.move", arguments=arguments, after={place: None, target: held})
        if held is not None and self.rng.random() < 0.3:
            return DrawnCall(tool=f"{namespace}.delete", arguments=where, after={place: None}, is_guarded=True)
        arguments = {**where, "content": value}
        return DrawnCall(tool=f"{namespace}.write", arguments=arguments, after={place: value}, is_guarded=True)

    def _start(self) -> DrawnCall:
        arguments = {"branch": self.branch.name, "ref": "main"}
        after = {self.branch.place: self.branch.base, **self.branch.files}
        return DrawnCall(tool="git.start", arguments=arguments, after=after)

    def _move_branch(self, world: World) -> DrawnCall:
        branch, rng = self.branch, self.rng
        head = world[branch.place]
        assert head is not None
        arguments = {"branch": branch.name, "expected_head": head}
        differences = branch.compare(branch.trees[head], world)
        parent = branch.parents.get(head)
        if differences and rng.random() < 0.8:
            return DrawnCall(
                tool="git.commit", arguments={**arguments, "message": f"Change {head[:7]}"},
                after={branch.place: NEW_HEAD}, differences=differences,
            )  # fmt: skip
        if parent is not None and rng.random() < 0.5:
            return DrawnCall(
                tool="git.reset", arguments={**arguments, "to": parent}, after={branch.place: parent},
                differences=branch.compare(branch.trees[head], branch.trees[parent]),
            )  # fmt: skip
        if not differences:
            after = dict.fromkeys((branch.place, *branch.files))
            return DrawnCall(tool="git.drop", arguments=arguments, after=after)
        place = rng.choice(sorted(branch.files))
        return self._change_file(world, place, rng.choice("abcdefgh"), only_sets=True)
