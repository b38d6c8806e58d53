"""Check a receipt by its content and a key of its log, and the keys of witnesses that must have cosigned it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from deputize.evidence.log.checkpoint import verify_cosignature
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.signed_note import COSIGNATURE_TYPE, ED25519_TYPE, InvalidNote, SignedNote, VerifierKey

_MAX_VALUE_LENGTH: Final = 2000
_LAST_UNIX_TIME: Final = 253_402_300_799
_LABELS: Final = {
    "tool": "tool", "version": "version", "kind": "entry", "outcome": "outcome", "error": "error", "time": "time",
    "call": "call", "command": "command", "subject": "subject", "caller": "caller", "rules": "rules",
    "approval": "approval", "arguments": "arguments", "result": "result", "id": "entry id", "tenant": "tenant",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckedReceipt:
    """What a valid receipt proves."""

    log: str
    index: int
    size: int
    entry: Mapping[str, Any]
    cosigned_at: Mapping[str, int]
    """When each of the trusted witnesses cosigned the checkpoint, by name, in seconds since 1970."""


def check_receipt(
    content: bytes,
    log_keys: Sequence[VerifierKey],
    witness_keys: Sequence[VerifierKey] = (),
    *,
    threshold: int | None = None,
) -> CheckedReceipt:
    """Return what the receipt proves; raise `InvalidNote` or `InvalidProof` if it does not prove it.

    At least `threshold` of the witnesses must have cosigned: all of them unless it is given.
    """
    receipt = InclusionReceipt.parse(content)
    checkpoint = receipt.verify(build_leaf(receipt.extra), log_keys)
    cosigned_at = check_cosignatures(receipt.note, witness_keys, threshold=threshold)
    return CheckedReceipt(
        log=checkpoint.origin,
        index=receipt.index,
        size=checkpoint.size,
        entry=_parse_entry(receipt.extra),
        cosigned_at=cosigned_at,
    )


def check_cosignatures(
    note: SignedNote, witness_keys: Sequence[VerifierKey], *, threshold: int | None = None
) -> Mapping[str, int]:
    """Return when each witness cosigned, by name; raise `InvalidNote` if fewer did than must have."""
    names = {key.name for key in witness_keys}
    cosigned_at: dict[str, int] = {}
    for key in witness_keys:
        unix_time = verify_cosignature(note, key)
        if unix_time is not None:
            cosigned_at[key.name] = max(unix_time, cosigned_at.get(key.name, 0))
    required_count = len(names) if threshold is None else threshold
    if len(cosigned_at) < required_count:
        absent = ", ".join(sorted(names - cosigned_at.keys()))
        raise InvalidNote(f"{len(cosigned_at)} of at least {required_count} witnesses cosigned it: not {absent}")
    return cosigned_at


def parse_log_keys(text: str) -> list[VerifierKey]:
    """Parse the keys of a log, one on each line."""
    return _parse_keys(text, ED25519_TYPE, "this is the key of a witness, not of a log")


def parse_witness_keys(text: str) -> list[VerifierKey]:
    """Parse the keys of witnesses, one on each line."""
    return _parse_keys(text, COSIGNATURE_TYPE, "this is the key of a log, not of a witness")


def describe_receipt(receipt: CheckedReceipt) -> list[str]:
    """Describe what a valid receipt proves, in lines that are safe to print on a terminal."""
    place = f"entry {receipt.index:,} of the first {receipt.size:,}"
    lines = [f"VALID: the log {receipt.log} signed this as {place}."]
    for name, label in _LABELS.items():
        if name in receipt.entry:
            lines.append(f"  {label:<10} {_format_value(receipt.entry[name])}")
    for witness, unix_time in receipt.cosigned_at.items():
        time = datetime.fromtimestamp(min(unix_time, _LAST_UNIX_TIME), UTC)
        lines.append(f"  {'cosigned':<10} by the witness {witness} at {time:%Y-%m-%dT%H:%M:%SZ}")
    return lines


def _parse_keys(text: str, signature_type: int, other_type_reason: str) -> list[VerifierKey]:
    keys = [VerifierKey.parse(line.strip()) for line in text.splitlines() if line.strip()]
    if any(key.signature_type != signature_type for key in keys):
        raise InvalidNote(other_type_reason)
    return keys


def _parse_entry(content: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidNote("the receipt contains no audit entry") from error
    if not isinstance(entry, dict):
        raise InvalidNote("the receipt contains no audit entry")
    return entry


def _format_value(value: Any) -> str:
    text = ", ".join(str(each) for each in value) if isinstance(value, list) else str(value)
    text = text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
