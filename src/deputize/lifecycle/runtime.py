"""Define the runtime: the services that every call needs, built once by `composition/runtime.py`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from deputize.core.call_report import ReportCall
from deputize.core.clock import Clock
from deputize.core.contract.contract import Contract
from deputize.core.settings import Settings
from deputize.evidence.audit_entries import TimestampFormatter
from deputize.evidence.call_costs import CallCosts
from deputize.evidence.call_measurements import CallMeasurements
from deputize.evidence.decision_log import DecisionLog
from deputize.evidence.deprecated_uses import DeprecatedUses
from deputize.evidence.metrics import Metrics
from deputize.evidence.tracing import Tracing
from deputize.execute.circuits.breakers import CircuitBreakers
from deputize.execute.driver import Drivers
from deputize.execute.job_processes import JobProcesses
from deputize.execute.read_cache import ReadCache
from deputize.execute.retry_budgets import RetryBudgets
from deputize.execute.service_gate import ServiceGate
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.execute.upstreams.status import ServerStates
from deputize.govern.consistency_rules import SourceRules
from deputize.govern.identity.signing_keys import SigningKeys
from deputize.govern.limits.act_limits import ActLimits
from deputize.govern.limits.limit_admission import LimitEnforcer
from deputize.govern.limits.request_limits import RequestLimits
from deputize.govern.limits.request_slots import RequestSlots
from deputize.govern.policy.authzen import AuthZenClient
from deputize.lifecycle.credentials.broker import CredentialBroker
from deputize.lifecycle.credentials.linked_accounts import LinkedAccounts
from deputize.lifecycle.credentials.upstream_tokens import UpstreamTokens
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.shared_circuits import SharedCircuits
from deputize.lifecycle.tenant_snapshot import Authority
from deputize.runs.flow_outcomes import FlowOutcomes
from deputize.runs.interpreter import InterpreterSandboxes
from deputize.runs.leases import ProcessLease
from deputize.store.consistency_values import ConsistencyValues
from deputize.store.group_commit import GroupCommit
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store
from deputize.store.restore_guard.lineage import Lineage
from deputize.store.stored_results import StoredResults

if TYPE_CHECKING:
    from deputize.core.call import CallRequest
    from deputize.core.caller import Caller
    from deputize.core.outcome import Outcome
    from deputize.govern.approvals.approval_codes import ApprovalCodes
    from deputize.govern.approvals.confirmation_codes import ConfirmationCodes


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    settings: Settings
    clock: Clock
    release: str
    store: Store
    writer: GroupCommit
    # For rows of runs before they begin and after they end: separate, so that calls do not wait behind them.
    queue: GroupCommit
    keys: TenantKeys
    authority: Authority
    decision_log: DecisionLog
    hooks: Hooks
    remote_policy: AuthZenClient | None
    credentials: CredentialBroker
    # None if identity.public_url is not set, so that this gateway issues no tokens.
    signing_keys: SigningKeys | None
    limits: LimitEnforcer
    request_limits: RequestLimits
    request_slots: RequestSlots
    act_limits: ActLimits
    driver: Drivers
    # Whether calls to failing services pass, here and in all gateways together.
    circuits: CircuitBreakers
    shared_circuits: SharedCircuits
    # Results of reads that their contracts declare fresh for a while.
    read_cache: ReadCache
    # What calls to external services pass.
    service_gate: ServiceGate
    # What this process may still ask of external services.
    retry_budgets: RetryBudgets
    # For work whose cost outsiders choose.
    jobs: JobProcesses
    # The same for administrative acts, which may take many seconds: separate, so that calls do not wait behind them.
    admin_jobs: JobProcesses
    # For the definitions of servers, which may take as long.
    definition_jobs: JobProcesses
    # For programs of `code.run`, whose length their callers choose.
    program_jobs: JobProcesses
    interpreters: InterpreterSandboxes
    upstreams: UpstreamPool
    # Linked accounts, and the tokens for servers that need a sign-in.
    linked_accounts: LinkedAccounts
    upstream_tokens: UpstreamTokens
    # The state of each server at its last probe.
    server_states: ServerStates
    lease: ProcessLease
    # Who calls deprecated versions.
    deprecated_uses: DeprecatedUses
    # Facts that several tools tell, and what they said.
    source_rules: SourceRules
    consistency_values: ConsistencyValues
    # What steps of flows returned, so that each is decrypted once.
    flow_outcomes: FlowOutcomes
    # Results that are given as references.
    stored_results: StoredResults
    # How calls end, what they take and cost.
    call_measurements: CallMeasurements
    # What calls and their reviews cost, by tool, caller and task.
    call_costs: CallCosts
    # Whether the database still has what was committed to it.
    lineage: Lineage
    metrics: Metrics
    tracing: Tracing
    stamps: TimestampFormatter
    # Disables a version that is declared as a read and changed state: the tenant, its contract, the evidence.
    disable_mutating_read: "Callable[[Runtime, str, Contract, str], Awaitable[None]]"
    # Runs a call through all phases, for calls that are part of another one.
    run_call: "Callable[[Runtime, Caller, CallRequest], Awaitable[Outcome]]"
    # In development only: the codes that a person at the terminal decides with.
    approval_codes: "ApprovalCodes | None" = None
    # In development only: the codes that a person at the terminal confirms administrative acts with.
    confirmation_codes: "ConfirmationCodes | None" = None
    # In development only: prints a line for each call.
    report_call: ReportCall | None = None
