"""Backtest draft policies against the tenant's recorded decisions, page by page.

Runs inside the gateway, so that policy authors need no access to the database. It reads one tenant in pages of ids and
replays in a thread that all backtests share, page by page in turns, so that calls are not delayed. While a costly rule
is evaluated in another process, no thread waits for it. `govern/policy/checks/backtest.py` evaluates and counts.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import asyncpg
import orjson

from deputize.core.caller import Caller
from deputize.core.clock import make_first_id, parse_id_time_ms
from deputize.core.decision import Verdict
from deputize.core.entry_kinds import DRY_RUN
from deputize.govern.policy.active_policies import load_default_files
from deputize.govern.policy.cedar import CompiledPolicies
from deputize.govern.policy.cedar_schema import PolicyQuery
from deputize.govern.policy.checks.backtest import Backtest, BacktestCall
from deputize.govern.policy.checks.validate import PolicyFindings
from deputize.govern.policy.evaluation_job import evaluate_costly_slice
from deputize.govern.policy.policy_parser import PolicyFile
from deputize.govern.policy.slices import PolicySlice
from deputize.govern.token_authorization import require_admin
from deputize.lifecycle.runtime import Runtime
from deputize.operations.admin.policy.check_draft import check_policies
from deputize.store.queries import load_statements

PAGE_SIZE = 2000
DEFAULT_PERIOD = timedelta(days=30)
_SQL = load_statements("backtest")
# Entries from before or without a call's effect; an outcome entry repeats what its intent says.
_ENTRY_KINDS = frozenset({"read", "intent", "refusal"})
_replay_pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="backtest")
T = TypeVar("T")


class _CostlyQuery(Exception):
    """The draft's rules take too long to be evaluated in this process."""

    def __init__(self, slice_: PolicySlice, query: PolicyQuery) -> None:
        self.slice = slice_
        self.query = query


class _VerdictsApart:
    """Hands costly queries over to the event loop: the step raises, and finds the verdict when it is repeated."""

    def __init__(self) -> None:
        self.next_verdict: Verdict | None = None

    def take(self, slice_: PolicySlice, query: PolicyQuery) -> Verdict:
        verdict, self.next_verdict = self.next_verdict, None
        if verdict is None:
            raise _CostlyQuery(slice_, query)
        return verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class BacktestProgress:
    """How much of the period is replayed."""

    entries: int
    share: float

    def to_json(self) -> dict[str, Any]:
        return {"progress": {"entries": self.entries, "share": round(self.share, 4)}}


class Backtests:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Of the processes for administrative acts, all backtests together use one, a query each in turns.
        self._turn = asyncio.Semaphore(1)

    async def start_backtest(
        self, caller: Caller, files: Sequence[PolicyFile], since: datetime | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Start a backtest, or refuse it; the iterator yields progress, and last the result. Closing it ends it."""
        require_admin(caller)
        authority = await self._runtime.authority.load_tenant(caller.tenant)
        authority.revocations.check(caller)
        start = since or self._runtime.clock.now() - DEFAULT_PERIOD
        # A time without a time zone is UTC, as everywhere in Deputize.
        start_ms = int((start if start.tzinfo else start.replace(tzinfo=UTC)).timestamp() * 1000)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._runtime.request_limits.hold_backtest(caller))
            findings = await check_policies(self._runtime, authority, files)
            findings.raise_errors()
            draft = await asyncio.to_thread(CompiledPolicies, tuple(files) or load_default_files())
            slot = stack.pop_all()
        lines = self._replay_calls(caller.tenant, draft, authority.policy.digest, max(start_ms, 0), findings)
        return self._stream_backtest(slot, lines)

    async def _stream_backtest(
        self, slot: AsyncExitStack, lines: AsyncIterator[dict[str, Any]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        async with slot:
            async for line in lines:
                yield line

    async def _replay_calls(
        self, tenant: str, draft: CompiledPolicies, active_digest: str, since_ms: int, findings: PolicyFindings
    ) -> AsyncIterator[dict[str, Any]]:
        start_time, until_ms = self._runtime.clock.monotonic(), self._runtime.clock.epoch_ms()
        verdicts = _VerdictsApart()
        backtest = Backtest(draft, engine=self._runtime.settings.policy.engine, evaluate_off_loop=verdicts.take)
        last = make_first_id(since_ms)
        end = make_first_id(until_ms + 1)
        start_ms = await self._load_first_ms(tenant, last, end)
        entries = 0
        while start_ms is not None:
            page = await self._load_page(tenant, last, end)
            if not page:
                break
            entries, last = entries + len(page), str(page[-1]["id"])
            decisions = deque(each for row in page if (each := _parse_decision(row)) is not None)
            records = deque(
                await self._load_records(tenant, backtest.list_unknown_records(each.record_id for each in decisions))
            )
            await self._replay(tenant, verdicts, partial(_count_page, backtest, records, decisions))
            share = (parse_id_time_ms(last) - start_ms) / max(until_ms - start_ms, 1)
            yield BacktestProgress(entries=entries, share=min(share, 1.0)).to_json()
        report = await self._replay(tenant, verdicts, backtest.build_report)
        yield {
            "result": {
                "since_ms": since_ms,
                "until_ms": until_ms,
                "draft": draft.digest,
                "active": active_digest,
                "seconds": round(self._runtime.clock.monotonic() - start_time, 3),
                "entries": entries,
                **report.to_json(),
                # Rules that decided nothing because there is nothing that they could match.
                "mismatches": [each.to_json() for each in findings.mismatches],
            }
        }

    async def _replay(self, tenant: str, verdicts: _VerdictsApart, step: Callable[[], T]) -> T:
        """Run a step in the thread; repeat it with the verdict of each query that is evaluated in another process.

        Cedar holds the interpreter's lock while it evaluates, so that a thread alone would stop the event loop too.
        """
        run_job = partial(self._runtime.admin_jobs.run_job, tenant)
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(_replay_pool, step)
            except _CostlyQuery as costly:
                async with self._turn:
                    verdicts.next_verdict = await evaluate_costly_slice(costly.slice, costly.query, run_job)

    async def _load_first_ms(self, tenant: str, after: str, end: str) -> int | None:
        async with self._runtime.store.read_transaction(tenant) as connection:
            entry_id = await connection.fetchval(_SQL["find_first_entry_since"], tenant, after, end)
        return None if entry_id is None else parse_id_time_ms(str(entry_id))

    async def _load_page(self, tenant: str, after: str, end: str) -> list[asyncpg.Record]:
        async with self._runtime.store.read_transaction(tenant) as connection:
            return await connection.fetch(_SQL["list_entries_between"], tenant, after, end, PAGE_SIZE)

    async def _load_records(self, tenant: str, ids: Sequence[str]) -> list[asyncpg.Record]:
        if not ids:
            return []
        async with self._runtime.store.read_transaction(tenant) as connection:
            return await connection.fetch(_SQL["load_decision_records"], tenant, ids)


def _count_page(backtest: Backtest, records: deque[asyncpg.Record], decisions: deque[BacktestCall]) -> None:
    """Replay what is left of a page."""
    while records:
        backtest.learn_record(records[0]["id"], records[0]["record"])
        records.popleft()
    while decisions:
        backtest.count_call(decisions[0])
        decisions.popleft()


def _parse_decision(row: asyncpg.Record) -> BacktestCall | None:
    """Parse a call that policies decided; None for others, such as those that the token alone refused."""
    entry = orjson.loads(row["entry"])
    record_id = entry.get("decision")
    if record_id is None or entry["kind"] not in _ENTRY_KINDS or entry.get("command") == DRY_RUN:
        return None
    return BacktestCall(
        call_id=entry["call"], record_id=record_id, at_ms=parse_id_time_ms(str(row["id"])), session=entry.get("session")
    )
