"""Define the request and response models of calls, for validation and for the OpenAPI document."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from deputize.core.call import MAX_CHECKPOINT_NAME_LENGTH, MAX_KEY_LENGTH, MAX_SESSION_LENGTH
from deputize.core.call_batch import MAX_BATCH_SIZE, FailurePolicy
from deputize.core.contract.contract import MutationClass
from deputize.core.mcp.elicitation import ClientCapability
from deputize.core.states import State, ToolEvent
from deputize.interfaces.call_request import (
    KEY_NAME,
    LOWEST_PRIORITY,
    MAX_AGE_SECONDS,
    MAX_DEADLINE_MS,
    MAX_TOOL_LENGTH,
    MAX_URL_LENGTH,
    MAX_VERSION_LENGTH,
)
from deputize.interfaces.rest.approvals.approval_models import ApprovalSummaryModel
from deputize.interfaces.rest.calls.preview_models import DryRunVerdictModel, PreviewModel
from deputize.interfaces.rest.calls.result_models import ContentModel, DegradedModel, PersistenceModel, ProvenanceModel
from deputize.interfaces.rest.models import DeprecationModel, ProblemModel, RequestModel, ToolRef, TraceId


class CallbackBody(RequestModel):
    """The receiver of a signed CloudEvent when the call ends."""

    url: str = Field(max_length=MAX_URL_LENGTH, description="An https URL, or a host from the settings.")
    secret: str | None = Field(None, pattern=KEY_NAME, description="The name of the tenant's key that signs it.")
    include_result: bool | None = Field(
        None, description="Send the outcome too, without sensitive values; only to hosts in the settings."
    )


class InputResponsesBody(RequestModel):
    """Responses to the input requests of a tool's server."""

    round_token: str = Field(
        description="The token that came with the requests; valid for the same tool and arguments, for one hour."
    )
    responses: dict[str, Any] = Field(description="MCP elicitation results, by the names of the requests.")


class CallBody(RequestModel):
    """One call of one tool."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"tool": "hello.greet", "arguments": {"name": "Ana"}}]},
    )

    tool: str = Field(
        min_length=1, max_length=MAX_TOOL_LENGTH, description="`namespace.name`, or its spelling `namespace__name`."
    )
    arguments: dict[str, Any] = Field(default_factory=dict, description="The tool's arguments by name.")
    version: str | None = Field(
        None, min_length=1, max_length=MAX_VERSION_LENGTH, description="`latest`, `1.2.3`, `^1`, `~1.2` or `1.x`."
    )
    session: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SESSION_LENGTH,
        description="Groups the calls of one session; it grants nothing.",
    )
    step: str | None = Field(None, min_length=1, max_length=MAX_SESSION_LENGTH, description="The step of the session.")
    deadline_ms: int | None = Field(
        None, ge=1, le=MAX_DEADLINE_MS, description="How long the caller waits; the tool's own timeout may be shorter."
    )
    dry_run: bool | None = Field(
        None, description="Run everything but the tool, and return a preview of its changes. Uses no key."
    )
    mode: Literal["sync", "async"] | None = Field(
        None, description="`async` returns 202 at once; a tool with an asynchronous contract always does."
    )
    priority: int | None = Field(
        None, ge=1, le=LOWEST_PRIORITY, description="Among queued calls: 1 is the most urgent. Default: the contract's."
    )
    may_continue: bool | None = Field(
        None,
        alias="continue",
        description="When `deadline_ms` is over, go on as a run and answer 202, where doing it again does it once.",
    )
    callback: CallbackBody | None = Field(None, description="Who is told when a call that answered 202 ends.")
    client_capabilities: list[ClientCapability] | None = Field(
        None, description="The input that the tool's server may request from you; default: none."
    )
    input_responses: InputResponsesBody | None = Field(
        None, description="Responses to the input requests that the same call returned. It needs no key of its own."
    )
    did_not_happen: bool = Field(
        False, description="You checked that no call with this key has happened: the way past a 409 `restored`."
    )
    native_call_id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SESSION_LENGTH,
        description="This call's id in your own protocol, such as a model's tool call id. Audit entries repeat it.",
    )
    parent_call_id: UUID | None = Field(
        None, description="The call that this one is part of. Audit entries repeat it; nothing is decided by it."
    )
    flow_id: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SESSION_LENGTH,
        description="The flow that this call is part of. Audit entries repeat it; nothing is decided by it.",
    )
    max_age_seconds: int | None = Field(
        None,
        ge=0,
        le=MAX_AGE_SECONDS,
        description="How old the result of a read may be; 0 demands a new one. Default: what the contract allows.",
    )


class BatchedCallBody(CallBody):
    """One call of a batch, as for `POST /v1/calls`, with its key."""

    model_config = ConfigDict(extra="forbid", frozen=True, json_schema_extra={})

    idempotency_key: str | None = Field(
        None,
        pattern=f"^[\\x21-\\x7e]{{1,{MAX_KEY_LENGTH}}}$",
        description="Makes repeating this call, or the whole batch, safe.",
    )
    depends_on: list[int] | None = Field(
        None, description="The positions, from 0, of the earlier calls that must succeed before this one begins."
    )


class CallBatchBody(RequestModel):
    """Several calls. Those that may change the same resources run one after another, the others side by side."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"calls": [{"tool": "hello.greet", "arguments": {"name": "Ana"}}]}]},
    )

    calls: list[BatchedCallBody] = Field(min_length=1, max_length=MAX_BATCH_SIZE)
    on_failure: FailurePolicy = Field(
        "cancel_dependent",
        description="What a failed call means for the others: nothing (`ignore`), that none begins any more and those "
        "with `interrupt: cancel` are stopped (`cancel_siblings`), or that calls which depend on it do not begin.",
    )


class CallsQuery(RequestModel):
    before: UUID | None = Field(None, description="List calls older than this one.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class AgentToolCallModel(BaseModel):
    """A call as objects of Agent Tool 0.2.0. A call that has not ended has no result."""

    schema_version: Literal["0.2.0"]
    tool_invocation: dict[str, Any]
    tool_permission_decision: dict[str, Any] | None = None
    tool_progress: list[dict[str, Any]]
    tool_result: dict[str, Any] | None = None
    tool_result_persistence: dict[str, Any] | None = None
    tool_error: dict[str, Any] | None = None
    tool_event: list[dict[str, Any]]


class PaginationModel(BaseModel):
    cursor: str | None
    has_more: bool | None
    total_count: int | None


class DecisionRulesModel(BaseModel):
    rules: list[str]


class ExecutionModel(BaseModel):
    duration_ms: float
    attempts: int
    cost: float | None = Field(
        description="What the call was charged: as its result reports, else as declared, and what it used at the "
        "prices of its contract."
    )
    currency: str | None = Field(None, description="Present if the contract has prices.")
    costs: dict[str, float] | None = Field(None, description="The cost by component, if the contract has prices.")


class InputMutationModel(BaseModel):
    path: str
    source: str
    change: str


class CallInputModel(BaseModel):
    mutations: list[InputMutationModel]


class HookContextModel(BaseModel):
    source: str = Field(pattern="^hook:", description="The hook that added it.")
    value: Any


class EnvelopeModel(BaseModel):
    """The envelope of a call that succeeded. Models see `result`; `summary` is for people, `search_text` for search."""

    call_id: UUID
    state: Literal[State.SUCCEEDED]
    is_error: Literal[False]
    trace_id: TraceId
    result: Any
    summary: str | None
    search_text: str | None
    pagination: PaginationModel | None
    provenance: ProvenanceModel
    tool: ToolRef
    decision: DecisionRulesModel
    execution: ExecutionModel
    input: CallInputModel
    context: list[HookContextModel] = Field(description="What hooks add for the model beside the result.")
    warnings: list[str]
    created_at: str
    deprecation: DeprecationModel | None = Field(None, description="The notice of the version, if it is deprecated.")
    continues: UUID | None = Field(None, description="The call whose input requests this one answered.")
    content: list[ContentModel] | None = Field(None, description="What the tool returned beside its payload.")
    persistence: PersistenceModel | None = Field(None, description="How a result is stored that is not given whole.")
    degraded: DegradedModel | None = Field(None, description="Which alternative answered, if the tool was unavailable.")


class InputRequestsModel(BaseModel):
    """The input requests of the tool's server. The texts are the server's own."""

    server: str
    requests: dict[str, dict[str, Any]] = Field(description="MCP input requests, by name.")
    round_token: str = Field(description="Send it back with your responses.")


class InputRequiredModel(BaseModel):
    """A call whose tool's server requires input: make the same call with `input_responses` to continue."""

    call_id: UUID
    state: Literal[State.NEEDS_INPUT]
    is_error: Literal[False]
    trace_id: TraceId
    input_required: InputRequestsModel
    tool: ToolRef
    decision: DecisionRulesModel
    execution: ExecutionModel
    input: CallInputModel
    context: list[HookContextModel]
    warnings: list[str]
    created_at: str
    deprecation: DeprecationModel | None = Field(None, description="The notice of the version, if it is deprecated.")
    continues: UUID | None = Field(None, description="The call whose input requests this one answered.")


class DryRunModel(BaseModel):
    """The envelope of a dry run: nothing was done; `preview` is what the call would do."""

    call_id: UUID
    state: Literal[State.SUCCEEDED]
    is_error: Literal[False]
    trace_id: TraceId
    dry_run: Literal[True]
    result: None
    would: DryRunVerdictModel
    preview: PreviewModel
    tool: ToolRef
    decision: DecisionRulesModel
    input: CallInputModel
    context: list[HookContextModel]
    warnings: list[str]
    created_at: str


class CallLinks(BaseModel):
    self: str
    events: str
    cancel: str


class AcceptedCallModel(BaseModel):
    """A call that was accepted and has not ended: where and when to poll it."""

    call_id: UUID
    state: State
    is_error: Literal[False]
    trace_id: TraceId
    tool: ToolRef
    decision: DecisionRulesModel
    approval: ApprovalSummaryModel | None = Field(None, description="The approval that the call waits for.")
    poll_after_ms: int
    links: CallLinks
    warnings: list[str]
    deprecation: DeprecationModel | None = Field(None, description="The notice of the version, if it is deprecated.")


class BatchResultModel(BaseModel):
    """The outcome of one call of a batch."""

    status: int = Field(description="The status that `POST /v1/calls` would have answered with.")
    is_replay: bool = Field(description="Whether this is the stored outcome of the same key.")
    is_joined: bool = Field(description="Whether the same call was already running.")
    envelope: EnvelopeModel | InputRequiredModel | DryRunModel | AcceptedCallModel | ProblemModel


class CallBatchModel(BaseModel):
    results: list[BatchResultModel] = Field(description="One for each call, in their order.")


class ToolNameModel(BaseModel):
    name: str | None
    version: str | None


class CallModel(BaseModel):
    """A summary of a call, without its result."""

    call_id: UUID
    state: State
    tool: ToolNameModel
    created_at: str
    trace_id: str


class CallListItem(CallModel):
    mutation_class: MutationClass
    user: str
    agent: str | None
    session: str | None
    ended_at: str | None
    error_slug: str | None


class ProgressModel(BaseModel):
    """A tool's progress report, or a part of its result."""

    call_id: UUID
    progress_id: str
    sequence: int
    status: Literal["running", "partial_result"]
    message: str | None = None
    percent: float | None = None
    current_step: float | None = None
    total_steps: float | None = None
    partial_result: Any = None
    redactions: list[str] = Field(default_factory=list, description="JSON pointers to redacted parts of a result.")
    elapsed_ms: int
    timestamp: str


class QueuePositionModel(BaseModel):
    ahead: int = Field(description="About how many calls of the same user are ahead in the queue; users take turns.")


class OpenCallModel(CallListItem):
    """A call that has not ended."""

    approval: ApprovalSummaryModel | None = Field(description="The approval of the call; null if it needs none.")
    progress: ProgressModel | None
    partial_result: ProgressModel | None = Field(description="The newest part of the result that its tool reported.")
    queue: QueuePositionModel | None
    cancel_requested_at: str | None
    poll_after_ms: int = Field(description="When to poll again; it grows with the age of the call.")
    links: CallLinks


class CallPage(BaseModel):
    calls: list[CallListItem]
    next_before: UUID | None = Field(description="Pass this as `before` for the next page; null on the last page.")


class AuditEntryModel(BaseModel):
    events: list[ToolEvent] = Field(description="The events of the tool standard that the entry records, in order.")
    entry: dict[str, Any] = Field(description="The entry as it is stored; the reference describes its keys.")
    user: str | None = Field(description="The user's name; null if they were erased, or the entry names none.")
    agents: list[str | None] = Field(description="The agents that acted, nearest first.")


class AuditEntryList(BaseModel):
    call_id: UUID
    entries: list[AuditEntryModel] = Field(description="Oldest first.")


class ReceiptModel(BaseModel):
    """What proves offline that a call was recorded: `deputize verify` reads the receipt."""

    call_id: UUID
    entry_id: UUID = Field(description="The newest audit entry of the call; the receipt contains it.")
    receipt: str = Field(description="A proof in the form c2sp.org/tlog-proof@v1.")
    verifier_keys: list[str] = Field(description="Keys of the tenant's log, newest first, as NAME+ID+KEY.")


class CancellationResult(BaseModel):
    call_id: UUID
    state: State
    cancel: Literal["canceled", "asked", "recorded"] = Field(
        description="Ended at once; requested from its worker; or audited, but the tool cannot be stopped."
    )
    detail: str


class RollbackBody(RequestModel):
    checkpoint: str = Field(
        min_length=1, max_length=MAX_CHECKPOINT_NAME_LENGTH, description="The name under which the tool saved it."
    )


class RollbackResult(BaseModel):
    call_id: UUID
    state: Literal[State.QUEUED]
    checkpoint: str = Field(description="The checkpoint that the run continues from; later ones are deleted.")


class WebhookKeyQuery(RequestModel):
    name: str = Field(
        "default",
        pattern=KEY_NAME,
        description="The name of the key: the `secret` of callbacks, the name of an event sink, or `approvals`.",
    )
    host: str | None = Field(
        None, min_length=1, max_length=253, description="The host of the receiver, for the key of callbacks to it."
    )


class WebhookKeyModel(BaseModel):
    name: str
    host: str | None = Field(description="The host that callbacks are sent to; null for other webhooks.")
    secret: str = Field(pattern="^whsec_", description="The key in the format of Standard Webhooks.")


class DeadLettersQuery(RequestModel):
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class DeadLetterModel(BaseModel):
    id: UUID
    call_id: UUID
    state: State
    host: str
    attempts: int
    problem: str | None
    created_at: str
    dead_at: str


class DeadLetterList(BaseModel):
    deadletters: list[DeadLetterModel]


class DeliveryRetryResult(BaseModel):
    id: UUID
    call_id: UUID
    retry: Literal["due"]
