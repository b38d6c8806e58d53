"""Tiles, notes, cosignatures and receipts are read in one form only, and every change of them is noticed."""

import base64
from itertools import pairwise

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from deputize.evidence.log.checkpoint import (
    LogCheckpoint,
    cosign_checkpoint,
    get_witness_key,
    open_checkpoint,
    sign_checkpoint,
    verify_cosignature,
)
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.merkle_tree import (
    EMPTY_ROOT,
    InvalidProof,
    MerkleFrontier,
    hash_leaf,
    hash_range,
    list_subtrees,
    plan_consistency,
    plan_inclusion,
    verify_consistency,
    verify_inclusion,
)
from deputize.evidence.log.signed_note import InvalidNote, NoteSigner, SignedNote, VerifierKey, parse_note, sign_note
from deputize.evidence.log.tiles import (
    InvalidTile,
    Tile,
    TileHashes,
    decode_bundle,
    encode_bundle,
    list_new_tiles,
    locate_subtree,
)

LOG = NoteSigner(name="example.com/log/acme", private_key=Ed25519PrivateKey.from_private_bytes(bytes(32)))
WITNESS = NoteSigner(name="witness.example", private_key=Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))
ENTRIES = [f"entry {number}".encode() for number in range(700)]


def build_tiles(size: int) -> TileHashes:
    """Cut the first entries into tiles, from each level's hashes."""
    contents: dict[tuple[int, int], bytes] = {}
    for tile in list_new_tiles(0, size):
        if tile.level is not None:
            first, span = tile.index * 256, 256**tile.level
            hashes = [_hash_entries((first + at) * span, span) for at in range(tile.width)]
            contents[tile.level, tile.index] = b"".join(hashes)
    return TileHashes(contents)


def _hash_entries(begin: int, count: int) -> bytes:
    frontier = MerkleFrontier()
    for entry in ENTRIES[begin : begin + count]:
        frontier.append(hash_leaf(entry))
    return frontier.compute_root()


def make_receipt(index: int, size: int) -> InclusionReceipt:
    tiles = build_tiles(size)
    checkpoint = LogCheckpoint(origin=LOG.name, size=size, root=hash_range((0, size), tiles.read_hash))
    proof = tuple(hash_range(leaves, tiles.read_hash) for leaves in plan_inclusion(index, size))
    return InclusionReceipt(index=index, proof=proof, note=sign_checkpoint(checkpoint, [LOG]), extra=ENTRIES[index])


@given(st.integers(min_value=1, max_value=700), st.data())
def test_proofs_from_tiles_hold_and_only_for_their_entry(size: int, data: st.DataObject) -> None:
    tiles, index = build_tiles(size), data.draw(st.integers(min_value=0, max_value=size - 1))
    root, proof = hash_range((0, size), tiles.read_hash), plan_inclusion(index, size)
    hashes = [hash_range(leaves, tiles.read_hash) for leaves in proof]
    verify_inclusion(hash_leaf(ENTRIES[index]), index, size, hashes, root)
    for leaf, at, count, path in (
        (hash_leaf(b"another"), index, size, hashes),
        (hash_leaf(ENTRIES[index]), index, size, [*hashes, root]),
        (hash_leaf(ENTRIES[index]), index, size, hashes[:-1] if hashes else [root]),
        (hash_leaf(ENTRIES[index]), size, size, hashes),
        (hash_leaf(ENTRIES[index]), index, index, hashes),
    ):
        with pytest.raises(InvalidProof):
            verify_inclusion(leaf, at, count, path, root)


@given(st.integers(min_value=0, max_value=700), st.integers(min_value=0, max_value=700))
def test_growth_is_proved_and_a_rewritten_log_is_not(first: int, second: int) -> None:
    old, new = sorted((first, second))
    tiles = build_tiles(new)
    old_root, new_root = (hash_range((0, size), tiles.read_hash) for size in (old, new))
    proof = [hash_range(leaves, tiles.read_hash) for leaves in plan_consistency(old, new)]
    verify_consistency(old, old_root, new, new_root, proof)
    with pytest.raises(InvalidProof):
        verify_consistency(old, hash_leaf(b"rewritten"), new, new_root, proof)
    with pytest.raises(InvalidProof):
        verify_consistency(old, old_root, new, new_root, [*proof, EMPTY_ROOT])
    if old not in (0, new):
        with pytest.raises(InvalidProof):
            verify_consistency(old, old_root, new, hash_leaf(b"rewritten"), proof)
        with pytest.raises(InvalidProof):
            verify_consistency(old, old_root, new, new_root, proof[:-1])


def test_two_logs_of_equal_size_with_other_roots_are_a_fork() -> None:
    with pytest.raises(InvalidProof):
        verify_consistency(5, hash_leaf(b"a"), 5, hash_leaf(b"b"), [])


@given(st.lists(st.integers(min_value=0, max_value=200_000), min_size=1, max_size=5))
def test_growing_in_steps_lists_every_tile_once_full_and_none_too_often(sizes: list[int]) -> None:
    steps = sorted({0, *sizes})
    listed = [tile for old, new in pairwise(steps) for tile in list_new_tiles(old, new)]
    assert len(set(listed)) == len(listed)
    assert {tile for tile in listed if tile.width == 256} == {
        tile for tile in list_new_tiles(0, steps[-1]) if tile.width == 256
    }
    last = {(tile.level, tile.index): tile.width for tile in listed}
    assert last == {(tile.level, tile.index): tile.width for tile in list_new_tiles(0, steps[-1])}


def test_every_subtree_of_a_tree_has_its_tile() -> None:
    tiles = {(tile.level, tile.index) for tile in list_new_tiles(0, 70_000)}
    assert {locate_subtree(subtree) for subtree in list_subtrees((0, 70_000))} <= tiles


@given(st.one_of(st.none(), st.integers(0, 63)), st.integers(0, 10**12), st.integers(1, 256))
def test_a_path_is_read_as_it_is_written(level: int | None, index: int, width: int) -> None:
    tile = Tile(level=level, index=index, width=width)
    assert Tile.parse_path(tile.path) == tile


@pytest.mark.parametrize(
    "path",
    ["tile/0/5", "tile/00/005", "tile/0/x000/005", "tile/64/000", "tile/0/005.p/256", "tile/0/005.p/0", "tile/0/005/",
     "tile/0/\u0660\u0660\u0665", "tile/0/005\n", "/tile/0/005", "tile/0/../005",
     "tile/entries/005.p/999", "tile/0/" + "x001/" * 40],
)  # fmt: skip
def test_a_path_in_another_form_is_refused(path: str) -> None:
    with pytest.raises(InvalidTile):
        Tile.parse_path(path)


@given(st.lists(st.binary(max_size=300), max_size=256))
def test_a_bundle_gives_its_entries_back(entries: list[bytes]) -> None:
    assert decode_bundle(encode_bundle(entries)) == entries


@pytest.mark.parametrize("content", [b"\x00", b"\x00\x05abcd", b"\x00\x00" * 257, b"\x00\x01a\x00"])
def test_a_bundle_that_is_cut_off_or_too_long_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidTile):
        decode_bundle(content)


def test_an_entry_that_is_too_large_for_a_bundle_is_refused() -> None:
    assert decode_bundle(encode_bundle([bytes(65_535)])) == [bytes(65_535)]
    with pytest.raises(InvalidTile, match="65536 bytes"):
        encode_bundle([bytes(65_536)])


def test_a_checkpoint_is_believed_only_with_the_signature_of_its_own_log() -> None:
    checkpoint = LogCheckpoint(origin=LOG.name, size=3, root=hash_leaf(b"x"), extension_lines=("more",))
    note = parse_note(str(sign_checkpoint(checkpoint, [LOG])).encode())
    assert open_checkpoint(note, [WITNESS.verifier_key, LOG.verifier_key]) == checkpoint
    with pytest.raises(InvalidNote, match="not signed by a key that you trust"):
        open_checkpoint(note, [WITNESS.verifier_key])
    with pytest.raises(InvalidNote, match="was changed"):
        open_checkpoint(SignedNote(text=note.text.replace("3", "4"), signatures=note.signatures), [LOG.verifier_key])
    with pytest.raises(InvalidNote, match=r"was signed by witness\.example"):
        open_checkpoint(sign_note(checkpoint.render(), [WITNESS]), [WITNESS.verifier_key])


def test_a_cosignature_tells_its_time_and_a_changed_one_is_refused() -> None:
    note = sign_checkpoint(LogCheckpoint(origin=LOG.name, size=3, root=hash_leaf(b"x")), [LOG])
    key = get_witness_key(WITNESS)
    assert verify_cosignature(note, key) is None
    signatures = [*note.signatures, cosign_checkpoint(note, WITNESS, 1_700_000_000)]
    cosigned = parse_note(str(SignedNote(text=note.text, signatures=signatures)).encode())
    assert verify_cosignature(cosigned, VerifierKey.parse(str(key))) == 1_700_000_000
    late = cosigned.signatures[1].signature.replace(
        (1_700_000_000).to_bytes(8, "big"), (1_800_000_000).to_bytes(8, "big")
    )
    line = type(signatures[1])(name=WITNESS.name, key_id=key.key_id, signature=late)
    with pytest.raises(InvalidNote, match="was changed"):
        verify_cosignature(SignedNote(text=note.text, signatures=[line]), key)


@pytest.mark.parametrize(
    "text",
    ["", "name", "name+00000000+", "na me+00000000+AAAA", "+00000000+AQ==", "name+zz+" + "A" * 44,
     str(LOG.verifier_key).replace("+", "+0", 1), str(LOG.verifier_key) + "=", str(LOG.verifier_key)[:-4]],
)  # fmt: skip
def test_a_key_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidNote):
        VerifierKey.parse(text)


@pytest.mark.parametrize(
    "content",
    [b"", b"text\n", b"text\n\n", b"text\n\nno dash\n", "text\n\n— name !!!!\n".encode(),
     "text\n\n— name AAAA\n".encode(),
     "text\n\n— name AAAAAAAA".encode(), "te\rxt\n\n— name AAAAAAAA\n".encode(), b"\xff\n\n",
     b"text\n\n" + "— name AAAAAAAA\n".encode() * 101, b"x" * 1_000_001],
)  # fmt: skip
def test_a_note_in_another_form_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidNote):
        parse_note(content)


@pytest.mark.parametrize(
    "text", ["log\n03\nAAAA\n", "log\n-1\n", "log\n1\nAAAA\n", "\n1\n\n", "log\n" + "9" * 20 + "\nAAAA\n"]
)
def test_a_checkpoint_in_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidNote):
        LogCheckpoint.parse(text)


def test_a_receipt_is_verified_offline() -> None:
    receipt = InclusionReceipt.parse(make_receipt(300, 600).render().encode())
    assert receipt.verify(receipt.extra, [LOG.verifier_key]).size == 600
    with pytest.raises(InvalidProof):
        receipt.verify(b"another entry", [LOG.verifier_key])
    with pytest.raises(InvalidNote):
        receipt.verify(receipt.extra, [WITNESS.verifier_key])


@given(st.integers(min_value=0), st.integers(min_value=1, max_value=255))
def test_no_changed_byte_of_a_receipt_proves_another_entry(position: int, change: int) -> None:
    content = bytearray(make_receipt(2, 5).render().encode())
    content[position % len(content)] ^= change
    try:
        receipt = InclusionReceipt.parse(bytes(content))
        receipt.verify(receipt.extra, [LOG.verifier_key])
    except (InvalidNote, InvalidProof):
        return
    # What is not covered by the signature and not needed for the proof may change nothing either.
    assert (receipt.index, receipt.extra) == (2, ENTRIES[2])


@pytest.mark.parametrize(
    "head",
    ["c2sp.org/tlog-proof@v2\nindex 0", "c2sp.org/tlog-proof@v1", "c2sp.org/tlog-proof@v1\nindex 00",
     "c2sp.org/tlog-proof@v1\nindex 0\nAAAA", "c2sp.org/tlog-proof@v1\nextra ?\nindex 0",
     "c2sp.org/tlog-proof@v1\nindex 0" + ("\n" + base64.b64encode(bytes(32)).decode()) * 64],
)  # fmt: skip
def test_a_receipt_in_another_form_is_refused(head: str) -> None:
    with pytest.raises(InvalidNote):
        InclusionReceipt.parse(f"{head}\n\n{make_receipt(0, 1).note}".encode())
