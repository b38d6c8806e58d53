"""Define the request and response models of the audit."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from deputize.core.call import MAX_SESSION_LENGTH
from deputize.core.entry_kinds import DecisionName, EntryKind
from deputize.core.states import ToolEvent
from deputize.interfaces.call_request import MAX_TOOL_LENGTH
from deputize.interfaces.rest.models import Moment, RequestModel
from deputize.operations.gateway import AuditFormat, AuditQuery, EntryFilter

MAX_PAGE = 200
MAX_CHECKPOINTS = 1000
_MAX_NAME_LENGTH = 600
OutcomeName = Annotated[str, Field(pattern="^[a-z_]{1,40}$")]


class AuditFilterQuery(RequestModel):
    """What entries must have; all of it, and each as it is, without patterns."""

    since: Moment | None = Field(None, alias="from", description="Entries since this time.")
    until: Moment | None = Field(None, alias="to", description="Entries before this time.")
    caller: str | None = Field(
        None, min_length=1, max_length=_MAX_NAME_LENGTH, description="The user: a name, or a pseudonym."
    )
    agent: str | None = Field(
        None, min_length=1, max_length=_MAX_NAME_LENGTH, description="An agent of the chain: a name, or a pseudonym."
    )
    tool: str | None = Field(None, min_length=1, max_length=MAX_TOOL_LENGTH, description="The tool's full name.")
    decision: DecisionName | None = Field(None, description="What was decided about the call.")
    rule: str | None = Field(None, min_length=1, max_length=200, description="A rule that decided.")
    outcome: OutcomeName | None = Field(None, description="The state after the entry, such as `failed`.")
    resource: str | None = Field(None, min_length=1, max_length=200, description="A resource the tool declares.")
    session: str | None = Field(None, min_length=1, max_length=MAX_SESSION_LENGTH, description="The caller's session.")
    trace: str | None = Field(None, pattern="^[0-9a-f]{32}$", description="The W3C trace id.")
    kind: EntryKind | None = Field(None, description="The kind of the entry.")
    calls: bool = Field(False, description="Only entries of calls: no administrative acts and no approvers' decisions.")

    def to_audit_query(self) -> AuditQuery:
        """Translate the parameters into a query of the gateway."""
        return AuditQuery(
            caller=self.caller,
            agent=self.agent,
            filter=EntryFilter(
                tool=self.tool,
                decision=self.decision,
                rule=self.rule,
                outcome=self.outcome,
                resource=self.resource,
                session=self.session,
                trace=self.trace,
                kind=self.kind,
                of_calls=self.calls,
            ),
            since=self.since,
            until=self.until,
        )


class AuditSearchQuery(AuditFilterQuery):
    before: UUID | None = Field(None, description="List entries older than this one: the `next_before` of a page.")
    limit: int = Field(50, ge=1, le=MAX_PAGE, description="The maximum number to return.")


class AuditExportQuery(AuditFilterQuery):
    format: AuditFormat = Field("jsonl", description="JSON lines, or CSV with a header.")


class FoundEntryModel(BaseModel):
    id: UUID
    time: str
    user: str | None = Field(description="The user's name; null if they were erased, or the entry names none.")
    agents: list[str | None] = Field(description="The agents that acted, nearest first.")
    decision: DecisionName | None
    entry: dict[str, Any] = Field(description="The entry as it is stored; the reference describes its keys.")


class AuditPage(BaseModel):
    entries: list[FoundEntryModel] = Field(description="Newest first.")
    next_before: UUID | None = Field(description="Ask for the next page with it; null on the last page.")
    is_complete: bool = Field(description="False if the time was over before the page was full.")
    detail: str | None = Field(description="How far a search that is not complete came, and how to ask for less.")


class LogKeyModel(BaseModel):
    verifier_key: str = Field(description="`NAME+ID+KEY`, as a signed note's verifier key is written.")
    state: Literal["signs", "verifies"] = Field(description="`verifies` if it only verifies old checkpoints.")
    signs_since: str
    signs_until: str | None = Field(description="When a key that was replaced stops signing.")


class LogKeyList(BaseModel):
    keys: list[LogKeyModel] = Field(description="Newest first.")


class LogCheckpointQuery(RequestModel):
    after: int = Field(0, ge=0, le=2**62, description="List checkpoints of more entries than these.")
    limit: int = Field(MAX_CHECKPOINTS, ge=1, le=MAX_CHECKPOINTS, description="The maximum number to return.")


class LogCheckpointModel(BaseModel):
    size: int = Field(description="How many entries it covers.")
    note: str = Field(description="The signed note.")
    signed_at: str = Field(description="When it was signed, as the gateway says: the signature does not cover it.")


class LogCheckpointList(BaseModel):
    checkpoints: list[LogCheckpointModel] = Field(description="By size; none if there is no larger one.")


class UnloggedEntryQuery(RequestModel):
    after: UUID = Field(UUID(int=0), description="The last entry that was compared: the `next_after` of a page.")


class UnloggedEntryList(BaseModel):
    entry_ids: list[UUID] = Field(description="Entries that are neither in the log nor queued for it.")
    next_after: UUID | None = Field(description="Ask for the next page with it; null on the last page.")
    has_backlog: bool = Field(description="True while entries from before the log are queued: none can be named then.")


class EntryReceiptModel(BaseModel):
    entry_id: UUID
    receipt: str = Field(description="The receipt: a tlog-proof whose extra line carries the entry.")
    verifier_keys: list[str] = Field(
        description="The log's keys, newest first. Get the key you trust from the operator."
    )


class ShownEntryModel(FoundEntryModel):
    events: list[ToolEvent] = Field(description="The events of the tool standard that it records.")
