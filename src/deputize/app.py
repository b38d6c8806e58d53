"""Compose the gateway: the only module that knows every package. Read top to bottom, it lists what runs."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from deputize.catalog.importers.mcp import list_scopes
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.contract.tools import PythonTool
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.core.hooks import LoadedHook
from deputize.core.settings import Settings
from deputize.core.settings.urls import SIGN_IN_CALLBACK_PATH, get_base_url
from deputize.evidence.audit_entries import TimestampFormatter
from deputize.evidence.call_measurements import CallMeasurements
from deputize.evidence.decision_log import DecisionLog
from deputize.evidence.deprecated_uses import DeprecatedUses
from deputize.evidence.loop_watchdog import LoopWatchdog
from deputize.evidence.metrics import Metrics
from deputize.evidence.span_export import open_tracer
from deputize.evidence.tracing import Tracing
from deputize.execute.driver import Drivers
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver
from deputize.execute.egress import Egress
from deputize.execute.job_processes import JobProcesses
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.execute.upstreams.status import ServerStates
from deputize.govern.approvals.approval_codes import ApprovalCode, ApprovalCodes
from deputize.govern.approvals.confirmation_codes import ConfirmationCode, ConfirmationCodes
from deputize.govern.identity.client_assertions import OperatorClients
from deputize.govern.identity.jwks import list_issuer_hosts
from deputize.govern.identity.oidc_login import OidcLogin, check_console_settings
from deputize.govern.identity.primary_issuers import PrimaryIssuers
from deputize.govern.identity.sessions import SessionSealer
from deputize.govern.identity.signing_keys import SigningKeys
from deputize.govern.identity.token_verifier import TokenVerifier
from deputize.govern.limits.act_limits import ActLimits
from deputize.govern.limits.admission import LimitEnforcer
from deputize.govern.limits.budgets import Budgets
from deputize.govern.limits.request_limits import RequestLimits
from deputize.govern.limits.request_slots import RequestSlots
from deputize.govern.policy.authzen import AuthZenClient
from deputize.govern.source_agreement import SourceRules
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import OpenBaoVault
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.authority import Authority
from deputize.lifecycle.callbacks import WebhookAdmin
from deputize.lifecycle.credentials.broker import CredentialBroker
from deputize.lifecycle.credentials.wiring import build_upstream_tokens
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.commands import Commands
from deputize.operations.admin.contract_tests import ContractTests
from deputize.operations.admin.delegations import Delegations, make_token_minter
from deputize.operations.admin.deprecations import Deprecations
from deputize.operations.admin.erasures import Erasures
from deputize.operations.admin.operator_tokens import OperatorTokens
from deputize.operations.admin.policy.backtests import Backtests
from deputize.operations.admin.policy.explain import PolicyExplanations
from deputize.operations.admin.policy.suggestions import PermitSuggestions
from deputize.operations.admin.reconciliation_tasks import ReconciliationTasks
from deputize.operations.admin.service_levels import ServiceLevels
from deputize.operations.approvals.console_sessions import ConsoleAccess
from deputize.operations.approvals.decisions import ApprovalDecisions
from deputize.operations.approvals.escalation import ApprovalEscalator
from deputize.operations.approvals.notifications.notifier import ApprovalNotifier
from deputize.operations.approvals.terminal_decisions import CodeVerifier, build_code_verifier, show_open_codes
from deputize.operations.background.account_revocations import AccountRevocations
from deputize.operations.background.deliveries import Deliveries
from deputize.operations.background.deprecation_reports import DeprecationReports
from deputize.operations.background.erasures import ErasureContinuation
from deputize.operations.background.measurement_storage import MeasurementStorage
from deputize.operations.background.reconciler import Reconciler
from deputize.operations.background.sweeper import Sweeper
from deputize.operations.bootstrap import bootstrap_gateway, compare_files, list_tenants
from deputize.operations.calls.call_exports import CallExports
from deputize.operations.calls.cancel import Cancellations
from deputize.operations.calls.queries import CallQueries
from deputize.operations.calls.rollback import Rollbacks
from deputize.operations.gateway import Gateway
from deputize.operations.servers.account_links import AccountLinks
from deputize.operations.servers.inventory import ServerInventory
from deputize.operations.servers.monitor import ServerMonitor
from deputize.operations.servers.review import ServerReview
from deputize.operations.views.compared_sources import log_ignored_sources
from deputize.operations.views.health import BackgroundTask, Health
from deputize.operations.views.metadata import GatewayMetadata
from deputize.operations.views.negotiation import Negotiations
from deputize.operations.views.surface import Surface
from deputize.operations.views.tool_exports import ToolExports
from deputize.runs.leases import ProcessLease
from deputize.store.counters.factory import open_counters
from deputize.store.counters.port import Counters
from deputize.store.epoch_watcher import EpochWatcher
from deputize.store.group_commit import GroupCommit
from deputize.store.instance_lock import InstanceLock
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.lineage.lineage import Lineage
from deputize.store.lineage.watcher import LineageWatcher
from deputize.store.observed_values import ObservedValues
from deputize.store.pool import Store
from deputize.store.pseudonyms import Pseudonyms
from deputize.store.tenants import ensure_tenant

if TYPE_CHECKING:
    from deputize.operations.background.worker import Worker

RELEASE = version("deputize")
CompleteCaller = Callable[[Caller], Awaitable[Caller]]
# How long a development gateway waits for its servers, so that it can report their state.
_SERVER_WAIT_SECONDS = 2.0
# Judging what administrators and servers send yields to calls, which are waited for.
_ADMIN_NICE = 10


def get_lifecycle(gateway: Gateway) -> Lifecycle:
    """Return the lifecycle behind a gateway, which interfaces cannot reach: for workers, tests and proofs."""
    return gateway._lifecycle


@contextlib.asynccontextmanager
async def open_worker(gateway: Gateway) -> AsyncIterator["Worker"]:
    """Execute runs in this process until the block ends."""
    # The engine takes half a second to import; a gateway without a worker does not need it.
    from deputize.operations.background.worker import Worker  # noqa: PLC0415 - see above
    from deputize.runs.engine import DurableEngine  # noqa: PLC0415 - see above

    lifecycle = get_lifecycle(gateway)
    runtime = lifecycle.runtime
    engine = DurableEngine(
        runtime.store.direct_dsn,
        executor=runtime.lease.boot_id,
        concurrency=runtime.settings.runs.at_once,
        poll_seconds=runtime.settings.runs.poll_seconds,
    )
    # A separate egress: callers must not reach hosts that the operator named for other purposes.
    egress = Egress(allow_hosts=frozenset(runtime.settings.webhooks.hosts))
    senders = (Deliveries(runtime, egress.send), ApprovalNotifier(runtime, egress.send))
    worker = Worker(lifecycle, engine)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(egress.aclose)
        await _start_services(stack, *senders, Reconciler(lifecycle), worker)
        yield worker


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    tools: Sequence[PythonTool] = (),
    hooks: Sequence[LoadedHook] = (),
    development: bool = False,
    worker: bool = False,
    applies_files: bool = True,
    show_code: Callable[[ApprovalCode], None] | None = None,
    instance_lock: InstanceLock | None = None,
    show_confirmation: Callable[[ConfirmationCode], None] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """Open a whole gateway, with a worker inside if requested; start services in order and stop them in reverse.

    Without `applies_files` it registers no tools and activates no policies: it works with what is active already, and
    says where the project's files differ. `show_code` and `show_confirmation` print the codes that people decide and
    confirm with to the terminal of a development gateway, while `instance_lock` is held; without the lock no code is
    shown or accepted.
    """
    clock = clock or Clock()
    async with contextlib.AsyncExitStack() as stack:
        egress = Egress(allow_hosts=_collect_operator_hosts(settings))
        stack.push_async_callback(egress.aclose)
        hook_chain = _build_hooks(settings, hooks, clock)
        stack.callback(hook_chain.close)
        runtime = await _open_runtime(settings, tools, hook_chain, development, clock, egress, stack)
        is_usable = (lambda: True) if instance_lock is None else (lambda: instance_lock.is_held)
        if development and show_code is not None:
            runtime = replace(runtime, approval_codes=ApprovalCodes(clock, show_code, is_usable))
        if development and show_confirmation is not None:
            codes = ConfirmationCodes(clock, show_confirmation, is_usable)
            runtime = replace(runtime, confirmation_codes=codes)
        pseudonyms = Pseudonyms(clock)

        async def complete_caller(caller: Caller) -> Caller:
            subjects = caller.pseudonym_subjects
            return replace(caller, pseudonyms=await pseudonyms.get_or_create(runtime.store, caller.tenant, subjects))

        monitor = ServerMonitor(runtime, complete_caller, registers_tools=applies_files)
        tasks: dict[str, PeriodicTask | EpochWatcher] = {
            "sweeper": Sweeper(runtime),
            "account revocations": AccountRevocations(runtime),
            "erasures": ErasureContinuation(runtime),
            "deprecation reports": DeprecationReports(runtime),
            "measurement storage": MeasurementStorage(runtime),
            "approval escalation": ApprovalEscalator(runtime),
            "epoch watcher": _build_epoch_watcher(runtime, monitor),
        }
        background: dict[str, BackgroundTask] = {**tasks, "server monitor": monitor}
        tokens = _build_token_verifier(runtime, egress, complete_caller, stack)
        gateway = _build_gateway(
            runtime, tokens, tools, background, complete_caller, egress, monitor, development, pseudonyms
        )
        await _start_services(stack, *tasks.values())
        if applies_files:
            await bootstrap_gateway(gateway, tools, complete_caller)
        else:
            await compare_files(gateway, runtime.authority, tools)
        # After the operator's own tools: a server's tools take the names that are left.
        await _start_services(stack, monitor)
        if development:
            await monitor.wait_for_first_probes(_SERVER_WAIT_SECONDS)
        if settings.consistency:
            await log_ignored_sources(settings.consistency, list_tenants(settings), runtime.authority.load_tools)
        await show_open_codes(runtime)
        if worker:
            inner_worker = await stack.enter_async_context(open_worker(gateway))
            gateway._workers.append(inner_worker)
            background["worker"] = inner_worker
        yield gateway


class _Service(Protocol):
    """A service that runs until it is stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def _start_services(stack: contextlib.AsyncExitStack, *services: _Service) -> None:
    """Start services one after the other; the stack stops them in reverse."""
    for service in services:
        await service.start()
        stack.push_async_callback(service.stop)


def _build_token_verifier(
    runtime: Runtime, egress: Egress, complete_caller: CompleteCaller, stack: contextlib.AsyncExitStack
) -> TokenVerifier:
    # Callers who exchange tokens can name a DID: it is resolved at public addresses only, not at the operator's hosts.
    public_egress = Egress()
    stack.push_async_callback(public_egress.aclose)
    signing_keys, identity = runtime.signing_keys, runtime.settings.identity
    return TokenVerifier(
        identity,
        runtime.clock,
        egress.get,
        enrich_caller=complete_caller,
        find_primary_issuer=PrimaryIssuers(runtime.store, identity.issuers).get,
        own_keys=signing_keys,
        fetch_outside=public_egress.get,
        get_recovered_at=lambda: runtime.lineage.recovered_at,
    )


def _build_gateway(
    runtime: Runtime,
    tokens: TokenVerifier,
    tools: Sequence[PythonTool],
    background: dict[str, BackgroundTask],
    complete_caller: CompleteCaller,
    egress: Egress,
    monitor: ServerMonitor,
    development: bool,
    pseudonyms: Pseudonyms,
) -> Gateway:
    """Build the gateway: everything that interfaces may use."""
    settings = runtime.settings
    calls, approvals, backtests = CallQueries(runtime), ApprovalDecisions(runtime, complete_caller), Backtests(runtime)
    surface = Surface(runtime)
    return Gateway(
        settings=settings,
        clock=runtime.clock,
        commands=Commands(runtime, pseudonyms),
        contract_tests=ContractTests(runtime),
        surface=surface,
        exports=ToolExports(runtime, surface),
        deprecations=Deprecations(runtime),
        service_levels=ServiceLevels(runtime),
        negotiations=Negotiations(runtime),
        calls=calls,
        call_exports=CallExports(calls),
        cancellations=Cancellations(runtime, calls),
        webhooks=WebhookAdmin(runtime),
        reconciliation_tasks=ReconciliationTasks(runtime),
        approvals=approvals,
        suggestions=PermitSuggestions(runtime, backtests),
        servers=ServerInventory(runtime, monitor),
        review=ServerReview(runtime, monitor),
        account_links=AccountLinks(runtime, monitor),
        erasures=Erasures(runtime, pseudonyms),
        console_access=_build_console(
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
        operator_tokens=_build_operator_tokens(runtime, tokens, egress),
        metadata=GatewayMetadata(
            settings, runtime.signing_keys, _collect_scopes(settings, tools), runtime.linked_accounts.oauth_flow
        ),
        health=Health(runtime, background),
        _lifecycle=Lifecycle(runtime),
        _tokens=tokens,
    )


def _build_operator_tokens(runtime: Runtime, tokens: TokenVerifier, egress: Egress) -> OperatorTokens:
    signing_keys, identity = runtime.signing_keys, runtime.settings.identity
    clients = None if signing_keys is None else OperatorClients(identity, signing_keys, runtime.clock, egress.get)
    return OperatorTokens(runtime, tokens, signing_keys, clients)


def _collect_scopes(settings: Settings, tools: Sequence[PythonTool]) -> Iterator[str]:
    """Collect the scopes that the tools need, for clients that want to know them in advance."""
    for tool in tools:
        yield from tool.contract.auth.required_scopes
    for server in settings.servers:
        yield from list_scopes(server)


async def _open_runtime(
    settings: Settings,
    tools: Sequence[PythonTool],
    hooks: Hooks,
    development: bool,
    clock: Clock,
    egress: Egress,
    stack: contextlib.AsyncExitStack,
) -> Runtime:
    lineage = Lineage.open(settings.database.lineage_folder)
    stack.callback(lineage.close)
    store = await _open_store(settings, lineage, stack)
    boot_id = clock.new_id()
    lease = ProcessLease(store, clock, boot_id=boot_id, seconds=settings.timing.lease_seconds, release=RELEASE)
    writer, queue = (
        GroupCommit(
            store.connect_writer, boot_id=boot_id, max_rows=settings.database.batch_rows, note_entry=lineage.note_entry
        )
        for _ in range(2)
    )
    lineage.on_loss(writer.disconnect)
    lineage.on_loss(queue.disconnect)
    metrics = Metrics()
    metrics.database_went_back.set_function(lambda: float(lineage.loss is not None))
    watchdog = LoopWatchdog(metrics.loop_stalls.observe)
    counters = open_counters(settings.limits, clock)
    limits = _build_limits(settings, store, counters, clock, metrics)
    await _start_services(stack, watchdog, lease, writer, queue, limits)
    await _start_services(stack, LineageWatcher(lineage, store, settings.timing.refresh_seconds))
    jobs, admin_jobs, definition_jobs = (
        JobProcesses(),
        JobProcesses(max_processes=1, nice=_ADMIN_NICE),
        JobProcesses(nice=_ADMIN_NICE),
    )
    for processes in (jobs, admin_jobs, definition_jobs):
        stack.push_async_callback(processes.aclose)
    upstreams = UpstreamPool(settings, clock)
    stack.push_async_callback(upstreams.aclose)
    keys = TenantKeys(
        _load_master_key(settings, clock, development),
        clock,
        accepted_masters=[MasterKey.read(file) for file in settings.keys.accepted_master_files],
    )
    signing_keys = _build_signing_keys(settings, store, keys, clock)
    vault = _open_vault(settings, store, keys, clock, stack)
    links, upstream_tokens = build_upstream_tokens(settings, store, keys, vault, clock, upstreams, stack)
    await _make_tenants(store, settings)
    return Runtime(
        settings=settings,
        clock=clock,
        release=RELEASE,
        store=store,
        writer=writer,
        queue=queue,
        keys=keys,
        authority=Authority(store, keys, admin_jobs, clock),
        deprecated_uses=DeprecatedUses(clock),
        source_rules=SourceRules(settings.consistency),
        observed_values=ObservedValues(store, clock),
        call_measurements=CallMeasurements(clock),
        decision_log=DecisionLog(writer, clock),
        hooks=hooks,
        remote_policy=None if settings.policy.engine == "cedar" else AuthZenClient(settings.policy, egress.post),
        credentials=CredentialBroker(
            vault=vault, mint=make_token_minter(signing_keys, clock), upstream_tokens=upstream_tokens
        ),
        signing_keys=signing_keys,
        driver=_build_drivers(tools, upstreams, stack),
        jobs=jobs,
        admin_jobs=admin_jobs,
        definition_jobs=definition_jobs,
        upstreams=upstreams,
        linked_accounts=links,
        upstream_tokens=upstream_tokens,
        server_states=ServerStates(),
        lease=lease,
        lineage=lineage,
        limits=limits,
        request_limits=RequestLimits(settings.limits, counters, clock, on_refusal=metrics.record_limit_refusal),
        request_slots=RequestSlots(settings.server, on_refusal=metrics.record_limit_refusal),
        act_limits=ActLimits(settings.limits, clock, on_refusal=metrics.record_limit_refusal),
        metrics=metrics,
        tracing=_build_tracing(settings, stack),
        stamps=TimestampFormatter(clock),
    )


def _build_drivers(tools: Sequence[PythonTool], upstreams: UpstreamPool, stack: contextlib.AsyncExitStack) -> Drivers:
    functions = PythonDriver(tools)
    stack.callback(functions.close)
    return Drivers(functions, McpDriver(upstreams))


def _build_tracing(settings: Settings, stack: contextlib.AsyncExitStack) -> Tracing:
    tracer = open_tracer(settings.telemetry, RELEASE, stack)
    return Tracing(sample=settings.telemetry.trace_sample, tracer=tracer, rng=random.Random())


def _load_master_key(settings: Settings, clock: Clock, development: bool) -> MasterKey:
    file = settings.keys.master_file
    return MasterKey.read_or_create(file, clock) if development else MasterKey.read(file)


async def _open_store(settings: Settings, lineage: Lineage, stack: contextlib.AsyncExitStack) -> Store:
    if settings.database.url is None:
        raise ConfigError("No database is set. Add url under [database] in deputize.toml, or use deputize dev.")
    direct = settings.database.direct_url
    store = await Store.open(
        settings.database.url.get_secret_value(),
        direct_dsn=direct.get_secret_value() if direct else None,
        read_connections=settings.database.read_connections,
        verify=lineage.verify,
    )
    stack.push_async_callback(store.close)
    return store


def _build_limits(
    settings: Settings, store: Store, counters: Counters, clock: Clock, metrics: Metrics
) -> LimitEnforcer:
    return LimitEnforcer(
        settings.limits.rules,
        counters,
        Budgets(store, clock),
        clock=clock,
        on_refusal=metrics.record_limit_refusal,
        on_uncounted=metrics.record_uncounted_call,
    )


def _build_hooks(settings: Settings, hooks: Sequence[LoadedHook], clock: Clock) -> Hooks:
    missing = [
        hook_settings.name
        for hook_settings in settings.hooks
        if hook_settings.name not in {hook.name for hook in hooks}
    ]
    if missing:
        raise ConfigError(
            f"The hook {missing[0]} is in deputize.toml but was not loaded. Start with deputize dev or serve, "
            "or pass it to open_gateway."
        )
    return Hooks(hooks, clock, settings.environment)


def _build_signing_keys(settings: Settings, store: Store, keys: TenantKeys, clock: Clock) -> SigningKeys | None:
    identity = settings.identity
    if identity.public_url is None:
        return None
    return SigningKeys(store, keys, clock, public_url=identity.public_url, keep_seconds=identity.max_grant_seconds)


def _build_console(
    runtime: Runtime,
    tokens: TokenVerifier,
    egress: Egress,
    by_code: CodeVerifier | None,
    complete_caller: CompleteCaller,
    development: bool,
) -> ConsoleAccess:
    console_settings, identity = runtime.settings.console, runtime.settings.identity
    base = get_base_url(runtime.settings)
    check_console_settings(console_settings, identity, base)
    issuer = next((each for each in identity.issuers if each.issuer == console_settings.issuer), None)
    sign_in = None
    if issuer is not None and base is not None:
        fresh = runtime.settings.approvals.fresh_seconds
        sign_in = OidcLogin(
            console_settings,
            tokens,
            runtime.clock,
            egress.get,
            egress.post,
            fresh_seconds=fresh,
            redirect_uri=base + SIGN_IN_CALLBACK_PATH,
        )
    # Agents can read a development folder and could forge sessions with its key: there, the key is in memory only.
    root = runtime.clock.random_bytes(KEY_BYTES) if development else runtime.keys.derive_shared_key("console sessions")
    # Any change of the issuer's or the client's settings ends every session.
    issued_for = f"{console_settings.client_id}\0{'' if issuer is None else issuer.model_dump_json()}"
    return ConsoleAccess(
        runtime, SessionSealer(root, runtime.clock, issued_for=issued_for), sign_in, by_code, complete_caller
    )


def _open_vault(
    settings: Settings, store: Store, keys: TenantKeys, clock: Clock, stack: contextlib.AsyncExitStack
) -> SecretVault:
    vault_settings = settings.vault
    local = vault_settings.kind == "local"
    vault: SecretVault = (
        LocalVault(store, keys, seconds=vault_settings.seconds) if local else OpenBaoVault(vault_settings, clock)
    )
    stack.callback(vault.close)
    return vault


async def _make_tenants(store: Store, settings: Settings) -> None:
    async with store.write_transaction() as connection:
        for tenant in list_tenants(settings):
            await ensure_tenant(connection, tenant)


def _build_epoch_watcher(runtime: Runtime, monitor: ServerMonitor) -> EpochWatcher:
    return EpochWatcher(
        runtime.store,
        current_epochs=monitor.list_epochs,
        refresh=monitor.refresh,
        seconds=runtime.settings.timing.refresh_seconds,
    )


def _collect_operator_hosts(settings: Settings) -> frozenset[str]:
    """Collect the hosts in the operator's settings: only those may be private addresses."""
    operator_urls = (each.jwks_url for each in settings.identity.operators)
    urls = (settings.policy.authzen_url, settings.vault.address, settings.console.issuer, *operator_urls)
    hosts = (urlsplit(url).hostname for url in (*urls, *(each.url for each in settings.servers)) if url)
    return list_issuer_hosts(settings.identity.issuers) | frozenset(host for host in hosts if host)
