"""Define the request and response models of policies and decisions."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from deputize.core.decision import Behavior, VerdictSource
from deputize.interfaces.rest.models import Digest, Moment, RequestModel, ToolRef

MAX_FILES = 1000


class PolicyFileModel(RequestModel):
    path: str = Field(
        min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$", description="The name of the file in messages."
    )
    text: str = Field(description="The rules, in Cedar.")


Files = Annotated[tuple[PolicyFileModel, ...], Field(max_length=MAX_FILES)]


class PoliciesBody(RequestModel):
    """A complete set of policies, which replaces the active one."""

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

    files: Files = Field(description="All files of the set; an empty list is the default set.")


class BacktestBody(RequestModel):
    """A draft, and the time since which past calls are replayed."""

    files: Files = Field(description="All files of the draft; an empty list is the default set.")
    since: Moment | None = Field(None, description="Replay calls since this time; by default, the last 30 days.")


class SimulatedCallerModel(RequestModel):
    user: str = Field(min_length=1, max_length=600)
    groups: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    agents: tuple[str, ...] = Field((), description="The agents that act, nearest first.")
    trust: Literal["untrusted", "standard", "trusted"] = "standard"
    task: str | None = Field(None, description="The task of the delegation.")


class SimulationBody(RequestModel):
    """A hypothetical call."""

    tool: str = Field(min_length=1, max_length=300)
    caller: SimulatedCallerModel
    arguments: dict[str, Any] = Field(description="The arguments, from which rules read facts.")
    environment: Literal["development", "staging", "production"] | None = Field(
        None, description="By default, that of the gateway."
    )
    time: Moment | None = Field(None, description="When it is made; by default, now.")


class RuleModel(BaseModel):
    id: str
    where: str = Field(description="File and line, as in `policies/default.cedar:8`.")
    reason: str = Field("", description="The reason that its author gives.")


class ApprovalTermsModel(BaseModel):
    groups: list[str] = Field(
        description="The groups of approvers, in order of escalation; empty: those of the settings."
    )
    quorum: int = Field(description="How many different people must approve.")
    deadline_seconds: int | None = Field(
        description="When the call is denied without a decision; `null`: as in the settings."
    )
    step_up: str = Field(description="What an approver's token must have in `amr` or `acr`; empty: nothing.")


class RuleRequirementModel(ApprovalTermsModel):
    rule: str


class PolicyRuleModel(RuleModel):
    effect: Literal["permit", "forbid"]
    requires_approval: bool = Field(description="Whether it requires approval instead of allowing or denying.")
    approval_terms: ApprovalTermsModel | None = Field(None, description="The approval it requires, if it does.")


class RuleUsageModel(BaseModel):
    id: str
    calls: int = Field(description="How many calls it decided, alone or with others.")


class PolicyUsageModel(BaseModel):
    since: datetime = Field(description="Since when calls are counted.")
    is_complete: bool = Field(description="False if the last day has more entries than are read: the newest count.")
    calls: int = Field(description="How many calls there were since then.")
    rules: list[RuleUsageModel] = Field(description="The active rules in their order, also those that decided none.")


class PolicyProposalModel(BaseModel):
    """A set that one operator proposed. It becomes active when another one puts exactly the same files."""

    digest: Digest
    proposed_by: str
    proposed_at: datetime
    expires_at: datetime
    files: list[PolicyFileModel] = Field(description="All files of the set; an empty list is the default set.")


class PoliciesModel(BaseModel):
    digest: Digest
    epoch: int = Field(description="The policy epoch since which they are active.")
    default: bool = Field(description="Whether this is the default set.")
    put_by: str | None
    put_at: datetime | None
    proposals: list[PolicyProposalModel] = Field(description="Sets that wait for a second operator, newest first.")
    files: list[PolicyFileModel]
    rules: list[PolicyRuleModel]


class PolicyIssueModel(BaseModel):
    file: str
    line: int
    message: str


class PolicyCheckResult(BaseModel):
    digest: Digest
    errors: list[PolicyIssueModel] = Field(
        description="What keeps them from becoming active, and rules about what does not exist."
    )
    warnings: list[PolicyIssueModel] = Field(description="What their author should know.")


class PolicyPutResult(BaseModel):
    digest: Digest
    epoch: int = Field(description="The policy epoch from which on they are active on every gateway.")
    is_changed: bool = Field(
        alias="changed", description="`false` if exactly these were active already, or are only proposed."
    )
    state: Literal["active", "proposed"] = Field(
        description="`proposed` if another operator must confirm them (`policy.approvals`)."
    )
    expires_at: datetime | None = Field(None, description="Until when a proposal can be confirmed.")
    warnings: list[PolicyIssueModel]


class MatchedRuleModel(RuleModel):
    """A rule that matched. Its effect and the values it read are for administrators."""

    effect: Literal["permit", "forbid"] | None = None
    requires_approval: bool | None = None
    read: dict[str, Any] | None = Field(None, description="Every attribute it reads, with its value.")


class CurrentDecisionModel(BaseModel):
    behavior: Behavior | None = Field(description="`null` if the decision record lacks what the rules would read.")
    rules: list[MatchedRuleModel]
    missing: list[str] = Field(description="Attributes that the rules would read and the record lacks.")
    allowed_if: list[str] = Field(description="Single changes that would allow it, smallest first.")


class SimulatedDecisionModel(BaseModel):
    """What the active policies would decide about a hypothetical call."""

    tool: dict[str, str]
    behavior: Behavior
    reason: str
    suggestion: str
    errors: list[str] = Field(description="Rules that could not be evaluated.")
    rules: list[MatchedRuleModel]
    demands: list[RuleRequirementModel] = Field(description="The approval that each rule requires.")
    allowed_if: list[str] = Field(description="Single changes that would allow it, smallest first.")


class DecisionModel(BaseModel):
    """Why a call was decided as it was. The fields after `is_active` are for administrators."""

    call_id: str
    tool: dict[str, str | None] | ToolRef
    decided_at: datetime
    state: str | None
    error_number: str | None
    decided_by: Literal["policy", "token"] = Field(
        description="`token` if the call was refused before the policies were evaluated."
    )
    rules: list[MatchedRuleModel]
    behavior: Behavior | None = None
    source: VerdictSource | None = None
    reason: str = ""
    suggestion: str = ""
    demands: list[RuleRequirementModel] | None = Field(None, description="The approval that each rule requires.")
    policy_digest: Digest | None = None
    is_active: bool | None = Field(None, description="Whether the policies that decided are still active.")
    principal: dict[str, Any] | None = None
    tool_then: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    redacted_paths: list[str] | None = Field(None, alias="redacted")
    errors: list[str] | None = None
    is_confirmed: bool | None = Field(
        None, alias="confirmed", description="Whether evaluating the record again gives the same decision."
    )
    now: CurrentDecisionModel | None = Field(
        None, description="What the active policies would decide on the same record."
    )
