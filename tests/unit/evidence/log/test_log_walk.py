"""A walk takes stored hashes as they are: too short, too long or cut in the middle of a hash."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deputize.evidence.log.checkpoint import LogCheckpoint
from deputize.evidence.log.log_walk import LogWalk, fit_tile, split_hashes
from deputize.evidence.log.merkle_tree import HASH_SIZE, MerkleFrontier, hash_leaf
from deputize.evidence.log.tiles import TILE_HEIGHT

ENTRIES = [str(number).encode() for number in range(600)]
LEAVES = [hash_leaf(entry) for entry in ENTRIES]


def _make_checkpoint(leaves: list[bytes]) -> LogCheckpoint:
    frontier = MerkleFrontier()
    frontier.append_all(leaves, TILE_HEIGHT)
    return LogCheckpoint(origin="example.com/log", size=len(leaves), root=frontier.compute_root())


@given(steps=st.lists(st.integers(0, 300), max_size=8))
def test_leaves_appended_in_any_steps_make_the_tree_that_single_ones_make(steps: list[int]) -> None:
    single, stepwise = MerkleFrontier(), MerkleFrontier()
    nodes: dict[tuple[int, int], bytes] = {}
    for step in steps:
        leaves = [hash_leaf(str(number).encode()) for number in range(single.size, single.size + step)]
        for leaf in leaves:
            single.append(leaf)
        new_nodes = stepwise.append_all(leaves, 3)
        assert not nodes.keys() & dict(new_nodes).keys()
        nodes |= new_nodes
        assert (stepwise.size, stepwise.compute_root()) == (single.size, single.compute_root())
    assert sorted(nodes) == [(level, index) for level in (3, 6, 9) for index in range(single.size >> level)]


def test_a_copy_of_an_edge_grows_alone() -> None:
    frontier = MerkleFrontier()
    frontier.append_all(LEAVES[:100], TILE_HEIGHT)
    copy = frontier.copy()
    copy.append_all(LEAVES[100:], TILE_HEIGHT)
    assert (frontier.size, frontier.compute_root()) == (100, _make_checkpoint(LEAVES[:100]).root)
    assert (copy.size, copy.compute_root()) == (600, _make_checkpoint(LEAVES).root)


@pytest.mark.parametrize("length", [0, 1, 31, 32, 33, 8191, 8192, 9000])
def test_a_tile_of_another_length_gives_no_part_of_a_hash(length: int) -> None:
    content = b"\xff" * length
    fitted = split_hashes(fit_tile(content, 256))
    assert len(fitted) == 256
    assert set(fitted) <= {b"\xff" * HASH_SIZE, bytes(HASH_SIZE)}
    assert fitted.count(b"\xff" * HASH_SIZE) == min(length // HASH_SIZE, 256)
    assert fit_tile(None, 2) == bytes(2 * HASH_SIZE)


@pytest.mark.parametrize("index", [0, 255, 256, 299, 599])
def test_a_difference_is_found_in_entries_and_in_leaves_wherever_steps_end(index: int) -> None:
    checkpoint = _make_checkpoint(LEAVES)
    for step in (1, 100, 256, 600):
        for in_entries in (True, False):
            walk = LogWalk(())
            for begin in range(0, 600, step):
                entries, leaves = ENTRIES[begin : begin + step], LEAVES[begin : begin + step]
                if begin <= index < begin + step:
                    (entries if in_entries else leaves)[index - begin] = hash_leaf(b"other")
                walk.add_entries(entries, b"".join(leaves))
            fault = walk.check_root(checkpoint)
            assert fault is not None
            assert (fault.first, fault.last) == (index, index)
            assert (fault.reason == "the entry is not what was signed") is in_entries


def test_hashes_of_another_number_of_leaves_are_refused() -> None:
    with pytest.raises(ValueError, match="not the hashes of 2 leaves"):
        LogWalk(()).add_entries(ENTRIES[:2], LEAVES[0])
