"""Define the request and response models of reconciliation tasks."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from deputize.core.states import State
from deputize.interfaces.rest.calls.call_models import ToolNameModel
from deputize.interfaces.rest.models import RequestModel

ReconciliationTaskStateName = Literal["open", "resolved", "expired"]


class ReconciliationTasksQuery(RequestModel):
    state: ReconciliationTaskStateName | Literal["all"] = Field(
        "open", description="List tasks in this state; `open` ones wait to be resolved."
    )
    before: UUID | None = Field(None, description="List tasks older than this one.")
    limit: int = Field(50, ge=1, le=200, description="The maximum number to return.")


class ReconciliationTaskBody(RequestModel):
    outcome: Literal["happened", "did_not_happen"] = Field(
        description="Whether the call took effect. One that did not may be made again with the same key."
    )
    reason: str = Field(min_length=1, max_length=2000, description="How you know; stored, and shown to the caller.")


class ReconciliationTaskCallModel(BaseModel):
    call_id: UUID
    state: State
    tool: ToolNameModel
    user: str
    agent: str | None


class ReconciliationTaskModel(BaseModel):
    task_id: UUID
    kind: Literal["reconcile", "approval"]
    state: ReconciliationTaskStateName
    call: ReconciliationTaskCallModel
    question: dict[str, Any] = Field(description="What is known of the call, redacted.")
    opened_at: str
    due_at: str | None
    resolved_at: str | None
    resolved_by: str | None = Field(
        description="The person who resolved it; null if the outcome was established in another way."
    )
    resolution: str | None
    reason: str | None


class ReconciliationTaskPage(BaseModel):
    tasks: list[ReconciliationTaskModel]
    next_before: UUID | None = Field(description="Pass this as `before` for the next page; null on the last page.")
