"""Chains of checkpoints: the newest comes back exactly, and one damaged row costs one checkpoint at most."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.core.clock import Clock
from deputize.core.errors import UnsealFailed
from deputize.runs.checkpoint_writer import MAX_STATE_BYTES, encode_state
from deputize.runs.checkpoints import Checkpoint, CheckpointChain, CheckpointKind, find_newest_valid, unseal_state
from deputize.store.keys import KeySet
from tests.unit.runs.sample_states import SAMPLES
from tests.unit.runs.test_deltas import JSON

pytestmark = pytest.mark.requirement("RES-7")

KEYS = KeySet.from_data_keys("dev", {1: b"k" * 32}, Clock())
CALL = "01890000-0000-7000-8000-000000000000"
KINDS: Any = st.sampled_from([("micro", None), ("macro", None), ("named", "here"), ("named", "there")])


class CheckpointTable:
    """What the database keeps of a call, by the rules of `store/queries/checkpoints.sql`; held to it in
    tests/integration/runs/test_checkpoint_writer.py."""

    def __init__(self) -> None:
        self.rows: dict[int, Checkpoint] = {}
        self.states: dict[int, bytes] = {}

    def save(
        self, chain: CheckpointChain, state: bytes, kind: CheckpointKind = "micro", name: str | None = None
    ) -> Checkpoint:
        made = chain.seal_next(state, kind, name)
        chain.mark_stored(made, state)
        self.rows[made.seq], self.states[made.seq] = made, state
        self._prune(chain.list_frames(made))
        return made

    def _prune(self, frames: list[int]) -> None:
        latest = sorted(self.rows, reverse=True)
        kept, seen = set(latest[:2]), dict[tuple[str, str | None], int]()
        for seq in latest:
            row = self.rows[seq]
            seen[row.kind, row.name] = seen.get((row.kind, row.name), 0) + 1
            if seen[row.kind, row.name] <= {"micro": 3, "macro": 10, "named": 1}[row.kind]:
                kept.add(seq)
        kept |= {parent for seq in kept if (parent := self.rows[seq].parent) is not None}
        self.rows = {seq: row for seq, row in self.rows.items() if seq in kept or seq in frames}

    def newest(self) -> tuple[int, bytes] | None:
        async def read_checkpoint(seq: int) -> Checkpoint | None:
            return self.rows.get(seq)

        found = asyncio.run(find_newest_valid(KEYS, CALL, sorted(self.rows, reverse=True), read_checkpoint))
        return None if found is None else (found[0].seq, found[1])


def damage_checkpoint(row: Checkpoint, at: int) -> Checkpoint:
    at %= len(row.ciphertext)
    return replace(row, ciphertext=row.ciphertext[:at] + bytes([row.ciphertext[at] ^ 1]) + row.ciphertext[at + 1 :])


@given(st.lists(st.tuples(JSON, KINDS), min_size=1, max_size=24), st.sets(st.integers(0, 23)))
def test_any_sequence_of_saves_by_any_owners_restores_exactly_the_newest(
    saves: list[tuple[Any, tuple[CheckpointKind, str | None]]], takeovers: set[int]
) -> None:
    table, epoch, chain = CheckpointTable(), 1, CheckpointChain(KEYS, CALL, epoch=1)
    grown: list[Any] = []
    for number, (value, (kind, name)) in enumerate(saves):
        if number in takeovers:
            epoch, last = epoch + 1, max(table.rows, default=-1)
            chain = CheckpointChain(KEYS, CALL, epoch=epoch, last=last)
        grown.append(value)
        state = encode_state({"all": grown, "last": value})
        table.save(chain, state, kind, name)
        assert table.newest() == (number, state)


@given(st.integers(1, 40), KINDS, st.randoms(use_true_random=False), st.data())
def test_any_one_damaged_row_falls_back_to_the_one_before_at_most(
    count: int, usual: tuple[CheckpointKind, str | None], dice: random.Random, data: st.DataObject
) -> None:
    table, chain = CheckpointTable(), CheckpointChain(KEYS, CALL, epoch=1)
    for number in range(count + 1):
        kind, name = data.draw(KINDS) if number % 5 == 4 else usual
        table.save(chain, encode_state({"seen": list(range(number * 50)), "noise": dice.random()}), kind, name)
    victim = data.draw(st.sampled_from(sorted(table.rows)))
    whole = dict(table.rows)
    for broken in (damage_checkpoint(whole[victim], data.draw(st.integers(0, 10_000))), None):
        table.rows = {seq: row for seq, row in whole.items() if seq != victim} | ({victim: broken} if broken else {})
        found = table.newest()
        assert found is not None
        expected = {count, count - 1} if victim != count else {count - 1}
        assert found[0] in expected
        assert found[1] == table.states[found[0]]


@given(st.sampled_from(["seq", "epoch", "kind", "name", "parent"]))
def test_a_row_that_was_moved_or_renamed_does_not_open(field: str) -> None:
    row = CheckpointChain(KEYS, CALL, epoch=1).seal_next(encode_state({"a": 1}), "named", "here")
    assert unseal_state(KEYS, CALL, row, None) == b'{"a":1}'
    other: dict[str, Any] = {"seq": 5, "epoch": 2, "kind": "macro", "name": "there", "parent": 7}
    with pytest.raises(UnsealFailed):
        unseal_state(KEYS, CALL, replace(row, **{field: other[field]}), row)
    with pytest.raises(UnsealFailed):
        unseal_state(KEYS, CALL.replace("1", "2"), row, None)


def test_a_difference_to_another_frame_is_not_believed() -> None:
    table, chain = CheckpointTable(), CheckpointChain(KEYS, CALL, epoch=1)
    for number in range(4):
        table.save(chain, encode_state({"rows": list(range(1000)), "at": number}))
    second, third = table.rows[2], table.rows[3]
    assert (second.parent, third.parent) == (0, 1)
    with pytest.raises(UnsealFailed):
        unseal_state(KEYS, CALL, second, table.rows[1])
    with pytest.raises(UnsealFailed):
        unseal_state(KEYS, CALL, third, None)


def test_a_difference_to_a_frame_that_was_replaced_is_not_believed() -> None:
    """An owner whose acknowledgement was lost saves again under the same number, maybe another state."""
    rows = list(range(1000))
    chain, other_chain = CheckpointChain(KEYS, CALL, epoch=1), CheckpointChain(KEYS, CALL, epoch=1)
    table = CheckpointTable()
    for number in range(3):
        table.save(chain, encode_state({"rows": rows, "at": number}))
    assert table.rows[2].parent == 0
    replaced_frame = other_chain.seal_next(encode_state({"rows": rows[::-1], "at": 0}), "micro")
    with pytest.raises(UnsealFailed, match="digest"):
        unseal_state(KEYS, CALL, table.rows[2], replaced_frame)


@pytest.mark.parametrize("name", SAMPLES)
def test_compressed_differences_of_real_states_are_at_least_sixty_percent_smaller(name: str) -> None:
    chain, whole, stored = CheckpointChain(KEYS, CALL, epoch=1), 0, 0
    for state in SAMPLES[name](random.Random(7), 40):
        data = encode_state(state)
        made = chain.seal_next(data, "micro")
        chain.mark_stored(made, data)
        whole, stored = whole + len(data), stored + len(made.ciphertext)
    assert stored <= 0.4 * whole, f"{name}: {1 - stored / whole:.1%}"


def test_a_chain_writes_a_whole_one_every_so_often() -> None:
    chain, parents = CheckpointChain(KEYS, CALL, epoch=1), []
    for number in range(40):
        data = encode_state({"rows": list(range(500)), "at": number})
        made = chain.seal_next(data, "micro")
        chain.mark_stored(made, data)
        parents.append(made.parent)
    assert [number for number, parent in enumerate(parents) if parent is None] == [0, 1, 16, 17, 32, 33]
    assert all(parent is None or (number - parent) % 2 == 0 for number, parent in enumerate(parents))


@pytest.mark.parametrize(
    "state", [(1, 2), {"a": (1,)}, float("nan"), {"at": object()}, {1: 2}, {"big": 2**70}, "\ud800", {1, 2}]
)
def test_what_would_not_come_back_the_same_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="plain JSON"):
        encode_state(state)


def test_a_state_has_a_largest_size() -> None:
    with pytest.raises(ValueError, match="at most"):
        encode_state("x" * MAX_STATE_BYTES)


@given(JSON)
def test_a_plain_state_comes_back_the_same(state: Any) -> None:
    assert orjson.loads(encode_state(state)) == state
