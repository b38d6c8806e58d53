"""Resolve the futures of a committed batch."""

import asyncio
from collections.abc import Callable, Iterable
from typing import NamedTuple

import asyncpg

from deputize.core.caller import Epochs
from deputize.core.errors import (
    AuditBackpressure,
    AuditUnavailable,
    DeadlineExceeded,
    InternalError,
    Problem,
    QueueFull,
    Unavailable,
)
from deputize.store.commit_rows import (
    AuditEntryRow,
    BeginResult,
    BeginRunRow,
    CloseCallRow,
    CommitResult,
    CommitRow,
    FailedReadRow,
    OpenCallRow,
    QueueRunRow,
)
from deputize.store.restore_guard.lineage import WENT_BACK, build_refusal


class PendingRow(NamedTuple):
    """A row, its future and deadline, and a callback for the case that it commits after its caller has gone."""

    row: CommitRow
    future: "asyncio.Future[CommitResult]"
    deadline: float
    on_orphan: Callable[[], None] | None


def make_refusal(reason: str) -> Problem:
    if reason.startswith(WENT_BACK):
        return build_refusal(reason)
    return Unavailable(f"calls cannot be recorded: {reason}", retry_after_ms=1000, nothing_happened=True)


def make_backpressure(waiting_count: int) -> Problem:
    return AuditBackpressure(
        f"{waiting_count} records wait to be stored, as many as this gateway keeps (database.max_waiting_rows)",
        retry_after_ms=1000,
        nothing_happened=True,
    )


def make_queue_refusal(max_queued: int, *, of_user: bool) -> Problem:
    most = max(max_queued // 2, 1) if of_user else max_queued
    whose = "user are queued, half of what" if of_user else "tenant are queued, as many as"
    return QueueFull(
        f"{most} calls of this {whose} runs.max_queued allows",
        details={"max_queued": most},
        retry_after_ms=5000,
        nothing_happened=True,
    )


def make_timeout_problem(row: CommitRow) -> Problem:
    if type(row) is OpenCallRow:
        return DeadlineExceeded("the deadline passed before the call was recorded; nothing was changed")
    if type(row) is CloseCallRow:
        return Unavailable("the outcome is not stored yet", retry_after_ms=1000)
    if type(row) is QueueRunRow:
        return Unavailable(
            "it is not yet known whether the call was queued; if it was, details has its id",
            details={"call_id": row.call_id}, retry_after_ms=1000,
        )  # fmt: skip
    return AuditUnavailable("the call could not be recorded in time, so its result is withheld", retry_after_ms=1000)


def make_doubt() -> Problem:
    return Unavailable("it is unknown whether this was recorded", retry_after_ms=1000)


def reject_rows(pending_rows: Iterable[PendingRow], make_problem: Callable[[], Problem]) -> None:
    """Answer rows that are not committed, each with a problem of its own."""
    for each in pending_rows:
        if not each.future.done():
            each.future.set_exception(make_problem())


class _Answers:
    """The answers of a commit, by what they are about."""

    __slots__ = ("begin_results", "closed_call_ids", "epochs", "holders", "no_worker_alive")

    def __init__(self, answers: list[asyncpg.Record]) -> None:
        self.epochs: dict[str, CommitResult] = {}
        self.holders: dict[str, str] = {}
        self.closed_call_ids: set[str] = set()
        self.begin_results: dict[str, BeginResult | None] = {}
        self.no_worker_alive = False
        for answer_kind, tenant, row_id, holder, registry, policy, revocation in answers:
            if answer_kind == "epochs":
                self.epochs[tenant] = CommitResult(Epochs(registry=registry, policy=policy, revocation=revocation))
            elif answer_kind == "claimed":
                self.holders[str(row_id)] = str(holder)
            elif answer_kind == "closed":
                self.closed_call_ids.add(str(row_id))
            elif answer_kind == "no_worker":
                self.no_worker_alive = True
            else:
                self.begin_results[str(row_id)] = answer_kind


def resolve_futures(batch: list[PendingRow], answers: list[asyncpg.Record]) -> tuple[str, str] | None:
    """Resolve the futures of a committed batch; return the tenant and id of the last audit entry it surely wrote."""
    facts = _Answers(answers)
    # The rows of runs are committed before the others.
    run_entry: tuple[str, str] | None = None
    entry: tuple[str, str] | None = None
    for row, future, _, on_orphan in batch:
        commit_result = facts.epochs.get(row[0])
        if future.done():
            if on_orphan is not None and commit_result is not None and facts.holders.get(row[1] or "") is None:
                on_orphan()
            continue
        if commit_result is None:
            future.set_exception(InternalError(f"tenant {row[0]} has no epochs"))
        elif type(row) is OpenCallRow:
            holder_id = facts.holders.get(row.call_id)
            if holder_id is None:
                entry = row.tenant, row.entry_id
            future.set_result(commit_result if holder_id is None else CommitResult(commit_result.epochs, holder_id))
        elif type(row) is QueueRunRow:
            holder_id = facts.holders.get(row.call_id)
            if holder_id is None:
                run_entry = row.tenant, row.open_row.entry_id
            future.set_result(CommitResult(commit_result.epochs, holder_id, no_worker_alive=facts.no_worker_alive))
        elif type(row) is CloseCallRow:
            is_closed = row.call_id in facts.closed_call_ids
            if is_closed:
                entry = row.tenant, row.entry_id
            future.set_result(CommitResult(commit_result.epochs, None, is_closed))
        elif type(row) is BeginRunRow:
            begin_result = facts.begin_results.get(row.call_id)
            if begin_result == "begun":
                run_entry = row.tenant, row.entry_id
            future.set_result(CommitResult(commit_result.epochs, begin_result=begin_result))
        else:
            if type(row) is AuditEntryRow:
                entry = row.tenant, row.id
            elif type(row) is FailedReadRow:
                entry = row.tenant, row.audit_entry.id
            future.set_result(commit_result)
    return entry or run_entry
