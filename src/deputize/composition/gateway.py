"""Build the gateway: one object for each thing that interfaces can ask for."""

from collections.abc import Iterator, Sequence

from deputize.acts.erasure import Erasures
from deputize.acts.webhooks import WebhookAdmin
from deputize.catalog.importers.mcp import list_scopes
from deputize.catalog.importers.openapi.contracts import list_service_scopes
from deputize.composition.identity import CompleteCaller, build_console_access, build_operator_tokens
from deputize.core.contract.tools import ProjectTool
from deputize.core.settings import Settings
from deputize.execute.egress import Egress
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.commands import Commands
from deputize.operations.admin.contract_tests import ContractTests
from deputize.operations.admin.delegations import Delegations
from deputize.operations.admin.deprecations import Deprecations
from deputize.operations.admin.human_tasks import HumanTasks
from deputize.operations.admin.legal_holds import LegalHolds
from deputize.operations.admin.policy.backtests import Backtests
from deputize.operations.admin.policy.explain import PolicyExplanations
from deputize.operations.admin.policy.suggestions import PermitSuggestions
from deputize.operations.admin.project_edits import ProjectEdits
from deputize.operations.admin.service_levels import ServiceLevels
from deputize.operations.admin.tool_health import ToolHealth
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.operations.approvals.terminal_decisions import build_code_verifier
from deputize.operations.audit.agents import AgentList
from deputize.operations.audit.entry_reader import EntryReader
from deputize.operations.audit.export import AuditExport
from deputize.operations.audit.log_history import LogHistory
from deputize.operations.audit.log_reader import LogReader
from deputize.operations.audit.observations import Observations
from deputize.operations.audit.search import AuditSearch
from deputize.operations.audit.tail import AuditTail
from deputize.operations.bootstrap import list_tenants
from deputize.operations.calls.call_exports import CallExports
from deputize.operations.calls.cancel import Cancellations
from deputize.operations.calls.flow_views import FlowViews
from deputize.operations.calls.queries import CallQueries
from deputize.operations.calls.receipts import CallReceipts
from deputize.operations.calls.restore_checkpoint import Rollbacks
from deputize.operations.gateway import Gateway
from deputize.operations.servers.account_links import AccountLinks
from deputize.operations.servers.circuits import CircuitReports
from deputize.operations.servers.effects import ServerEffects
from deputize.operations.servers.inventory import ServerInventory
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.review import ServerReview
from deputize.operations.undo.undo import Undo
from deputize.operations.views.activity import Activity
from deputize.operations.views.cost_report import CostReport
from deputize.operations.views.health import Health
from deputize.operations.views.metadata import GatewayMetadata
from deputize.operations.views.negotiation import Negotiations
from deputize.operations.views.surface import Surface
from deputize.operations.views.tool_exports import ToolExports
from deputize.operations.views.waiting import Waiting
from deputize.store.pseudonyms import Pseudonyms


def get_lifecycle(gateway: Gateway) -> Lifecycle:
    """Return the lifecycle behind a gateway, which interfaces cannot reach: for workers, tests and proofs."""
    return gateway._lifecycle


def build_gateway(
    runtime: Runtime,
    tokens: TokenVerifier,
    tools: Sequence[ProjectTool],
    health: Health,
    complete_caller: CompleteCaller,
    egress: Egress,
    monitor: ServerMonitor,
    development: bool,
    pseudonyms: Pseudonyms,
    *,
    replaces_versions: bool,
) -> Gateway:
    """Build the gateway: everything that interfaces may use."""
    settings = runtime.settings
    commands = Commands(runtime, pseudonyms, admits_drafts=development, replaces_versions=replaces_versions)
    calls, approvals, backtests = CallQueries(runtime), ApprovalDecisions(runtime, complete_caller), Backtests(runtime)
    surface, entries = Surface(runtime), EntryReader(runtime)
    runtime.metrics.watch_readiness(lambda: [(each.name, each.ok, each.is_required) for each in health.run_checks()])
    log_reader = LogReader(entries)
    lifecycle = Lifecycle(runtime)
    return Gateway(
        settings=settings,
        clock=runtime.clock,
        commands=commands,
        project_edits=(
            ProjectEdits(runtime, commands, complete_caller, list_tenants(settings)) if replaces_versions else None
        ),
        contract_tests=ContractTests(runtime),
        surface=surface,
        exports=ToolExports(runtime, surface),
        deprecations=Deprecations(runtime),
        service_levels=ServiceLevels(runtime),
        tool_health=ToolHealth(runtime),
        activity=Activity(runtime),
        waiting=Waiting(runtime),
        cost_report=CostReport(runtime),
        negotiations=Negotiations(runtime),
        calls=calls,
        call_exports=CallExports(calls),
        call_receipts=CallReceipts(runtime, calls),
        agents=AgentList(entries),
        audit_search=AuditSearch(entries),
        audit_tail=AuditTail(entries),
        audit_export=AuditExport(entries),
        observations=Observations(entries),
        log_reader=log_reader,
        log_history=LogHistory(entries, log_reader),
        cancellations=Cancellations(runtime, calls),
        flows=FlowViews(runtime, calls),
        undo=Undo(lifecycle),
        webhooks=WebhookAdmin(runtime),
        human_tasks=HumanTasks(runtime),
        approvals=approvals,
        suggestions=PermitSuggestions(runtime, backtests),
        servers=ServerInventory(runtime, monitor),
        review=ServerReview(runtime, monitor),
        effects=ServerEffects(runtime, monitor),
        circuits=CircuitReports(runtime),
        account_links=AccountLinks(runtime, monitor),
        erasures=Erasures(runtime, pseudonyms),
        legal_holds=LegalHolds(runtime, pseudonyms),
        console_access=build_console_access(
            runtime,
            tokens,
            egress,
            build_code_verifier(runtime, approvals, complete_caller),
            complete_caller,
            development,
        ),
        rollbacks=Rollbacks(runtime),
        explanations=PolicyExplanations(runtime),
        backtests=backtests,
        delegations=Delegations(runtime, tokens, runtime.signing_keys),
        operator_tokens=build_operator_tokens(runtime, tokens, egress),
        metadata=GatewayMetadata(
            settings, runtime.signing_keys, _collect_scopes(settings, tools), runtime.linked_accounts.oauth_flow
        ),
        health=health,
        _lifecycle=lifecycle,
        _tokens=tokens,
    )


def _collect_scopes(settings: Settings, tools: Sequence[ProjectTool]) -> Iterator[str]:
    """Collect the scopes that the tools need, for clients that want to know them in advance."""
    for tool in tools:
        yield from tool.contract.auth.required_scopes
    for server in settings.servers:
        yield from list_scopes(server)
    for service in settings.services:
        yield from list_service_scopes(service)
