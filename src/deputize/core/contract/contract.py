"""Define the contract: everything declared about one version of a tool.

Tool authors write it (decorators, manifests, importers), `catalog/registration_rules.py` checks it, and the lifecycle
obeys it. A registered contract never changes; its lifecycle state is stored beside it.
"""

from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from deputize.core.canonical import compute_digest
from deputize.core.contract.auth import Auth
from deputize.core.contract.effects import (
    Behaviour,
    Compensation,
    Effects,
    MutationClass,
    PreviewRules,
    SideEffect,
)
from deputize.core.contract.flow import Flow
from deputize.core.contract.handler import Handler, ToolKind
from deputize.core.contract.isolation import NetworkPolicy, ResourceLimits, Sandbox
from deputize.core.contract.labels import Labels
from deputize.core.contract.names import to_outward_name
from deputize.core.contract.native_ids import NativeIds
from deputize.core.contract.parts import (
    ContractPart,
    Schema,
    SecretName,
    SemVer,
    Text,
    ToolRef,
    Word,
    omit_unset_fields,
)
from deputize.core.contract.predicates import Predicate
from deputize.core.contract.publication import DRAFT_VERSION, Author, EndOfLife, LifecycleState
from deputize.core.contract.reliability import (
    Checkpoints,
    CircuitBreaker,
    Idempotency,
    RetryPolicy,
    ServiceLimits,
    UpstreamIdempotency,
)
from deputize.core.contract.service_levels import Alerts, Objectives, Observability
from deputize.core.contract.timing import Freshness, Timeout, TimeoutClass

__all__ = [
    "DEFAULT_ERROR_SCHEMA", "LATER_FIELDS", "Alerts", "Auth", "Author", "Behaviour", "Checkpoints", "CircuitBreaker",
    "Compensation", "Contract", "ContractPart", "Effects", "EndOfLife", "Flow", "Freshness", "Handler", "Idempotency",
    "Labels", "LifecycleState", "MutationClass", "NativeIds", "NetworkPolicy", "Objectives", "Observability",
    "Predicate", "PreviewRules", "ResourceLimits", "RetryPolicy", "Sandbox", "Schema", "SecretName", "SemVer",
    "ServiceLimits", "SideEffect", "Text", "Timeout", "TimeoutClass", "ToolKind", "ToolRef", "UpstreamIdempotency",
    "Word", "is_safe_to_repeat",
]  # fmt: skip

DEFAULT_ERROR_SCHEMA: Schema = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "details": {"type": "object"}},
    "required": ["message"],
}
# Fields that came after the first release; unset ones are not part of the digest.
LATER_FIELDS: Final = (
    "preview_rules", "reads_state", "rolls_back", "behaviours", "compensation", "requires_user_interaction",
    "open_world", "recipient_argument", "labels", "sandbox", "freshness", "concurrency_safe", "interrupt", "max_inline",
    "objectives", "alerts", "authority_rank", "native_ids", "service_limits",
    "fallback", "fallback_task", "flow",
)  # fmt: skip


class Contract(ContractPart):
    """One version of one tool, as its author declares it."""

    namespace: Word
    name: Word
    version: SemVer
    title: Annotated[str, StringConstraints(max_length=255)] = ""
    description: Annotated[str, StringConstraints(min_length=10, max_length=2000)]
    kind: ToolKind = ToolKind.FUNCTION
    handler: Handler
    # The calls that the tool consists of, if it is a flow.
    flow: Flow | None = None

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
    # Whether the function brings a reader of the state that it could change: see `lifecycle/state_check.py`.
    reads_state: bool = False
    # Whether the function brings a rollback of its effect: see `lifecycle/undo_effect.py`.
    rolls_back: bool = False
    behaviours: tuple[Behaviour, ...] = ()
    compensation: Compensation | None = None
    # True: each call needs a person. None for the open world: undeclared, which counts as open.
    requires_user_interaction: bool = False
    open_world: bool | None = None
    # The argument that names who gets a message.
    recipient_argument: Annotated[str, StringConstraints(min_length=1, max_length=120)] | None = None
    labels: Labels | None = None

    auth: Auth
    timeout: Timeout
    idempotency: Idempotency
    observability: Observability
    retry: RetryPolicy = RetryPolicy()
    breaker: CircuitBreaker = CircuitBreaker()
    limits: ResourceLimits = ResourceLimits()
    network: NetworkPolicy = NetworkPolicy()
    checkpoints: Checkpoints = Checkpoints()
    sandbox: Sandbox | None = None
    freshness: Freshness | None = None
    # Tools that answer instead while this one is not available, in their order; only of reads.
    fallback: Annotated[tuple[ToolRef, ...], Field(max_length=5)] = ()
    # What a person does when none of them answers.
    fallback_task: Annotated[str, StringConstraints(min_length=1, max_length=300)] | None = None
    # Whether calls may run beside each other, and what happens to a running one that is interrupted.
    concurrency_safe: bool = False
    interrupt: Literal["cancel", "block"] | None = None
    # In characters; longer results are stored, and a part and a reference are given.
    max_inline: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    objectives: Objectives | None = None
    alerts: Alerts | None = None
    # Of two sources that disagree, the one with the higher rank is believed.
    authority_rank: Annotated[int, Field(ge=1, le=100)] | None = None
    external_service: Word | None = None
    # Of all tools of the service together.
    service_limits: ServiceLimits | None = None
    # Among queued calls; 1 is the most urgent, as in the requests of callers.
    priority: Annotated[int, Field(ge=1, le=10)] = 5

    aliases: tuple[ToolRef, ...] = ()
    search_hint: Annotated[str, StringConstraints(max_length=120)] = ""
    tags: tuple[Annotated[str, StringConstraints(min_length=1, max_length=48)], ...] = ()
    capability_refs: tuple[str, ...] = ()
    native_ids: NativeIds | None = None
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
        return omit_unset_fields(self, dump(self), *LATER_FIELDS)

    @cached_property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def is_draft(self) -> bool:
        """True while its author has not declared what it does; only a development gateway registers it."""
        return self.version == DRAFT_VERSION

    @property
    def outward_name(self) -> str:
        """The spelling every model API accepts: no dots, at most 64 characters."""
        return to_outward_name(self.full_name)

    @cached_property
    def mutation_class(self) -> MutationClass:
        return self.effects.mutation_class

    @property
    def is_open_world(self) -> bool:
        """True unless the author says that the tool deals only with what is known beforehand."""
        return self.open_world is not False

    @cached_property
    def digest(self) -> str:
        """The digest of this declaration; gateways with the same digest agree on everything declared."""
        return compute_digest(self.model_dump(mode="json"))

    @cached_property
    def limits_network(self) -> bool:
        """True if the contract declares which hosts and ports the tool may reach."""
        return self.network != NetworkPolicy()

    @cached_property
    def window_seconds(self) -> int:
        """How long an outcome is replayed to its key: at least twice the timeout, and at least an hour."""
        minimum = max(int(2 * self.timeout.effective_seconds), 3600)
        return max(self.idempotency.window_seconds or 0, minimum)


_REPEATABLE_UPSTREAMS = frozenset({UpstreamIdempotency.DEDUPLICATES, UpstreamIdempotency.IDEMPOTENT})


def is_safe_to_repeat(contract: Contract) -> bool:
    """Tell whether executing the call twice has the effect of executing it once."""
    return contract.idempotency.upstream in _REPEATABLE_UPSTREAMS or contract.mutation_class is MutationClass.READ
