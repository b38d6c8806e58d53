"""The composition root: the only file that knows every room. Read top to bottom, it is the list of what runs."""

import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Protocol
from urllib.parse import urlsplit

from deputize.catalog.importers.mcp import scopes_of
from deputize.core.caller import Caller
from deputize.core.clock import Clock
from deputize.core.definition import PythonTool
from deputize.core.hooks import LoadedHook
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Settings
from deputize.execute.driver import Drivers
from deputize.execute.drivers.mcp import McpDriver
from deputize.execute.drivers.python import PythonDriver
from deputize.execute.egress import Egress
from deputize.execute.upstreams.servers import Upstreams
from deputize.govern.approvals.codes import Codes, Told
from deputize.govern.identity.jwks import hosts_of
from deputize.govern.identity.sessions import Sessions
from deputize.govern.identity.sign_in import SignIn, check_console
from deputize.govern.identity.signing import SigningKeys
from deputize.govern.identity.tokens import TokenVerifier
from deputize.govern.limits.admission import Limits
from deputize.govern.limits.budgets import Budgets
from deputize.govern.policy.authzen import AuthZen
from deputize.govern.vault.local import LocalVault
from deputize.govern.vault.openbao import OpenBao
from deputize.govern.vault.port import Vault
from deputize.lifecycle.approvals.clockwork import Clockwork
from deputize.lifecycle.approvals.decide import Approvals
from deputize.lifecycle.approvals.suggesting import Suggestions
from deputize.lifecycle.approvals.telling import Telling
from deputize.lifecycle.approvals.terminal import ByCode, by_code, tell_open
from deputize.lifecycle.authority import Authority
from deputize.lifecycle.backtest import Backtests
from deputize.lifecycle.boot import boot, named_tenants
from deputize.lifecycle.calls import Calls
from deputize.lifecycle.cancel import Cancellations
from deputize.lifecycle.command import Commands
from deputize.lifecycle.console import CALLBACK, Console, base_of
from deputize.lifecycle.credentials import Credentials
from deputize.lifecycle.decisions import DecisionLog
from deputize.lifecycle.delegate import Delegations, minting
from deputize.lifecycle.deliveries import Deliveries
from deputize.lifecycle.explaining import Explaining
from deputize.lifecycle.gateway import Gateway
from deputize.lifecycle.health import Background, Health
from deputize.lifecycle.hooks import Hooks
from deputize.lifecycle.keeping import Rollbacks
from deputize.lifecycle.reconcile import Reconciler
from deputize.lifecycle.rooms import Rooms
from deputize.lifecycle.run import Lifecycle
from deputize.lifecycle.servers.connected import Connected
from deputize.lifecycle.servers.linking import Linking
from deputize.lifecycle.servers.review import Review
from deputize.lifecycle.servers.seen import Servers
from deputize.lifecycle.servers.signing_in import signing_in
from deputize.lifecycle.servers.states import States
from deputize.lifecycle.surface import Surface
from deputize.lifecycle.sweep import Sweeper
from deputize.lifecycle.tickets import Tickets
from deputize.lifecycle.webhooks import Webhooks
from deputize.lifecycle.wellknown import WellKnown
from deputize.lifecycle.worker import Worker
from deputize.prove.entries import Stamps
from deputize.prove.exporting import exporting
from deputize.prove.metrics import Metrics
from deputize.prove.tracing import Tracing
from deputize.runs.engine import Engine
from deputize.runs.leases import Lease
from deputize.store.batch import GroupCommit
from deputize.store.epochs import EpochWatcher
from deputize.store.keys import KEY_BYTES, MasterKey, TenantKeys
from deputize.store.pool import Store
from deputize.store.shared.opened import opened_counters
from deputize.store.subjects import Pseudonyms
from deputize.store.tenants import ensure_tenant

RELEASE = version("deputize")
Complete = Callable[[Caller], Awaitable[Caller]]
# How long a development gateway waits for its servers, so that it can say what came of them.
_PATIENCE_SECONDS = 2.0


@contextlib.asynccontextmanager
async def open_worker(gateway: Gateway) -> AsyncIterator[Worker]:
    """Carries runs beside whatever else the process does, until the block ends."""
    rooms = gateway.lifecycle.rooms
    engine = Engine(
        rooms.store.direct_dsn,
        executor=rooms.lease.boot,
        at_once=rooms.settings.runs.at_once,
        poll_seconds=rooms.settings.runs.poll_seconds,
    )
    # Its own way out: hosts that the operator named for other things are not for callers to send to.
    egress = Egress(allow_hosts=frozenset(rooms.settings.webhooks.hosts))
    telling = (Deliveries(rooms, egress.send), Telling(rooms, egress.send))
    worker = Worker(gateway.lifecycle, engine)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(egress.aclose)
        await _start(stack, *telling, Reconciler(gateway.lifecycle), worker)
        yield worker


@contextlib.asynccontextmanager
async def open_gateway(
    settings: Settings,
    *,
    tools: Sequence[PythonTool] = (),
    hooks: Sequence[LoadedHook] = (),
    development: bool = False,
    worker: bool = False,
    tell_code: Callable[[Told], None] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Gateway]:
    """A whole gateway, started in order and stopped in reverse, whatever happens in between; with a worker inside, if
    one is wanted. `tell_code` writes to the terminal of a development gateway what people decide with there.
    """
    clock = clock or Clock()
    async with contextlib.AsyncExitStack() as stack:
        egress = Egress(allow_hosts=_operator_hosts(settings))
        stack.push_async_callback(egress.aclose)
        around = _hooks(settings, hooks, clock)
        stack.callback(around.close)
        rooms = await _open_rooms(settings, tools, around, development, clock, egress, stack)
        if development and tell_code is not None:
            rooms = replace(rooms, codes=Codes(clock, tell_code))
        pseudonyms = Pseudonyms(clock)

        async def complete(caller: Caller) -> Caller:
            return replace(caller, pseudonyms=await pseudonyms.of(rooms.store, caller.tenant, caller.subjects))

        connected = Connected(rooms, complete)
        tasks: dict[str, Sweeper | Clockwork | EpochWatcher] = {
            "sweeper": Sweeper(rooms),
            "approval clockwork": Clockwork(rooms),
            "snapshot watcher": _watcher(rooms, connected),
        }
        background: dict[str, Background] = {**tasks, "looks at servers": connected}
        tokens = _tokens(rooms, egress, complete, stack)
        gateway = _gateway(rooms, tokens, tools, background, complete, egress, connected, development)
        await _start(stack, *tasks.values())
        await boot(gateway, tools, complete)
        # After what the operator wrote: a server's tools make room for those.
        await _start(stack, connected)
        if development:
            await connected.first_looks(_PATIENCE_SECONDS)
        await tell_open(rooms)
        if worker:
            carrying = await stack.enter_async_context(open_worker(gateway))
            gateway.workers.append(carrying)
            background["worker"] = carrying
        yield gateway


class _Work(Protocol):
    """Something that goes on until it is stopped."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def _start(stack: contextlib.AsyncExitStack, *works: _Work) -> None:
    """One after the other; they are stopped in reverse when the stack ends."""
    for work in works:
        await work.start()
        stack.push_async_callback(work.stop)


def _tokens(rooms: Rooms, egress: Egress, complete: Complete, stack: contextlib.AsyncExitStack) -> TokenVerifier:
    # Whoever may exchange a token may name a DID: it leads to public addresses only, never to the operator's hosts.
    outside = Egress()
    stack.push_async_callback(outside.aclose)
    own, named = rooms.signing, rooms.settings.identity
    return TokenVerifier(named, rooms.clock, egress.get, complete=complete, own=own, fetch_outside=outside.get)


def _gateway(
    rooms: Rooms,
    tokens: TokenVerifier,
    tools: Sequence[PythonTool],
    background: dict[str, Background],
    complete: Complete,
    egress: Egress,
    connected: Connected,
    development: bool,
) -> Gateway:
    """Everything a door may use."""
    settings = rooms.settings
    calls, approvals, backtests = Calls(rooms), Approvals(rooms, complete), Backtests(rooms)
    return Gateway(
        settings=settings,
        tokens=tokens,
        lifecycle=Lifecycle(rooms),
        commands=Commands(rooms),
        surface=Surface(rooms),
        calls=calls,
        cancellations=Cancellations(rooms, calls),
        webhooks=Webhooks(rooms),
        tickets=Tickets(rooms),
        approvals=approvals,
        suggestions=Suggestions(rooms, backtests),
        servers=Servers(rooms, connected),
        review=Review(rooms, connected),
        linking=Linking(rooms, connected),
        console=_console(rooms, tokens, egress, by_code(rooms, approvals, complete), complete, development),
        rollbacks=Rollbacks(rooms),
        explaining=Explaining(rooms),
        backtests=backtests,
        delegations=Delegations(rooms, tokens, rooms.signing),
        wellknown=WellKnown(settings, rooms.signing, _scopes(settings, tools), rooms.links.signing_in),
        health=Health(rooms, background),
        metrics=rooms.metrics,
    )


def _scopes(settings: Settings, tools: Sequence[PythonTool]) -> Iterator[str]:
    """What the tools here ask of their callers, for clients that want to know before they ask."""
    for tool in tools:
        yield from tool.contract.auth.scopes
    for server in settings.servers:
        yield from scopes_of(server)


async def _open_rooms(
    settings: Settings,
    tools: Sequence[PythonTool],
    hooks: Hooks,
    development: bool,
    clock: Clock,
    egress: Egress,
    stack: contextlib.AsyncExitStack,
) -> Rooms:
    store = await _open_store(settings, stack)
    boot = clock.new_id()
    lease = Lease(store, clock, boot=boot, seconds=settings.timing.lease_seconds, release=RELEASE)
    writer, queue = (
        GroupCommit(store.connect_writer, boot=boot, max_rows=settings.database.batch_rows) for _ in range(2)
    )
    metrics = Metrics()
    limits = _limits(settings, store, clock, metrics)
    await _start(stack, lease, writer, queue, limits)
    upstreams = Upstreams(settings, clock)
    stack.push_async_callback(upstreams.aclose)
    keys = TenantKeys(_master_key(settings, clock, development), clock)
    signing = _signing(settings, store, keys, clock)
    vault = _vault(settings, store, keys, clock, stack)
    links, signed_in = signing_in(settings, store, keys, vault, clock, upstreams, stack)
    await _make_tenants(store, settings)
    return Rooms(
        settings=settings,
        clock=clock,
        release=RELEASE,
        store=store,
        writer=writer,
        queue=queue,
        keys=keys,
        authority=Authority(store, keys),
        decisions=DecisionLog(writer),
        hooks=hooks,
        remote_policy=None if settings.policy.engine == "cedar" else AuthZen(settings.policy, egress.post),
        credentials=Credentials(vault=vault, mint=minting(signing, clock), signed_in=signed_in),
        signing=signing,
        driver=_drivers(tools, upstreams, stack),
        upstreams=upstreams,
        links=links,
        signed_in=signed_in,
        servers=States(),
        lease=lease,
        limits=limits,
        metrics=metrics,
        tracing=_tracing(settings, stack),
        stamps=Stamps(clock),
    )


def _drivers(tools: Sequence[PythonTool], upstreams: Upstreams, stack: contextlib.AsyncExitStack) -> Drivers:
    functions = PythonDriver(tools)
    stack.callback(functions.close)
    return Drivers(functions, McpDriver(upstreams))


def _tracing(settings: Settings, stack: contextlib.AsyncExitStack) -> Tracing:
    tracer = exporting(settings.telemetry, RELEASE, stack)
    return Tracing(sample=settings.telemetry.trace_sample, tracer=tracer, coin=random.Random())


def _master_key(settings: Settings, clock: Clock, development: bool) -> MasterKey:
    file = settings.keys.master_file
    return MasterKey.read_or_create(file, clock) if development else MasterKey.read(file)


async def _open_store(settings: Settings, stack: contextlib.AsyncExitStack) -> Store:
    if settings.database.url is None:
        raise Misconfigured("No database is set: put url under [database] in deputize.toml, or use deputize dev.")
    direct = settings.database.direct_url
    store = await Store.open(
        settings.database.url.get_secret_value(),
        direct_dsn=direct.get_secret_value() if direct else None,
        read_connections=settings.database.read_connections,
    )
    stack.push_async_callback(store.close)
    return store


def _limits(settings: Settings, store: Store, clock: Clock, metrics: Metrics) -> Limits:
    return Limits(
        settings.limits.rules,
        opened_counters(settings.limits, clock),
        Budgets(store, clock),
        refused=metrics.limit_refused,
        uncounted=metrics.limit_uncounted,
    )


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


def _console(
    rooms: Rooms,
    tokens: TokenVerifier,
    egress: Egress,
    by_code: ByCode | None,
    complete: Complete,
    development: bool,
) -> Console:
    named, identity = rooms.settings.console, rooms.settings.identity
    base = base_of(rooms.settings)
    check_console(named, identity, base)
    issuer = next((each for each in identity.issuers if each.issuer == named.issuer), None)
    sign_in = None
    if issuer is not None and base is not None:
        fresh = rooms.settings.approvals.fresh_seconds
        sign_in = SignIn(
            named, tokens, rooms.clock, egress.get, egress.post, fresh_seconds=fresh, back_to=base + CALLBACK
        )
    # Whoever can read a development folder could seal what they like with its key: there, the key is in memory only.
    root = rooms.clock.random_bytes(KEY_BYTES) if development else rooms.keys.of_no_tenant("console sessions")
    # Anything said otherwise about the issuer or the client ends every session.
    issued_for = f"{named.client_id}\0{'' if issuer is None else issuer.model_dump_json()}"
    return Console(rooms, Sessions(root, rooms.clock, issued_for=issued_for), sign_in, by_code, complete)


def _vault(settings: Settings, store: Store, keys: TenantKeys, clock: Clock, stack: contextlib.AsyncExitStack) -> Vault:
    named = settings.vault
    local = named.kind == "local"
    vault: Vault = LocalVault(store, keys, seconds=named.seconds) if local else OpenBao(named, clock)
    stack.callback(vault.close)
    return vault


async def _make_tenants(store: Store, settings: Settings) -> None:
    async with store.writing() as connection:
        for tenant in named_tenants(settings):
            await ensure_tenant(connection, tenant)


def _watcher(rooms: Rooms, connected: Connected) -> EpochWatcher:
    return EpochWatcher(
        rooms.store,
        known=connected.known_epochs,
        refresh=connected.refresh,
        seconds=rooms.settings.timing.refresh_seconds,
    )


def _operator_hosts(settings: Settings) -> frozenset[str]:
    """Hosts the operator named in the settings may be private addresses; nobody else's may."""
    named = (settings.policy.authzen_url, settings.vault.address, settings.console.issuer)
    hosts = (urlsplit(url).hostname for url in (*named, *(each.url for each in settings.servers)) if url)
    return hosts_of(settings.identity.issuers) | frozenset(host for host in hosts if host)
