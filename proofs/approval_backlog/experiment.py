"""A million approval requests wait for people, and time goes on for all of them: what one gateway's sweeper takes for
it.

Some of the approval requests are due: over, to be escalated, or to be brought to mind again. The gateway finds and
moves them by itself, in batches of 500, while everything else stays open. Its memory is held against that of the same
gateway in a database where nothing else waits. Then someone whose group is asked about many thousands of them looks at
some.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import asyncpg

from deputize.operations.approvals.escalation import BATCH_SIZE
from deputize.store.local_postgres import LocalPostgres
from proofs.approval_backlog.backlog import APPROVER_TENANT, REMIND_SECONDS, Backlog, fill_backlog
from proofs.approval_backlog.console_pages import ASK_POLICY, measure_pages
from proofs.approval_backlog.timed_escalation import Batch, read_batches
from proofs.kit.cpu_metrics import read_postgres_cpu_seconds
from proofs.kit.gateway import GatewayHandle, create_issuer, start_gateway
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.kit.sign_in_issuer import SignInIssuer

NAME = "approval_backlog"
PROMISE = "A million calls wait for people, time is up for each when it is up, and the gateway hardly notices."

MAX_BATCH_MS, MAX_PAGE_MS = 200.0, 100.0
_DUE_COUNT = "select count(*) from deputize.approvals where next_at <= now() or state = 'open' and expires_at <= now()"
_STATES = """
select count(*) filter (where a.state = 'open') as open, count(*) filter (where a.state = 'expired') as expired,
       count(*) filter (where a.state not in ('open', 'expired')) as otherwise,
       count(*) filter (where a.level = 1) as risen
from deputize.approvals a
"""
_ENTRIES = """
select count(*) as calls, coalesce(sum(n), 0)::bigint as entries, coalesce(max(n), 0) as most
from (select count(*) as n from deputize.audit_entries where call_id is not null group by tenant, call_id) as of_call
"""
_NOTICES = (
    "select kind, count(*) as n, count(distinct (approval_id, grp)) as different from deputize.notices group by kind"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    batches: Sequence[Batch]
    peak_mb: float
    last_mb: float
    cpu_seconds: float


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres()
    due_count, waiting_count = (
        sandbox.pick_size(quick=3_000, full=100_000),
        sandbox.pick_size(quick=10_000, full=1_000_000),
    )
    issuer, port = create_issuer(), sandbox.pick_free_port()
    sign_in_issuer = await SignInIssuer.start(sandbox, issuer, APPROVER_TENANT)
    settings = sign_in_issuer.render_settings(f"http://127.0.0.1:{port}") + f"remind_seconds = {REMIND_SECONDS}\n"
    gateway = await start_gateway(
        sandbox, postgres.dsn, issuer, tools="orders.py", settings=settings, port=port, policies=ASK_POLICY
    )
    small_backlog = Backlog(over=1_500, escalate=500, remind=500, idle=0)
    baseline = await _run_sweep(sandbox, gateway, postgres, small_backlog, "approval_backlog_timed")
    sandbox.log(f"memory {baseline.peak_mb:.1f} MB where nothing else waits")
    backlog = Backlog(over=due_count, escalate=due_count, remind=due_count, idle=waiting_count)
    result = await _run_sweep(sandbox, gateway, postgres, backlog, "approval_backlog_timed")
    facts = await _check_facts(postgres.dsn, small_backlog, backlog)
    page_result = await measure_pages(
        gateway, sign_in_issuer, request_count=60, look_count=sandbox.pick_size(quick=200, full=2000)
    )
    sandbox.log(f"{page_result.look_count} looks at tickets, p50 {page_result.compute_quantile(0.5)} ms")
    sandbox.log("control: one ticket after the other")
    control_result = await _run_sweep(
        sandbox, gateway, postgres, Backlog(over=BATCH_SIZE, escalate=0, remind=0, idle=0), "approval_backlog_unbatched"
    )
    unbatched_ms = _compute_quantile([batch for batch in control_result.batches if batch.over], 0.5)
    batch_figures, batched_ms = summarize_batches(result.batches)
    return Verdict(
        figures={
            "open": waiting_count + 2 * due_count,
            "batches": len(result.batches),
            **batch_figures,
            "cpu_ms_per_batch_with_postgres": round(1000 * result.cpu_seconds / len(result.batches), 1),
            "memory_mb": round(result.peak_mb, 1),
            "memory_of_none": round(result.peak_mb / baseline.peak_mb, 3),
            "memory_last_of_peak": round(result.last_mb / result.peak_mb, 3),
            **facts,
            "page_p99_ms": page_result.compute_quantile(0.99),
            "page_p50_ms": page_result.compute_quantile(0.5),
            "pages_that_failed": page_result.failure_count,
            "one_by_one_batch_ms": unbatched_ms,
        },
        controls={"ends one request after the other": unbatched_ms > 3 * batched_ms},
        notes=[
            f"{3 * due_count} of {waiting_count + 3 * due_count} tickets were due, a third of them over; batches "
            f"of {BATCH_SIZE} on one "
            "gateway, each timed from the look for what is due to the last commit.",
            "Pages: the console's page of a ticket, one after the other over one connection, signed in.",
        ],
    )


def summarize_batches(batches: Sequence[Batch]) -> tuple[dict[str, Figure], float]:
    """The figures of whole batches, and the median of those that end approval requests. The first one after a start is
    apart: it loads every tenant's keys, and PostgreSQL plans every statement.
    """
    first, *others = [batch for batch in batches if batch.count == BATCH_SIZE]
    expiry_batches = [batch for batch in others if batch.over]
    figures: dict[str, Figure] = {
        "batch_p99_ms": _compute_quantile(others, 0.99),
        "batch_over_p99_ms": _compute_quantile(expiry_batches, 0.99),
        "batch_over_p50_ms": _compute_quantile(expiry_batches, 0.5),
        "batch_moved_p99_ms": _compute_quantile([batch for batch in others if not batch.over], 0.99),
        "batch_p50_ms": _compute_quantile(others, 0.5),
        "first_batch_ms": round(first.ms, 1),
    }
    return figures, _compute_quantile(expiry_batches, 0.5)


async def _run_sweep(
    sandbox: Sandbox, gateway: GatewayHandle, postgres: LocalPostgres, backlog: Backlog, variant: str
) -> SweepResult:
    """From a start with so many approval requests until nothing is due."""
    await gateway.child.stop()
    sandbox.log(f"{backlog.due + backlog.idle} tickets are opened, {backlog.due} of them due")
    await fill_backlog(postgres.dsn, backlog)
    await restart_as_variant(gateway, variant)
    cpu = _read_cpu_seconds(gateway, postgres)
    sizes: list[float] = []
    connection = await asyncpg.connect(postgres.dsn)
    try:
        async with asyncio.timeout(1200):
            while await connection.fetchval(_DUE_COUNT):
                for _ in range(4):
                    await asyncio.sleep(0.25)
                    sizes.append(_read_memory_mb(gateway.child.pid))
    finally:
        await connection.close()
    cpu = _read_cpu_seconds(gateway, postgres) - cpu
    await asyncio.sleep(2)
    batches = read_batches(gateway.child)
    sandbox.log(f"{len(batches)} batches, memory {max(sizes):.1f} MB")
    return SweepResult(batches=batches, peak_mb=max(sizes), last_mb=_read_memory_mb(gateway.child.pid), cpu_seconds=cpu)


async def _check_facts(dsn: str, *backlogs: Backlog) -> dict[str, Figure]:
    connection = await asyncpg.connect(dsn)
    try:
        due = await connection.fetchval(_DUE_COUNT)
        [states] = await connection.fetch(_STATES)
        [entries] = await connection.fetch(_ENTRIES)
        notices = {row["kind"]: (row["n"], row["different"]) for row in await connection.fetch(_NOTICES)}
    finally:
        await connection.close()
    return judge_facts(backlogs, due, dict(states), dict(entries), notices)


def judge_facts(
    backlogs: Sequence[Backlog],
    due: int,
    states: Mapping[str, int],
    entries: Mapping[str, int],
    notices: Mapping[str, tuple[int, int]],
) -> dict[str, Figure]:
    """Everything that was due was done once, and nothing else was. `notices` are counted by kind: all, different."""
    expiry_count, escalation_count = sum(each.over for each in backlogs), sum(each.escalate for each in backlogs)
    reminder_count, waiting_count = sum(each.remind for each in backlogs), sum(each.idle for each in backlogs)
    wrong = (
        abs(states["open"] - waiting_count - escalation_count - reminder_count)
        + abs(states["expired"] - expiry_count)
        + states["otherwise"]
        + abs(states["risen"] - escalation_count)
    )
    entry_mismatches = (
        abs(entries["calls"] - expiry_count) + abs(entries["entries"] - expiry_count) + abs(entries["most"] - 1)
    )
    # Two groups are asked at first, one more at the next level.
    expected_notices = {"escalated": escalation_count, "reminder": 2 * reminder_count}
    misses = sum(
        abs(notices.get(kind, (0, 0))[place] - count) for kind, count in expected_notices.items() for place in (0, 1)
    )
    return {
        "left_due": int(due),
        "expired": int(states["expired"]),
        "ended_otherwise": int(wrong),
        "ended_twice_or_unproven": int(entry_mismatches),
        "told_twice_or_not": int(misses),
    }


def _compute_quantile(batches: Sequence[Batch], share: float) -> float:
    """The milliseconds that this share of them did not exceed."""
    sorted_ms = sorted(batch.ms for batch in batches)
    return round(sorted_ms[ceil(share * len(sorted_ms)) - 1], 1)


def _read_cpu_seconds(gateway: GatewayHandle, postgres: LocalPostgres) -> float:
    """Of the gateway and of PostgreSQL, which are all there is in this world."""
    return gateway.child.read_cpu_seconds() + read_postgres_cpu_seconds(postgres.pid)


def _read_memory_mb(pid: int) -> float:
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return resident * 4096 / 1_000_000
