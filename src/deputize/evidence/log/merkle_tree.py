"""Compute and verify Merkle trees as RFC 6962 defines them: roots, inclusion proofs and consistency proofs.

A proof is planned first, as ranges of leaves, and hashed from complete subtrees afterwards: storage can read all hashes
that it takes in one query. A subtree `(level, index)` covers `2**level` leaves and begins at leaf `index * 2**level`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final

HASH_SIZE: Final = 32
_PAIR_SIZE: Final = 2 * HASH_SIZE
EMPTY_ROOT: Final = sha256(b"").digest()
Subtree = tuple[int, int]
LeafRange = tuple[int, int]
ReadHash = Callable[[Subtree], bytes]


class InvalidProof(ValueError):
    """A proof that does not show what it is to show."""


def hash_leaf(entry: bytes) -> bytes:
    """Hash one entry."""
    return sha256(b"\x00" + entry).digest()


def hash_children(left: bytes, right: bytes) -> bytes:
    """Hash an inner node."""
    return sha256(b"\x01" + left + right).digest()


def hash_leaves(entries: Iterable[bytes]) -> list[bytes]:
    """Hash many entries; faster than one after the other."""
    return [sha256(b"\x00" + entry).digest() for entry in entries]


def hash_pairs(hashes: Sequence[bytes]) -> list[bytes]:
    """Hash the parents of an even number of neighbouring nodes."""
    content = b"".join(hashes)
    return [sha256(b"\x01" + content[at : at + _PAIR_SIZE]).digest() for at in range(0, len(content), _PAIR_SIZE)]


def list_subtrees(leaves: LeafRange) -> Iterator[Subtree]:
    """List the complete subtrees of a range from left to right; it begins where a subtree of its size may begin."""
    begin, end = leaves
    while begin < end:
        level = (end - begin).bit_length() - 1
        yield level, begin >> level
        begin += 1 << level


def hash_range(leaves: LeafRange, read_hash: ReadHash) -> bytes:
    """Compute the root of a range from the hashes of its complete subtrees."""
    hashes = [read_hash(subtree) for subtree in list_subtrees(leaves)]
    if not hashes:
        return EMPTY_ROOT
    root = hashes.pop()
    while hashes:
        root = hash_children(hashes.pop(), root)
    return root


def plan_inclusion(index: int, size: int) -> tuple[LeafRange, ...]:
    """Plan the proof that a leaf is in a tree of that size, from the leaf's sibling to the root's child."""
    if not 0 <= index < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {index}")
    ranges: list[LeafRange] = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _get_left_size(end - begin)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((begin, middle))
            begin = middle
    return tuple(reversed(ranges))


def plan_consistency(old_size: int, new_size: int) -> tuple[LeafRange, ...]:
    """Plan the proof that a tree of the old size is the beginning of one of the new size."""
    if not 0 <= old_size <= new_size:
        raise ValueError(f"a tree of {new_size} leaves did not grow from one of {old_size}")
    if old_size in (0, new_size):
        return ()
    ranges: list[LeafRange] = []
    begin, end, is_old_root = 0, new_size, True
    while end != old_size:
        middle = begin + _get_left_size(end - begin)
        if old_size <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((begin, middle))
            begin, is_old_root = middle, False
    if not is_old_root:
        ranges.append((begin, end))
    return tuple(reversed(ranges))


def verify_inclusion(leaf_hash: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raise unless the proof shows that the leaf is at this index of the tree with this size and root."""
    if not 0 <= index < size:
        raise InvalidProof(f"a tree of {size} entries has no entry {index}")
    node, last, node_hash = index, size - 1, leaf_hash
    for sibling_hash in proof:
        if last == 0:
            raise InvalidProof("the inclusion proof is too long")
        if node & 1 or node == last:
            node_hash = hash_children(sibling_hash, node_hash)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            node_hash = hash_children(node_hash, sibling_hash)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise InvalidProof("the inclusion proof is too short")
    if node_hash != root:
        raise InvalidProof("the inclusion proof leads to another root")


def verify_consistency(old_size: int, old_root: bytes, new_size: int, new_root: bytes, proof: Sequence[bytes]) -> None:
    """Raise unless the proof shows that the new tree begins with all entries of the old one, unchanged."""
    if not 0 <= old_size <= new_size:
        raise InvalidProof(f"a log of {new_size} entries did not grow from one of {old_size}")
    if old_size in (0, new_size):
        if proof or old_root != (EMPTY_ROOT if old_size == 0 else new_root):
            raise InvalidProof("two logs of equal size have different roots, or the proof is too long")
        return
    hashes = list(proof)
    if old_size & (old_size - 1) == 0:
        hashes.insert(0, old_root)
    if not hashes:
        raise InvalidProof("the consistency proof is too short")
    node, last = old_size - 1, new_size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    old_hash = new_hash = hashes[0]
    for sibling_hash in hashes[1:]:
        if last == 0:
            raise InvalidProof("the consistency proof is too long")
        if node & 1 or node == last:
            old_hash, new_hash = (
                hash_children(sibling_hash, old_hash),
                hash_children(sibling_hash, new_hash),
            )
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new_hash = hash_children(new_hash, sibling_hash)
        node, last = node >> 1, last >> 1
    if last != 0:
        raise InvalidProof("the consistency proof is too short")
    if old_hash != old_root or new_hash != new_root:
        raise InvalidProof("the consistency proof leads to other roots")


class MerkleFrontier:
    """The right edge of a growing tree: enough to append leaves and to compute the root at any time."""

    def __init__(self, size: int = 0, hashes: Iterable[bytes] = ()) -> None:
        """Go on from a tree of this size; `hashes` are those of its complete subtrees, from left to right."""
        self.size = size
        self._hashes = list(hashes)
        if len(self._hashes) != size.bit_count():
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} complete subtrees")

    def append(self, leaf_hash: bytes) -> None:
        """Append one leaf."""
        hashes, rest = self._hashes, self.size
        self.size += 1
        while rest & 1:
            leaf_hash = sha256(b"\x01" + hashes.pop() + leaf_hash).digest()
            rest >>= 1
        hashes.append(leaf_hash)

    def append_all(self, leaf_hashes: Iterable[bytes], node_height: int) -> list[tuple[Subtree, bytes]]:
        """Append leaves; return the subtrees whose level is a multiple of the height and that are complete now.

        A level of the tree is hashed at a time: a loop over leaves takes three times as long.
        """
        hashes, level, first = list(leaf_hashes), 0, self.size
        self.size += len(hashes)
        right_edge: list[bytes] = []
        nodes: list[tuple[Subtree, bytes]] = []
        while hashes:
            if first & 1:
                # The left sibling of the first one was waiting for it.
                hashes.insert(0, self._hashes.pop())
            if len(hashes) & 1:
                right_edge.append(hashes.pop())
            hashes = hash_pairs(hashes)
            level, first = level + 1, first >> 1
            if level % node_height == 0:
                nodes += [((level, index), node_hash) for index, node_hash in enumerate(hashes, start=first)]
        self._hashes += reversed(right_edge)
        return nodes

    def copy(self) -> "MerkleFrontier":
        """Copy the edge, to append other leaves to the same beginning."""
        return MerkleFrontier(self.size, self._hashes)

    def compute_root(self) -> bytes:
        """Compute the root of all leaves so far."""
        if not self._hashes:
            return EMPTY_ROOT
        root = self._hashes[-1]
        for left in reversed(self._hashes[:-1]):
            root = hash_children(left, root)
        return root


def _get_left_size(size: int) -> int:
    """Get the size of the left child: the largest power of two below the size."""
    return 1 << ((size - 1).bit_length() - 1)
