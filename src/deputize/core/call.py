"""Define a call as an interface hands it in: the tool, its arguments, the idempotency key and the deadline."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NewType

from deputize.core.contract.tools import ToolProgress
from deputize.core.event_loop.interruption import Interruption
from deputize.core.mcp.elicitation import NO_CAPABILITIES, ClientCapability, InputResponses
from deputize.core.value_types import frozen

CallId = NewType("CallId", str)

MAX_KEY_LENGTH = 255
MAX_SESSION_LENGTH = 200
MAX_CHECKPOINT_NAME_LENGTH = 100


@frozen
class Callback:
    """Where to report the end of a call, with which of the tenant's signing keys, and whether with the result."""

    url: str
    secret: str = "default"
    include_result: bool = False


@frozen
class CallOrigin:
    """Where a call comes from, as its caller states it; audit entries repeat it, and nothing is decided by it.

    The id of the call in the caller's own protocol, such as a model's tool call id, and the call and the flow that it
    is part of.
    """

    native_call_id: str | None = None
    parent_call_id: str | None = None
    flow_id: str | None = None


@frozen
class ReplacedCall:
    """An ended call that is made again, and the key that its replacement takes over from it."""

    call_id: str
    scope: bytes
    key: bytes
    window_seconds: int


@frozen
class CallRequest:
    """A call as it was requested. `arguments` stay as the model wrote them; derived values are stored beside them."""

    tool: str
    arguments: dict[str, Any]
    version: str = "latest"
    idempotency_key: str | None = None
    session: str | None = None
    step: str | None = None
    deadline_ms: int | None = None
    traceparent: str | None = None
    # "async" replies at once, and the outcome is read later; None leaves it to the contract.
    mode: Literal["sync", "async"] | None = None
    priority: int | None = None
    # True if a call that outlasts its request may continue as a run, where that is safe.
    may_continue: bool = False
    callback: Callback | None = None
    # Reply with what the call would do, without its effect.
    dry_run: bool = False
    # What the client can answer, and its answers to the input requests of the call that this one continues.
    client_capabilities: frozenset[ClientCapability] = NO_CAPABILITIES
    input_responses: InputResponses | None = None
    # The caller states that no call with this key has happened, which a restored database may have forgotten.
    did_not_happen: bool = False
    origin: CallOrigin | None = None
    # How old the result of a read may be at most; 0 demands a new one, None leaves it to the contract.
    max_age_seconds: int | None = None
    # The call that this one answers as an alternative; set by the lifecycle, never by an interface.
    fallback_of: str | None = None
    # How long a step of a flow may take, and in how many flows it is; set by the lifecycle, never by an interface.
    max_seconds: float | None = None
    flow_depth: int = 0
    # The run to retry; set by operations, never by an interface.
    retry_of: str | None = None
    # The ended call that this one is made instead of; set by the lifecycle, never by an interface.
    replaces: ReplacedCall | None = None
    # The journal entry that this call takes back; set by operations, never by an interface.
    undoes: str | None = None
    # The steps of the undo that goes on with this call, itself first: people who must approve it are asked about them
    # all. Set by operations, never by an interface.
    undo_plan: "tuple[PlannedUndo, ...]" = ()
    # Receives the tool's progress while the caller waits; the progress of a run is read from its events.
    report_progress: Callable[[ToolProgress], None] | None = None
    # Stops the tool while the caller waits, if its contract says that an interruption cancels it; set by operations.
    interruption: Interruption | None = None

    def with_progress_callback(self, report_progress: Callable[[ToolProgress], None]) -> "CallRequest":
        return replace(self, report_progress=report_progress)


@frozen
class PlannedUndo:
    """A step of an undo: its call, what it takes back, and where each of its values is from."""

    request: CallRequest
    entry_id: str
    undone_call_id: str
    undone_tool: str
    origins: Mapping[str, str]
    # The steps before it that change the same: what its preview finds while they are not made is not what it will find.
    entries_above: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutation:
    """One recorded change between the model's input and the call's: where, what kind, and who made it."""

    path: str
    source: str
    change: str
