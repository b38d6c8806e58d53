"""Define the request and response models that several routes share."""

import re
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from deputize.core.contract.contract import Effects, LifecycleState, MutationClass, SecretName, TimeoutClass
from deputize.core.contract.export_format import ExportFormat
from deputize.core.errors import ErrorCode
from deputize.core.moments import normalize_moment
from deputize.core.states import State
from deputize.interfaces.call_request import MAX_TOOL_LENGTH, MAX_VERSION_LENGTH

Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
RevocationKind = Literal["token", "grant", "user", "agent", "subject"]
SwitchKind = Literal["tenant", "agent", "tool"]
NegotiationMatch = Literal["FULL", "PARTIAL", "INCOMPATIBLE"]


def _make_message_validator(sentence: str) -> WrapValidator:
    """Make a validator that refuses a value with a sentence instead of a pattern."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError("in_words", sentence) from None

    return WrapValidator(check)


_NAME_VALIDATOR = _make_message_validator(
    "must be lower case letters, digits, - and _, with / between its parts, as in crm/api-key"
)
_VALUE_VALIDATOR = _make_message_validator("must have 8 to 65536 characters")
TraceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
_DATE_PREFIX = re.compile(r"\d{4}-\d{2}-\d{2}")


def _require_date_text(value: object) -> object:
    if value is not None and not (isinstance(value, str) and _DATE_PREFIX.match(value)):
        raise ValueError("must be a time as text, as in 2026-11-01T00:00:00Z")
    return value


# Every time in a request. The document says a text with a date, so numbers, which pydantic would read as seconds since
# 1970, are refused, also as the text of a query parameter.
Moment = Annotated[AwareDatetime, BeforeValidator(_require_date_text), AfterValidator(normalize_moment)]


class RequestModel(BaseModel):
    """A model of a request, which refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolStateBody(RequestModel):
    state: LifecycleState = Field(description="`retired` is final.")
    force: bool = Field(
        False, description="Retire a deprecated version although it was used in the last 24 hours. Needs an operator."
    )


class DeprecationBody(RequestModel):
    """The announcement of a version's end. What is left out is taken from the contract, or is the default."""

    removal_date: Moment | None = Field(
        None, description="When calls are refused. Default: the contract's `sunset_date`, or in 90 days."
    )
    successor: str | None = Field(
        None,
        min_length=3,
        max_length=MAX_TOOL_LENGTH,
        description="A tool, or a version of one as in `crm.find@2.0.0`. Default: the highest version above this one.",
    )
    migration_guide: str | None = Field(
        None, max_length=400, pattern=r"^https?://[\x21-\x3b\x3d\x3f-\x7e]+$", description="The URL of a guide."
    )


class ContractTestCaseBody(RequestModel):
    verdict: Literal["passed", "failed", "unchecked"]
    call_ids: tuple[UUID, ...] = Field((), max_length=200, description="The calls of this case.")


class ContractTestReportBody(RequestModel):
    digest: str = Field(pattern=r"^sha256:[0-9a-f]{64}$", description="Digest of the tested contract.")
    seed: int = Field(0, ge=0, le=2**53 - 1, description="Seed of the random cases.")
    cases: tuple[ContractTestCaseBody, ...] = Field(min_length=1, max_length=2_000)


class ContractTestBody(RequestModel):
    report: ContractTestReportBody | None = Field(
        None, description="What was found by calls at this gateway, made with the token of this request."
    )
    attestation: str | None = Field(
        None, min_length=1, max_length=4_096, description="A result that a trusted gateway signed."
    )


class RevocationBody(RequestModel):
    kind: RevocationKind = Field(
        description="What to revoke: a token; a delegation with all made from it; a user; an agent in any chain, and "
        "the tokens it got for itself; or a subject, whether user or agent."
    )
    value: str = Field(
        min_length=1, max_length=1024, description="The token's `jti`, the delegation's id, or the name of the subject."
    )
    issuer: str | None = Field(
        None,
        min_length=1,
        max_length=255,
        description="Revoke the user or subject of this issuer only. Without it, the name is revoked in every issuer.",
    )
    reason: str = Field("", max_length=400, description="Stored with the revocation.")


class SecretBody(RequestModel):
    name: Annotated[SecretName, _NAME_VALIDATOR] = Field(
        description="The name that contracts use, as in `crm/api-key`."
    )
    value: Annotated[SecretStr, Field(min_length=8, max_length=65_536), _VALUE_VALIDATOR] = Field(
        description="Encrypted on arrival and never returned."
    )


class SecretNameQuery(RequestModel):
    name: Annotated[SecretName, _NAME_VALIDATOR] = Field(description="The secret's name, as in `crm/api-key`.")


class ErasureBody(RequestModel):
    user: str = Field(min_length=1, max_length=1024, description="The user's subject, as calls and grants show it.")
    issuer: str | None = Field(
        None, min_length=1, max_length=255, description="The issuer of the user, if it is not the tenant's primary one."
    )


class HoldBody(RequestModel):
    reason: str = Field(min_length=1, max_length=400, description="Why it is held.")
    user: str | None = Field(
        None, min_length=1, max_length=1024, description="Hold the data of this user, as calls and grants show them."
    )
    issuer: str | None = Field(
        None, min_length=1, max_length=255, description="The issuer of the user, if it is not the tenant's primary one."
    )
    call_id: UUID | None = Field(None, description="Hold the data of this call.")
    from_: Moment | None = Field(None, alias="from", description="Hold what happened from this time on.")
    to: Moment | None = Field(None, description="The end of that period. Without it, the period has no end.")


class SwitchBody(RequestModel):
    kind: SwitchKind = Field(description="What to switch: a tool; an agent, anywhere in a chain; or your whole tenant.")
    value: str = Field("", max_length=512, description="Its name; your own tenant needs none.")
    off: bool = Field(description="`true` turns it off.")
    reason: str = Field("", max_length=400, description="Shown to every caller that is refused because of it.")
    unknown: bool = Field(False, description="Switch off an agent that has never acted here, too.")


class ToolsQuery(RequestModel):
    after: str = Field("", max_length=MAX_TOOL_LENGTH, description="List tools whose names come after this one.")
    limit: int = Field(100, ge=1, le=500, description="The maximum number to return.")


class SearchQuery(RequestModel):
    q: str = Field(min_length=1, max_length=400, description="What the tool should do, or its name.")
    limit: int = Field(10, ge=1, le=50, description="The maximum number to return.")


class VersionQuery(RequestModel):
    version: str = Field("latest", min_length=1, max_length=MAX_VERSION_LENGTH, description="Which version to show.")


class ExportQuery(VersionQuery):
    format: ExportFormat = Field(description="The tool standard, a model API, or plain JSON Schema.")


class ErrorModel(BaseModel):
    """The error, for programs to branch on."""

    model_config = ConfigDict(serialize_by_alias=True)

    code: ErrorCode
    number: str = Field(pattern="^E3[0-9]{3}$")
    error_class: str = Field(alias="class")
    slug: str
    retryable: bool
    retry_after_ms: int | None
    message: str
    advice: str = Field(description="What to do next.")
    details: dict[str, Any]
    trace_id: TraceId


class ProblemModel(BaseModel):
    """An RFC 9457 problem. That of a failed call has the rest of its envelope too."""

    type: str = Field(pattern="^urn:deputize:problem:[a-z-]+$")
    title: str
    status: int
    detail: str
    error: ErrorModel
    instance: str = Field("", description="The URL of the call.")
    call_id: UUID | None = None
    state: State | None = None
    is_error: Literal[True] = True


class ToolRef(BaseModel):
    name: str
    version: str
    digest: Digest


class DeprecationModel(BaseModel):
    """The notice of a deprecated version."""

    deprecated_at: str | None
    removal_date: str | None = Field(description="Calls are refused from this time on; null if no end is set.")
    successor: str | None = Field(description="The tool to use instead, or a version of it, as in `crm.find@2.0.0`.")
    migration_guide: str | None


class ToolModel(BaseModel):
    name: str
    outward_name: str
    version: str
    digest: Digest
    state: LifecycleState
    title: str
    description: str
    effects: Effects
    mutation_class: MutationClass
    timeout_class: TimeoutClass
    scopes: list[str]
    input_schema: dict[str, Any]
    examples: list[dict[str, Any]]
    deprecation: DeprecationModel | None


class ToolDetailModel(ToolModel):
    contract: dict[str, Any]
    credential_lifetime: Literal["call", "program"] | None = Field(
        description="How long the tool's credential is held: for a call, or in the environment of its server's program "
        "for as long as that runs; null if it has none."
    )


class ToolPage(BaseModel):
    tools: list[ToolModel]
    next_after: str | None = Field(description="Pass this as `after` for the next page; null on the last page.")


class ToolVersions(BaseModel):
    versions: list[ToolModel]


class ToolExportModel(BaseModel):
    """A tool for another system. `warnings` say where the definition is looser or shorter than the contract."""

    name: str
    version: str
    digest: Digest
    format: ExportFormat
    definition: dict[str, Any]
    warnings: list[str]


class MissingPartModel(BaseModel):
    path: str = Field(description="Where you expect it: a JSON pointer that begins with /input, /output or /effects.")
    is_required: bool = Field(alias="required", description="`false` if you can do without it.")
    reason: str


class VersionMatchModel(BaseModel):
    version: str
    match: NegotiationMatch


class NegotiationResult(BaseModel):
    tool: str
    match: NegotiationMatch = Field(
        description="`FULL`: all is offered. `PARTIAL`: only optional parts are missing. `INCOMPATIBLE`: required ones."
    )
    version: str | None = Field(description="The best version for you; call it by this number. Null if there is none.")
    digest: Digest | None
    state: LifecycleState | None
    deprecation: DeprecationModel | None
    missing: list[MissingPartModel]
    versions: list[VersionMatchModel] = Field(description="The versions that were compared, the best first.")


class SearchMatchModel(BaseModel):
    name: str
    version: str


class SearchResultModel(BaseModel):
    matches: list[SearchMatchModel]
    reason: str = Field("", description="`no_match` when nothing was found.")


class ToolRegistrationResult(BaseModel):
    name: str
    version: str
    digest: Digest
    registration: Literal["created", "unchanged"]
    warnings: list[str] = Field(description="What the measurements of an earlier version say against the timeout.")


class ToolStateResult(BaseModel):
    name: str
    version: str
    state: LifecycleState


class DeprecationResult(BaseModel):
    name: str
    version: str
    state: LifecycleState
    deprecation: DeprecationModel | None


class VersionCallerModel(BaseModel):
    user: str
    agents: list[str] = Field(description="The agents that act for the user, nearest first.")
    calls: int
    last_used_at: str


class VersionUsageModel(BaseModel):
    """Who called a deprecated version in the last seven days. Calls are counted by days, in UTC."""

    name: str
    version: str
    state: LifecycleState
    deprecation: DeprecationModel | None
    since: str
    calls: int
    callers: list[VersionCallerModel]
    last_used_at: str | None
    retirable_at: str = Field(description="When the version can be retired without force.")


class SecretModel(BaseModel):
    name: str
    updated_at: str
    updated_by: str


class SecretList(BaseModel):
    secrets: list[SecretModel]


class SecretPutResult(BaseModel):
    name: str
    put: Literal["created", "replaced"]


class SecretDeletionResult(BaseModel):
    name: str
    is_deleted: Literal[True] = Field(alias="deleted")


class SwitchResult(BaseModel):
    kind: SwitchKind
    value: str
    off: bool
    epoch: int = Field(description="The revocation epoch from which on it applies on every gateway.")


class SwitchModel(BaseModel):
    kind: SwitchKind
    value: str
    reason: str
    by: str
    since: str
    epoch: int


class SwitchList(BaseModel):
    switches: list[SwitchModel]


class LivenessModel(BaseModel):
    status: Literal["ok"]


class HealthCheckModel(BaseModel):
    name: str
    ok: bool
    optional: bool = Field(description="Whether the gateway is ready even while this check fails.")
    detail: str


class ReadinessModel(BaseModel):
    ready: Literal[True]
    checks: list[HealthCheckModel]
