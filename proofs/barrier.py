"""Revocations and retirements under load on two gateways, judged by PostgreSQL's own commit order.

Every ward is one thing to be taken back: a subject, a token, an agent, a version of a tool. Loops call on its
authority through both gateways without pause; it is taken back through one of them; afterwards each call's row in the
database is held against the row that took its authority back, by the timestamps of their commits. The two conflict on
a lock until their commits are done, so those timestamps cannot be the wrong way round.
"""

import asyncio
import itertools
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox

NAME = "barrier"
PROMISE = "Nothing begins, and nothing is released, on authority taken back before its row committed; nor less."

_TENANT = "acme"
_KINDS = ("subject", "retire_act", "token", "retire_look", "agent")
_AUTHORITIES_AT_ONCE = 8
_CALLS_BEFORE = 2
_REFUSALS_AFTER = 2
_REVOCATION_SLUGS = frozenset({"revoked", "tool-retired"})


@dataclass(frozen=True, kw_only=True, slots=True)
class BarrierCall:
    """One call as its caller saw it."""

    id: str
    is_write: bool
    is_released: bool
    slug: str | None


@dataclass(kw_only=True, slots=True)
class RevocableAuthority:
    """One authority on its way to being taken back, and every call made on it."""

    number: int
    kind: str
    token: str
    value: str
    calls: list[BarrierCall] = field(default_factory=list)
    warm_calls: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    @property
    def version(self) -> str:
        return self.value if self.kind.startswith("retire") else "1.0.0"

    @property
    def tools(self) -> tuple[str, ...]:
        return {"retire_act": ("act",), "retire_look": ("look",)}.get(self.kind, ("act", "look"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    """Two gateways on one database, and the ledger that their tools act upon."""

    gateways: tuple[GatewayHandle, GatewayHandle]
    ledger: LedgerHandle
    issuer: Issuer
    dsn: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRow:
    """What the database says of one call: when its claim or entry committed, in microseconds."""

    kind: str
    at: int


@dataclass(kw_only=True, slots=True)
class BarrierFindings:
    """Violations by what they violate, and how near to the line the others came."""

    violations: Counter[str] = field(default_factory=Counter)
    revocation_count: int = 0
    call_count: int = 0
    accepted_count: int = 0
    stopped_count: int = 0
    refused_count: int = 0
    before_ms: list[float] = field(default_factory=list)
    after_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)

    def add_violation(self, what: str, authority: RevocableAuthority, call: str, distance_us: int) -> None:
        self.violations[what] += 1
        if self.violations[what] <= 3:
            self.samples.append(
                f"{what}: {authority.kind} {authority.value}, call {call}, {distance_us / 1000:+.3f} ms"
            )


async def prove(sandbox: Sandbox) -> Verdict:
    revocation_count = sandbox.pick_size(quick=80, full=1000)
    testbed = await _start_testbed(sandbox)
    numbers = itertools.count(1)
    findings = await _run_round(sandbox, testbed, numbers, revocation_count, "the barrier")
    controls = {}
    for variant, sign in (("barrier_ignored", "late"), ("barrier_epochs_after_commit", "early")):
        await asyncio.gather(*(restart_as_variant(gateway, variant) for gateway in testbed.gateways))
        broken_findings = await _run_round(sandbox, testbed, numbers, sandbox.pick_size(quick=60, full=200), variant)
        controls[variant] = any(what.startswith(sign) for what in broken_findings.violations)
    figures: dict[str, Figure] = {
        "acts": findings.revocation_count,
        "late": _count_violations(findings, "late"),
        "early": _count_violations(findings, "early"),
        "refused_otherwise": _count_violations(findings, "refused"),
        "other": _count_violations(findings, "other"),
        "stopped_at_barrier": findings.stopped_count,
        "calls": findings.call_count,
        "accepted": findings.accepted_count,
        "refused_before_claim": findings.refused_count,
        "nearest_before_ms": round(min(findings.before_ms, default=-1.0), 3),
        "nearest_after_ms": round(min(findings.after_ms, default=-1.0), 3),
        "gap_median_ms": round(statistics.median(findings.gap_ms or [-1.0]), 3),
        "gap_least_ms": round(min(findings.gap_ms, default=-1.0), 3),
    }
    return Verdict(
        figures=figures,
        controls=controls,
        notes=findings.samples,
    )


def _count_violations(findings: BarrierFindings, sign: str) -> int:
    return sum(count for what, count in findings.violations.items() if what.startswith(sign))


async def _start_testbed(sandbox: Sandbox) -> Testbed:
    postgres = await sandbox.start_postgres()
    ledger = await start_ledger(sandbox)
    issuer = create_issuer()
    env = {"PROOF_LEDGER": ledger.url}
    first = await start_gateway(sandbox, postgres.dsn, issuer, name="a", tools="barrier.py", env=env)
    second = await start_gateway(sandbox, postgres.dsn, issuer, name="b", tools="barrier.py", env=env)
    return Testbed(gateways=(first, second), ledger=ledger, issuer=issuer, dsn=postgres.dsn)


async def _run_round(
    sandbox: Sandbox, testbed: Testbed, numbers: Iterator[int], revocation_count: int, name: str
) -> BarrierFindings:
    """So many things taken back under load, a few at a time; then the judgement."""
    authorities = [_create_authority(testbed.issuer, next(numbers)) for _ in range(revocation_count)]
    await _register_versions(testbed, [authority for authority in authorities if authority.kind.startswith("retire")])
    pending = iter(authorities)

    async def run_lane() -> None:
        for authority in pending:
            await _revoke_under_load(testbed, authority)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AUTHORITIES_AT_ONCE):
            group.create_task(run_lane())
    findings = await _judge_calls(testbed, authorities)
    summary = ", ".join(f"{count} {what}" for what, count in sorted(findings.violations.items())) or "no violation"
    sandbox.log(
        f"{name}: {revocation_count} acts, {findings.call_count} calls, {findings.accepted_count} accepted, "
        f"{findings.stopped_count} stopped at the barrier, "
        f"{findings.refused_count} refused before a claim: {summary}"
    )
    return findings


def _create_authority(issuer: Issuer, number: int) -> RevocableAuthority:
    kind = _KINDS[number % len(_KINDS)]
    user, agent, token_id = f"user-{number}", f"agent-{number}", f"token-{number}"
    values = {"subject": user, "token": token_id, "agent": agent}
    token = issuer.issue_token(user, agent=agent, token_id=token_id)
    return RevocableAuthority(number=number, kind=kind, token=token, value=values.get(kind, f"2.0.{number}"))


async def _register_versions(testbed: Testbed, authorities: list[RevocableAuthority]) -> None:
    """A version of a tool for each ward that will be retired; both gateways have the function behind it."""
    admin = HttpConnection.for_url(testbed.gateways[0].url, token=_issue_admin_token(testbed.issuer))
    for authority in authorities:
        (tool,) = authority.tools
        tool_json = (await admin.get(f"/v1/tools/barrier.{tool}?version=1.0.0")).json()
        contract = {
            **tool_json["contract"],
            "version": authority.version,
            "handler": {"target": f"tools.barrier:{tool}"},
        }
        answer = await admin.post("/v1/tools", contract)
        if answer.status != 201:
            raise RuntimeError(f"a version was not registered: {answer.body!r}")
    admin.close()


def _issue_admin_token(issuer: Issuer) -> str:
    return issuer.issue_token("admin", scopes=("deputize:admin",))


async def _revoke_under_load(testbed: Testbed, authority: RevocableAuthority) -> None:
    async with asyncio.TaskGroup() as group:
        loops = 0
        for gateway in testbed.gateways:
            for tool in authority.tools:
                group.create_task(_call_until_refused(gateway, authority, tool))
                loops += 1
        for _ in range(loops * _CALLS_BEFORE):
            await authority.warm_calls.acquire()
        await _revoke(testbed, authority)


async def _revoke(testbed: Testbed, authority: RevocableAuthority) -> None:
    http = HttpConnection.for_url(testbed.gateways[authority.number % 2].url, token=_issue_admin_token(testbed.issuer))
    if authority.kind.startswith("retire"):
        path = f"/v1/tools/barrier.{authority.tools[0]}/versions/{authority.version}/state"
        answer = await http.post(path, {"state": "retired"})
    else:
        kind = "token" if authority.kind == "token" else "subject"
        answer = await http.post("/v1/revocations", {"kind": kind, "value": authority.value})
    http.close()
    if answer.status not in (200, 201):
        raise RuntimeError(f"{authority.kind} {authority.value} was not taken back: {answer.body!r}")


async def _call_until_refused(gateway: GatewayHandle, authority: RevocableAuthority, tool: str) -> None:
    """Calls without pause; a few more once refused, for what was refused must stay so."""
    http = HttpConnection.for_url(gateway.url, token=authority.token)
    request = {"tool": f"barrier.{tool}", "version": authority.version, "arguments": {"word": f"w{authority.number}"}}
    refusals = 0
    for count in itertools.count():
        key = {"Idempotency_Key": f"{gateway.name}-{authority.number}-{count}"} if tool == "act" else {}
        answer = await http.post("/v1/calls", request, **key)
        payload = answer.json()
        slug = None if answer.status == 200 else payload["error"]["slug"]
        authority.calls.append(
            BarrierCall(id=payload["call_id"], is_write=tool == "act", is_released=answer.status == 200, slug=slug)
        )
        authority.warm_calls.release()
        refusals += slug is not None
        if refusals > _REFUSALS_AFTER:
            break
    http.close()


async def _judge_calls(testbed: Testbed, authorities: list[RevocableAuthority]) -> BarrierFindings:
    effects = Counter(effect.key for effect in await testbed.ledger.list_effects())
    connection = await asyncpg.connect(testbed.dsn)
    try:
        rows = await _fetch_rows(connection)
        revocation_times = await _fetch_revocations(connection)
    finally:
        await connection.close()
    findings = BarrierFindings()
    for authority in authorities:
        revoked_at = revocation_times[_build_key(authority)]
        findings.revocation_count += 1
        call_results = [
            check_call(findings, authority, call, rows.get(call.id, []), effects, revoked_at)
            for call in authority.calls
        ]
        last = max((when for has_continued, when in call_results if has_continued), default=None)
        first = min((when for went_on, when in call_results if not went_on and when > revoked_at), default=None)
        if last is not None and first is not None:
            findings.before_ms.append((revoked_at - last) / 1000)
            findings.after_ms.append((first - revoked_at) / 1000)
            findings.gap_ms.append((first - last) / 1000)
    return findings


def _build_key(authority: RevocableAuthority) -> str:
    if authority.kind.startswith("retire"):
        return f"barrier.{authority.tools[0]}@{authority.version}"
    return f"{'token' if authority.kind == 'token' else 'subject'}:{authority.value}"


def check_call(
    findings: BarrierFindings,
    authority: RevocableAuthority,
    call: BarrierCall,
    rows: list[EntryRow],
    effects: Counter[str],
    revoked_at: int,
) -> tuple[bool, int]:
    """Strict both ways; returns whether the call went on, and when its deciding row committed."""
    findings.call_count += 1
    deciding_rows = [row for row in rows if row.kind in ("intent", "read")]
    has_continued = effects[call.id] > 0 if call.is_write else call.is_released
    # Refused for another reason, such as by a gateway that hardly gets to run: no word about its authority.
    is_other_refusal = call.slug is not None and call.slug not in _REVOCATION_SLUGS
    if is_other_refusal:
        findings.add_violation(f"refused: {call.slug}", authority, call.id, 0)
    if effects[call.id] > 1 or len(deciding_rows) > 1 or (has_continued and not deciding_rows):
        findings.add_violation("other: not exactly one row and effect", authority, call.id, 0)
    if not deciding_rows:
        findings.refused_count += 1
        refusal = next((row.at for row in rows if row.kind == "refusal"), 0)
        if refusal <= revoked_at and not is_other_refusal:
            findings.add_violation("early: refused before it was taken back", authority, call.id, refusal - revoked_at)
        return False, refusal
    committed_at = deciding_rows[0].at
    effect_kind = "effect" if call.is_write else "read"
    if has_continued:
        findings.accepted_count += 1
        if committed_at >= revoked_at:
            findings.add_violation(f"late: {effect_kind}", authority, call.id, committed_at - revoked_at)
    else:
        findings.stopped_count += 1
        if committed_at <= revoked_at and not is_other_refusal:
            findings.add_violation(f"early: {effect_kind} refused", authority, call.id, committed_at - revoked_at)
    return has_continued, committed_at


async def _fetch_rows(connection: "asyncpg.Connection[Any]") -> dict[str, list[EntryRow]]:
    """Every entry of every call, by its transaction's commit. Entries are never changed, so xmin is that commit."""
    rows: dict[str, list[EntryRow]] = {}
    for call_id, kind, at in await connection.fetch(
        """
        with entries as (
            select call_id, convert_from(entry, 'utf8')::json as entry, xmin from deputize.audit_entries
            where tenant = $1 and call_id is not null)
        select call_id::text, entry->>'kind',
               (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from entries
        """,
        _TENANT,
    ):
        rows.setdefault(call_id, []).append(EntryRow(kind=kind, at=at))
    return rows


async def _fetch_revocations(connection: "asyncpg.Connection[Any]") -> dict[str, int]:
    rows = await connection.fetch(
        """
        select kind || ':' || value, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.revocations where tenant = $1
        union all
        select name || '@' || version, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.tool_versions where tenant = $1 and state = 'retired'
        """,
        _TENANT,
    )
    return dict(rows)
