"""Check what decides calls, for `deputize doctor`: tools, hooks, policies, decision point, counters and vault."""

import asyncio
import contextlib
import importlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from deputize.catalog.policy_facts import list_facts
from deputize.core.clock import Clock
from deputize.core.config_error import ConfigError
from deputize.core.contract.contract import Contract
from deputize.core.errors import CredentialExpired, CredentialMissing, EgressDenied, Problem, UpstreamUnavailable
from deputize.core.settings import Settings
from deputize.execute.egress import normalize_host, resolve_allowed_addresses, resolve_host
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.checks.validate import validate_policies
from deputize.govern.policy.files import read_files
from deputize.govern.policy.policy_parser import PolicyRule, parse_policies, parse_with_diagnostics
from deputize.govern.vault.openbao import OpenBaoVault
from deputize.interfaces.cli.diagnostics.finding import Finding
from deputize.interfaces.cli.local.edit_loop.confirmed_settings import is_waiting_for_confirmation
from deputize.interfaces.cli.local.exported_servers import LiveServers, ServerContracts, load_server_contracts
from deputize.interfaces.cli.local.project_gateway import load_project
from deputize.interfaces.cli.local.service_import import load_service_contracts
from deputize.interfaces.cli.render.output import format_count
from deputize.operations.admin.policy.rehearsal import collect_fact_types, collect_names
from deputize.store.counters.port import CountersUnavailable, Window

_DEFAULT_PORTS = {"http": 80, "https": 443}
_PROBE_SECRET = "deputize-doctor"


async def check_rules(
    settings: Settings, *, development: bool, live_servers: LiveServers | None = None
) -> AsyncIterator[Finding]:
    """Check the files of the project, and the services that the settings name."""
    for each in _check_files(settings, live_servers, development=development):
        yield each
    if settings.policy.engine != "cedar":
        yield await _check_decision_point(settings)
    if settings.limits.redis_url is not None:
        yield await _check_counters(settings)
    if settings.vault.kind == "openbao":
        yield await _check_vault(settings)


def _check_files(settings: Settings, live_servers: LiveServers | None, *, development: bool) -> Iterator[Finding]:
    """Check the tools, hooks and policies. An invalid tool stops `serve`, and `dev` ignores it."""
    try:
        project_tools = load_project(settings, Path.cwd(), admits_drafts=settings.database.url is None)
    except ConfigError as error:
        yield Finding(check="hooks", status="broken", summary="a hook cannot be loaded", todo=str(error))
        return
    if project_tools.refusals:
        first_refusal = project_tools.refusals[0]
        yield Finding(
            check="tools",
            status="warning" if development else "broken",
            summary=f"{len(project_tools.refusals)} cannot be registered, first {first_refusal.what}",
            todo=first_refusal.reasons[0],
        )
    elif project_tools.tools:
        yield Finding(
            check="tools", status="good", summary=f"{format_count(len(project_tools.tools), 'tool')} from files"
        )
    if project_tools.hooks:
        yield Finding(check="hooks", status="good", summary=", ".join(hook.name for hook in project_tools.hooks))
    own_contracts = [tool.contract for tool in project_tools.tools]
    try:
        servers = load_server_contracts(settings, Path.cwd(), own_contracts, Clock(), lambda: live_servers)
    except ConfigError as error:
        yield Finding(check="policies", status="broken", summary="cannot be checked", todo=str(error))
        return
    contracts = [*own_contracts, *servers.contracts, *load_service_contracts(settings)[0]]
    yield from _check_facts(settings, contracts)
    if settings.policy.files:
        yield _check_policies(settings, contracts, servers, development=development)


def check_unconfirmed_edits(settings: Settings, active_policies: Mapping[str, str] | None) -> Iterator[Finding]:
    """Find edits that the development gateway does not use, because a person has not confirmed them."""
    waiting = ["deputize.toml"] if is_waiting_for_confirmation(settings.folder) else []
    if active_policies is not None and settings.policy.files:
        # Files that cannot be read are a finding of their own.
        with contextlib.suppress(ConfigError):
            texts = {each.path: each.text for each in read_files(settings.policy.files)}
            names = texts.keys() | active_policies.keys()
            waiting += sorted(name for name in names if texts.get(name) != active_policies.get(name))
    if waiting:
        yield Finding(
            check="edits",
            status="warning",
            summary=f"not in use until you confirm: {', '.join(waiting)}",
            todo="press y in the terminal of deputize dev, or start it in a terminal to be asked",
        )


def _check_facts(settings: Settings, contracts: Sequence[Contract]) -> Iterator[Finding]:
    """Find facts in the settings that no tool got: a rule that reads one would never match."""
    facts_by_name: dict[str, set[str]] = {}
    for contract in contracts:
        facts_by_name.setdefault(contract.namespace, set()).update(fact.name for fact in list_facts(contract))
    for section, sources in (("servers", settings.servers), ("services", settings.services)):
        for source in sources:
            existing = facts_by_name.get(source.name)
            if existing is None:
                # Nothing is known of its tools, as of a server that was not seen yet.
                continue
            for name, fact in source.facts.items():
                if name not in existing:
                    yield Finding(
                        check=f"facts of {source.name}",
                        status="warning",
                        summary=f"no tool has the fact {name}",
                        todo=f"correct facts.{name} under [[{section}]]: no tool of {source.name} has {fact.argument} "
                        "as a value that policies can read",
                    )


def _asks_for_every_change(rules: Sequence[PolicyRule]) -> bool:
    """Tell whether no rule was added to those of the default set that can permit a change without a person."""
    defaults = {each.content.ast for each in parse_policies(load_default_files())}
    return all(each.content.ast in defaults or each.effect == "forbid" or each.requires_approval for each in rules)


def _check_policies(
    settings: Settings, contracts: Sequence[Contract], servers: ServerContracts, *, development: bool
) -> Finding:
    try:
        files = read_files(settings.policy.files)
    except ConfigError as error:
        return Finding(check="policies", status="broken", summary="cannot be read", todo=str(error))
    entity_names = collect_names(contracts, settings.tools.tenant) if contracts else None
    findings = validate_policies(
        files, collect_fact_types(contracts), known_names=entity_names, unseen_servers=servers.unseen_servers
    )
    rules, _ = parse_with_diagnostics(files)
    counts = f"{format_count(len(rules), 'rule')} in {format_count(len(files), 'file')}"
    issues = findings.errors or findings.warnings
    if not issues:
        if settings.environment == "production" and not development and _asks_for_every_change(rules):
            return Finding(
                check="policies",
                status="warning",
                summary=f"{counts}, which ask for every write",
                todo="permit what needs no person, before approvers approve unread; deputize policy backtest shows "
                "what would ask",
            )
        return Finding(check="policies", status="good", summary=counts)
    first_issue = f"{issues[0].file}:{issues[0].line}: {issues[0].message}"
    issue_counts = f"{format_count(len(findings.errors), 'error')}, {format_count(len(findings.warnings), 'warning')}"
    return Finding(
        check="policies", status="broken" if findings.errors else "warning", summary=f"{counts}, {issue_counts}",
        todo=f"{first_issue}; deputize policy check lists them all",
    )  # fmt: skip


async def _check_decision_point(settings: Settings) -> Finding:
    """Check only that the decision point listens; it gets no request, which it might record as a call."""
    address = settings.policy.authzen_url or ""
    target = urlsplit(address)
    if target.scheme not in _DEFAULT_PORTS or not target.hostname:
        todo = "set authzen_url under [policy], for example https://pdp.example.com"
        return Finding(check="decision point", status="broken", summary="policy.authzen_url is not set", todo=todo)
    host, port = target.hostname, target.port or _DEFAULT_PORTS[target.scheme]
    try:
        async with asyncio.timeout(settings.policy.authzen_seconds):
            addresses = await resolve_allowed_addresses(host, port, frozenset({normalize_host(host)}), resolve_host)
            _, writer = await asyncio.open_connection(addresses[0], port)
    except EgressDenied as error:
        todo = "set authzen_url under [policy] to the decision point: every call is denied until it answers"
        return Finding(check="decision point", status="broken", summary=error.message, todo=todo)
    except (OSError, TimeoutError, UpstreamUnavailable):
        todo = "start it, or correct policy.authzen_url: every call is denied until it answers"
        return Finding(check="decision point", status="broken", summary=f"nothing answers at {address}", todo=todo)
    writer.close()
    return Finding(check="decision point", status="good", summary=f"{address} listens")


async def _check_counters(settings: Settings) -> Finding:
    assert settings.limits.redis_url is not None
    try:
        redis = importlib.import_module("deputize.store.counters.redis")
        url, seconds = settings.limits.redis_url.get_secret_value(), settings.limits.redis_seconds
        counters = redis.RedisCounters(url, seconds=seconds, clock=Clock())
    except ImportError:
        return Finding(
            check="counters", status="broken", summary="the Redis client is not installed", todo="pip install redis"
        )
    except ConfigError as error:
        return Finding(
            check="counters", status="broken", summary="limits.redis_url is not a valid URL", todo=str(error)
        )
    try:
        await counters.take([Window(key="{deputize-doctor}", limit=1, seconds=1.0, weight=1)])
    except CountersUnavailable as error:
        todo = "start Redis, or correct limits.redis_url: until then each limit follows its when_lost setting"
        return Finding(check="counters", status="broken", summary=str(error), todo=todo)
    finally:
        await counters.close()
    return Finding(check="counters", status="good", summary="Redis answers")


async def _check_vault(settings: Settings) -> Finding:
    """Fetch a secret that does not exist: the answer that it is missing shows that the vault works."""
    try:
        vault = OpenBaoVault(settings.vault, Clock())
    except ConfigError as error:
        return Finding(check="vault", status="broken", summary="cannot be used", todo=str(error))
    try:
        await vault.fetch(settings.tools.tenant, _PROBE_SECRET, seconds=settings.vault.seconds)
    except (CredentialMissing, CredentialExpired):
        pass
    except Problem as error:
        todo = (
            f"check {settings.vault.address} and {settings.vault.token_file}: calls that need a secret fail meanwhile"
        )
        return Finding(check="vault", status="broken", summary=error.message, todo=todo)
    finally:
        vault.close()
    return Finding(check="vault", status="good", summary=f"{settings.vault.address} answers and accepts the token")
