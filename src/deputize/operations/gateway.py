"""Offer interfaces everything they may use, in one object: methods and read-only views.

Interfaces import this module and `core`, and nothing else below them. What a call needs (the runtime, keys, connections
to servers) stays behind private fields; `composition/gateway.py` fills them in.
"""

import hmac
from collections.abc import Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import asyncpg
from prometheus_client import CollectorRegistry

from deputize.acts.erasure import Erasures
from deputize.acts.webhooks import WebhookAdmin
from deputize.core.call import CallRequest
from deputize.core.call_batch import CallBatch
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.errors import Problem, TokenMissing, Unavailable
from deputize.core.outcome import Outcome
from deputize.core.settings import Settings
from deputize.core.settings.urls import RESOURCE_METADATA_PATH
from deputize.evidence.entry_filters import EntryFilter
from deputize.govern.identity.sessions import ConsoleSession
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.govern.kill_switches import KillSwitch, SwitchKind
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.govern.token_authorization import require_admin, require_admin_scope, require_full_operator
from deputize.lifecycle.run import Lifecycle
from deputize.operations.admin.commands import Commands
from deputize.operations.admin.contract_tests import ContractTestClaim, ContractTests, ReportedCase
from deputize.operations.admin.delegations import Delegations, IssuedToken
from deputize.operations.admin.deprecations import DeprecationRequest, Deprecations
from deputize.operations.admin.human_tasks import HumanTasks
from deputize.operations.admin.legal_holds import HoldRequest, LegalHolds
from deputize.operations.admin.operator_tokens import OperatorTokens
from deputize.operations.admin.policy.backtests import Backtests
from deputize.operations.admin.policy.explain import PolicyExplanations
from deputize.operations.admin.policy.suggestions import PermitSuggestions
from deputize.operations.admin.project_edits import ProjectEdits
from deputize.operations.admin.service_levels import ServiceLevels
from deputize.operations.admin.tool_health import ToolHealth
from deputize.operations.approvals.console_sessions import ConsoleAccess
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.operations.approvals.terminal_decisions import show_open_codes
from deputize.operations.audit.agents import AgentList
from deputize.operations.audit.entry_reader import AuditQuery
from deputize.operations.audit.export import AuditExport, AuditFormat
from deputize.operations.audit.log_history import LogHistory
from deputize.operations.audit.log_reader import LogReader
from deputize.operations.audit.observations import Observations
from deputize.operations.audit.search import AuditSearch
from deputize.operations.audit.tail import AuditTail, TailEvent
from deputize.operations.calls.call_batches import CallBatches
from deputize.operations.calls.call_exports import CallExports
from deputize.operations.calls.cancel import Cancellations
from deputize.operations.calls.flow_views import FlowViews
from deputize.operations.calls.input_responses import InputResponder
from deputize.operations.calls.queries import CallEvent, CallQueries, CallSummary
from deputize.operations.calls.receipts import CallReceipts
from deputize.operations.calls.restore_checkpoint import Rollbacks
from deputize.operations.servers.account_links import AccountLinks
from deputize.operations.servers.circuits import CircuitReports
from deputize.operations.servers.effects import EffectChoice, ServerEffects
from deputize.operations.servers.inventory import ServerInventory
from deputize.operations.servers.review import ServerReview
from deputize.operations.undo.undo import Undo
from deputize.operations.undo.undo_plan import UndoSelection
from deputize.operations.views.activity import Activity
from deputize.operations.views.cost_report import CostReport
from deputize.operations.views.health import NO_WORKER, Health, HealthCheck
from deputize.operations.views.metadata import GatewayMetadata
from deputize.operations.views.negotiation import Negotiations
from deputize.operations.views.surface import Surface
from deputize.operations.views.tool_exports import ToolExports
from deputize.operations.views.tool_status import ToolSelection
from deputize.operations.views.tool_view import (
    ServerMethodView,
    ToolView,
    extract_structured_schema,
    list_references,
)
from deputize.operations.views.waiting import Waiting
from deputize.store.restore_guard.lineage import WentBackError, build_refusal

if TYPE_CHECKING:
    from deputize.operations.background.worker import Worker

__all__ = [
    "NO_WORKER",
    "AuditFormat",
    "AuditQuery",
    "CallEvent",
    "CallSummary",
    "ConsoleAccess",
    "ConsoleSession",
    "ContractTestClaim",
    "DeprecationRequest",
    "EffectChoice",
    "EntryFilter",
    "Gateway",
    "HealthCheck",
    "HoldRequest",
    "IssuedToken",
    "KillSwitch",
    "PolicyFile",
    "ReportedCase",
    "ServerMethodView",
    "SwitchKind",
    "TailEvent",
    "ToolSelection",
    "ToolView",
    "UndoSelection",
    "extract_structured_schema",
    "list_references",
    "require_admin",
    "require_admin_scope",
    "require_full_operator",
    "translate_error",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Gateway:
    """One open gateway. `composition/gateway.py` builds it; interfaces translate requests into its methods."""

    settings: Settings
    clock: Clock
    commands: Commands
    contract_tests: ContractTests
    surface: Surface
    exports: ToolExports
    negotiations: Negotiations
    deprecations: Deprecations
    service_levels: ServiceLevels
    tool_health: ToolHealth
    activity: Activity
    waiting: Waiting
    cost_report: CostReport
    calls: CallQueries
    call_exports: CallExports
    call_receipts: CallReceipts
    agents: AgentList
    audit_search: AuditSearch
    audit_tail: AuditTail
    audit_export: AuditExport
    observations: Observations
    log_reader: LogReader
    log_history: LogHistory
    cancellations: Cancellations
    flows: FlowViews
    undo: Undo
    webhooks: WebhookAdmin
    human_tasks: HumanTasks
    approvals: ApprovalDecisions
    suggestions: PermitSuggestions
    servers: ServerInventory
    review: ServerReview
    effects: ServerEffects
    circuits: CircuitReports
    account_links: AccountLinks
    erasures: Erasures
    legal_holds: LegalHolds
    console_access: ConsoleAccess
    rollbacks: Rollbacks
    explanations: PolicyExplanations
    backtests: Backtests
    delegations: Delegations
    operator_tokens: OperatorTokens
    metadata: GatewayMetadata
    health: Health
    # In development only: takes over edited files of the project.
    project_edits: ProjectEdits | None = None
    # Tools from the settings that were refused at start-up, each with its reasons; the others are served.
    startup_problems: list[Problem] = field(default_factory=list)
    # Where the files of a process that applies none differ from what is active, in sentences.
    file_differences: list[str] = field(default_factory=list)
    _lifecycle: Lifecycle = field(repr=False)
    _tokens: TokenVerifier = field(repr=False)
    # The worker in this process, if it has one.
    _workers: list["Worker"] = field(default_factory=list, repr=False)

    @property
    def release(self) -> str:
        """The version of Deputize that runs here."""
        return self._lifecycle.runtime.release

    @property
    def input_responses(self) -> InputResponder:
        """The service that answers the input requests of runs by their call ids."""
        return InputResponder(self._lifecycle, self.calls)

    @property
    def metadata_url(self) -> str | None:
        """The URL of the protected resource metadata (RFC 9728); None if this gateway does not know its own URL."""
        signing_keys = self._lifecycle.runtime.signing_keys
        return None if signing_keys is None else signing_keys.public_url + RESOURCE_METADATA_PATH

    @property
    def metrics_registry(self) -> CollectorRegistry:
        """The registry that `/metrics` renders."""
        return self._lifecycle.runtime.metrics.registry

    def open_request(self) -> AbstractContextManager[None]:
        """Open an HTTP request: while the block runs, it counts among those of the caller who authenticates in it."""
        return self._lifecycle.runtime.request_slots.open_request()

    def count_refused_connection(self, reason: str) -> None:
        """Count a connection or request that the listener refused."""
        self._lifecycle.runtime.metrics.record_refused_connection(reason)

    @property
    def active_run_count(self) -> int:
        """How many runs the worker in this process executes now."""
        return sum(each.active_run_count for each in self._workers)

    @property
    def unfinished_run_count(self) -> int:
        """How many runs the worker in this process left unfinished when it stopped."""
        return sum(each.remaining_runs for each in self._workers)

    @property
    def has_worker(self) -> bool:
        """Whether this process executes queued calls itself."""
        return bool(self._workers)

    def skip_run_drain(self) -> None:
        """Wait for no run when the worker in this process stops: another one takes them over."""
        for each in self._workers:
            each.drain_seconds = 0.0

    async def show_open_codes(self) -> None:
        """Show the codes of open approval requests on the terminal again, after none could be shown for a while."""
        await show_open_codes(self._lifecycle.runtime)

    def run_call(self, caller: Caller, request: CallRequest) -> Coroutine[Any, Any, Outcome]:
        """Run a call to its outcome. Every refusal is an outcome too; nothing a caller can cause is raised."""
        return self._lifecycle.run(caller, request)

    async def run_calls(self, caller: Caller, batch: CallBatch) -> list[Outcome | Exception]:
        """Run several calls to their outcomes, in their order; an unexpected error stands in its call's place."""
        return await CallBatches(self._lifecycle).run_calls(caller, batch)

    async def retry_call(self, caller: Caller, call_id: str) -> Outcome:
        """Retry a failed run where that can do no harm; raise a Problem where it cannot be retried."""
        return await self._lifecycle.retry_call(caller, call_id)

    async def authenticate(self, authorization: bytes | None, *, for_console: bool = False) -> Caller:
        """Verify an Authorization header and refuse revoked callers.

        Tokens that are only for the console are accepted only with `for_console`: for seeing and deciding approvals.
        """
        token = _parse_bearer(authorization)
        cached_caller = self._tokens.get_cached_caller(token, allow_console_only=for_console)
        caller = cached_caller or await self._tokens.verify_caller(token, allow_console_only=for_console)
        self._lifecycle.runtime.request_slots.take_slot(caller)
        (await self._lifecycle.runtime.authority.load_tenant(caller.tenant)).revocations.check(caller)
        return caller

    async def authenticate_for_call(self, authorization: bytes | None) -> Caller:
        """Verify an Authorization header for `run_call`, which refuses revoked callers itself and audits it."""
        token = _parse_bearer(authorization)
        caller = self._tokens.get_cached_caller(token) or await self._tokens.verify_caller(token)
        self._lifecycle.runtime.request_slots.take_slot(caller)
        return caller

    def sign(self, purpose: str, message: bytes) -> bytes:
        """Sign a message so that every gateway on this database can verify it by signing it again."""
        return hmac.digest(self._lifecycle.runtime.keys.derive_shared_key(purpose), message, "sha256")

    def format_now(self) -> str:
        """Format the current time as audit entries have it: RFC 3339, in milliseconds."""
        return self._lifecycle.runtime.stamps.now()


def _parse_bearer(authorization: bytes | None) -> bytes:
    if authorization is None or authorization[:7].lower() != b"bearer ":
        raise TokenMissing("the request carries no bearer token")
    return authorization[7:].strip()


# PostgreSQL is away, full or shutting down; the caller's request is not at fault.
_DATABASE_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    OSError,
    TimeoutError,
)


def translate_error(error: Exception) -> Problem | None:
    """Translate an unexpected error into a Problem for the caller; None if it can only be an internal error."""
    if isinstance(error, WentBackError):
        return build_refusal(str(error))
    if isinstance(error, _DATABASE_ERRORS):
        return Unavailable("PostgreSQL does not answer", retry_after_ms=1000)
    return None
