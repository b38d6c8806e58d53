"""The shapes of the routes about tickets."""

from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from deputize.core.events import State
from deputize.doors.rest.call_models import ToolNamed
from deputize.doors.rest.models import Asked

TicketState = Literal["open", "resolved", "expired"]


class TicketsQuery(Asked):
    state: TicketState | Literal["all"] = Field("open", description="Which ones; those that wait for an answer.")
    before: UUID | None = Field(None, description="Tickets older than this one.")
    limit: int = Field(50, ge=1, le=200, description="How many at most.")


class TicketAnswer(Asked):
    outcome: Literal["happened", "did_not_happen"] = Field(
        description="What became of the call. What did not happen may be asked for again under the same key."
    )
    reason: str = Field(min_length=1, max_length=2000, description="How you know; kept, and told to who made the call.")


class TicketCall(BaseModel):
    call_id: UUID
    state: State
    tool: ToolNamed
    user: str
    agent: str | None


class TicketShown(BaseModel):
    ticket_id: UUID
    kind: Literal["reconcile", "approval"]
    state: TicketState
    call: TicketCall
    question: dict[str, Any] = Field(description="What whoever decides has to know, redacted.")
    opened_at: str
    due_at: str | None
    resolved_at: str | None
    resolved_by: str | None = Field(description="Who answered; null where it was found out in another way.")
    resolution: str | None
    reason: str | None


class TicketPage(BaseModel):
    tickets: list[TicketShown]
    next_before: UUID | None = Field(description="Give this as `before` to go on; null at the end.")
