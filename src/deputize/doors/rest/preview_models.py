"""The shapes of previews in the API document: what a call would change, and what it would meet before that."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class ChangeShown(BaseModel):
    """What would be changed. `before`, `after` and `count` stand there where they are known."""

    resource: str
    op: Literal["create", "update", "delete"]
    scope: str
    before: Any = None
    after: Any = None
    count: int | None = None


class PreconditionShown(BaseModel):
    name: str
    holds: bool
    detail: str


class PreviewShown(BaseModel):
    """What a call would do, by its tool's own preview or, as far as that goes, by its contract."""

    by: Literal["tool", "contract"]
    changes: list[ChangeShown]
    resources: list[str]
    preconditions: list[PreconditionShown]
    impact: dict[str, Any]
    unknown: list[str] = Field(description="What nobody can say beforehand.")
    problem: str | None = Field(description="Why the tool's own preview could not be had.")
    redactions: list[str] = Field(description="Where something was left out, as JSON pointers.")
    previewed_at: str
    fresh_seconds: int | None = Field(description="How long it is believed; null where it cannot change.")


class DemandShown(BaseModel):
    """What one rule wants before the call is made."""

    rule: str
    where: str
    reason: str
    groups: list[str] = Field(description="Who is asked, one after the other.")
    quorum: int
    deadline_seconds: int | None
    step_up: str


class Would(BaseModel):
    """What the call itself would meet next."""

    behavior: Literal["run", "ask", "refuse"]
    because: list[str] = Field(description="The preconditions that do not hold.")
    asks: list[DemandShown]
