"""What a yes is about: one keyed digest over everything that must still be so when the call is begun.

Above: `lifecycle/approvals` works the parts out when people are asked and again when the call is begun, and compares.
Every field of `Bound` is covered because the fields themselves are walked: nobody can add one and forget it here.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime

from deputize.core.frozen import frozen

_PURPOSE = b"deputize approval 1"
_LENGTH_BYTES = 8
Part = str | bytes | tuple[str, ...] | datetime


@frozen
class Bound:
    """One exact call: who is behind it, what it does to which account, by which rules, as it was previewed, until when.

    `input` is canonical, `policy` names the rules that can speak about the tool, `demands` are those of the ticket as
    they are written down.
    """

    tenant: str
    call: str
    chain: tuple[str, ...]
    issuer: str
    grants: tuple[str, ...]
    standing: str
    tool: str
    tool_digest: str
    input: bytes
    account: tuple[str, ...]
    environment: str
    preview: bytes
    policy: str
    demands: bytes
    expires_at: datetime

    def parts(self) -> dict[str, str]:
        """A digest of each part, to say later which of them changed. Not keyed: kept sealed, or not at all."""
        return {name: hashlib.sha256(spelled).hexdigest() for name, spelled in _spelled(self)}


def binding(key: bytes, bound: Bound) -> bytes:
    """Equal for equal parts and for nothing else; without the key nobody can make or compare one."""
    told = b"".join(_counted(name.encode()) + _counted(spelled) for name, spelled in _spelled(bound))
    return hmac.digest(key, _counted(_PURPOSE) + told, "sha256")


def changed(before: Mapping[str, str], now: Bound) -> list[str]:
    """The names of the parts that are not what they were, in the order of `Bound`."""
    after = now.parts()
    return [*(name for name in after if before.get(name) != after[name]), *sorted(before.keys() - after.keys())]


def _spelled(bound: Bound) -> list[tuple[str, bytes]]:
    return [(field.name, _bytes_of(getattr(bound, field.name))) for field in fields(bound)]


def _bytes_of(part: Part) -> bytes:
    """Each kind under its own letter, and lists with their lengths: no two parts spell the same bytes."""
    match part:
        case str():
            return b"s" + part.encode()
        case bytes():
            return b"b" + part
        case datetime():
            return b"t" + part.astimezone(UTC).isoformat(timespec="microseconds").encode()
        case tuple():
            return b"l" + b"".join(_counted(each.encode()) for each in part)


def _counted(data: bytes) -> bytes:
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data
