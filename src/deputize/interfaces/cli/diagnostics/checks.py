"""Check an installation for `deputize doctor`: machine, database, keys, issuers and approvers."""

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from deputize.core.caller import UNDO_SCOPE
from deputize.core.config_error import ConfigError
from deputize.core.errors import Problem
from deputize.core.settings import IssuerSettings, Settings
from deputize.execute.egress import Egress
from deputize.govern.identity.dev_issuer import reject_dev_issuers
from deputize.govern.identity.issuer_checks import check_issuers
from deputize.govern.identity.jwks import list_issuer_hosts, read_keys
from deputize.interfaces.cli.diagnostics.consistency_checks import check_consistency_rules
from deputize.interfaces.cli.diagnostics.environment_checks import check_environment
from deputize.interfaces.cli.diagnostics.finding import Finding, Status
from deputize.interfaces.cli.diagnostics.lineage_checks import check_lineage
from deputize.interfaces.cli.diagnostics.policy_checks import check_rules
from deputize.interfaces.cli.diagnostics.sandbox_checks import check_isolation
from deputize.interfaces.cli.diagnostics.upstream_checks import check_upstreams
from deputize.interfaces.cli.local import database
from deputize.interfaces.cli.local.exported_servers import LiveServers
from deputize.store.database_checks import DatabaseFacts, inspect_database
from deputize.store.keys import MasterKey
from deputize.store.local_postgres_host import LocalPostgresError, choose_account, find_installation
from deputize.store.schema_revision import MIN_SERVER_VERSION, is_from_development

_MIN_PARTITION_DAYS = 2
_MIN_FREE_BYTES = 1 << 30
_UNDOING = ("operator", "administrator")
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _make_finding(check: str, is_ok: bool, summary: str, todo: str, failure_status: Status = "broken") -> Finding:
    return Finding(check=check, status="good" if is_ok else failure_status, summary=summary, todo="" if is_ok else todo)


async def check_installation(
    settings: Settings, *, local_dsn: str | None, live_servers: LiveServers | None = None
) -> AsyncIterator[Finding]:
    """Run every check, in the order of their dependencies; without `database.url`, as for development.

    `live_servers` are what a running gateway says of its servers, None if none could be asked.
    """
    configured_dsn = database.get_direct_dsn(settings)
    development = configured_dsn is None
    for each in _check_machine(settings, development):
        yield each
    async for each in check_environment(settings):
        yield each
    dsn = configured_dsn or local_dsn
    if dsn is None:
        yield _check_local_postgres()
    else:
        async for each in _check_database(settings, dsn, development):
            yield each
    yield _check_master_key(settings, development)
    async for each in _check_issuers(settings, development):
        yield each
    if not development:
        yield _check_approvers(settings)
        for each in _check_roles(settings):
            yield each
    async for each in check_rules(settings, development=development, live_servers=live_servers):
        yield each
    for each in await check_upstreams(settings, live_servers):
        yield each
    for each in await check_isolation(settings):
        yield each
    if settings.consistency:
        yield await check_consistency_rules(settings, dsn)


def _check_approvers(settings: Settings) -> Finding:
    """Check that an issuer can sign in approvers; without one, every approval request expires and is denied."""
    people = [
        issuer.issuer
        for issuer in settings.identity.issuers
        if issuer.human and (issuer.console_audience is not None or issuer.issuer == settings.console.issuer)
    ]
    summary = f"approvers sign in at {', '.join(people)}" if people else "no issuer can sign in approvers"
    todo = "set human and console_audience for the issuer where approvers sign in"
    return _make_finding("approvals", bool(people), summary, todo, failure_status="warning")


def _check_roles(settings: Settings) -> Iterator[Finding]:
    """Check that somebody may operate the gateway, see more than their own calls in the console, and undo calls."""
    identity, console = settings.identity, settings.console
    operators = [each.issuer for each in identity.issuers if each.operator and each.human]
    operators += [each.client_id for each in identity.operators]
    yield _make_finding(
        "operators",
        bool(operators),
        f"operators sign in at {', '.join(operators)}" if operators else "nobody can be an operator",
        "set operator = true for the issuer where operators sign in: until then nobody activates policies, accepts "
        "what servers changed or switches something on again",
        failure_status="warning",
    )
    if console.client_id is None:
        return
    roles = sorted({f"{each.group} ({each.role})" for each in console.groups if each.role})
    yield _make_finding(
        "console roles",
        bool(roles),
        ", ".join(roles) or "no group has a role",
        "list [[console.groups]] with a role: without one, Policies and Switches answer 403 to everybody whose ID "
        "token has no claim scope",
        failure_status="warning",
    )
    undoing = sorted({each.group for each in console.groups if each.role in _UNDOING or UNDO_SCOPE in each.scopes})
    yield _make_finding(
        "undo",
        bool(undoing),
        f"people of {', '.join(undoing)} may undo in the console" if undoing else "no group may undo in the console",
        f"give a group the role operator or administrator, or {UNDO_SCOPE} in its scopes; on the command line, your "
        f"provider gives it: deputize login --scope {UNDO_SCOPE} and the scopes of the tools",
        failure_status="warning",
    )


def _check_machine(settings: Settings, development: bool) -> Iterator[Finding]:
    free = shutil.disk_usage(_find_existing_folder(settings.folder)).free
    yield _make_finding(
        "disk",
        free >= _MIN_FREE_BYTES,
        f"{free / (1 << 30):.1f} GiB free",
        "free some disk space",
        failure_status="warning",
    )
    if not development:
        host = settings.server.metrics_host
        yield _make_finding(
            "metrics listener", host in _LOOPBACK, f"listens on {host}",
            "make sure that only your monitoring can reach it", failure_status="warning",
        )  # fmt: skip


def _find_existing_folder(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _check_local_postgres() -> Finding:
    try:
        find_installation(choose_account())
    except LocalPostgresError as error:
        return Finding(check="database", status="broken", summary="none configured or installed", todo=str(error))
    return Finding(check="database", status="skipped", summary="local, not running", todo="start it with deputize dev")


async def _check_database(settings: Settings, dsn: str, development: bool) -> AsyncIterator[Finding]:
    address = database.describe_dsn(dsn)
    try:
        facts = await inspect_database(dsn)
    except database.CONNECTION_ERRORS as error:
        yield Finding(
            check="database",
            status="broken",
            summary=f"cannot connect to {address}",
            todo=str(database.explain_error(error, dsn)),
        )
        return
    size = f"{facts.bytes / (1 << 20):.0f} MiB"
    summary = f"{address} answers, {size}" + (", a read-only standby" if facts.is_standby else "")
    yield _make_finding("database", not facts.is_standby, summary, "set database.url to the primary")
    is_recent = facts.version_number >= MIN_SERVER_VERSION
    yield _make_finding("PostgreSQL version", is_recent, facts.version.partition(" ")[0], "upgrade to 16 or newer")
    vector = "available" if facts.has_vector else "not available"
    yield _make_finding(
        "pgvector", facts.has_vector, vector, "install it: semantic search will need it", failure_status="warning"
    )
    if (facts.schema.is_current or facts.schema.is_newer) and not facts.is_standby:
        yield await check_lineage(settings, dsn)
    for each in (
        *_check_schema(facts),
        *_check_login(facts, development),
        *_check_workers(facts),
        *_check_durability(facts, settings, development),
    ):
        yield each


def _check_schema(facts: DatabaseFacts) -> Iterator[Finding]:
    schema = facts.schema
    todo = f"run deputize migrate (this release needs {schema.newest})"
    if is_from_development(schema.current):
        todo = "create a new database: this one was made by a development version, see deputize migrate"
    summary = schema.describe()
    if schema.is_newer:
        summary = f"{summary}, of a newer release; it serves the release before it, and this one needs {schema.newest}"
    if not schema.serves_this_release:
        summary = f"{schema.current}, of a newer release, which serves only {schema.oldest_release} and newer"
        todo = f"use release {schema.oldest_release} or newer"
    is_usable = (schema.is_current or schema.is_newer) and schema.serves_this_release
    yield _make_finding("schema", is_usable, summary, todo)
    if schema.current is None:
        return
    missing_roles = [role.name for role in facts.roles if not role.is_there or not role.may_become]
    unsafe_roles = [role.name for role in facts.roles if role.passes_security_by]
    summary = (
        f"missing {', '.join(missing_roles)}"
        if missing_roles
        else f"{', '.join(unsafe_roles)} bypass row-level security"
        if unsafe_roles
        else "in place"
    )
    todo = "run deputize migrate as the owner" if missing_roles else "remove SUPERUSER and BYPASSRLS from them"
    yield _make_finding("roles", not missing_roles and not unsafe_roles, summary, todo)
    unprotected_tables = facts.tables_without_row_security or ()
    summary = (
        f"not forced on {', '.join(unprotected_tables)}"
        if unprotected_tables
        else "forced on every table with a tenant"
    )
    yield _make_finding(
        "row-level security", not unprotected_tables, summary, "restore the schema with deputize migrate"
    )
    days = facts.days_ahead if facts.days_ahead is not None else -1
    yield _make_finding(
        "partitions", days >= _MIN_PARTITION_DAYS, f"{max(days, 0)} days ahead",
        "run a gateway, which creates them, or run: call deputize.create_partitions(7)",
    )  # fmt: skip


def _check_login(facts: DatabaseFacts, development: bool) -> Iterator[Finding]:
    """Check that the gateway's own login cannot rewrite the audit, by its rights and by trying."""
    if facts.allowed_audit_changes is None:
        return
    if development:
        todo = "not needed in development: the local database belongs to the developer"
        yield Finding(check="audit is append-only", status="skipped", summary="the login owns it", todo=todo)
        return
    todo = "use a login for gateways: deputize migrate --print-roles prints the SQL that creates it"
    yield _make_finding(
        "login", not facts.login_powers,
        f"{facts.login}: {', '.join(facts.login_powers) or 'has only the roles of a gateway'}", todo,
    )  # fmt: skip
    changes = facts.allowed_audit_changes
    summary = (
        f"{facts.login} can {', '.join(changes)}" if changes else "update, delete and truncate were tried and refused"
    )
    yield _make_finding("audit is append-only", not changes, summary, todo)


def _check_workers(facts: DatabaseFacts) -> Iterator[Finding]:
    if facts.workers_alive is None:
        return
    queue_text = f"{facts.runs_queued} calls queued" if facts.runs_queued else "no calls queued"
    yield _make_finding(
        "workers", facts.workers_alive > 0, f"{facts.workers_alive} alive, {queue_text}",
        "start deputize work: queued calls wait for a worker", failure_status="warning",
    )  # fmt: skip


def _check_durability(facts: DatabaseFacts, settings: Settings, development: bool) -> Iterator[Finding]:
    limit = settings.timing.max_clock_skew_seconds
    skew_text = f"{facts.skew_seconds:+.3f} s from PostgreSQL's clock, {limit:g} s allowed"
    todo = "synchronize the clocks (NTP): a gateway whose clock is off refuses calls"
    yield _make_finding("clock", abs(facts.skew_seconds) <= limit, skew_text, todo)
    write_text = "fsync and full_page_writes are on" if facts.is_durable else "fsync or full_page_writes is off"
    todo = "turn both on: a power failure would lose acknowledged calls"
    yield _make_finding(
        "durable writes", facts.is_durable, write_text, todo, failure_status="warning" if development else "broken"
    )
    is_synchronous = bool(facts.standbys) and facts.synchronous_commit in ("on", "remote_apply")
    mode = f"synchronous_commit is {facts.synchronous_commit}" if facts.standbys else "off"
    summary = f"to {facts.standbys}" if is_synchronous else mode
    if development and not is_synchronous:
        yield Finding(
            check="synchronous replication", status="skipped", summary=summary, todo="not needed in development"
        )
        return
    yield _make_finding(
        "synchronous replication", is_synchronous, summary,
        "A FAILOVER MAY LOSE ACKNOWLEDGED CALLS: set synchronous_standby_names and synchronous_commit = on, "
        "or check that your provider replicates the storage",
        failure_status="warning",
    )  # fmt: skip


def _check_master_key(settings: Settings, development: bool) -> Finding:
    path = settings.keys.master_file
    if development and not path.exists():
        return Finding(check="master key", status="skipped", summary="not created yet", todo="deputize dev creates it")
    try:
        MasterKey.read(path)
    except ConfigError as error:
        return Finding(check="master key", status="broken", summary=f"{path} cannot be used", todo=str(error))
    return Finding(check="master key", status="good", summary=f"{path}, readable by its owner only")


async def _check_issuers(settings: Settings, development: bool) -> AsyncIterator[Finding]:
    issuers = settings.identity.issuers
    if not issuers:
        status: Status = "skipped" if development else "broken"
        todo = (
            "not needed: deputize dev issues its own tokens"
            if development
            else "list your identity provider under [[identity.issuers]]"
        )
        yield Finding(check="issuers", status=status, summary="none configured", todo=todo)
        return
    try:
        if not development:
            reject_dev_issuers(settings)
        check_issuers(settings.identity)
    except ConfigError as error:
        yield Finding(check="issuers", status="broken", summary="the settings cannot be used", todo=str(error))
        return
    egress = Egress(allow_hosts=list_issuer_hosts(issuers))
    try:
        for issuer in issuers:
            yield await _check_issuer(issuer, egress)
    finally:
        await egress.aclose()


async def _check_issuer(issuer: IssuerSettings, egress: Egress) -> Finding:
    check, started_at = f"issuer {issuer.issuer}", time.monotonic()
    try:
        keys = await read_keys(issuer, egress.get)
    except (Problem, OSError, ValueError) as error:
        where = issuer.jwks_file or issuer.jwks_url or issuer.issuer
        return Finding(check=check, status="broken", summary=f"cannot read its keys: {error}", todo=f"check {where}")
    duration_ms = (time.monotonic() - started_at) * 1000
    return _make_finding(
        check,
        bool(keys),
        f"{len(keys)} usable keys, {duration_ms:.0f} ms",
        "publish a signing key with an allowed algorithm",
    )
