"""Trees, proofs, paths, keys and notes agree with Go's implementation; `vectors.go` wrote what is compared here."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.evidence.log.checkpoint import open_checkpoint
from deputize.evidence.log.merkle_tree import (
    MerkleFrontier,
    Subtree,
    hash_leaf,
    hash_range,
    plan_consistency,
    plan_inclusion,
    verify_consistency,
    verify_inclusion,
)
from deputize.evidence.log.signed_note import NoteSigner, VerifierKey, parse_note, sign_note
from deputize.evidence.log.tiles import Tile

VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text())
LEAVES = [hash_leaf(f"entry {number}".encode()) for number in range(600)]


def read_hash(subtree: Subtree) -> bytes:
    level, index = subtree
    frontier = MerkleFrontier()
    for leaf in LEAVES[index << level : (index + 1) << level]:
        frontier.append(leaf)
    return frontier.compute_root()


def test_roots_of_every_size_agree() -> None:
    frontier = MerkleFrontier()
    for leaf in LEAVES:
        frontier.append(leaf)
        assert frontier.compute_root().hex() == VECTORS["roots"][str(frontier.size)]
    assert hash_range((0, 600), read_hash).hex() == VECTORS["roots"]["600"]


@pytest.mark.parametrize("vector", VECTORS["inclusions"], ids=lambda each: f"{each['Index']}-of-{each['Size']}")
def test_inclusion_proofs_agree(vector: dict[str, Any]) -> None:
    index, size = vector["Index"], vector["Size"]
    proof = [hash_range(leaves, read_hash) for leaves in plan_inclusion(index, size)]
    assert [each.hex() for each in proof] == vector["Proof"]
    verify_inclusion(LEAVES[index], index, size, proof, bytes.fromhex(VECTORS["roots"][str(size)]))


@pytest.mark.parametrize("vector", VECTORS["consistencies"], ids=lambda each: f"{each['Old']}-to-{each['New']}")
def test_consistency_proofs_agree(vector: dict[str, Any]) -> None:
    roots = {int(size): bytes.fromhex(root) for size, root in VECTORS["roots"].items()}
    old, new = vector["Old"], vector["New"]
    proof = [hash_range(leaves, read_hash) for leaves in plan_consistency(old, new)]
    assert [each.hex() for each in proof] == vector["Proof"]
    verify_consistency(old, roots[old], new, roots[new], proof)


def test_paths_of_tiles_agree() -> None:
    for index, path in VECTORS["paths"].items():
        # Go's paths name the height of a tile, which C2SP fixed at 8 and left out.
        assert Tile(level=1, index=int(index)).path == path.replace("tile/8/", "tile/")


def test_keys_and_notes_agree() -> None:
    signer = NoteSigner(
        name="example.com/log", private_key=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTORS["seed"]))
    )
    assert str(signer.verifier_key) == VECTORS["vkey"]
    note = parse_note(VECTORS["note"].encode())
    assert str(sign_note(note.text, [signer])) == VECTORS["note"]
    checkpoint = open_checkpoint(note, [VerifierKey.parse(VECTORS["vkey"])])
    assert (checkpoint.size, checkpoint.root.hex()) == (600, VECTORS["roots"]["600"])
