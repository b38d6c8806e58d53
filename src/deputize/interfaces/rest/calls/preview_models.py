"""Define the response models of previews: what a call would change, and what would be decided about it."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class PreviewChangeModel(BaseModel):
    """One predicted change. `before`, `after` and `count` are present if they are known."""

    resource: str
    op: Literal["create", "update", "delete"]
    scope: str
    before: Any = None
    after: Any = None
    count: int | None = None


class PreconditionModel(BaseModel):
    name: str
    holds: bool
    detail: str


class PreviewModel(BaseModel):
    """What a call would do, by its tool's preview, or by its contract if the tool has none."""

    by: Literal["tool", "contract"]
    changes: list[PreviewChangeModel]
    resources: list[str]
    preconditions: list[PreconditionModel]
    impact: dict[str, Any]
    unknown: list[str] = Field(description="What the preview cannot predict.")
    problem: str | None = Field(description="Why the tool's preview failed.")
    redactions: list[str] = Field(description="JSON pointers to redacted values.")
    previewed_at: str
    fresh_seconds: int | None = Field(description="How long the preview is valid; null if it cannot change.")


class PreviewRequirementModel(BaseModel):
    """The approval that one rule requires before the call."""

    rule: str
    where: str
    reason: str
    groups: list[str] = Field(description="The groups of approvers, in order of escalation.")
    quorum: int
    deadline_seconds: int | None
    step_up: str


class DryRunVerdictModel(BaseModel):
    """What would be decided about the call."""

    behavior: Literal["run", "ask", "refuse"]
    because: list[str] = Field(description="The preconditions that do not hold.")
    approvals: list[PreviewRequirementModel]
