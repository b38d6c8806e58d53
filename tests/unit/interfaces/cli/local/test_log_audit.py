"""A walk over a whole log finds whatever was changed in it, names the place, and knows when it was signed."""

import json
from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.entry_expiry import EntryExpiry
from deputize.evidence.log.merkle_tree import hash_leaf
from deputize.evidence.log.signed_note import InvalidNote, NoteSigner, parse_note
from deputize.interfaces.cli.local.log_audit import (
    InvalidProof,
    LogAudit,
    LogVerdict,
    load_checkpoint,
    verify_growth,
)
from tests.support.memory_log import MemoryLog
from tests.support.receipts import LOG_SIGNER

pytestmark = pytest.mark.requirement("GOV-5")
KEYS = [LOG_SIGNER.verifier_key]
SIZE = 700
SIGNED_SIZES = (1, 2, 100, 256, 300, 301, 512, 690, SIZE)


def _make_entries(size: int, text: str = "entry") -> list[bytes]:
    return [
        json.dumps({"id": f"00000000-0000-7000-8000-{number:012d}", "text": text}).encode() for number in range(size)
    ]


def _make_log(size: int = SIZE, text: str = "entry") -> MemoryLog:
    return MemoryLog(_make_entries(size, text), [each for each in SIGNED_SIZES if each <= size])


def _open(log: MemoryLog, size: int) -> LogCheckpoint:
    return open_checkpoint(parse_note(log.notes[size].encode()), KEYS)


def _verify(log: MemoryLog, kept: LogCheckpoint | None = None) -> LogVerdict:
    _, newest = load_checkpoint(log.read, KEYS)
    return LogAudit(log.read, KEYS, kept).verify(newest)


def _change_entry(log: MemoryLog) -> None:
    log.entries[270] = log.entries[270].replace(b"entry", b"other")


def _change_entry_and_leaf(log: MemoryLog) -> None:
    _change_entry(log)
    log.leaves[270] = hash_leaf(log.entries[270])


def _delete_entry(log: MemoryLog) -> None:
    log.entries[270] = b""


def _delete_entry_and_leaf(log: MemoryLog) -> None:
    del log.entries[270], log.leaves[270]


def _insert_entry(log: MemoryLog) -> None:
    log.entries.insert(270, b"new")
    log.leaves.insert(270, hash_leaf(b"new"))


def _swap_entries(log: MemoryLog) -> None:
    log.entries[270], log.entries[280] = log.entries[280], log.entries[270]
    log.leaves[270], log.leaves[280] = log.leaves[280], log.leaves[270]


def _swap_entries_without_leaves(log: MemoryLog) -> None:
    log.entries[270], log.entries[280] = log.entries[280], log.entries[270]


def _change_leaf(log: MemoryLog) -> None:
    log.leaves[270] = hash_leaf(b"other")


def _change_node(log: MemoryLog) -> None:
    log.nodes[1, 1] = hash_leaf(b"other")


def _delete_node(log: MemoryLog) -> None:
    del log.nodes[1, 1]


def _change_checkpoint(log: MemoryLog) -> None:
    log.notes[300] = log.notes[300].replace("300", "299")


def _swap_checkpoint(log: MemoryLog) -> None:
    log.notes[300] = log.notes[301]


def test_an_unchanged_log_is_trusted() -> None:
    log = _make_log()
    for kept in (None, _open(log, 100), _open(log, 301), _open(log, SIZE)):
        verdict = _verify(log, kept)
        assert (verdict.is_trusted, verdict.fault, verdict.size, verdict.signed_at) == (True, None, SIZE, "at 700")
    for size in (1, 255, 256, 257, 512):
        assert _verify(MemoryLog(_make_entries(size), [size])).is_trusted


@pytest.mark.parametrize(
    ("change", "first", "last", "reason"),
    [
        (_change_entry, 270, 270, "not what was signed"),
        (_change_entry_and_leaf, 256, 299, "not what was signed"),
        (_delete_entry, 270, 270, "missing"),
        (_delete_entry_and_leaf, 256, 299, "not what was signed"),
        (_insert_entry, 256, 299, "not what was signed"),
        (_swap_entries, 256, 299, "not what was signed"),
        (_swap_entries_without_leaves, 270, 270, "not what was signed"),
        (_change_leaf, 270, 270, "stored hash of the entry was changed"),
        (_change_node, 256, 511, "stored hash over these entries was changed"),
        (_delete_node, 0, 255, "stored hash over these entries was changed"),
        (_change_checkpoint, 256, 299, "stored checkpoint of 300 entries"),
        (_swap_checkpoint, 256, 299, "stored checkpoint of 300 entries"),
    ],
)
def test_a_change_is_found_at_its_place(
    change: Callable[[MemoryLog], None], first: int, last: int, reason: str
) -> None:
    log = _make_log()
    change(log)
    verdict = _verify(log)
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (first, last)
    assert reason in verdict.fault.reason
    assert verdict.signed_at == ("at 300" if first >= 256 else "at 1")


def test_every_single_entry_is_found() -> None:
    log = _make_log()
    for index in (0, 1, 99, 255, 256, 300, 511, 689, 699):
        original = log.entries[index]
        log.entries[index] = original + b" "
        verdict = _verify(log)
        assert verdict.fault is not None
        assert (verdict.fault.first, verdict.fault.last) == (index, index)
        assert verdict.entry_id == f"00000000-0000-7000-8000-{index:012d}"
        log.entries[index] = original
    assert _verify(log).is_trusted


def test_a_fault_in_an_entry_is_told_before_one_in_the_hashes_over_entries() -> None:
    log = _make_log()
    _delete_node(log)
    log.entries[650] += b" "
    verdict = _verify(log)
    assert verdict.fault is not None
    assert verdict.fault.first == 650


def test_a_log_that_lost_its_end_is_found_by_what_was_seen_before() -> None:
    """Cut entries, leaves and checkpoints off: what is left fits, and only the kept checkpoint tells."""
    log, shorter = _make_log(), _make_log(512)
    assert _verify(shorter).is_trusted
    verdict = _verify(shorter, _open(log, SIZE))
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (512, SIZE - 1)


def test_another_history_signed_with_the_same_key_is_found_by_what_was_seen_before() -> None:
    log, forged_log = _make_log(), _make_log(text="forged")
    assert _verify(forged_log).is_trusted
    for size in (100, 301, SIZE):
        verdict = _verify(forged_log, _open(log, size))
        assert verdict.fault is not None
        assert "another history" in verdict.fault.reason
        with pytest.raises(InvalidProof):
            verify_growth(forged_log.read, _open(log, size), _open(forged_log, SIZE))


def test_a_checkpoint_of_another_key_is_refused() -> None:
    other = NoteSigner(name=LOG_SIGNER.name, private_key=Ed25519PrivateKey.from_private_bytes(b"\x09" * 32))
    with pytest.raises(InvalidNote):
        _verify(MemoryLog(_make_entries(5), [5], other))


def test_entries_that_the_log_lacks_are_named() -> None:
    log = _make_log()
    log.unlogged_ids = ["00000000-0000-7000-8000-000000000999"]
    verdict = _verify(log)
    assert not verdict.is_trusted
    assert list(verdict.unlogged_entries) == log.unlogged_ids


def test_a_log_with_a_backlog_is_not_trusted_yet() -> None:
    log = _make_log()
    log.has_backlog = True
    verdict = _verify(log)
    assert (verdict.fault, verdict.unlogged_entries, verdict.is_trusted) == (None, (), False)


def test_growth_is_proven_by_tiles_and_a_cut_log_is_refused() -> None:
    log = _make_log()
    for old in SIGNED_SIZES:
        verify_growth(log.read, _open(log, old), _open(log, SIZE))
    with pytest.raises(InvalidProof, match="entries are gone"):
        verify_growth(log.read, _open(log, SIZE), _open(log, 512))
    log.leaves[690] = hash_leaf(b"other")
    with pytest.raises(InvalidProof):
        verify_growth(log.read, _open(log, 300), _open(log, SIZE))


NEW_SIGNER = NoteSigner(name=LOG_SIGNER.name, private_key=Ed25519PrivateKey.from_private_bytes(b"\x02" * 32))
OTHER_SIGNER = NoteSigner(name=LOG_SIGNER.name, private_key=Ed25519PrivateKey.from_private_bytes(b"\x03" * 32))


def _announce(first: int, last: int, days: int = 365, *, signer: NoteSigner = LOG_SIGNER, **changes: object) -> bytes:
    """Write the entry of an expiry as retention does; `changes` are made after it was signed."""
    expiry = EntryExpiry(tenant="acme", first_index=first, end_index=last + 1, days=days, time="2026-01-01T00:00:00Z")
    facts = {
        "command": "expire_entries",
        "signatures": list(expiry.sign([signer])),
        "subject": expiry.subject,
        "tenant": expiry.tenant,
        "time": expiry.time,
    }
    return json.dumps(facts | changes, separators=(",", ":")).encode()


def _make_expired_log(*announcements: bytes, expired: int = 300) -> MemoryLog:
    """Make a log whose entries from 600 on say what expired, and that lacks the bytes of its oldest entries."""
    entries = _make_entries(SIZE)
    entries[600 : 600 + len(announcements)] = announcements
    log = MemoryLog(entries, SIGNED_SIZES)
    log.entries[:expired] = [b""] * expired
    return log


@pytest.mark.parametrize(
    "announcements", [(_announce(0, 299, 2557),), (_announce(0, 99), _announce(100, 299, 400, signer=NEW_SIGNER))]
)
def test_entries_that_expired_are_told_and_no_fault(announcements: tuple[bytes, ...]) -> None:
    log = _make_expired_log(*announcements)
    keys = [NEW_SIGNER.verifier_key, *KEYS]
    for kept in (None, _open(log, 100), _open(log, 512)):
        _, newest = load_checkpoint(log.read, keys)
        verdict = LogAudit(log.read, keys, kept).verify(newest)
        assert (verdict.is_trusted, verdict.expired_count, verdict.size) == (True, 300, SIZE)


@pytest.mark.parametrize(
    ("announcements", "first"),
    [
        ((), 0),
        ((_announce(0, 199),), 200),
        # With a gap, or of entries that are not before it.
        ((_announce(1, 299),), 0),
        ((_announce(0, 99), _announce(101, 299)), 100),
        ((_announce(0, 600),), 0),
    ],
)
def test_a_deletion_that_the_log_does_not_announce_is_a_fault(announcements: tuple[bytes, ...], first: int) -> None:
    verdict = _verify(_make_expired_log(*announcements))
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (first, 299)
    assert "no entry of the log says that they expired" in verdict.fault.reason


@pytest.mark.parametrize(
    "announcement",
    [
        # As whoever can insert into the database would write it: without a signature, or with one of their own.
        b'{"command":"expire_entries","subject":"entries=0-299 days=365"}',
        _announce(0, 299, signatures=[]),
        _announce(0, 299, signatures=["%"]),
        _announce(0, 299, signatures="none"),
        _announce(0, 299, signer=OTHER_SIGNER),
        # With the signature of something else.
        _announce(0, 199, subject="entries=0-299 days=365"),
        _announce(0, 299, 364, subject="entries=0-299 days=365"),
        _announce(0, 299, tenant="other"),
        _announce(0, 299, time="2027-01-01T00:00:00Z"),
        _announce(0, 299, subject="entries=0-0299 days=365"),
        _announce(0, 299, subject="everything"),
        _announce(0, 299, subject=None),
        # Signed, of what was too young.
        _announce(0, 299, 364),
    ],
)
def test_an_expiry_that_the_log_did_not_sign_is_a_fault_and_hides_no_deletion(announcement: bytes) -> None:
    verdict = _verify(_make_expired_log(announcement))
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (0, 299)
    assert "entry 600 says that they expired, but no key of the log signed that" in verdict.fault.reason
    # What really expired before it is no fault, and what it announces is.
    verdict = _verify(_make_expired_log(_announce(0, 99), announcement))
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.last) == (100, 299)
    for expired, announcements in ((0, (announcement,)), (300, (announcement, _announce(0, 299)))):
        verdict = _verify(_make_expired_log(*announcements, expired=expired))
        assert verdict.fault is not None
        assert (verdict.fault.first, verdict.fault.last) == (600, 600)
        assert "it was forged" in verdict.fault.reason


def test_an_expiry_hides_no_other_deletion_or_change() -> None:
    log = _make_expired_log(_announce(0, 299))
    log.entries[400] = b""
    verdict = _verify(log)
    assert verdict.fault is not None
    assert (verdict.fault.first, verdict.fault.reason) == (400, "the entry is missing")
    # An announcement that was written into the database after it was signed changes what was signed.
    log = _make_expired_log(_announce(0, 199))
    log.entries[600] = log.entries[600].replace(b"0-199", b"0-299")
    verdict = _verify(log)
    assert verdict.fault is not None
    assert verdict.fault.first == 600
    # The hashes that stand for expired entries are signed, too.
    log = _make_expired_log(_announce(0, 299))
    log.leaves[7] = hash_leaf(b"other")
    assert not _verify(log).is_trusted
