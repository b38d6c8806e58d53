"""The contract: everything declared about one version of a tool.

Written by tool authors (decorators, manifests, importers), judged by `catalog/admission.py`, obeyed by the
lifecycle. A registered contract never changes; where it stands in its life is kept beside it, not in it.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
)

from deputize.core.canonical import digest

Schema = dict[str, Any]

_WORD = r"^[a-z](?:_?[a-z0-9])*$"
_TOOL_REF = r"^[a-z](?:_?[a-z0-9])*\.[a-z](?:_?[a-z0-9])*$"
_SEMVER = (
    r"^(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})\.(0|[1-9]\d{0,8})"
    r"(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$"
)
_SECRET = r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$"
_VOLATILE = r"^/(changes/\*/(before|after|count)|preconditions/\*/detail|impact/[^/]+|guards/[^/]+)(/[^/]+)*$"
Word = Annotated[str, StringConstraints(pattern=_WORD, max_length=48)]
ToolRef = Annotated[str, StringConstraints(pattern=_TOOL_REF, max_length=97)]
SemVer = Annotated[str, StringConstraints(pattern=_SEMVER, max_length=64)]
Text = Annotated[str, StringConstraints(max_length=2000)]
# No dots: a name is a path in a vault, and leads nowhere but down.
SecretName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*$", max_length=200)]


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Made anew: a changed copy must not carry the digest and names that were worked out for the original."""
        return type(self).model_validate(self.model_dump() | dict(update or {}))


class ToolKind(StrEnum):
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
    READ = "read"
    WRITE_REVERSIBLE = "write-reversible"
    WRITE_IRREVERSIBLE = "write-irreversible"


class Effects(StrEnum):
    """What an author says a tool does. Undeclared counts as destructive, never as harmless."""

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
    INTERACTIVE = "interactive"
    STANDARD = "standard"
    LONG_RUNNING = "long-running"
    ASYNC = "async"

    @property
    def seconds(self) -> float:
        """The most a call of this class may take; an async one is bounded by its own contract instead."""
        return _CLASS_SECONDS[self]


_CLASS_SECONDS = {
    TimeoutClass.INTERACTIVE: 0.5,
    TimeoutClass.STANDARD: 5.0,
    TimeoutClass.LONG_RUNNING: 300.0,
    TimeoutClass.ASYNC: 86_400.0,
}


class LifecycleState(StrEnum):
    DRAFT = "draft"
    AVAILABLE = "available"
    DISABLED = "disabled"
    REQUIRES_SETUP = "requires_setup"
    DEFERRED = "deferred"
    DEPRECATED = "deprecated"
    RETIRED = "retired"


class SideEffect(Part):
    """One thing a tool may change: `{argument}` in the scope is filled from the call's input."""

    resource: Annotated[str, StringConstraints(min_length=1, max_length=120)]
    op: Literal["create", "update", "delete"]
    scope: Annotated[str, StringConstraints(min_length=1, max_length=240)] = "*"


class Auth(Part):
    scopes: tuple[Annotated[str, StringConstraints(pattern=r"^[\x21\x23-\x5B\x5D-\x7E]{1,120}$")], ...] = ()
    permissions: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z_]+:[^ ]+$", max_length=240)], ...] = ()
    # "link" and "client" are of servers: the user's own account there, or this gateway's.
    credential: Literal["none", "delegated", "vault", "link", "client"] = "none"
    # For "vault", the name of the tenant's secret; for "delegated", who the minted token is meant for.
    secret: SecretName | None = None
    audience: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    # For "vault", the secret the tool's preview acts with: one that cannot change anything.
    readonly_secret: SecretName | None = None

    @model_serializer(mode="wrap")
    def _said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_newer(dump(self), "readonly_secret")


class Timeout(Part):
    timeout_class: TimeoutClass = TimeoutClass.STANDARD
    seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None
    max_seconds: Annotated[float, Field(gt=0, le=86_400)] | None = None

    @cached_property
    def effective_seconds(self) -> float:
        limit = self.timeout_class.seconds
        return limit if self.seconds is None else min(self.seconds, limit)


class Upstream(StrEnum):
    """What the system behind a tool makes of the same key twice."""

    DEDUPLICATES = "deduplicates"
    IDEMPOTENT = "idempotent"
    CANNOT = "cannot"


class Idempotency(Part):
    upstream: Upstream = Upstream.CANNOT
    window_seconds: Annotated[int, Field(ge=60, le=30 * 86_400)] | None = None
    key_argument: str | None = None


class Predicate(Part):
    """A sanity check on a result: a JSON Schema that `{"input": …, "output": …}` must satisfy."""

    name: Word
    description: Text = ""
    holds: Schema


class Observability(Part):
    trace: Literal[True] = True
    metrics: Literal[True] = True
    audit: Literal[True] = True
    cost_category: Literal["compute", "api", "tokens"] = "compute"
    cost_per_call: Annotated[float, Field(ge=0)] = 0.0


class RetryPolicy(Part):
    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    base_seconds: Annotated[float, Field(gt=0, le=60)] = 0.1
    backoff_multiplier: Annotated[float, Field(ge=1, le=10)] = 2.0
    backoff_max_seconds: Annotated[float, Field(gt=0, le=300)] = 60.0
    retry_on_status_codes: tuple[Annotated[int, Field(ge=400, le=599)], ...] = (429, 500, 502, 503, 504)


class Breaker(Part):
    failure_threshold: Annotated[int, Field(ge=1, le=100)] = 5
    success_threshold: Annotated[int, Field(ge=1, le=100)] = 3
    timeout_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    half_open_max_calls: Annotated[int, Field(ge=1, le=100)] = 10


class ResourceLimits(Part):
    cpu: Annotated[str, StringConstraints(pattern=r"^\d{1,6}m?$")] = "1"
    memory: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "512Mi"
    ephemeral_storage: Annotated[str, StringConstraints(pattern=r"^\d{1,6}(Mi|Gi)$")] = "1Gi"


class NetworkPolicy(Part):
    allowed_domains: tuple[str, ...] = ()
    allowed_ports: tuple[Annotated[int, Field(ge=1, le=65_535)], ...] = (80, 443)
    deny_all_egress: bool = False


class Checkpoints(Part):
    enabled: bool = False
    micro_interval_seconds: Annotated[int, Field(ge=10, le=300)] = 30
    macro_events: tuple[str, ...] = ()


class PreviewRules(Part):
    """How a tool's own preview is used: how long it is believed, and what of it may differ without meaning anything.

    `*` in a pointer stands for each element, since the order of changes means nothing. What would be changed, and how,
    is never volatile: that is what people decide about.
    """

    fresh_seconds: Annotated[int, Field(ge=1, le=86_400)] = 300
    volatile: tuple[Annotated[str, StringConstraints(pattern=_VOLATILE, max_length=240)], ...] = ()


class Life(Part):
    """Dates and pointers for the end of a version's life."""

    deprecation_date: str | None = None
    sunset_date: str | None = None
    migration_guide_url: str | None = None
    replacement: ToolRef | None = None


class Author(Part):
    name: str = ""
    email: str = ""
    url: str = ""


class Handler(Part):
    """Where the tool really runs. `target` is the driver's own address of it (for Python, `module:function`; for MCP,
    `server/tool` as the server spells it), `preview` that of its preview, where the target is a function that does not
    bring one itself. `pin` is the digest of the definition that somebody agreed to, where a server can change it.
    """

    driver: Literal["python", "mcp"] = "python"
    target: Annotated[str, StringConstraints(min_length=1, max_length=400)]
    preview: Annotated[str, StringConstraints(min_length=1, max_length=400)] | None = None
    pin: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")] | None = None

    @model_serializer(mode="wrap")
    def _said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_newer(_without_newer(dump(self), "preview"), "pin")


_ERROR_SCHEMA: Schema = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "details": {"type": "object"}},
    "required": ["message"],
}


class Contract(Part):
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
    error_schema: Schema = Field(default_factory=lambda: dict(_ERROR_SCHEMA))
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
    breaker: Breaker = Breaker()
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

    life: Life = Life()
    changelog: Text = ""
    breaking_changes: bool = False
    provider: Annotated[str, StringConstraints(max_length=120)] = ""
    documentation_url: str = ""
    source_code_url: str = ""
    license: Annotated[str, StringConstraints(max_length=64)] = ""
    author: Author = Author()

    @model_serializer(mode="wrap")
    def _said(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_newer(dump(self), "preview_rules")

    @cached_property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def outward_name(self) -> str:
        """The spelling every model API accepts: no dots, at most 64 characters."""
        return outward(self.full_name)

    @cached_property
    def mutation_class(self) -> MutationClass:
        return self.effects.mutation_class

    @cached_property
    def digest(self) -> str:
        """Names exactly this declaration; two gateways that agree on it agree on everything declared."""
        return digest(self.model_dump(mode="json"))

    @cached_property
    def window_seconds(self) -> int:
        """How long an outcome is replayed to its key: max(2 x class, 1 h) unless the contract asks for more."""
        least = max(int(2 * self.timeout.effective_seconds), 3600)
        return max(self.idempotency.window_seconds or 0, least)


def _without_newer(said: dict[str, Any], field: str) -> dict[str, Any]:
    """Without a field that came later, where nothing is said in it: contracts that do not use it keep their digest, and
    a gateway of the release before can read them.
    """
    if said.get(field, ...) is None:
        del said[field]
    return said


def outward(full_name: str) -> str:
    return full_name.replace(".", "__", 1)


_OUTWARD = re.compile(r"([a-z](?:_?[a-z0-9])*)__([a-z](?:_?[a-z0-9])*)")


def inward(name: str) -> str:
    """`namespace.name` from either spelling; single underscores inside words make the split unambiguous."""
    match = _OUTWARD.fullmatch(name)
    return f"{match[1]}.{match[2]}" if match else name
