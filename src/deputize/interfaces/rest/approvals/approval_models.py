"""Define the request and response models of approval requests and decisions.

Fields are named in the terms of the code; their aliases are the property names of the API.
"""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, StringConstraints

from deputize.core.contract.contract import Effects
from deputize.core.injection.attack_patterns import InjectionKind
from deputize.core.states import State
from deputize.interfaces.rest.calls.preview_models import PreviewModel
from deputize.interfaces.rest.models import Digest, RequestModel

ApprovalState = Literal["open", "approved", "used", "denied", "expired", "void", "canceled"]
Binding = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_BINDING_DESCRIPTION = "The binding of the request you saw: a decision about any other version is refused."
MAX_BATCH_SIZE = 100


class ApprovalsQuery(RequestModel):
    state: ApprovalState | Literal["all"] = Field(
        "open", description="List requests in this state; `open` ones wait for a decision."
    )
    before: UUID | None = Field(None, description="List requests older than this one.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class ApproveBody(RequestModel):
    reason: str = Field("", max_length=2000, description="Stored and shown with the decision.")
    binding: Binding = Field(description=_BINDING_DESCRIPTION)


class DenyBody(RequestModel):
    reason: str = Field(min_length=1, max_length=2000, description="The caller reads it, agents included.")
    binding: Binding | None = Field(None, description=_BINDING_DESCRIPTION)


class BreakGlassBody(RequestModel):
    reason: str = Field(min_length=1, max_length=2000, description="Why the call cannot wait; it is audited.")
    binding: Binding = Field(description=_BINDING_DESCRIPTION)


class DecisionBatchBody(RequestModel):
    approval_ids: list[UUID] = Field(
        min_length=1, max_length=MAX_BATCH_SIZE, description="The ids of the approval requests."
    )
    decision: Literal["approve", "deny"]
    reason: str = Field("", max_length=2000, description="The reason for each; required to deny.")
    vary: list[str] = Field(
        default_factory=list, max_length=50, description="The arguments in which the calls may differ."
    )
    bindings: dict[UUID, Binding] = Field(
        default_factory=dict,
        max_length=MAX_BATCH_SIZE,
        description="The binding of each request you saw, by its id; required to approve.",
    )


class ApprovalRuleModel(BaseModel):
    id: str
    where: str = Field(description="File and line, if it has them.")
    reason: str


class ApprovalSummaryModel(BaseModel):
    """The approval of a call, as its caller sees it."""

    approval_id: UUID
    state: ApprovalState
    url: str | None = Field(description="The page where an approver decides.")
    groups: list[str] = Field(description="The groups that may decide now; none once it is decided.")
    rules: list[ApprovalRuleModel]
    steps: int = Field(1, description="How many steps of an undo it is for, with the call itself.")
    escalates_at: str | None = Field(description="When it escalates to more groups.")
    expires_at: str = Field(description="When it is denied without a decision.")
    reason: str | None = Field(None, description="Why it was denied.")


class ToolVersionModel(BaseModel):
    name: str
    version: str


class ApprovalListItem(BaseModel):
    approval_id: UUID
    call_id: UUID
    state: ApprovalState
    tool: ToolVersionModel
    for_user: str
    agent: str | None
    level: int = Field(description="How often it was escalated.")
    opened_at: str
    expires_at: str
    url: str | None


class ApprovalPage(BaseModel):
    approvals: list[ApprovalListItem]
    next_before: UUID | None = Field(description="Pass this as `before` for the next page; null on the last page.")


class ApprovalToolModel(ToolVersionModel):
    digest: Digest
    title: str | None
    description: str


class ApprovalRequirementModel(BaseModel):
    """The approval that one rule requires, and how many approvals there are."""

    rule: str
    groups: list[str] = Field(description="The groups of approvers, in order of escalation.")
    quorum: int
    step_up: str = Field(description="The sign-in method that approvers need; empty if any will do.")
    have: int = Field(description="How many approvals there are so far.")


class ApprovalVoteModel(BaseModel):
    by: str
    approve: bool
    reason: str
    at: str
    broke_glass: bool


class SuspicionModel(BaseModel):
    """An argument that looks like an injection attempt. Nothing was changed or refused for it."""

    number: str
    kind: InjectionKind
    path: str = Field(description="JSON pointer into the arguments.")
    text: str


class ApprovedStepModel(BaseModel):
    """A step of an undo, as it was decided when the approval was requested."""

    entry_id: str
    undone_call_id: str
    undone_tool: str = Field(description="The tool of the call that is taken back.")
    tool: str = Field(description="The tool that takes it back.")
    decision: Literal["ask", "allow", "approved", "alone", "refused"] = Field(
        description="`ask`: this approval is for it. `allow`: it needs none. `approved`: an earlier one is for it. "
        "`alone`: it asks on its own, because it outlives its request. `refused`: it would be refused."
    )
    detail: str | None = Field(description="Why it would be refused.")
    version: str | None = None
    effects: Effects | None = None
    arguments: dict[str, Any] | None = Field(description="What it sends, without sensitive values.")
    origins: dict[str, str] = Field(description="Where each value is from, as in the plan of the undo.")
    source_agents: list[str] = Field(description="The agents whose words the values may be.")
    rules: list[ApprovalRuleModel] = Field(description="Why it needs approval.")
    suspicions: list[SuspicionModel] | None = None
    preview: PreviewModel | None = Field(
        description="Null if it needs no approval, or changes what a step before it changes too."
    )


class ApprovalModel(BaseModel):
    """Everything that an approver decides about. Texts are as callers wrote them: escape them where you show them."""

    approval_id: UUID
    call_id: UUID
    state: ApprovalState
    call_state: State
    call_error: str | None = Field(description="Why the call ended without a result; `revoked` if it was withdrawn.")
    tool: ApprovalToolModel
    effects: Effects
    undo: str | None = Field(description="The tool that undoes it; null if there is none.")
    for_user: str
    agents: list[str] = Field(description="The agents that act, nearest first.")
    task: str | None
    session: str | None
    environment: str
    arguments: dict[str, Any] = Field(
        description="The arguments, without sensitive values; for several steps of an undo, those of each of them."
    )
    input_responses: dict[str, Any] | None = Field(
        None, description="The responses to the input requests of its server."
    )
    suspicions: list[SuspicionModel] | None = Field(None, description="What looks like an injection attempt.")
    preview: PreviewModel
    undo_steps: list[ApprovedStepModel] | None = Field(
        None, description="The steps of an undo, itself first, where the approval is for several."
    )
    rules: list[ApprovalRuleModel]
    demands: list[ApprovalRequirementModel]
    level: int
    groups: list[str] = Field(description="The groups that may decide now.")
    opened_at: str
    escalates_at: str | None
    expires_at: str
    votes: list[ApprovalVoteModel]
    binding: str = Field(
        description="Send it with your decision, which is about exactly this version; required to approve."
    )
    url: str | None
    may_decide: bool = Field(description="Whether you may decide.")
    why_not: str


class ApprovalDecisionResult(BaseModel):
    approval_id: UUID
    call_id: UUID
    state: ApprovalState = Field(description="Still `open` if more approvals are needed.")
    call_state: State


class DecisionBatchItem(BaseModel):
    """One request of a batch: decided, or unchanged with the reason."""

    approval_id: UUID
    arguments: dict[str, Any]
    state: ApprovalState
    call_id: UUID | None = None
    call_state: State | None = None
    refusal_slug: str | None = Field(None, description="The slug of the problem, if it was not decided.")
    why_not: str | None = None


class DecisionBatchResult(BaseModel):
    decisions: list[DecisionBatchItem]
