"""The shapes of calls in the API document: how one is asked for, how it ends, and what is seen of it on the way."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.contract import MutationClass
from deputize.core.events import State
from deputize.core.questions import Ability
from deputize.doors.asking import (
    KEY_NAME,
    LOWEST_PRIORITY,
    MAX_DEADLINE_MS,
    MAX_TOOL_LENGTH,
    MAX_URL_LENGTH,
    MAX_VERSION_LENGTH,
)
from deputize.doors.rest.approval_models import ApprovalTold
from deputize.doors.rest.models import Asked, ToolRef, TraceId
from deputize.doors.rest.preview_models import PreviewShown, Would
from deputize.runs.keeper import LONGEST_NAME


class CallbackAsked(Asked):
    """Where a signed CloudEvent is sent when the call ends."""

    url: str = Field(max_length=MAX_URL_LENGTH, description="https, or a host that the operator named.")
    secret: str | None = Field(None, pattern=KEY_NAME, description="Which of your tenant's keys signs it.")
    include_result: bool | None = Field(
        None, description="Send the outcome too, without what is marked sensitive; only to hosts the operator named."
    )


class AnswersGiven(Asked):
    """Answers to what a tool's server asked back."""

    round: str = Field(description="As it came with the questions: for the same tool and arguments, within the hour.")
    responses: dict[str, Any] = Field(description="By the names of the questions, as MCP spells such answers.")


class CallAsked(Asked):
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
        None, min_length=1, max_length=MAX_SESSION_LENGTH, description="Groups calls of one session; it allows nothing."
    )
    step: str | None = Field(
        None, min_length=1, max_length=MAX_SESSION_LENGTH, description="Which step of the session this is."
    )
    deadline_ms: int | None = Field(
        None, ge=1, le=MAX_DEADLINE_MS, description="How long the caller waits; the tool's own limit may be shorter."
    )
    dry_run: bool | None = Field(
        None, description="Do everything but the effect, and answer with what it would change. Uses no key."
    )
    mode: Literal["sync", "async"] | None = Field(
        None, description="`async` answers 202 at once; a tool whose contract is asynchronous always does."
    )
    priority: int | None = Field(
        None, ge=1, le=LOWEST_PRIORITY, description="Among queued calls: 1 is the most urgent. Default: the contract's."
    )
    may_continue: bool | None = Field(
        None,
        alias="continue",
        description="When `deadline_ms` is over, go on as a run and answer 202, where doing it again does it once.",
    )
    callback: CallbackAsked | None = Field(None, description="Who is told when a call that answered 202 ends.")
    can_answer: list[Ability] | None = Field(
        None, description="What the tool's server may ask you back; default: nothing."
    )
    answers: AnswersGiven | None = Field(
        None, description="What you say to questions that this very call came to before. It needs no key of its own."
    )


class CallsQuery(Asked):
    before: UUID | None = Field(None, description="Calls older than this one.")
    limit: int = Field(50, ge=1, le=200, description="How many at most.")


class Pagination(BaseModel):
    cursor: str | None
    has_more: bool | None
    total_count: int | None


class Provenance(BaseModel):
    source: str
    retrieved_at: str
    data_version: str | None


class RulesThatDecided(BaseModel):
    rules: list[str]


class Execution(BaseModel):
    duration_ms: float
    attempts: int
    cost: float | None


class MutationShown(BaseModel):
    path: str
    source: str
    change: str


class InputShown(BaseModel):
    mutations: list[MutationShown]


class ContextShown(BaseModel):
    source: str = Field(pattern="^hook:", description="Who added it.")
    value: Any


class Envelope(BaseModel):
    """How a call that succeeded ends. The model sees `result`; `summary` is for people, `search_text` for search."""

    call_id: UUID
    state: Literal[State.SUCCEEDED]
    is_error: Literal[False]
    trace_id: TraceId
    result: Any
    summary: str | None
    search_text: str | None
    pagination: Pagination | None
    provenance: Provenance
    tool: ToolRef
    decision: RulesThatDecided
    execution: Execution
    input: InputShown
    context: list[ContextShown] = Field(description="What hooks want the model to know beside the result.")
    warnings: list[str]
    created_at: str
    continues: UUID | None = Field(None, description="The call whose questions this one answered.")


class AskedBack(BaseModel):
    """What the tool's server wants to know first. The texts are that server's own."""

    server: str
    questions: dict[str, dict[str, Any]] = Field(description="By name, as MCP spells them.")
    round: str = Field(description="Send it back with your answers.")


class NeedsInput(BaseModel):
    """How a call ends whose tool's server asks something first: make the same call with `answers` to go on."""

    call_id: UUID
    state: Literal[State.NEEDS_INPUT]
    is_error: Literal[False]
    trace_id: TraceId
    asks: AskedBack
    tool: ToolRef
    decision: RulesThatDecided
    execution: Execution
    input: InputShown
    context: list[ContextShown]
    warnings: list[str]
    created_at: str
    continues: UUID | None = Field(None, description="The call whose questions this one answered.")


class Rehearsed(BaseModel):
    """How a dry run ends: nothing was done, and this is what would be."""

    call_id: UUID
    state: Literal[State.SUCCEEDED]
    is_error: Literal[False]
    trace_id: TraceId
    dry_run: Literal[True]
    result: None
    would: Would
    preview: PreviewShown
    tool: ToolRef
    decision: RulesThatDecided
    input: InputShown
    context: list[ContextShown]
    warnings: list[str]
    created_at: str


class CallLinks(BaseModel):
    self: str
    events: str
    cancel: str


class Accepted(BaseModel):
    """A call that was taken on and has not ended: where to look for it, and when."""

    call_id: UUID
    state: State
    is_error: Literal[False]
    trace_id: TraceId
    tool: ToolRef
    decision: RulesThatDecided
    approval: ApprovalTold | None = Field(None, description="Who has to agree first, of a call that waits for people.")
    poll_after_ms: int
    links: CallLinks
    warnings: list[str]


class ToolNamed(BaseModel):
    name: str | None
    version: str | None


class CallShown(BaseModel):
    """What is known of a call; its result is shown only to who asks for the call itself."""

    call_id: UUID
    state: State
    tool: ToolNamed
    created_at: str
    trace_id: str


class CallListed(CallShown):
    mutation_class: MutationClass
    user: str
    agent: str | None
    session: str | None
    ended_at: str | None
    error_slug: str | None


class ProgressShown(BaseModel):
    """How far a tool says it is, or a part of its result."""

    call_id: UUID
    progress_id: str
    sequence: int
    status: Literal["running", "partial_result"]
    message: str | None = None
    percent: float | None = None
    current_step: float | None = None
    total_steps: float | None = None
    partial_result: Any = None
    redactions: list[str] = Field(default_factory=list, description="Where a part of a result was left out.")
    elapsed_ms: int
    timestamp: str


class QueueShown(BaseModel):
    ahead: int = Field(description="About how many of the tenant's calls come first.")


class CallOpen(CallListed):
    """A call that has not ended."""

    approval: ApprovalTold | None = Field(description="Who has to agree, or agreed; null where nobody was asked.")
    progress: ProgressShown | None
    partial_result: ProgressShown | None = Field(description="The newest part of the result that its tool told.")
    queue: QueueShown | None
    cancel_asked: str | None
    poll_after_ms: int = Field(description="When looking again is worth it; it grows with the age of the call.")
    links: CallLinks


class CallPage(BaseModel):
    calls: list[CallListed]
    next_before: UUID | None = Field(description="Give this as `before` to go on; null at the end.")


class Canceling(BaseModel):
    call_id: UUID
    state: State
    cancel: Literal["canceled", "asked", "recorded"] = Field(
        description="Ended here; a worker was asked to stop it; or it is on record and cannot be stopped."
    )
    detail: str


class RollbackAsked(Asked):
    checkpoint: str = Field(min_length=1, max_length=LONGEST_NAME, description="The name its tool saved it under.")


class SentBack(BaseModel):
    call_id: UUID
    state: Literal[State.QUEUED]
    checkpoint: str = Field(description="What the run goes on from; what was saved later is gone.")


class KeyQuery(Asked):
    name: str = Field("default", pattern=KEY_NAME, description="Which key: the `secret` of callbacks.")


class WebhookKey(BaseModel):
    name: str
    secret: str = Field(pattern="^whsec_", description="As Standard Webhooks write it.")


class DeadLettersQuery(Asked):
    limit: int = Field(50, ge=1, le=200, description="How many at most.")


class DeadLetter(BaseModel):
    id: UUID
    call_id: UUID
    state: State
    host: str
    attempts: int
    problem: str | None
    created_at: str
    dead_at: str


class DeadLetters(BaseModel):
    deadletters: list[DeadLetter]


class DeliveryDue(BaseModel):
    id: UUID
    call_id: UUID
    retry: Literal["due"]
