"""The rows a batch carries, as tuples in the order of the commit functions' parameters, and what comes back."""

from typing import NamedTuple

from deputize.core.caller import Epochs


class Opening(NamedTuple):
    """A mutation about to happen: its call row, its claim if it has a key, its intent."""

    tenant: str
    call_id: str
    tool: str
    version: str
    digest: str
    mutation_class: str
    user: str
    agent: str
    session: str | None
    fingerprint: bytes
    scope: bytes | None
    key: bytes | None
    seconds: float
    window_seconds: int
    trace: str
    entry_id: str
    entry: bytes
    salt: bytes | None


class Closing(NamedTuple):
    """A mutation's outcome, for the owner whose epoch it names. `release` gives the key back: nothing happened."""

    tenant: str
    call_id: str
    epoch: int
    state: str
    error: str | None
    release: bool
    box: bytes | None
    entry_id: str
    entry: bytes
    salt: bytes | None


class Entry(NamedTuple):
    """An audit entry that stands alone: a read, a refusal."""

    tenant: str
    id: str
    call_id: str | None
    entry: bytes
    salt: bytes | None


class DecisionRecord(NamedTuple):
    """What a decision was made from. Durable before any entry that names it; the same record again changes nothing."""

    tenant: str
    id: str
    record: bytes


class Committed(NamedTuple):
    """What a commit answered for one row: the tenant's epochs as of that commit, and

    for an opening, the call that holds its key if it is not this one; for a closing, whether it was ours to close.
    """

    epochs: Epochs
    holder: str | None = None
    closed: bool = True


Row = Opening | Closing | Entry | DecisionRecord
