"""Sign and verify what an entry says about expired entries, so that nobody else can make a deletion look like one.

Whoever can write to the database can queue an entry, and the log then signs that it was recorded. So an expiry is
signed by itself, with the keys of the log, which the database has only sealed.
"""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from deputize.evidence.log.signed_note import InvalidNote, NoteSigner, VerifierKey, decode_base64

EXPIRY_COMMAND: Final = "expire_entries"
# No setting deletes what is younger.
MIN_EXPIRY_DAYS: Final = 365
_SUBJECT: Final = re.compile(r"entries=(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17}) days=([1-9][0-9]{0,5})", re.ASCII)
# A checkpoint begins with the name of its log, which has no space: no signature of one can be that of the other.
_FIRST_LINE: Final = "deputize expiry/v1"
_ID_SIZE: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryExpiry:
    """Which entries of a log expired: those from `first_index` up to `end_index`."""

    tenant: str
    first_index: int
    end_index: int
    days: int
    time: str

    @property
    def subject(self) -> str:
        """The subject of the entry that says so."""
        return f"entries={self.first_index}-{self.end_index - 1} days={self.days}"

    def sign(self, signers: Iterable[NoteSigner]) -> Sequence[str]:
        """Sign with every key of the log; each signature has the id of its key before it."""
        return [
            base64.b64encode(
                signer.verifier_key.key_id + signer.private_key.sign(self._build_message(signer.name))
            ).decode()
            for signer in signers
        ]

    def is_signed(self, signatures: Sequence[str], keys: Iterable[VerifierKey]) -> bool:
        """Tell whether one of the keys signed this."""
        contents = [decode_base64(each) for each in signatures]
        return any(
            content[:_ID_SIZE] == key.key_id and key.is_valid(self._build_message(key.name), content[_ID_SIZE:])
            for key in keys
            for content in contents
        )

    def _build_message(self, log: str) -> bytes:
        lines = (_FIRST_LINE, log, self.tenant, self.subject, self.time)
        return "".join(f"{line}\n" for line in lines).encode()


def is_expiry(entry: bytes) -> bool:
    """Tell whether an entry says that others expired, rightly or not."""
    facts = _parse_entry(entry)
    return facts is not None and facts.get("command") == EXPIRY_COMMAND


def read_expiry(entry: bytes, keys: Iterable[VerifierKey]) -> EntryExpiry | None:
    """Read what an entry says about expired entries; None unless a key signed it and they were old enough."""
    facts = _parse_entry(entry) or {}
    tenant, subject, time = (str(facts.get(key)) for key in ("tenant", "subject", "time"))
    signatures = facts.get("signatures")
    if not isinstance(signatures, list) or (match := _SUBJECT.fullmatch(subject)) is None:
        return None
    expiry = EntryExpiry(
        tenant=tenant, first_index=int(match[1]), end_index=int(match[2]) + 1, days=int(match[3]), time=time
    )
    try:
        is_valid = expiry.days >= MIN_EXPIRY_DAYS and expiry.is_signed([str(each) for each in signatures], keys)
    except InvalidNote:
        return None
    return expiry if is_valid else None


def _parse_entry(entry: bytes) -> dict[str, Any] | None:
    try:
        facts = json.loads(entry)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None
