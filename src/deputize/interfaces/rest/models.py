"""Define the request and response models that several routes share."""

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from deputize.core.contract.contract import Effects, LifecycleState, MutationClass, SecretName, TimeoutClass
from deputize.core.errors import ErrorCode
from deputize.core.states import State
from deputize.interfaces.call_request import MAX_TOOL_LENGTH, MAX_VERSION_LENGTH

Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
RevocationKind = Literal["token", "grant", "user", "agent", "subject"]
SwitchKind = Literal["tenant", "agent", "tool"]


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


class RequestModel(BaseModel):
    """A model of a request, which refuses unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ToolStateBody(RequestModel):
    state: LifecycleState = Field(description="`retired` is final.")


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


class SwitchBody(RequestModel):
    kind: SwitchKind = Field(description="What to switch: a tool; an agent, anywhere in a chain; or your whole tenant.")
    value: str = Field("", max_length=512, description="Its name; your own tenant needs none.")
    off: bool = Field(description="`true` turns it off.")
    reason: str = Field("", max_length=400, description="Shown to every caller that is refused because of it.")


class ToolsQuery(RequestModel):
    after: str = Field("", max_length=MAX_TOOL_LENGTH, description="List tools whose names come after this one.")
    limit: int = Field(100, ge=1, le=500, description="The maximum number to return.")


class SearchQuery(RequestModel):
    q: str = Field(min_length=1, max_length=400, description="What the tool should do, or its name.")
    limit: int = Field(10, ge=1, le=50, description="The maximum number to return.")


class VersionQuery(RequestModel):
    version: str = Field("latest", min_length=1, max_length=MAX_VERSION_LENGTH, description="Which version to show.")


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


class ToolDetailModel(ToolModel):
    contract: dict[str, Any]


class ToolPage(BaseModel):
    tools: list[ToolModel]
    next_after: str | None = Field(description="Pass this as `after` for the next page; null on the last page.")


class ToolVersions(BaseModel):
    versions: list[ToolModel]


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
    registration: Literal["created", "unchanged"] = Field(alias="registered")


class ToolStateResult(BaseModel):
    name: str
    version: str
    state: LifecycleState


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
    detail: str


class ReadinessModel(BaseModel):
    ready: Literal[True]
    checks: list[HealthCheckModel]
