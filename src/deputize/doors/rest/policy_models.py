"""The shapes of the routes about policies."""

import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from deputize.core.decision import Behavior, Source
from deputize.doors.rest.models import Asked, Digest, ToolRef

MOST_FILES = 1000

_DATED = re.compile(r"\d{4}-\d{2}-\d{2}")


def _text(value: object) -> object:
    if value is not None and not (isinstance(value, str) and _DATED.match(value)):
        raise ValueError("write the moment as text, as in 2026-11-01T00:00:00Z")
    return value


# The document says text with a date, so numbers, which would be read as seconds since 1970, are refused, and so is what
# an address can only say as text.
Moment = Annotated[datetime, BeforeValidator(_text)]


class PolicyFileSent(Asked):
    path: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$", description="How answers name the file."
    )
    text: str = Field(description="The rules, in Cedar.")


Files = Annotated[tuple[PolicyFileSent, ...], Field(max_length=MOST_FILES)]


class PoliciesAsked(Asked):
    """A whole set of policies; it takes the place of the one before."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [
                {
                    "files": [
                        {
                            "path": "policies/reads.cedar",
                            "text": '@id("reads")\npermit (principal, action, resource)\n'
                            'when { resource.effects == "read" };\n',
                        }
                    ]
                }
            ]
        },
    )

    files: Files = Field(description="Every file of the set; an empty list stands for the default set.")


class BacktestAsked(Asked):
    """A draft, and how far to look back with it."""

    files: Files = Field(description="Every file of the draft; an empty list stands for the default set.")
    since: Moment | None = Field(None, description="Calls made since then; unset, those of the last 30 days.")


class RuleShown(BaseModel):
    id: str
    where: str = Field(description="File and line, as in `policies/default.cedar:8`.")
    reason: str = Field("", description="What its author says about it.")


class WantsShown(BaseModel):
    groups: list[str] = Field(description="Who is asked, in this order; empty: the groups of the settings.")
    quorum: int = Field(description="How many different people must agree.")
    deadline_seconds: int | None = Field(description="When silence becomes a no; `null`: as the settings say.")
    step_up: str = Field(description="What an approver's token must have in `amr` or `acr`; empty: nothing.")


class WantsOfRule(WantsShown):
    rule: str


class PolicyRuleShown(RuleShown):
    effect: Literal["permit", "forbid"]
    asks: bool = Field(description="Whether it asks a human instead of allowing or denying.")
    wants: WantsShown | None = Field(None, description="Whom it asks, if it asks.")


class PoliciesShown(BaseModel):
    digest: Digest
    epoch: int = Field(description="The policy epoch since which they hold.")
    default: bool = Field(description="Whether this is the default set.")
    put_by: str | None
    put_at: datetime | None
    files: list[PolicyFileSent]
    rules: list[PolicyRuleShown]


class MistakeShown(BaseModel):
    file: str
    line: int
    message: str


class PoliciesChecked(BaseModel):
    digest: Digest
    errors: list[MistakeShown] = Field(description="What keeps them from taking force.")
    warnings: list[MistakeShown] = Field(description="What their author should know.")


class PoliciesPutShown(BaseModel):
    digest: Digest
    epoch: int = Field(description="From this policy epoch on they decide, on every gateway.")
    changed: bool = Field(description="`false` if exactly these were in force already.")
    warnings: list[MistakeShown]


class RuleThatSpoke(RuleShown):
    """For administrators also what it is and what it read."""

    effect: Literal["permit", "forbid"] | None = None
    asks: bool | None = None
    read: dict[str, Any] | None = Field(None, description="Every attribute it reads, with the value it was told.")


class AnswerNow(BaseModel):
    behavior: Behavior | None = Field(description="`null` where the record does not hold what the rules would read.")
    rules: list[RuleThatSpoke]
    lacks: list[str] = Field(description="What the rules would read and the record does not hold.")
    allowed_if: list[str] = Field(description="Single changes that would allow it, smallest first.")


class DecisionShown(BaseModel):
    """Why a call was answered as it was. What stands after `in_force` is for administrators."""

    call_id: str
    tool: dict[str, str | None] | ToolRef
    decided_at: datetime
    state: str | None
    error_number: str | None
    decided_by: Literal["policy", "token"] = Field(description="`token` if it ended before the policies were asked.")
    rules: list[RuleThatSpoke]
    behavior: Behavior | None = None
    source: Source | None = None
    reason: str = ""
    suggestion: str = ""
    demands: list[WantsOfRule] | None = Field(None, description="Whom each rule that asked wants.")
    policy_digest: Digest | None = None
    in_force: bool | None = Field(None, description="Whether the policies it was answered by still hold.")
    principal: dict[str, Any] | None = None
    tool_then: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    redacted: list[str] | None = None
    errors: list[str] | None = None
    confirmed: bool | None = Field(None, description="Whether the record, asked again, gives the same answer.")
    now: AnswerNow | None = Field(None, description="What the policies in force would say to the same question.")
