"""Define the request and response models of human tasks."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from deputize.core.states import State
from deputize.interfaces.rest.calls.call_models import ToolNameModel
from deputize.interfaces.rest.models import RequestModel

HumanTaskKindName = Literal["reconcile", "fallback", "compensate", "undo"]
HumanTaskStateName = Literal["open", "resolved", "expired"]


class HumanTasksQuery(RequestModel):
    state: HumanTaskStateName | Literal["all"] = Field(
        "open", description="List tasks in this state; `open` ones wait to be resolved."
    )
    kind: HumanTaskKindName | None = Field(None, description="List only tasks of this kind.")
    before: UUID | None = Field(None, description="List tasks older than this one.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class HumanTaskBody(RequestModel):
    outcome: Literal["happened", "did_not_happen", "done", "dismissed"] = Field(
        description="Of a task of kind `reconcile`: whether the call took effect; one that did not may be made again "
        "with the same key. Of any other: whether you did what the task asks for."
    )
    reason: str = Field(
        min_length=1,
        max_length=2000,
        description="How you know, or what you did; stored, and shown to the caller of a call that it settles.",
    )


class HumanTaskCallModel(BaseModel):
    call_id: UUID
    state: State | None = Field(description="Null for a read, of which only the audit entry is stored.")
    tool: ToolNameModel | None
    user: str | None
    agent: str | None


class HumanTaskModel(BaseModel):
    task_id: UUID
    kind: HumanTaskKindName = Field(
        description="`reconcile`: say whether the call took effect. `fallback`: answer for a tool that was not "
        "available, and none of its alternatives. `compensate`: take back what a flow could not. `undo`: undo what an "
        "agent asks to be undone."
    )
    state: HumanTaskStateName
    call: HumanTaskCallModel
    question: dict[str, Any] = Field(
        description="What the person is to do, in `asked`, and `why`; then what is known of the call, redacted."
    )
    opened_at: str
    due_at: str | None
    resolved_at: str | None
    resolved_by: str | None = Field(
        description="The person who resolved it; null if the outcome of the call was established in another way."
    )
    resolution: str | None
    reason: str | None


class HumanTaskPage(BaseModel):
    tasks: list[HumanTaskModel]
    next_before: UUID | None = Field(description="Pass this as `before` for the next page; null on the last page.")
