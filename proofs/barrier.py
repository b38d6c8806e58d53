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

from proofs.kit.companions import LedgerHandle, start_ledger
from proofs.kit.gateway import GatewayHandle, Issuer, new_issuer, start_gateway
from proofs.kit.report import Figure, Verdict
from proofs.kit.variant import restart_as
from proofs.kit.wire import Line
from proofs.kit.world import World

NAME = "barrier"
PROMISE = "Nothing begins, and nothing is released, on authority taken back before its row committed; nor less."

_TENANT = "acme"
_KINDS = ("subject", "retire_act", "token", "retire_look", "agent")
_WARDS_AT_ONCE = 8
_CALLS_BEFORE = 2
_REFUSALS_AFTER = 2
_TAKEN_BACK = frozenset({"revoked", "tool-retired"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call as its caller saw it."""

    id: str
    write: bool
    released: bool
    slug: str | None


@dataclass(kw_only=True, slots=True)
class Ward:
    """One authority on its way to being taken back, and every call made on it."""

    number: int
    kind: str
    token: str
    value: str
    calls: list[Call] = field(default_factory=list)
    warm: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))

    @property
    def version(self) -> str:
        return self.value if self.kind.startswith("retire") else "1.0.0"

    @property
    def tools(self) -> tuple[str, ...]:
        return {"retire_act": ("act",), "retire_look": ("look",)}.get(self.kind, ("act", "look"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Two gateways on one database, and the ledger that their tools act upon."""

    gateways: tuple[GatewayHandle, GatewayHandle]
    ledger: LedgerHandle
    issuer: Issuer
    dsn: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """What the database says of one call: when its claim or entry committed, in microseconds."""

    kind: str
    at: int


@dataclass(kw_only=True, slots=True)
class Findings:
    """Violations by what they violate, and how near to the line the others came."""

    wrong: Counter[str] = field(default_factory=Counter)
    acts: int = 0
    calls: int = 0
    accepted: int = 0
    stopped: int = 0
    refused: int = 0
    before_ms: list[float] = field(default_factory=list)
    after_ms: list[float] = field(default_factory=list)
    gap_ms: list[float] = field(default_factory=list)
    samples: list[str] = field(default_factory=list)

    def violation(self, what: str, ward: Ward, call: str, distance_us: int) -> None:
        self.wrong[what] += 1
        if self.wrong[what] <= 3:
            self.samples.append(f"{what}: {ward.kind} {ward.value}, call {call}, {distance_us / 1000:+.3f} ms")


async def prove(world: World) -> Verdict:
    acts = world.size(quick=80, full=1000)
    site = await _site(world)
    numbers = itertools.count(1)
    found = await _round(world, site, numbers, acts, "the barrier")
    controls = {}
    for variant, sign in (("barrier_ignored", "late"), ("barrier_behind", "early")):
        await asyncio.gather(*(restart_as(gateway, variant) for gateway in site.gateways))
        broken = await _round(world, site, numbers, world.size(quick=60, full=200), variant)
        controls[variant] = any(what.startswith(sign) for what in broken.wrong)
    figures: dict[str, Figure] = {
        "acts": found.acts,
        "late": _total(found, "late"),
        "early": _total(found, "early"),
        "other": _total(found, "other"),
        "stopped_at_barrier": found.stopped,
        "calls": found.calls,
        "accepted": found.accepted,
        "refused_before_claim": found.refused,
        "nearest_before_ms": round(min(found.before_ms, default=-1.0), 3),
        "nearest_after_ms": round(min(found.after_ms, default=-1.0), 3),
        "gap_median_ms": round(statistics.median(found.gap_ms or [-1.0]), 3),
        "gap_least_ms": round(min(found.gap_ms, default=-1.0), 3),
    }
    return Verdict(
        starved=("early", "other"),
        figures=figures,
        bars={
            "acts": (">=", acts),
            "late": ("==", 0),
            "early": ("==", 0),
            "other": ("==", 0),
            "stopped_at_barrier": (">=", world.size(quick=1, full=100)),
        },
        controls=controls,
        notes=found.samples,
    )


def _total(found: Findings, sign: str) -> int:
    return sum(count for what, count in found.wrong.items() if what.startswith(sign))


async def _site(world: World) -> Site:
    postgres = await world.postgres()
    ledger = await start_ledger(world)
    issuer = new_issuer()
    env = {"PROOF_LEDGER": ledger.url}
    first = await start_gateway(world, postgres.dsn, issuer, name="a", tools="barrier.py", env=env)
    second = await start_gateway(world, postgres.dsn, issuer, name="b", tools="barrier.py", env=env)
    return Site(gateways=(first, second), ledger=ledger, issuer=issuer, dsn=postgres.dsn)


async def _round(world: World, site: Site, numbers: Iterator[int], acts: int, name: str) -> Findings:
    """So many things taken back under load, a few at a time; then the judgement."""
    wards = [_ward(site.issuer, next(numbers)) for _ in range(acts)]
    await _register(site, [ward for ward in wards if ward.kind.startswith("retire")])
    waiting = iter(wards)

    async def one_after_another() -> None:
        for ward in waiting:
            await _take_back_under_load(site, ward)

    async with asyncio.TaskGroup() as group:
        for _ in range(_WARDS_AT_ONCE):
            group.create_task(one_after_another())
    found = await _judge(site, wards)
    said = ", ".join(f"{count} {what}" for what, count in sorted(found.wrong.items())) or "no violation"
    world.say(
        f"{name}: {acts} acts, {found.calls} calls, {found.accepted} accepted, {found.stopped} stopped at the barrier, "
        f"{found.refused} refused before a claim: {said}"
    )
    return found


def _ward(issuer: Issuer, number: int) -> Ward:
    kind = _KINDS[number % len(_KINDS)]
    user, agent, token_id = f"user-{number}", f"agent-{number}", f"token-{number}"
    values = {"subject": user, "token": token_id, "agent": agent}
    token = issuer.token(user, agent=agent, token_id=token_id)
    return Ward(number=number, kind=kind, token=token, value=values.get(kind, f"2.0.{number}"))


async def _register(site: Site, wards: list[Ward]) -> None:
    """A version of a tool for each ward that will be retired; both gateways have the function behind it."""
    admin = Line.to(site.gateways[0].url, token=_admin(site.issuer))
    for ward in wards:
        (tool,) = ward.tools
        shown = (await admin.get(f"/v1/tools/barrier.{tool}?version=1.0.0")).json()
        contract = {**shown["contract"], "version": ward.version, "handler": {"target": f"tools.barrier:{tool}"}}
        answer = await admin.post("/v1/tools", contract)
        if answer.status != 201:
            raise RuntimeError(f"a version was not registered: {answer.body!r}")
    admin.close()


def _admin(issuer: Issuer) -> str:
    return issuer.token("admin", scopes=("deputize:admin",))


async def _take_back_under_load(site: Site, ward: Ward) -> None:
    async with asyncio.TaskGroup() as group:
        loops = 0
        for gateway in site.gateways:
            for tool in ward.tools:
                group.create_task(_call_until_refused(gateway, ward, tool))
                loops += 1
        for _ in range(loops * _CALLS_BEFORE):
            await ward.warm.acquire()
        await _take_back(site, ward)


async def _take_back(site: Site, ward: Ward) -> None:
    line = Line.to(site.gateways[ward.number % 2].url, token=_admin(site.issuer))
    if ward.kind.startswith("retire"):
        path = f"/v1/tools/barrier.{ward.tools[0]}/versions/{ward.version}/state"
        answer = await line.post(path, {"state": "retired"})
    else:
        kind = "token" if ward.kind == "token" else "subject"
        answer = await line.post("/v1/revocations", {"kind": kind, "value": ward.value})
    line.close()
    if answer.status not in (200, 201):
        raise RuntimeError(f"{ward.kind} {ward.value} was not taken back: {answer.body!r}")


async def _call_until_refused(gateway: GatewayHandle, ward: Ward, tool: str) -> None:
    """Calls without pause; a few more once refused, for what was refused must stay so."""
    line = Line.to(gateway.url, token=ward.token)
    asked = {"tool": f"barrier.{tool}", "version": ward.version, "arguments": {"word": f"w{ward.number}"}}
    refusals = 0
    for count in itertools.count():
        key = {"Idempotency_Key": f"{gateway.name}-{ward.number}-{count}"} if tool == "act" else {}
        answer = await line.post("/v1/calls", asked, **key)
        said = answer.json()
        slug = None if answer.status == 200 else said["error"]["slug"]
        ward.calls.append(Call(id=said["call_id"], write=tool == "act", released=answer.status == 200, slug=slug))
        ward.warm.release()
        refusals += slug is not None
        if refusals > _REFUSALS_AFTER:
            break
    line.close()


async def _judge(site: Site, wards: list[Ward]) -> Findings:
    effects = Counter(effect.key for effect in await site.ledger.effects())
    connection = await asyncpg.connect(site.dsn)
    try:
        rows = await _rows(connection)
        taken = await _taken_back(connection)
    finally:
        await connection.close()
    found = Findings()
    for ward in wards:
        at = taken[_key(ward)]
        found.acts += 1
        accepted = [_judge_call(found, ward, call, rows.get(call.id, []), effects, at) for call in ward.calls]
        last = max((when for went_on, when in accepted if went_on), default=None)
        first = min((when for went_on, when in accepted if not went_on and when > at), default=None)
        if last is not None and first is not None:
            found.before_ms.append((at - last) / 1000)
            found.after_ms.append((first - at) / 1000)
            found.gap_ms.append((first - last) / 1000)
    return found


def _key(ward: Ward) -> str:
    if ward.kind.startswith("retire"):
        return f"barrier.{ward.tools[0]}@{ward.version}"
    return f"{'token' if ward.kind == 'token' else 'subject'}:{ward.value}"


def _judge_call(
    found: Findings, ward: Ward, call: Call, rows: list[Row], effects: Counter[str], taken_back: int
) -> tuple[bool, int]:
    """Strict both ways; returns whether the call went on, and when its deciding row committed."""
    found.calls += 1
    deciding = [row for row in rows if row.kind in ("intent", "read")]
    went_on = effects[call.id] > 0 if call.write else call.released
    if call.slug is not None and call.slug not in _TAKEN_BACK:
        found.violation(f"other: {call.slug}", ward, call.id, 0)
    if effects[call.id] > 1 or len(deciding) > 1 or (went_on and not deciding):
        found.violation("other: not exactly one row and effect", ward, call.id, 0)
    if not deciding:
        found.refused += 1
        refusal = next((row.at for row in rows if row.kind == "refusal"), 0)
        if refusal <= taken_back:
            found.violation("early: refused before it was taken back", ward, call.id, refusal - taken_back)
        return False, refusal
    committed = deciding[0].at
    what = "effect" if call.write else "read"
    if went_on:
        found.accepted += 1
        if committed >= taken_back:
            found.violation(f"late: {what}", ward, call.id, committed - taken_back)
    else:
        found.stopped += 1
        if committed <= taken_back:
            found.violation(f"early: {what} refused", ward, call.id, committed - taken_back)
    return went_on, committed


async def _rows(connection: "asyncpg.Connection[Any]") -> dict[str, list[Row]]:
    """Every entry of every call, by its transaction's commit. Entries are never changed, so xmin is that commit."""
    rows: dict[str, list[Row]] = {}
    for call, kind, at in await connection.fetch(
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
        rows.setdefault(call, []).append(Row(kind=kind, at=at))
    return rows


async def _taken_back(connection: "asyncpg.Connection[Any]") -> dict[str, int]:
    found = await connection.fetch(
        """
        select kind || ':' || value, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.revocations where tenant = $1
        union all
        select name || '@' || version, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.tool_versions where tenant = $1 and state = 'retired'
        """,
        _TENANT,
    )
    return dict(found)
