"""Define the rows of a batch, whose fields name the parameters of the commit functions, and the results."""

from datetime import datetime
from typing import Literal, NamedTuple

from deputize.core.caller import Epochs


class OpenCallRow(NamedTuple):
    """A mutation about to happen: its call row, its claim if it has a key, and its intent."""

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
    # The journal entry that it takes back, and the ended call whose key it takes over.
    undoes: str | None = None
    replaces: str | None = None


class QueueRunRow(NamedTuple):
    """A call that becomes a run: its opening, and what a worker needs to execute it."""

    tenant: str
    call_id: str
    open_row: OpenCallRow
    run: "RunRow"
    callback: bytes | None


class RunRow(NamedTuple):
    """What a worker executes a run with: its sealed input and caller, and until when it may act."""

    input: bytes
    caller: bytes
    not_after: datetime
    priority: int
    release: str


class ApprovalRequestRow(NamedTuple):
    """An approval request about to be opened: what it is bound to, what it requires, what approvers are shown."""

    id: str
    binding: bytes
    demands: bytes
    presentation: bytes
    preview_digest: bytes
    fresh_seconds: int | None
    chain: list[str]
    tool: str
    group_key: str
    groups: list[str]
    levels: list[float]
    expires_at: datetime


class ResourceLock(NamedTuple):
    """A lock a run needs. An empty namespace is shared by all tenants; `capacity` calls may hold it at once."""

    namespace: str
    resource: str
    scope: str
    capacity: int


class BeginRunRow(NamedTuple):
    """A run about to start, for the worker that saw this epoch: its intent, and the locks it needs."""

    tenant: str
    call_id: str
    epoch: int
    seconds: float
    margin: float
    entry_id: str
    entry: bytes
    salt: bytes | None
    locks: tuple[ResourceLock, ...]


class ReleaseLocksRow(NamedTuple):
    """The locks of a run that has ended, so that the next run in line is woken. Losing this row costs only time."""

    tenant: str
    call_id: str
    locks: tuple[ResourceLock, ...]


class JournalRow(NamedTuple):
    """What a write did to one resource; the first row of a call has, sealed, how it is taken back.

    The id is that of the outcome's audit entry; caller, session, tool and what it takes back are those of the call.
    """

    tenant: str
    call_id: str
    id: str
    number: int
    flow_id: str | None
    step: str | None
    resource: str
    op: str
    scope: str
    before_digest: str | None
    after_digest: str | None
    certainty: "Certainty"
    compensation_class: str
    undo_seconds: int | None
    sealed: bytes | None


class CloseCallRow(NamedTuple):
    """A mutation's outcome, for the owner with this epoch. `release` frees the key, because nothing happened."""

    tenant: str
    call_id: str
    epoch: int
    state: str
    error: str | None
    release: bool
    ciphertext: bytes | None
    entry_id: str
    entry: bytes
    salt: bytes | None
    journal: tuple[JournalRow, ...] = ()


class AuditEntryRow(NamedTuple):
    """An audit entry that stands alone: a read, a refusal."""

    tenant: str
    id: str
    call_id: str | None
    entry: bytes
    salt: bytes | None


class FailedReadRow(NamedTuple):
    """A read that failed, as a call that has ended, with its sealed outcome and its audit entry."""

    tenant: str
    call_id: str
    state: str
    tool: str
    version: str
    digest: str
    mutation_class: str
    user: str
    agent: str
    session: str | None
    error: str
    trace: str
    ciphertext: bytes
    audit_entry: AuditEntryRow


class DecisionRow(NamedTuple):
    """A decision record. It is durable before any entry that names it; writing it again changes nothing."""

    tenant: str
    id: str
    record: bytes


class CommitResult(NamedTuple):
    """The result of a commit for one row: the tenant's epochs as of that commit, and more by the kind of row.

    Opening: the call that already holds its key. Closing: whether this owner could close it. Beginning: its result, if
    there was anything left to begin. Queueing: whether no worker is alive.
    """

    epochs: Epochs
    holder: str | None = None
    is_closed: bool = True
    begin_result: "BeginResult | None" = None
    no_worker_alive: bool = False


# Whether an effect is there: `uncertain` counts until the call is settled.
Certainty = Literal["happened", "uncertain"]
# This worker owns it; it waits in line for a lock; another live worker owns it; this process has no valid lease; its
# approval is missing.
BeginResult = Literal["begun", "waits", "busy", "lapsed", "unapproved"]
CommitRow = (
    OpenCallRow
    | QueueRunRow
    | BeginRunRow
    | ReleaseLocksRow
    | CloseCallRow
    | AuditEntryRow
    | FailedReadRow
    | DecisionRow
)
