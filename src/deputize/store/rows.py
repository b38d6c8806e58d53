"""The rows a batch carries, as tuples in the order of the commit functions' parameters, and what comes back."""

from datetime import datetime
from typing import Literal, NamedTuple

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


class Queueing(NamedTuple):
    """A call that becomes a run: an opening, and what it is gone on with."""

    tenant: str
    call_id: str
    opening: Opening
    # Sealed input and caller, until when it may act, priority, release.
    run: tuple[bytes, bytes, datetime, int, str]
    callback: bytes | None


class Need(NamedTuple):
    """A place a run stands in line for. An empty space is shared by all tenants; `most` may hold such a place."""

    space: str
    resource: str
    scope: str
    most: int


class Beginning(NamedTuple):
    """A run about to be carried, for whoever saw it at this epoch: its intent, and the places it has to have for it."""

    tenant: str
    call_id: str
    epoch: int
    seconds: float
    margin: float
    entry_id: str
    entry: bytes
    salt: bytes | None
    needs: tuple[Need, ...]


class Leaving(NamedTuple):
    """The places of a run that has ended, so that whoever comes next is called. Nothing is lost where this is."""

    tenant: str
    call_id: str
    needs: tuple[Need, ...]


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

    for an opening, the call that holds its key if it is not this one; for a closing, whether it was ours to close;
    for a beginning, what came of it, where there was anything left to begin; for a queueing, whether no worker is up.
    """

    epochs: Epochs
    holder: str | None = None
    closed: bool = True
    began: "Began | None" = None
    alone: bool = False


# Ours; in line behind others; somebody else's who is alive; not before this process is known to be alive itself; not
# without somebody's approval.
Began = Literal["begun", "waits", "busy", "lapsed", "unapproved"]
Row = Opening | Queueing | Beginning | Leaving | Closing | Entry | DecisionRecord
