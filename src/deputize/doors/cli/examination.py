"""The checks of `deputize doctor`: each looks at one thing and says what it found and what to do about it."""

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from deputize.core.errors import Problem
from deputize.core.mistakes import Misconfigured
from deputize.core.settings import Issuer, Settings
from deputize.doors.cli import database
from deputize.doors.cli.examination_rules import examine_rules
from deputize.doors.cli.finding import Finding, Status
from deputize.execute.egress import Egress
from deputize.govern.identity.jwks import hosts_of, read_keys
from deputize.store.inspection import Inspected, inspect
from deputize.store.keys import MasterKey
from deputize.store.local_host import LocalPostgresError, choose_account, find_programs
from deputize.store.migrate import newest_revision

_OLDEST_POSTGRES = 160_000
_LEAST_DAYS = 2
_LEAST_BYTES = 1 << 30
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def _judged(check: str, holds: bool, found: str, todo: str, otherwise: Status = "broken") -> Finding:
    return Finding(check=check, status="good" if holds else otherwise, found=found, todo="" if holds else todo)


async def examine(settings: Settings, *, local_dsn: str | None) -> AsyncIterator[Finding]:
    """Everything, in the order in which one thing needs the other; without `database.url`, for development."""
    configured = database.direct_dsn(settings)
    development = configured is None
    for finding in _of_machine(settings, development):
        yield finding
    dsn = configured or local_dsn
    if dsn is None:
        yield _local_programs()
    else:
        async for finding in _of_database(settings, dsn, development):
            yield finding
    yield _master_key(settings, development)
    async for finding in _of_issuers(settings, development):
        yield finding
    if not development:
        yield _deciders(settings)
    async for finding in examine_rules(settings, development=development):
        yield finding


def _deciders(settings: Settings) -> Finding:
    """Whether anybody can say yes where rules ask: else every such call is denied once its time is over."""
    people = [
        issuer.issuer
        for issuer in settings.identity.issuers
        if issuer.human and (issuer.console_audience is not None or issuer.issuer == settings.console.issuer)
    ]
    found = f"decided by people of {', '.join(people)}" if people else "nobody can decide what rules ask about"
    todo = "set human and console_audience for the issuer that people sign in at"
    return _judged("approvals", bool(people), found, todo, otherwise="warning")


def _of_machine(settings: Settings, development: bool) -> Iterator[Finding]:
    free = shutil.disk_usage(_existing(settings.folder)).free
    yield _judged(
        "disk", free >= _LEAST_BYTES, f"{free / (1 << 30):.1f} GiB free", "free some space", otherwise="warning"
    )
    if not development:
        host = settings.server.metrics_host
        yield _judged(
            "metrics listener", host in _LOOPBACK, f"listens on {host}",
            "make sure that only your monitoring reaches it", otherwise="warning",
        )  # fmt: skip


def _existing(path: Path) -> Path:
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())


def _local_programs() -> Finding:
    try:
        find_programs(choose_account())
    except LocalPostgresError as error:
        return Finding(check="database", status="broken", found="none is configured or installed", todo=str(error))
    return Finding(check="database", status="skipped", found="local, not running now", todo="deputize dev starts it")


async def _of_database(settings: Settings, dsn: str, development: bool) -> AsyncIterator[Finding]:
    place = database.address(dsn)
    try:
        facts = await inspect(dsn)
    except database.UNREACHABLE as error:
        yield Finding(
            check="database", status="broken", found=f"{place} cannot be used", todo=str(database.explain(error, dsn))
        )
        return
    size = f"{facts.bytes / (1 << 20):.0f} MiB"
    found = f"{place} answers, {size}" + (", a read-only standby" if facts.is_standby else "")
    yield _judged("database", not facts.is_standby, found, "point database.url to the primary")
    recent = facts.version_number >= _OLDEST_POSTGRES
    yield _judged("PostgreSQL version", recent, facts.version.partition(" ")[0], "upgrade it to 16 or newer")
    vector = "available" if facts.has_vector else "not available"
    yield _judged(
        "pgvector", facts.has_vector, vector, "install it; search by meaning will need it", otherwise="warning"
    )
    for finding in (*_of_schema(facts), *_workers(facts), *_of_care(facts, settings, development)):
        yield finding


def _of_schema(facts: Inspected) -> Iterator[Finding]:
    newest = newest_revision()
    found = facts.revision or "empty"
    yield _judged("schema", facts.revision == newest, found, f"run deputize migrate (this release needs {newest})")
    if facts.revision is None:
        return
    missing = [role.name for role in facts.roles if not role.is_there or not role.may_become]
    loose = [role.name for role in facts.roles if role.passes_security_by]
    found = (
        f"missing {', '.join(missing)}"
        if missing
        else f"{', '.join(loose)} pass row-level security by"
        if loose
        else "in place"
    )
    todo = "run deputize migrate as the owner" if missing else "take SUPERUSER and BYPASSRLS from them"
    yield _judged("roles", not missing and not loose, found, todo)
    unguarded = facts.unguarded or ()
    found = f"not forced on {', '.join(unguarded)}" if unguarded else "forced on every table with a tenant"
    yield _judged("row-level security", not unguarded, found, "restore the schema; deputize migrate makes it so")
    yield _judged(
        "audit is append-only", bool(facts.audit_is_append_only),
        "the writer can only insert" if facts.audit_is_append_only else "the writer may change entries",
        "revoke update, delete and truncate on deputize.audit_entries from deputize_writer",
    )  # fmt: skip
    days = facts.days_ahead if facts.days_ahead is not None else -1
    yield _judged(
        "partitions", days >= _LEAST_DAYS, f"{max(days, 0)} days ahead",
        "run a gateway, which makes them, or: call deputize.make_partitions(7)",
    )  # fmt: skip


def _workers(facts: Inspected) -> Iterator[Finding]:
    if facts.workers_alive is None:
        return
    queued = f"{facts.runs_queued} calls queued" if facts.runs_queued else "nothing queued"
    yield _judged(
        "workers", facts.workers_alive > 0, f"{facts.workers_alive} alive, {queued}",
        "start deputize work: asynchronous calls wait until one is alive", otherwise="warning",
    )  # fmt: skip


def _of_care(facts: Inspected, settings: Settings, development: bool) -> Iterator[Finding]:
    limit = settings.timing.max_clock_skew_seconds
    skew = f"{facts.skew_seconds:+.3f} s from PostgreSQL's, {limit:g} s allowed"
    todo = "set the clocks right (NTP); a gateway that is off refuses to work"
    yield _judged("clock", abs(facts.skew_seconds) <= limit, skew, todo)
    kept = "fsync and full_page_writes are on" if facts.keeps_writes else "fsync or full_page_writes is off"
    todo = "turn both on: a power cut would lose acknowledged calls"
    yield _judged("writes are kept", facts.keeps_writes, kept, todo, otherwise="warning" if development else "broken")
    synchronous = bool(facts.standbys) and facts.synchronous_commit in ("on", "remote_apply")
    found = f"to {facts.standbys}" if synchronous else "off"
    if development and not synchronous:
        yield Finding(check="synchronous replication", status="skipped", found=found, todo="not needed in development")
        return
    yield _judged(
        "synchronous replication", synchronous, found,
        "A FAILOVER MAY LOSE ACKNOWLEDGED CALLS: set synchronous_standby_names, "
        "or know that your provider replicates below PostgreSQL",
        otherwise="warning",
    )  # fmt: skip


def _master_key(settings: Settings, development: bool) -> Finding:
    path = settings.keys.master_file
    if development and not path.exists():
        return Finding(check="master key", status="skipped", found="not made yet", todo="deputize dev makes it")
    try:
        MasterKey.read(path)
    except Misconfigured as error:
        return Finding(check="master key", status="broken", found=f"{path} cannot be used", todo=str(error))
    return Finding(check="master key", status="good", found=f"{path}, readable by its owner only")


async def _of_issuers(settings: Settings, development: bool) -> AsyncIterator[Finding]:
    issuers = settings.identity.issuers
    if not issuers:
        status: Status = "skipped" if development else "broken"
        todo = "deputize dev is its own issuer" if development else "list one under [[identity.issuers]]"
        yield Finding(check="issuers", status=status, found="none configured", todo=todo)
        return
    egress = Egress(allow_hosts=hosts_of(issuers))
    try:
        for issuer in issuers:
            yield await _issuer(issuer, egress)
    finally:
        await egress.aclose()


async def _issuer(issuer: Issuer, egress: Egress) -> Finding:
    check, began = f"issuer {issuer.issuer}", time.monotonic()
    try:
        keys = await read_keys(issuer, egress.get)
    except (Problem, OSError, ValueError) as error:
        where = issuer.jwks_file or issuer.jwks_url or issuer.issuer
        return Finding(check=check, status="broken", found=f"its keys cannot be read: {error}", todo=f"check {where}")
    took = (time.monotonic() - began) * 1000
    return _judged(check, bool(keys), f"{len(keys)} usable keys, {took:.0f} ms", "publish a key it may sign with")
