"""Leaves of entries of any size, and the nodes that a growing tree completes."""

from hashlib import sha256

import orjson

from deputize.core.canonical import canonicalize
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import MerkleFrontier, hash_leaf, hash_range
from deputize.evidence.log.tiles import MAX_ENTRY_SIZE


def test_an_entry_is_its_own_leaf_unless_it_is_too_large_for_a_bundle() -> None:
    assert build_leaf(b"x" * MAX_ENTRY_SIZE) == b"x" * MAX_ENTRY_SIZE
    large = b"x" * (MAX_ENTRY_SIZE + 1)
    fields = {"entry_sha256": sha256(large).hexdigest(), "entry_size": len(large), "v": "large-entry/1"}
    assert build_leaf(large) == canonicalize(fields)
    assert orjson.loads(build_leaf(large)) == fields


def test_a_growing_tree_returns_each_complete_node_of_its_heights_once() -> None:
    leaves = [hash_leaf(str(number).encode()) for number in range(70)]
    whole, parts = MerkleFrontier(), MerkleFrontier()
    for leaf in leaves:
        whole.append(leaf)
    nodes = [node for begin in range(0, 70, 9) for node in parts.append_all(leaves[begin : begin + 9], 2)]
    assert (parts.size, parts.compute_root()) == (whole.size, whole.compute_root())
    hashes = dict(nodes)
    assert len(hashes) == len(nodes)
    assert sorted(hashes) == [
        *((2, index) for index in range(17)),
        *((4, index) for index in range(4)),
        (6, 0),
    ]
    for (level, index), node_hash in nodes:
        begin = index << level
        assert node_hash == hash_range((begin, begin + (1 << level)), lambda subtree: _read_hash(leaves, *subtree))


def _read_hash(leaves: list[bytes], level: int, index: int) -> bytes:
    frontier = MerkleFrontier()
    for leaf in leaves[index << level : (index + 1) << level]:
        frontier.append(leaf)
    return frontier.compute_root()
