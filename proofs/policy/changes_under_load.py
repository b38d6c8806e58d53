"""A policy change meets calls: three gateways under load while policies are put, judged by PostgreSQL's commit order.

Every set that is put holds one rule, named after its number, that permits or forbids everything. So each entry says
which set it was decided by, and the database says which set held when it committed.
"""

import asyncio
import bisect
import itertools
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import orjson

from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, put_policies, start_gateway
from proofs.kit.helper_servers import LedgerHandle, start_ledger
from proofs.kit.http_client import HttpConnection
from proofs.kit.sandbox import Sandbox

_LOOPS = (("act", 2), ("look", 1))
_PAUSE_SECONDS = (0.03, 0.12)


@dataclass(frozen=True, kw_only=True, slots=True)
class Testbed:
    gateways: tuple[GatewayHandle, ...]
    ledger: LedgerHandle
    issuer: Issuer
    dsn: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyCall:
    id: str
    is_write: bool
    is_released: bool
    slug: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EntryRow:
    """One entry of a call: what it is, the number of the set it was decided by, and when it committed (µs)."""

    kind: str
    number: int | None
    at: int


@dataclass(kw_only=True, slots=True)
class PolicyFindings:
    violations: Counter[str] = field(default_factory=Counter)
    samples: list[str] = field(default_factory=list)
    put_count: int = 0
    call_count: int = 0
    stopped_count: int = 0
    lag_us: int = 0

    def add_violation(self, what: str, call: PolicyCall, distance_us: int) -> None:
        self.violations[what] += 1
        if self.violations[what] <= 3:
            self.samples.append(f"{what}: call {call.id}, {distance_us / 1000:+.3f} ms")

    def count_violations(self, sign: str) -> int:
        return sum(count for what, count in self.violations.items() if what.startswith(sign))


async def start_testbed(sandbox: Sandbox) -> Testbed:
    postgres = await sandbox.start_postgres()
    ledger = await start_ledger(sandbox)
    issuer = create_issuer()
    env = {"PROOF_LEDGER": ledger.url}
    gateways = [
        await start_gateway(sandbox, postgres.dsn, issuer, name=name, tools="barrier.py", env=env) for name in "abc"
    ]
    return Testbed(gateways=tuple(gateways), ledger=ledger, issuer=issuer, dsn=postgres.dsn)


async def run_changes_under_load(sandbox: Sandbox, testbed: Testbed, put_count: int, name: str) -> PolicyFindings:
    """Puts sets one after the other, through all gateways in turn, while calls go on; then judges every call."""
    stop = asyncio.Event()
    calls: list[PolicyCall] = []
    numbers = itertools.count(1)
    async with asyncio.TaskGroup() as group:
        for gateway, (tool, loops) in itertools.product(testbed.gateways, _LOOPS):
            for _ in range(loops):
                group.create_task(_call_until_stopped(testbed.issuer, gateway, tool, stop, calls, numbers))
        await _put_policy_sets(testbed, put_count)
        stop.set()
    findings = await _judge_calls(testbed, calls)
    summary = ", ".join(f"{count} {what}" for what, count in sorted(findings.violations.items())) or "no violation"
    sandbox.log(
        f"{name}: {findings.put_count} changes, {findings.call_count} calls, {findings.stopped_count} stopped at "
        f"the barrier: {summary}"
    )
    return findings


async def _put_policy_sets(testbed: Testbed, put_count: int) -> None:
    rng = random.Random(7)
    first = await _count_policy_sets(testbed.dsn) + 1
    for number in range(first, first + put_count):
        effect = "forbid" if number % 2 else "permit"
        text = f'@id("set-{number}") {effect} (principal, action, resource);'
        # An operator's sign-in counts for a few minutes.
        admin = testbed.issuer.issue_token("admin", scopes=("deputize:admin",))
        await put_policies(testbed.gateways[number % len(testbed.gateways)].url, admin, text)
        await asyncio.sleep(rng.uniform(*_PAUSE_SECONDS))


async def _count_policy_sets(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from deputize.policies where tenant = 'acme'"))
    finally:
        await connection.close()


async def _call_until_stopped(
    issuer: Issuer, gateway: GatewayHandle, tool: str, stop: asyncio.Event, calls: list[PolicyCall], numbers: Any
) -> None:
    http = HttpConnection.for_url(gateway.url, token=issuer.issue_token(f"user-{gateway.name}"))
    while not stop.is_set():
        number = next(numbers)
        key = {"Idempotency_Key": f"{gateway.name}-{number}-{id(stop)}"} if tool == "act" else {}
        request = {"tool": f"barrier.{tool}", "arguments": {"word": f"w{number}"}}
        answer = await http.post("/v1/calls", request, **key)
        payload = answer.json()
        slug = None if answer.status == 200 else payload["error"]["slug"]
        calls.append(
            PolicyCall(id=payload["call_id"], is_write=tool == "act", is_released=answer.status == 200, slug=slug)
        )
    http.close()


async def _judge_calls(testbed: Testbed, calls: Sequence[PolicyCall]) -> PolicyFindings:
    effects = Counter(effect.key for effect in await testbed.ledger.list_effects())
    connection = await asyncpg.connect(testbed.dsn)
    try:
        rows, policy_sets = await _fetch_rows(connection), await _fetch_policy_sets(connection)
    finally:
        await connection.close()
    findings = PolicyFindings(put_count=sum(number is not None for number, _, _ in policy_sets), call_count=len(calls))
    times = [at for _, _, at in policy_sets]
    if times != sorted(times):
        findings.violations["other: epochs in another order than commits"] += 1
    for call in calls:
        check_call(findings, call, rows.get(call.id, []), effects, policy_sets, times)
    return findings


PolicySet = tuple[int | None, bool, int]
"""A set's number (None before the first), whether it permits, and when it committed."""


def check_call(
    findings: PolicyFindings,
    call: PolicyCall,
    rows: Sequence[EntryRow],
    effects: Counter[str],
    policy_sets: Sequence[PolicySet],
    times: Sequence[int],
) -> None:
    deciding_rows = [row for row in rows if row.kind in ("intent", "read")]
    refusals = [row for row in rows if row.kind == "refusal"]
    has_continued = effects[call.id] > 0 if call.is_write else call.is_released
    # Refused for another reason, such as by a gateway that hardly gets to run: no word about policies.
    is_other_refusal = call.slug not in (None, "permission-denied")
    if is_other_refusal:
        findings.add_violation(f"refused: {call.slug}", call, 0)
    if effects[call.id] > 1 or len(deciding_rows) > 1 or (has_continued and not deciding_rows):
        findings.add_violation("other: not exactly one row and effect", call, 0)
    for row in (*deciding_rows, *(() if is_other_refusal else refusals)):
        _check_row(findings, call, row, policy_sets, times)
    if not deciding_rows:
        return
    number, permits, since = policy_sets[bisect.bisect_right(times, deciding_rows[0].at) - 1]
    if has_continued and not permits:
        findings.add_violation("late: acted on the policy before", call, deciding_rows[0].at - since)
    if not has_continued and not is_other_refusal:
        findings.stopped_count += 1
        if permits or any(row.number != number for row in refusals):
            findings.add_violation(
                "early: refused by a policy that did not hold yet", call, deciding_rows[0].at - since
            )


def _check_row(
    findings: PolicyFindings, call: PolicyCall, row: EntryRow, policy_sets: Sequence[PolicySet], times: Sequence[int]
) -> None:
    """An entry may be decided by a set that was just replaced, and by none that was not yet there."""
    # A gateway that starts puts its own set again, so one number may have been in force twice.
    places = [place for place, each in enumerate(policy_sets) if each[0] == row.number]
    if not places:
        findings.add_violation("other: decided by a set nobody put", call, 0)
        return
    place = max((each for each in places if times[each] <= row.at), default=places[0])
    # A refusal that follows the barrier is decided as of the commit before it, whose set is there by then.
    if row.at < times[place]:
        findings.add_violation("early: decided by a set before its commit", call, row.at - times[place])
    if place + 1 < len(policy_sets) and row.at > times[place + 1]:
        findings.lag_us = max(findings.lag_us, row.at - times[place + 1])


async def _fetch_rows(connection: "asyncpg.Connection[Any]") -> dict[str, list[EntryRow]]:
    rows: dict[str, list[EntryRow]] = {}
    for call_id, entry, at in await connection.fetch(
        """
        select call_id::text, entry, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.audit_entries where tenant = 'acme' and call_id is not null
        """
    ):
        entry_json = orjson.loads(entry)
        numbers = [int(rule.removeprefix("set-")) for rule in entry_json.get("rules", ()) if rule.startswith("set-")]
        row = EntryRow(kind=entry_json["kind"], number=numbers[0] if numbers else None, at=at)
        rows.setdefault(call_id, []).append(row)
    return rows


async def _fetch_policy_sets(connection: "asyncpg.Connection[Any]") -> list[PolicySet]:
    rows = await connection.fetch(
        """
        select files, (extract(epoch from pg_xact_commit_timestamp(xmin)) * 1000000)::bigint
        from deputize.policies where tenant = 'acme' order by changed_epoch
        """
    )
    return [_parse_policy_set(orjson.loads(files)[0]["text"], at) for files, at in rows]


def _parse_policy_set(text: str, at: int) -> PolicySet:
    number = int(text.partition("set-")[2].partition('"')[0]) if "set-" in text else None
    return number, "permit" in text, at
