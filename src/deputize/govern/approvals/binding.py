"""Bind an approval to one exact call: a keyed digest over everything that must be unchanged when the call starts.

`lifecycle/approval` computes the parts when it requests approval and again before the call starts, and compares them.
The digest covers every field of `BindingParts` because it iterates over the fields: a new field cannot be forgotten.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime

from deputize.core.value_types import frozen

_PURPOSE = b"deputize approval 1"
_LENGTH_BYTES = 8
BindingValue = str | bytes | tuple[str, ...] | datetime


@frozen
class BindingParts:
    """What identifies one exact call: its people, effect, account, rules, preview and deadline.

    `code` is the digest of the code that a Python tool consists of. `input` is canonical JSON. `policy` is the digest
    of the rules that apply to the tool. `demands` are the requirements as the approval request stores them. The field
    names are part of the digest, so they never change.
    """

    tenant: str
    call: str
    chain: tuple[str, ...]
    issuer: str
    grants: tuple[str, ...]
    standing: str
    tool: str
    tool_digest: str
    code: str
    input: bytes
    account: tuple[str, ...]
    environment: str
    preview: bytes
    policy: str
    demands: bytes
    expires_at: datetime

    def compute_part_digests(self) -> dict[str, str]:
        """Compute a digest of each part, to name the changed parts later. Not keyed, so store them only sealed."""
        return {name: hashlib.sha256(encoded_part).hexdigest() for name, encoded_part in _encode_parts(self)}


def compute_binding(key: bytes, parts: BindingParts) -> bytes:
    """Compute the keyed digest of the parts: equal only for equal parts, and impossible to forge without the key."""
    message = b"".join(
        _prefix_length(name.encode()) + _prefix_length(encoded_part) for name, encoded_part in _encode_parts(parts)
    )
    return hmac.digest(key, _prefix_length(_PURPOSE) + message, "sha256")


def list_changed_parts(before: Mapping[str, str], current: BindingParts) -> list[str]:
    """List the names of the parts that changed, in the field order of `BindingParts`."""
    after = current.compute_part_digests()
    return [*(name for name in after if before.get(name) != after[name]), *sorted(before.keys() - after.keys())]


def _encode_parts(parts: BindingParts) -> list[tuple[str, bytes]]:
    return [(field.name, _encode_value(getattr(parts, field.name))) for field in fields(parts)]


def _encode_value(value: BindingValue) -> bytes:
    """Encode a value with a type prefix, and lists with lengths, so that no two values give the same bytes."""
    match value:
        case str():
            return b"s" + value.encode()
        case bytes():
            return b"b" + value
        case datetime():
            return b"t" + value.astimezone(UTC).isoformat(timespec="microseconds").encode()
        case tuple():
            return b"l" + b"".join(_prefix_length(each.encode()) for each in value)


def _prefix_length(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data
