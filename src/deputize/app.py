"""The composition root: the only file that knows every room. Read top to bottom, it is the list of what runs."""

import contextlib
import importlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from urllib.parse import urlsplit

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Tracer

from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.definition import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.execute.drivers.python import PythonDriver
from deputize.execute.egress import Egress
from deputize.govern.identity.jwks import hosts_of
from deputize.govern.identity.signing import SigningKeys
from deputize.govern.identity.tokens import TokenVerifier
from deputize.govern.limits.admission import Limits
from deputize.govern.limits.budgets import Budgets
from deputize.govern.policy.authzen import AuthZen
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import OpenBao
from deputize.govern.vault.port import Vault
from deputize.lifecycle.authority import Authority
from deputize.lifecycle.backtest import Backtests
from deputize.lifecycle.boot import boot, named_tenants
from deputize.lifecycle.calls import Calls
from deputize.lifecycle.command import Commands
from deputize.lifecycle.credentials import Credentials
from deputize.lifecycle.decisions import DecisionLog
from deputize.lifecycle.delegate import Delegations, minting
from deputize.lifecycle.explaining import Explaining
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.health import Health
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.surface import Surface
from deputize.lifecycle.sweep import Sweeper
from deputize.lifecycle.wellknown import WellKnown
from deputize.prove.entries import Stamps
from deputize.prove.metrics import Metrics
from deputize.prove.tracing import Tracing
from deputize.runs.leases import Lease
from deputize.store.batch import GroupCommit
from deputize.store.epochs import EpochWatcher
from deputize.store.keys import MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.shared.counters import Counters
from deputize.store.shared.in_process import InProcessCounters
from deputize.store.subjects import Pseudonyms
from deputize.store.tenants import ensure_tenant

RELEASE = version("deputize")


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    tools: Sequence[PythonTool] = (),
    hooks: Sequence[LoadedHook] = (),
    development: bool = False,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """A whole gateway, started in order and stopped in reverse, whatever happens in between."""
    clock = clock or Clock()
    async with contextlib.AsyncExitStack() as stack:
        egress = Egress(allow_hosts=_operator_hosts(settings))
        stack.push_async_callback(egress.aclose)
        around = _hooks(settings, hooks, clock)
        stack.callback(around.close)
        rooms = await _open_rooms(settings, tools, around, development, clock, egress, stack)
        pseudonyms = Pseudonyms(clock)

        async def complete(caller: Caller) -> Caller:
            return replace(caller, pseudonyms=await pseudonyms.of(rooms.store, caller.tenant, caller.subjects))

        background: dict[str, Sweeper | EpochWatcher] = {"sweeper": Sweeper(rooms), "snapshot watcher": _watcher(rooms)}
        # Whoever may exchange a token may name a DID: it leads to public addresses only, never to the operator's hosts.
        outside = Egress()
        stack.push_async_callback(outside.aclose)
        tokens = TokenVerifier(
            settings.identity, clock, egress.get, complete=complete, own=rooms.signing, fetch_outside=outside.get
        )
        gateway = Gateway(
            settings=settings,
            tokens=tokens,
            lifecycle=Lifecycle(rooms),
            commands=Commands(rooms),
            surface=Surface(rooms),
            calls=Calls(rooms),
            explaining=Explaining(rooms),
            backtests=Backtests(rooms),
            delegations=Delegations(rooms, tokens, rooms.signing),
            wellknown=WellKnown(settings, rooms.signing, (s for tool in tools for s in tool.contract.auth.scopes)),
            health=Health(rooms, background),
            metrics=rooms.metrics,
        )
        for work in background.values():
            await work.start()
            stack.push_async_callback(work.stop)
        await boot(gateway, tools, complete)
        yield gateway


async def _open_rooms(
    settings: Settings,
    tools: Sequence[PythonTool],
    hooks: Hooks,
    development: bool,
    clock: Clock,
    egress: Egress,
    stack: contextlib.AsyncExitStack,
) -> Rooms:
    store = await _open_store(settings)
    stack.push_async_callback(store.close)
    master_file = settings.keys.master_file
    master = MasterKey.read_or_create(master_file, clock) if development else MasterKey.read(master_file)
    boot = clock.new_id()
    lease = Lease(store, clock, boot=boot, seconds=settings.timing.lease_seconds, release=RELEASE)
    await lease.start()
    stack.push_async_callback(lease.stop)
    writer = GroupCommit(store.connect_writer, boot=boot, max_rows=settings.database.batch_rows)
    await writer.start()
    stack.push_async_callback(writer.stop)
    driver = PythonDriver(tools)
    stack.callback(driver.close)
    keys = TenantKeys(master, clock)
    signing = _signing(settings, store, keys, clock)
    vault = _vault(settings, store, keys, clock)
    stack.callback(vault.close)
    await _name_tenants(settings, store)
    metrics = Metrics()
    limits = _limits(settings, store, clock, metrics)
    await limits.start()
    stack.push_async_callback(limits.stop)
    return Rooms(
        settings=settings,
        clock=clock,
        store=store,
        writer=writer,
        keys=keys,
        authority=Authority(store, keys),
        decisions=DecisionLog(writer),
        hooks=hooks,
        remote_policy=None if settings.policy.engine == "cedar" else AuthZen(settings.policy, egress.post),
        credentials=Credentials(vault=vault, mint=None if signing is None else minting(signing, clock)),
        signing=signing,
        driver=driver,
        lease=lease,
        limits=limits,
        metrics=metrics,
        tracing=Tracing(sample=settings.telemetry.trace_sample, tracer=_tracer(settings, stack), coin=random.Random()),
        stamps=Stamps(clock),
    )


async def _name_tenants(settings: Settings, store: Store) -> None:
    async with store.writing() as connection:
        for tenant in named_tenants(settings):
            await ensure_tenant(connection, tenant)


async def _open_store(settings: Settings) -> Store:
    if settings.database.url is None:
        raise Misconfigured("No database is set: put url under [database] in deputize.toml, or use deputize dev.")
    direct = settings.database.direct_url
    return await Store.open(
        settings.database.url.get_secret_value(),
        direct_dsn=direct.get_secret_value() if direct else None,
        read_connections=settings.database.read_connections,
    )


def _limits(settings: Settings, store: Store, clock: Clock, metrics: Metrics) -> Limits:
    return Limits(
        settings.limits.rules,
        _counters(settings, clock),
        Budgets(store, clock),
        refused=metrics.limit_refused,
        uncounted=metrics.limit_uncounted,
    )


def _counters(settings: Settings, clock: Clock) -> Counters:
    """Shared where the settings say where; the client for that is loaded only then, for it takes its time."""
    url = settings.limits.redis_url
    if url is None:
        return InProcessCounters(clock)
    try:
        redis = importlib.import_module("deputize.store.shared.redis")
    except ImportError:
        raise Misconfigured("limits.redis_url is set, but its client is not installed: pip install redis.") from None
    shared: Counters = redis.RedisCounters(url.get_secret_value(), seconds=settings.limits.redis_seconds, clock=clock)
    return shared


def _hooks(settings: Settings, hooks: Sequence[LoadedHook], clock: Clock) -> Hooks:
    missing = [declared.name for declared in settings.hooks if declared.name not in {hook.name for hook in hooks}]
    if missing:
        raise Misconfigured(
            f"The hook {missing[0]} stands in deputize.toml and was not loaded: start with deputize dev or serve, "
            "or hand it to open_gateway."
        )
    return Hooks(hooks, clock, settings.environment)


def _signing(settings: Settings, store: Store, keys: TenantKeys, clock: Clock) -> SigningKeys | None:
    own = settings.identity
    if own.public_url is None:
        return None
    return SigningKeys(store, keys, clock, public_url=own.public_url, keep_seconds=own.max_grant_seconds)


def _vault(settings: Settings, store: Store, keys: TenantKeys, clock: Clock) -> Vault:
    if settings.vault.kind == "openbao":
        return OpenBao(settings.vault, clock)
    return LocalVault(store, keys, seconds=settings.vault.seconds)


def _watcher(rooms: Rooms) -> EpochWatcher:
    return EpochWatcher(
        rooms.store,
        known=rooms.authority.known_epochs,
        refresh=rooms.authority.refresh,
        seconds=rooms.settings.timing.refresh_seconds,
    )


def _operator_hosts(settings: Settings) -> frozenset[str]:
    """Hosts the operator named in the settings may be private addresses; nobody else's may."""
    named = (settings.policy.authzen_url, settings.vault.address)
    hosts = (urlsplit(url).hostname for url in named if url)
    return hosts_of(settings.identity.issuers) | frozenset(host for host in hosts if host)


def _tracer(settings: Settings, stack: contextlib.AsyncExitStack) -> Tracer | None:
    """A tracer that exports, where the settings say to; without one, calls still carry their trace ids on."""
    if settings.telemetry.otlp_endpoint is None:
        return None
    provider = TracerProvider(resource=Resource.create({"service.name": "deputize", "service.version": RELEASE}))
    provider.add_span_processor(_exporter(settings.telemetry.otlp_endpoint))
    stack.callback(provider.shutdown)
    return provider.get_tracer("deputize", RELEASE)


def _exporter(endpoint: str) -> BatchSpanProcessor:
    try:
        otlp = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError:
        raise Misconfigured(
            "telemetry.otlp_endpoint is set, but the exporter is not installed: pip install 'deputize[otlp]'."
        ) from None
    return BatchSpanProcessor(otlp.OTLPSpanExporter(endpoint=endpoint))
