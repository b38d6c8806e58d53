"""The shapes of the API document: what goes in is checked against these, what comes out is described by them."""

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

from deputize.core.contract import Effects, LifecycleState, MutationClass, SecretName, TimeoutClass
from deputize.core.errors import Code
from deputize.core.events import State
from deputize.doors.asking import MAX_TOOL_LENGTH, MAX_VERSION_LENGTH

Digest = Annotated[str, Field(pattern="^sha256:[0-9a-f]{64}$")]
RevocationKind = Literal["token", "grant", "user", "agent", "subject"]
SwitchKind = Literal["tenant", "agent", "tool"]


def _in_words(sentence: str) -> WrapValidator:
    """What people type by hand is refused in a sentence, not with a pattern."""

    def check(value: object, inner: ValidatorFunctionWrapHandler) -> object:
        try:
            return inner(value)
        except ValidationError:
            raise PydanticCustomError("in_words", sentence) from None

    return WrapValidator(check)


_NAMED = _in_words("is spelt in small letters, digits, - and _, with / between its parts, as in crm/api-key")
_KEPT = _in_words("must have 8 characters or more, and 65536 at most")
TraceId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class Asked(BaseModel):
    """Something a client sends; a field that nobody knows is a mistake worth hearing of."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class StateAsked(Asked):
    state: LifecycleState = Field(description="`retired` is for good.")


class RevocationAsked(Asked):
    kind: RevocationKind = Field(
        description="A token; a delegation with all that was made from it; all of a user; all an agent takes part in; "
        "or all of a subject, be it user or agent."
    )
    value: str = Field(
        min_length=1, max_length=512, description="The token's `jti`, the delegation's id, or the name of the subject."
    )
    reason: str = Field("", max_length=400, description="Kept with the revocation.")


class SecretAsked(Asked):
    name: Annotated[SecretName, _NAMED] = Field(description="What contracts name it by, as in `crm/api-key`.")
    value: Annotated[SecretStr, Field(min_length=8, max_length=65_536), _KEPT] = Field(
        description="Sealed on arrival and never shown again."
    )


class SecretNamed(Asked):
    name: Annotated[SecretName, _NAMED] = Field(description="The secret's name, as in `crm/api-key`.")


class SwitchAsked(Asked):
    kind: SwitchKind = Field(description="A tool; an agent, wherever it stands in a chain; or your whole tenant.")
    value: str = Field("", max_length=512, description="Its name; your own tenant needs none.")
    off: bool = Field(description="Whether it is to be off.")
    reason: str = Field("", max_length=400, description="Told to everybody who is refused because of it.")


class ToolsQuery(Asked):
    after: str = Field("", max_length=MAX_TOOL_LENGTH, description="Tools whose names come after this one.")
    limit: int = Field(100, ge=1, le=500, description="How many at most.")


class SearchQuery(Asked):
    q: str = Field(min_length=1, max_length=400, description="What the tool should do, or its name.")
    limit: int = Field(10, ge=1, le=50, description="How many at most.")


class VersionQuery(Asked):
    version: str = Field("latest", min_length=1, max_length=MAX_VERSION_LENGTH, description="Which version to show.")


class ErrorFace(BaseModel):
    """What an agent branches on."""

    model_config = ConfigDict(serialize_by_alias=True)

    code: Code
    number: str = Field(pattern="^E3[0-9]{3}$")
    error_class: str = Field(alias="class")
    slug: str
    retryable: bool
    retry_after_ms: int | None
    message: str
    advice: str = Field(description="What to do next.")
    details: dict[str, Any]
    trace_id: TraceId


class ProblemShown(BaseModel):
    """An RFC 9457 problem; a failed call's carries the rest of its envelope too."""

    type: str = Field(pattern="^urn:deputize:problem:[a-z-]+$")
    title: str
    status: int
    detail: str
    error: ErrorFace
    instance: str = Field("", description="Where the call can be looked at.")
    call_id: UUID | None = None
    state: State | None = None
    is_error: Literal[True] = True


class ToolRef(BaseModel):
    name: str
    version: str
    digest: Digest


class ToolShown(BaseModel):
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


class ToolDetail(ToolShown):
    contract: dict[str, Any]


class ToolPage(BaseModel):
    tools: list[ToolShown]
    next_after: str | None = Field(description="Give this as `after` to go on; null at the end.")


class ToolVersions(BaseModel):
    versions: list[ToolShown]


class Match(BaseModel):
    name: str
    version: str


class SearchFound(BaseModel):
    matches: list[Match]
    reason: str = Field("", description="`no_match` when nothing was found.")


class ToolRegistered(BaseModel):
    name: str
    version: str
    digest: Digest
    registered: Literal["created", "unchanged"]


class ToolState(BaseModel):
    name: str
    version: str
    state: LifecycleState


class RevocationMade(BaseModel):
    kind: RevocationKind
    value: str
    epoch: int = Field(description="From this revocation epoch on, nothing begins on the revoked authority.")


class SecretShown(BaseModel):
    name: str
    updated_at: str
    updated_by: str


class Secrets(BaseModel):
    secrets: list[SecretShown]


class SecretPut(BaseModel):
    name: str
    put: Literal["created", "replaced"]


class SecretDeleted(BaseModel):
    name: str
    deleted: Literal[True]


class SwitchTurned(BaseModel):
    kind: SwitchKind
    value: str
    off: bool
    epoch: int = Field(description="From this revocation epoch on, it holds on every gateway.")


class SwitchShown(BaseModel):
    kind: SwitchKind
    value: str
    reason: str
    by: str
    since: str
    epoch: int


class Switches(BaseModel):
    switches: list[SwitchShown]


class Alive(BaseModel):
    status: Literal["ok"]


class CheckShown(BaseModel):
    name: str
    ok: bool
    detail: str


class Ready(BaseModel):
    ready: Literal[True]
    checks: list[CheckShown]
