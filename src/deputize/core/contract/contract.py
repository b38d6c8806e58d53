"""Define the contract: everything declared about one version of a tool.

Tool authors write it (decorators, manifests, importers), `catalog/admission.py` checks it, and the lifecycle obeys it.
A registered contract never changes; its lifecycle state is stored beside it.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.canonical import compute_digest
from deputize.core.contract.names import to_outward_name

Schema = dict[str, Any]

_WORD = r"^[a-z](?:_?[a-z0-9])*$"
_TOOL_REF = r"^[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*$"
_SEMVER = (
    r"^(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
# A scope of OAuth that begins with the kind of what is permitted, as in filesystem:read:/data.
_PERMISSION = r"^[a-z_]+:[\x21\x23-\x5B\x5D-\x7E]+$"
_SECRET = r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$"
_VOLATILE = r"^/(changes/\*/(before|after|count)|preconditions/\*/detail|impact/[^/]+|guards/[^/]+)(/[^/]+)*$"
Word = Annotated[str, StringConstraints(pattern=_WORD, max_length=48)]
ToolRef = Annotated[str, StringConstraints(pattern=_TOOL_REF, max_length=97)]
SemVer = Annotated[str, StringConstraints(pattern=_SEMVER, max_length=64)]
Text = Annotated[str, StringConstraints(max_length=2000)]
# No dots: a name is a path in a vault and must not climb.
SecretName = Annotated[str, StringConstraints(pattern=_SECRET, max_length=200)]


class ContractPart(BaseModel):
    """A part of a contract: frozen, without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Validate the copy as a new object, so that it does not keep the cached digest and names of the original."""
        return type(self).model_validate(self.model_dump() | dict(update or {}))


class ToolKind(StrEnum):
    """A kind of tool in the tool standard."""

    FUNCTION = "function"
    MCP_TOOL = "mcp_tool"
    OPENAPI_OPERATION = "openapi_operation"
    NATIVE_TOOL = "native_tool"
    BROWSER_ACTION = "browser_action"
    SHELL_COMMAND = "shell_command"
    CODE_EXECUTION = "code_execution"
    FILE_OPERATION = "file_operation"
    WEB_SEARCH = "web_search"
    RETRIEVAL = "retrieval"
    MODEL_TASK = "model_task"
    SKILL_TOOL = "skill_tool"
    PEER_AGENT_TOOL = "peer_agent_tool"
    POLICY_CHECK = "policy_check"
    ARTIFACT_OPERATION = "artifact_operation"
    EVIDENCE_EXPORT = "evidence_export"
    CUSTOM = "custom"


class MutationClass(StrEnum):
    """How a call changes data."""

    READ = "read"
    WRITE_REVERSIBLE = "write-reversible"
    WRITE_IRREVERSIBLE = "write-irreversible"


class Effects(StrEnum):
    """What a tool does to data. Undeclared counts as destructive, never as harmless."""

    READ = "read"
    WRITE = "write"
    DESTRUCTIVE = "destructive"

    @property
    def mutation_class(self) -> MutationClass:
        return _CLASS_OF_EFFECT[self]


_CLASS_OF_EFFECT = {
    Effects.READ: MutationClass.READ,
    Effects.WRITE: MutationClass.WRITE_REVERSIBLE,
    Effects.DESTRUCTIVE: MutationClass.WRITE_IRREVERSIBLE,
}


class TimeoutClass(StrEnum):
    """How long calls of a tool may take."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    LONG_RUNNING = "long-running"
    ASYNC = "async"

    @property
    def seconds(self) -> float:
        """The longest duration of a call of this class; the contract bounds an async one instead."""
        return _CLASS_SECONDS[self]


_CLASS_SECONDS = {
    TimeoutClass.INTERACTIVE: 0.5,
    TimeoutClass.STANDARD: 5.0,
    TimeoutClass.LONG_RUNNING: 300.0,
    TimeoutClass.ASYNC: 86_400.0,
}


class LifecycleState(StrEnum):
    """The state of a version of a tool, from draft to retired."""

    DRAFT = "draft"
    AVAILABLE = "available"
    DISABLED = "disabled"
    REQUIRES_SETUP = "requires_setup"
    DEFERRED = "deferred"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class SideEffect(ContractPart):
    """One resource that a tool may change; `{argument}` in the scope is filled from the arguments of the call."""

    resource: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    op: Literal["create", "update", "delete"]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=240)] = "*"


class Auth(ContractPart):
    """Scopes that callers need, and the credential that the tool acts with."""

    scopes: tuple[Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5B\x5D-\x7E]{1,120}$")], ...] = ()
    permissions: tuple[Annotated[str, StringConstraints(pattern=_PERMISSION, max_length=240)], ...] = ()
    # "link" and "client" are for MCP servers: the user's linked account there, or this gateway's OAuth client.
    credential: Literal["none", "delegated", "vault", "link", "client"] = "none"
    # For "vault", the name of the tenant's secret; for "delegated", the audience of the minted token.
    secret: SecretName | None = None
    audience: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    # For "vault", the secret of the tool's preview: one that cannot change anything.
    readonly_secret: SecretName | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _omit_unset_field(dump(self), "readonly_secret")

    @cached_property
    def required_scopes(self) -> tuple[str, ...]:
        """The scopes that a caller's token must have: a permission is a scope with a kind."""
        return (*self.scopes, *self.permissions)


class Timeout(ContractPart):
    """How long a call may take."""

    timeout_class: TimeoutClass = TimeoutClass.STANDARD
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None

    @cached_property
    def effective_seconds(self) -> float:
        return min(each for each in (self.timeout_class.seconds, self.seconds, self.max_seconds) if each is not None)


class UpstreamIdempotency(StrEnum):
    """What the system behind a tool does with a repeated idempotency key."""

    DEDUPLICATES = "deduplicates"
    IDEMPOTENT = "idempotent"
    CANNOT = "cannot"


class Idempotency(ContractPart):
    """How a repeated call is recognized, here and upstream."""

    upstream: UpstreamIdempotency = UpstreamIdempotency.CANNOT
    window_seconds: Annotated[int, Field(ge=60, le=30 * 86_400)] | None = None
    key_argument: str | None = None


class Predicate(ContractPart):
    """A sanity check on a result: a JSON Schema that `{"input": …, "output": …}` must satisfy."""

    name: Word
    description: Text = ""
    holds: Schema


class Observability(ContractPart):
    """What is recorded of calls, and what they cost."""

    trace: Literal[True] = True
    metrics: Literal[True] = True
    audit: Literal[True] = True
    cost_category: Literal["compute", "api", "tokens"] = "compute"
    cost_per_call: Annotated[float, Field(ge=0)] = 0.0


class RetryPolicy(ContractPart):
    """When and how often an attempt is repeated."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    base_seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    backoff_multiplier: Annotated[float, Field(ge=1, le=10)] = 2.0
    backoff_max_seconds: Annotated[float, Field(gt=0, le=300)] = 60.0
    retry_on_status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (429, 500, 502, 503, 504)


class CircuitBreaker(ContractPart):
    """When calls to a failing upstream pause."""

    failure_threshold: Annotated[int, Field(ge=1, le=100)] = 5
    success_threshold: Annotated[int, Field(ge=1, le=100)] = 3
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    half_open_max_calls: Annotated[int, Field(ge=1, le=100)] = 10


class ResourceLimits(ContractPart):
    """CPU, memory and storage of the tool."""

    cpu: Annotated[str, StringConstraints(pattern=r"^\d{1,6}m?$")] = "1"
    memory: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "512Mi"
    ephemeral_storage: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "1Gi"


class NetworkPolicy(ContractPart):
    """Hosts and ports that the tool may reach."""

    allowed_domains: tuple[str, ...] = ()
    allowed_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (80, 443)
    deny_all_egress: bool = False


class Checkpoints(ContractPart):
    """Whether and how often a run saves its state."""

    enabled: bool = False
    micro_interval_seconds: Annotated[int, Field(ge=10, le=300)] = 30
    macro_events: tuple[str, ...] = ()


class PreviewRules(ContractPart):
    """How long a tool's preview stays valid, and which of its parts may differ without invalidating an approval.

    `*` in a pointer stands for each element, since changes have no order. What would be changed, and how, is never
    volatile: that is what approvers decide on.
    """

    fresh_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    volatile: tuple[Annotated[str, StringConstraints(pattern=_VOLATILE, max_length=240)], ...] = ()


class EndOfLife(ContractPart):
    """Dates and links for the end of a version's life."""

    deprecation_date: str | None = None
    sunset_date: str | None = None
    migration_guide_url: str | None = None
    replacement: ToolRef | None = None


class Author(ContractPart):
    """Who wrote the tool."""

    name: str = ""
    email: str = ""
    url: str = ""


class Handler(ContractPart):
    """Where the tool runs. `target` is its address for the driver (Python: `module:function`; MCP: `server/tool` as the
    server spells it). `preview` is the address of its preview, if the target does not bring one. `pin` is the digest of
    the accepted definition, if a server can change it.
    """

    driver: Literal["python", "mcp"] = "python"
    target: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    preview: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    pin: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _omit_unset_field(_omit_unset_field(dump(self), "preview"), "pin")


DEFAULT_ERROR_SCHEMA: Schema = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "details": {"type": "object"}},
    "required": ["message"],
}


class Contract(ContractPart):
    """One version of one tool, as its author declares it."""

    namespace: Word
    name: Word
    version: SemVer
    title: Annotated[str, StringConstraints(max_length=255)] = ""
    description: Annotated[str, StringConstraints(min_length=10, max_length=2000)]
    kind: ToolKind = ToolKind.FUNCTION
    handler: Handler

    input_schema: Schema
    output_schema: Schema
    error_schema: Schema = Field(default_factory=lambda: dict(DEFAULT_ERROR_SCHEMA))
    examples: tuple[dict[str, Any], ...] = ()
    predicates: tuple[Predicate, ...] = ()

    effects: Effects
    resources: tuple[SideEffect, ...] = ()
    undo: ToolRef | None = None
    status: ToolRef | None = None
    preview: bool = False
    preview_rules: PreviewRules | None = None
    validates: bool = False
    verifies: bool = False

    auth: Auth
    timeout: Timeout
    idempotency: Idempotency
    observability: Observability
    retry: RetryPolicy = RetryPolicy()
    breaker: CircuitBreaker = CircuitBreaker()
    limits: ResourceLimits = ResourceLimits()
    network: NetworkPolicy = NetworkPolicy()
    checkpoints: Checkpoints = Checkpoints()
    external_service: Word | None = None
    priority: Annotated[int, Field(ge=1, le=10)] = 5

    aliases: tuple[ToolRef, ...] = ()
    search_hint: Annotated[str, StringConstraints(max_length=120)] = ""
    tags: tuple[Annotated[str, StringConstraints(min_length=1, max_length=48)], ...] = ()
    capability_refs: tuple[str, ...] = ()
    external_mappings: dict[str, Any] = Field(default_factory=dict)
    annotations: dict[str, Any] = Field(default_factory=dict)

    life: EndOfLife = EndOfLife()
    changelog: Text = ""
    breaking_changes: bool = False
    provider: Annotated[str, StringConstraints(max_length=120)] = ""
    documentation_url: str = ""
    source_code_url: str = ""
    license: Annotated[str, StringConstraints(max_length=64)] = ""
    author: Author = Author()

    @model_serializer(mode="wrap")
    def _serialize_compatibly(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _omit_unset_field(dump(self), "preview_rules")

    @cached_property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def outward_name(self) -> str:
        """The spelling every model API accepts: no dots, at most 64 characters."""
        return to_outward_name(self.full_name)

    @cached_property
    def mutation_class(self) -> MutationClass:
        return self.effects.mutation_class

    @cached_property
    def digest(self) -> str:
        """The digest of this declaration; gateways with the same digest agree on everything declared."""
        return compute_digest(self.model_dump(mode="json"))

    @cached_property
    def window_seconds(self) -> int:
        """How long an outcome is replayed to its key: at least twice the timeout, and at least an hour."""
        minimum = max(int(2 * self.timeout.effective_seconds), 3600)
        return max(self.idempotency.window_seconds or 0, minimum)


def _omit_unset_field(document: dict[str, Any], field: str) -> dict[str, Any]:
    """Leave out an unset field that a later release added, so that contracts without it keep their digest and the
    previous release can read them.
    """
    if document.get(field, ...) is None:
        del document[field]
    return document


_REPEATABLE_UPSTREAMS = frozenset({UpstreamIdempotency.DEDUPLICATES, UpstreamIdempotency.IDEMPOTENT})


def is_safe_to_repeat(contract: Contract) -> bool:
    """Tell whether executing the call twice has the effect of executing it once."""
    return contract.idempotency.upstream in _REPEATABLE_UPSTREAMS or contract.mutation_class is MutationClass.READ
