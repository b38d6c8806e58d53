"""Open the runtime: the database, keys, drivers, limits and records that every call needs."""

import contextlib
import random
from collections.abc import Sequence
from importlib.metadata import version

from deputize.acts.mutating_reads import disable_mutating_read
from deputize.composition.command_driver import build_command_driver
from deputize.composition.grpc_driver import build_grpc_driver
from deputize.composition.sandboxes import build_interpreters
from deputize.composition.started_services import start_services
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.hooks import LoadedHook
from deputize.core.settings import ServiceSettings, Settings
from deputize.evidence.audit_entries import TimestampFormatter
from deputize.evidence.call_costs import CallCosts
from deputize.evidence.call_measurements import CallMeasurements
from deputize.evidence.decision_log import DecisionLog
from deputize.evidence.deprecated_uses import DeprecatedUses
from deputize.evidence.loop_watchdog import LoopWatchdog
from deputize.evidence.metrics import Metrics
from deputize.evidence.span_export import open_tracer
from deputize.evidence.tracing import Tracing
from deputize.execute.bulkheads import Bulkheads
from deputize.execute.circuits.breakers import CircuitBreakers
from deputize.execute.driver import Drivers
from deputize.execute.drivers.http import HttpDriver
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver
from deputize.execute.egress import Egress
from deputize.execute.job_processes import JobProcesses
from deputize.execute.read_cache import ReadCache
from deputize.execute.retry_budgets import RetryBudgets
from deputize.execute.service_gate import ServiceGate
from deputize.execute.service_rates import ServiceRates
from deputize.execute.upstreams.server_pool import UpstreamPool
from deputize.execute.upstreams.status import ServerStates
from deputize.govern.consistency_rules import SourceRules
from deputize.govern.identity.signing_keys import SigningKeys
from deputize.govern.limits.act_limits import ActLimits
from deputize.govern.limits.budgets import Budgets
from deputize.govern.limits.limit_admission import LimitEnforcer
from deputize.govern.limits.request_limits import RequestLimits
from deputize.govern.limits.request_slots import RequestSlots
from deputize.govern.policy.authzen import AuthZenClient
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import OpenBaoVault
from deputize.govern.vault.port import SecretVault
from deputize.lifecycle.credentials.broker import CredentialBroker
from deputize.lifecycle.credentials.wiring import build_upstream_tokens
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.runtime import Runtime
from deputize.lifecycle.shared_circuits import SharedCircuits
from deputize.lifecycle.tenant_snapshot import Authority
from deputize.operations.admin.delegations import make_token_minter
from deputize.operations.bootstrap import list_tenants
from deputize.runs.flow_outcomes import FlowOutcomes
from deputize.runs.leases import ProcessLease
from deputize.sandboxes.port import Backend
from deputize.store.consistency_values import ConsistencyValues
from deputize.store.counters.factory import open_counters
from deputize.store.counters.port import Counters
from deputize.store.group_commit import GroupCommit
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.restore_guard.lineage import Lineage
from deputize.store.restore_guard.watcher import LineageWatcher
from deputize.store.stored_results import StoredResults
from deputize.store.tenants import ensure_tenant

RELEASE = version("deputize")
# Judging what administrators and servers send yields to calls, which are waited for.
_ADMIN_NICE = 10
# As many as one tenant's requests in progress, by default.
_MAX_CONNECTIONS_PER_SERVICE = 1024


async def open_runtime(
    settings: Settings,
    functions: PythonDriver,
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
            store.connect_writer,
            boot_id=boot_id,
            max_rows=settings.database.batch_rows,
            note_entry=lineage.note_entry,
            max_waiting_rows=settings.database.max_waiting_rows,
            max_queued_runs=settings.runs.max_queued,
        )
        for _ in range(2)
    )
    lineage.on_loss(writer.disconnect)
    lineage.on_loss(queue.disconnect)
    metrics = Metrics()
    metrics.database_went_back.set_function(lambda: float(lineage.loss is not None))
    metrics.process.watch_process(
        RELEASE, {"calls": writer, "runs": queue}, {"readers": store.readers, "writers": store.writers}
    )
    watchdog = LoopWatchdog(metrics.loop_stalls.observe)
    counters = open_counters(settings.limits, clock)
    limits = _build_limits(settings, store, counters, clock, metrics)
    await start_services(stack, watchdog, lease, writer, queue, limits)
    await start_services(stack, LineageWatcher(lineage, store, settings.timing.refresh_seconds))
    jobs, admin_jobs, definition_jobs, program_jobs = (
        JobProcesses(),
        JobProcesses(nice=_ADMIN_NICE),
        JobProcesses(nice=_ADMIN_NICE),
        JobProcesses(nice=_ADMIN_NICE),
    )
    for processes in (jobs, admin_jobs, definition_jobs, program_jobs):
        stack.push_async_callback(processes.aclose)
    commands = build_command_driver(settings, stack)
    upstreams = UpstreamPool(settings, clock, commands.folders)
    stack.push_async_callback(upstreams.aclose)
    keys = TenantKeys(
        store,
        _load_master_key(settings, clock, development),
        clock,
        accepted_masters=[MasterKey.read(file) for file in settings.keys.accepted_master_files],
    )
    signing_keys = _build_signing_keys(settings, store, keys, clock)
    vault = _open_vault(settings, store, keys, clock, stack)
    links, upstream_tokens = build_upstream_tokens(settings, store, keys, vault, clock, upstreams, stack)
    await _make_tenants(store, settings)
    stamps = TimestampFormatter(clock)
    shared_circuits = SharedCircuits(store, clock, stamps)
    further_circuits = {
        (each.tenant or settings.tools.tenant, each.name): each.further_circuits for each in settings.services
    }
    circuits = CircuitBreakers(clock, shared_circuits.request_trial, further_circuits)
    metrics.watch_circuits(circuits.iterate_levels)
    bulkheads = Bulkheads(
        max_concurrent=settings.limits.service_calls_at_once,
        threads=functions.thread_count,
        runs=settings.runs.at_once,
        on_refusal=metrics.record_busy_service,
    )
    metrics.watch_services(bulkheads.iterate_loads)
    rates = ServiceRates(counters, clock.monotonic, metrics.record_busy_service)
    rates.wake = circuits.wake_event.set
    read_cache = ReadCache(clock.monotonic)
    upstreams.add_change_listener(read_cache.note_service_change)
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
        consistency_values=ConsistencyValues(store, clock),
        flow_outcomes=FlowOutcomes(),
        stored_results=StoredResults(store, keys, clock),
        call_measurements=CallMeasurements(clock),
        call_costs=CallCosts(clock),
        decision_log=DecisionLog(writer, clock),
        hooks=hooks,
        remote_policy=None if settings.policy.engine == "cedar" else AuthZenClient(settings.policy, egress.post),
        credentials=CredentialBroker(
            vault=vault, mint=make_token_minter(signing_keys, clock), upstream_tokens=upstream_tokens
        ),
        signing_keys=signing_keys,
        driver=Drivers(
            functions,
            McpDriver(upstreams),
            build_http_driver(settings, clock, stack),
            commands,
            build_grpc_driver(settings, stack),
            runs_programs=settings.builtin.code is not None,
            program_backend=(
                None if settings.accepts_weakness("unsandboxed_code") else Backend(settings.sandboxes.backend)
            ),
        ),
        circuits=circuits,
        shared_circuits=shared_circuits,
        read_cache=read_cache,
        service_gate=ServiceGate(circuits, bulkheads, rates),
        retry_budgets=RetryBudgets(clock.monotonic, retry_share=settings.limits.retry_share),
        jobs=jobs,
        admin_jobs=admin_jobs,
        definition_jobs=definition_jobs,
        program_jobs=program_jobs,
        interpreters=build_interpreters(settings, stack),
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
        stamps=stamps,
        disable_mutating_read=disable_mutating_read,
        run_call=lambda runtime, caller, request: Lifecycle(runtime).run(caller, request),
    )


def build_http_driver(settings: Settings, clock: Clock, stack: contextlib.AsyncExitStack) -> HttpDriver:
    # An egress for each service: it reaches its hosts and no other private one, and a service that does not answer
    # takes no connections from those of other tenants.
    services: dict[tuple[str, str], tuple[ServiceSettings, Egress]] = {}
    for each in (service for service in settings.services if service.kind not in ("grpc", "commands")):
        private_hosts = frozenset(() if each.public_only else each.hosts)
        egress = Egress(private_hosts, max_connections=_MAX_CONNECTIONS_PER_SERVICE)
        stack.push_async_callback(egress.aclose)
        services[each.tenant or settings.tools.tenant, each.name] = (each, egress)
    return HttpDriver(services, clock)


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


def _build_signing_keys(settings: Settings, store: Store, keys: TenantKeys, clock: Clock) -> SigningKeys | None:
    identity = settings.identity
    if identity.public_url is None:
        return None
    return SigningKeys(store, keys, clock, public_url=identity.public_url, keep_seconds=identity.max_grant_seconds)


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


def build_hooks(settings: Settings, hooks: Sequence[LoadedHook], clock: Clock) -> Hooks:
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
