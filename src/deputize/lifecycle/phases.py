"""Define one frozen type per phase. Each is made from the one before it, so a skipped phase does not type-check."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Any, Protocol

from deputize.catalog.compiled_tool import CompiledTool
from deputize.core.call import CallRequest, Mutation
from deputize.core.caller import Caller
from deputize.core.canonical import canonicalize
from deputize.core.clock import Deadline
from deputize.core.contract.contract import Contract, TimeoutClass
from deputize.core.contract.deprecation import DeprecationNotice
from deputize.core.contract.handler import PYTHON_DRIVER
from deputize.core.contract.prices import CallUsage, CostComponent, compute_costs
from deputize.core.contract.tools import ToolProgress
from deputize.core.decision import ApprovalRequirement, Decision
from deputize.core.degradation import Degradation
from deputize.core.errors import Problem
from deputize.core.hooks import NO_HOOK_EFFECTS, HookEffects
from deputize.core.injection.suspicions import Suspicion
from deputize.core.mcp.elicitation import InputRequests, InputRound
from deputize.core.outcome import Result
from deputize.core.value_types import frozen
from deputize.evidence.tracing import CallTrace
from deputize.execute.read_cache import PendingRead
from deputize.store.commit_rows import ResourceLock


class RunControl(Protocol):
    """What a worker offers to the tool of a run: progress reports, and a request to stop."""

    def is_stopping(self) -> bool: ...

    def enter_tool(self, *, thread: bool) -> AbstractContextManager[None]: ...

    def report_progress(self, progress: ToolProgress) -> None: ...


class CallProgress:
    """How far a call came inside its limits, so that they can be settled however it ends."""

    __slots__ = ("is_replay", "verified")

    def __init__(self) -> None:
        self.is_replay = False
        self.verified: Verified | None = None


@frozen
class CallContext:
    """What is known of a call from the start, for every phase: its id, its caller, its request, its deadline."""

    call_id: str
    caller: Caller
    request: CallRequest
    session: str | None
    started_at: float
    deadline: Deadline | None
    trail: CallTrace
    tenant: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tenant", self.caller.tenant)


@frozen
class RedactedArguments:
    """The canonical bytes of a call's arguments without their sensitive values, and the paths of those."""

    canonical: bytes
    paths: tuple[str, ...]


@frozen
class Validated:
    """The tool is known and the arguments fit it; the arguments as sent stay in `call.request.arguments`."""

    call: CallContext
    tool: CompiledTool
    deadline: Deadline
    canonical: bytes
    call_input: dict[str, Any]
    mutations: tuple[Mutation, ...] = ()
    warnings: tuple[str, ...] = ()
    # The notice of a deprecated version.
    deprecation: DeprecationNotice | None = None
    hook_effects: HookEffects = NO_HOOK_EFFECTS
    # The round that this call answers, where an earlier call ended with input required.
    input_round: InputRound | None = None
    # True from the moment that hooks start before the tool.
    runs_pre_hooks: bool = False
    degradations: tuple[Degradation, ...] = ()
    # Computed in advance where the arguments are large.
    redacted_arguments: RedactedArguments | None = None
    # What looks like an injection attempt in the arguments as they were sent.
    suspicions: tuple[Suspicion, ...] = ()
    contract: Contract = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "contract", self.tool.contract)

    @property
    def request_bytes(self) -> bytes:
        """All that identifies the request: with other arguments or other input responses it is another call."""
        if self.input_round is None:
            return self.canonical
        return self.canonical + b"\0" + canonicalize(self.input_round.responses)

    @property
    def outlives_request(self) -> bool:
        """True if the call is queued and answered with 202, because its caller or its contract says so."""
        timeout_class = self.contract.timeout.timeout_class
        return self.call.request.mode == "async" or timeout_class is TimeoutClass.ASYNC


@frozen
class ApprovalGrant:
    """An approval that was given: the approval request, what it required, and the policies and the code it is for.

    `guards` are what the preview found, for the tool to compare with what it meets.
    """

    request_id: str
    demands: tuple[ApprovalRequirement, ...]
    policy_digest: str
    code_digest: str
    guards: Mapping[str, Any]


@frozen
class Authorized:
    """The caller may make the call, by these rules, as of these epochs, with this approval where rules require one."""

    validated: Validated
    decision: Decision
    approval: ApprovalGrant | None = None
    # What the call would change, as the policies saw it: (resource, operation, scope).
    side_effects: Sequence[tuple[str, str, str]] = ()
    call: CallContext = field(init=False)
    contract: Contract = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "call", self.validated.call)
        object.__setattr__(self, "contract", self.validated.contract)

    @property
    def needs_people(self) -> bool:
        """True if rules require an approval that nobody has given yet."""
        return self.approval is None and bool(self.decision.requirements)


@frozen
class IdempotencyKey:
    """What a call claims: whose key it is, its digest, and for how long its outcome is replayed. Without a scope and a
    digest, the call claims nothing. A joined key holds only while its call is in flight.
    """

    window_seconds: int
    scope: bytes | None = None
    digest: bytes | None = None
    is_join: bool = False


@frozen
class Claim:
    """Ownership of a mutation whose intent is durable. Its outcome is committed only if `epoch` is still current."""

    call_id: str
    epoch: int
    # Set where a worker executes the call as a run.
    active_run: RunControl | None = None
    resource_locks: tuple[ResourceLock, ...] = ()
    # True if the previous owner recorded that nothing had happened.
    is_untouched: bool = False
    # What the approved preview found, for the tool to compare with what it meets.
    guards: Mapping[str, Any] | None = None

    @property
    def is_takeover(self) -> bool:
        """True if another owner held this call before, and how far it came is unknown."""
        return self.epoch > 1 and not self.is_untouched


@frozen
class StateReading:
    """The salted digest of the state that a tool could change, at one moment, and a copy of it for predicates."""

    digest: str
    state: Any


@frozen
class StateChange:
    """The state that a tool could change, before and after it ran; None if it could not be read."""

    before: StateReading
    after: StateReading | None
    salt: bytes
    # From before the first reading to after the second.
    seconds: float

    @property
    def is_changed(self) -> bool:
        return self.after is not None and self.after.digest != self.before.digest


@frozen
class SkippedTool:
    """An alternative that gave no answer, and why."""

    tool: str
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"tool": self.tool, "reason": self.reason}


@frozen
class FallbackAnswer:
    """The alternative that answered a call, why its own tool did not, and the alternatives before it."""

    tool: str
    reason: str
    skipped: tuple[SkippedTool, ...]


@frozen
class Executed:
    """The tool ended, with an output or a problem."""

    authorized: Authorized
    claim: Claim | None
    output: Any
    problem: Problem | None
    attempts: int
    seconds: float
    # The result that a thread may still produce after its call was answered as unknown.
    late_result: "asyncio.Future[Any] | None" = None
    # What `read_state` returned before and after; None if the tool does not bring it, or still runs.
    state_change: StateChange | None = None
    # True if the tool of a run sent partial results on its way.
    has_partial_result: bool = False
    # True if the tool ended after the call was answered as unknown.
    is_late: bool = False
    # Set if the result is kept for equal reads, and True if it was kept by an earlier one.
    pending_read: PendingRead | None = None
    is_cached: bool = False
    # Set if an alternative of the tool answered.
    fallback: FallbackAnswer | None = None
    validated: Validated = field(init=False)
    call: CallContext = field(init=False)
    contract: Contract = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "validated", self.authorized.validated)
        object.__setattr__(self, "call", self.authorized.call)
        object.__setattr__(self, "contract", self.authorized.contract)


@frozen
class StoredPayload:
    """A payload that is stored behind a reference: what models see of it, and what the envelope says about it."""

    model_view: dict[str, Any]
    persistence: dict[str, Any]


@frozen
class Verified:
    """The output was checked against the contract; `problem` includes what verification found.

    `result` holds what the tool added to its payload, where it returned a `Result`. With `input_requests` there is no
    payload: the tool's server needs input first.
    """

    executed: Executed
    problem: Problem | None
    payload: Any = None
    canonical: bytes = b""
    result: Result | None = None
    hook_effects: HookEffects = NO_HOOK_EFFECTS
    input_requests: InputRequests | None = None
    warnings: tuple[str, ...] = ()
    ran_post_hooks: bool = False
    # Whether the tool took its effect back after its result was rejected; None if it was not asked to.
    is_rolled_back: bool | None = None
    # What is given instead of the payload, where that is stored behind a reference.
    stored_payload: StoredPayload | None = None
    # What the tool returned beside the payload, as JSON.
    content: tuple[dict[str, Any], ...] = ()

    @property
    def validated(self) -> Validated:
        return self.executed.authorized.validated

    @property
    def call(self) -> CallContext:
        return self.executed.authorized.validated.call

    @property
    def contract(self) -> Contract:
        return self.executed.authorized.validated.tool.contract

    @property
    def cost(self) -> float:
        """What the call is charged: its fixed cost, and what it used at the prices of its contract."""
        observability = self.executed.contract.observability
        if observability.prices is None:
            is_declared = self.result is None and self.problem is None
            return observability.cost_per_call if is_declared else self._fixed_cost
        return sum(self.costs.values())

    @property
    def costs(self) -> dict[CostComponent, float]:
        """What the call is charged, by component."""
        observability = self.executed.contract.observability
        return compute_costs(observability.cost_category, observability.prices, self.usage)

    @property
    def usage(self) -> CallUsage:
        """What the call used, and its fixed cost; nothing if nothing happened."""
        executed, result = self.executed, self.result
        validated = executed.validated
        if self.problem is not None and self.problem.nothing_happened:
            return CallUsage(self._fixed_cost)
        is_remote = validated.contract.handler.driver != PYTHON_DRIVER
        network_bytes = len(validated.canonical) + len(self.canonical) if is_remote else 0
        if result is None:
            return CallUsage(self._fixed_cost, executed.seconds, 0, network_bytes)
        return CallUsage(
            self._fixed_cost,
            executed.seconds,
            max(result.storage_bytes or 0, 0),
            network_bytes if result.network_bytes is None else max(result.network_bytes, 0),
            max(result.tokens or 0, 0),
        )

    @property
    def _fixed_cost(self) -> float:
        """The cost that the result reports, else the declared one; 0 if nothing happened."""
        if self.result is not None and self.result.cost is not None:
            return max(self.result.cost, 0.0)
        if self.problem is not None and self.problem.nothing_happened:
            return 0.0
        return self.executed.contract.observability.cost_per_call
