"""The shapes of the routes about approvals: what people are asked, and what they say."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from deputize.core.contract import Effects
from deputize.core.events import State
from deputize.doors.rest.models import Asked, Digest
from deputize.doors.rest.preview_models import PreviewShown

ApprovalState = Literal["open", "approved", "used", "denied", "expired", "void", "canceled"]
_BINDING = "That of the ticket you saw: a word about any other is refused."
MOST_AT_ONCE = 100


class ApprovalsQuery(Asked):
    state: ApprovalState | Literal["all"] = Field("open", description="Which ones; those that wait for a decision.")
    before: UUID | None = Field(None, description="Tickets older than this one.")
    limit: int = Field(50, ge=1, le=200, description="How many at most.")


class Approving(Asked):
    reason: str = Field("", max_length=2000, description="Kept with the decision, and shown with the ticket.")
    binding: str | None = Field(None, pattern="^[0-9a-f]{64}$", description=_BINDING)


class Denying(Asked):
    reason: str = Field(min_length=1, max_length=2000, description="Whoever made the call reads it, agents included.")
    binding: str | None = Field(None, pattern="^[0-9a-f]{64}$", description=_BINDING)


class BreakingGlass(Asked):
    reason: str = Field(min_length=1, max_length=2000, description="What cannot wait; it is on record.")
    binding: str | None = Field(None, pattern="^[0-9a-f]{64}$", description=_BINDING)


class DecidingMany(Asked):
    tickets: list[UUID] = Field(min_length=1, max_length=MOST_AT_ONCE, description="Which ones, each by its own id.")
    decision: Literal["approve", "deny"]
    reason: str = Field("", max_length=2000, description="The same for each; a no needs one.")
    vary: list[str] = Field(
        default_factory=list, max_length=50, description="The arguments that may differ; nothing else may."
    )


class RuleAsking(BaseModel):
    id: str
    where: str = Field(description="File and line, where it has them.")
    reason: str


class ApprovalTold(BaseModel):
    """What whoever made a call hears of the people who were asked about it."""

    ticket_id: UUID
    state: ApprovalState
    url: str | None = Field(description="Where a person sees and decides it.")
    groups: list[str] = Field(description="Who is asked now; nobody once it is decided.")
    rules: list[RuleAsking]
    escalates_at: str | None = Field(description="When more people are asked.")
    expires_at: str = Field(description="Not decided until then, it is denied.")
    reason: str | None = Field(None, description="Why somebody said no.")


class ToolOffered(BaseModel):
    name: str
    version: str


class ApprovalListed(BaseModel):
    ticket_id: UUID
    call_id: UUID
    state: ApprovalState
    tool: ToolOffered
    for_user: str
    agent: str | None
    level: int = Field(description="How often it was escalated.")
    opened_at: str
    expires_at: str
    url: str | None


class ApprovalPage(BaseModel):
    approvals: list[ApprovalListed]
    next_before: UUID | None = Field(description="Give this as `before` to go on; null at the end.")


class ToolInQuestion(ToolOffered):
    digest: Digest
    title: str | None
    description: str


class DemandStanding(BaseModel):
    """What one rule wants, and how much of it there is."""

    rule: str
    groups: list[str] = Field(description="Who is asked, one after the other.")
    quorum: int
    step_up: str = Field(description="How people must have signed in; empty where that does not matter.")
    have: int = Field(description="How many said yes so far.")


class Voice(BaseModel):
    by: str
    approve: bool
    reason: str
    at: str
    broke_glass: bool


class ApprovalShown(BaseModel):
    """Everything there is to decide about. Texts are as callers wrote them: escape them for where you show them."""

    ticket_id: UUID
    call_id: UUID
    state: ApprovalState
    call_state: State
    tool: ToolInQuestion
    effects: Effects
    undo: str | None = Field(description="The tool that takes it back; null where nothing does.")
    for_user: str
    agents: list[str] = Field(description="Who acts, the nearest first.")
    task: str | None
    session: str | None
    environment: str
    arguments: dict[str, Any] = Field(description="Without what is marked sensitive.")
    answers: dict[str, Any] | None = Field(None, description="What its server is answered with, where it asked back.")
    preview: PreviewShown
    rules: list[RuleAsking]
    demands: list[DemandStanding]
    level: int
    groups: list[str] = Field(description="Who may decide now.")
    opened_at: str
    escalates_at: str | None
    expires_at: str
    votes: list[Voice]
    binding: str = Field(description="Send it back with your decision: it is then about exactly this.")
    url: str | None
    may_decide: bool = Field(description="Whether you may.")
    why_not: str


class Decided(BaseModel):
    ticket_id: UUID
    call_id: UUID
    state: ApprovalState = Field(description="Still open where more people have to agree.")
    call_state: State


class DecidedAmong(BaseModel):
    """One of many: decided, or left as it was with the reason."""

    ticket_id: UUID
    arguments: dict[str, Any]
    state: ApprovalState
    call_id: UUID | None = None
    call_state: State | None = None
    refused: str | None = Field(None, description="The slug of the problem, where it was not decided.")
    why_not: str | None = None


class DecidedMany(BaseModel):
    decisions: list[DecidedAmong]
