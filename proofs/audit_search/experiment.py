"""Thirty kinds of question are asked of a month of audit entries, each a page; then everything is exported.

Each entry that comes back is compared with the question and the tenant, and the plan of each statement must use an
index. Without the index, and with a search that leaves the tenant out, the same questions must be slow and read whole
tables, or show what is not one's own.
"""

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
import orjson

from deputize.evidence.entry_filters import EntryFilter
from deputize.store import migrate
from deputize.store.pool import Store
from deputize.store.queries import load_statements
from proofs.audit_search.query_plans import create_explaining_search, explain_question, name_question
from proofs.audit_search.sample_log import TENANT, fill_log, list_questions
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox

NAME = "audit_search"
PROMISE = "Every question of the audit is answered quickly, completely, and with nothing that is another's."

_SQL = load_statements("audit_search")
_FIRST, _END = UUID(int=0), UUID(int=(1 << 128) - 1)
_PAGE = 50
_ROUNDS = 2
_EXPORT_PAGE = 2000
_LEAK = "a.tenant = $1 and "


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """One page: how long it took, and how many of its entries were not asked for or not the tenant's."""

    milliseconds: float
    count: int
    wrong: int
    foreign: int


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres(settings={"fsync": "off", "max_wal_size": "4GB"})
    await migrate.upgrade_async(postgres.dsn)
    count = sandbox.pick_size(quick=15_000, full=1_000_000)
    owner = await asyncpg.connect(postgres.dsn)
    await fill_log(owner, count, sandbox.log)
    store = await Store.open(postgres.dsn)
    try:
        questions = list_questions(count)
        answers = [await _ask(store, each) for _ in range(_ROUNDS) for each in questions]
        exported, seconds, grown_mb = await _export(store)
        await create_explaining_search(owner)
        sequential = await _explain_all(owner, questions, sandbox.log)
        await owner.execute("drop index deputize.audit_entries_by_terms")
        rare = [each for each in questions if each.kind == "command" or each.session == "absent"]
        slow = [await _ask(store, each) for each in rare]
        unindexed = await _explain_all(owner, rare, lambda _: None)
        definition = await owner.fetchval("select pg_get_functiondef(oid) from pg_proc where proname = 'search_audit'")
        await owner.execute(definition.replace(_LEAK, "$1::text is not null and "))
        leaked = [await _ask(store, EntryFilter())]
    finally:
        await store.close()
        await owner.close()
    quick = [each for question in rare for each in [answers[questions.index(question) + len(questions)]]]
    sandbox.log(f"{len(questions)} questions; export {exported:,} entries in {seconds:.1f} s")
    return Verdict(
        figures={
            "entries": count,
            "questions": len(questions),
            "page_p95_ms": round(compute_p95([each.milliseconds for each in answers]), 1),
            "wrong_entries": sum(each.wrong for each in answers),
            "foreign_entries": sum(each.foreign for each in answers),
            "sequential_scans": sequential,
            "export_per_second": round(exported / seconds),
            "export_memory_mb": round(grown_mb, 1),
        },
        controls={
            "without the index": sum(each.milliseconds for each in slow) > 3 * sum(each.milliseconds for each in quick),
            "a plan without the index": unindexed > 0,
            "without the tenant": any(each.foreign for each in leaked),
        },
    )


def compute_p95(values: Sequence[float]) -> float:
    """Return the value that 95 of 100 do not exceed."""
    return sorted(values)[max(0, -(-len(values) * 95 // 100) - 1)]


async def _ask(store: Store, question: EntryFilter) -> Answer:
    labels, needles = question.list_labels(), orjson.dumps(question.list_needles()).decode()
    started_at = time.perf_counter()
    async with store.read_transaction(TENANT) as connection:
        rows = await connection.fetch(_SQL["search_entries"], labels, needles, _FIRST, _END, _PAGE, 60_000)
    milliseconds = (time.perf_counter() - started_at) * 1000
    entries = [orjson.loads(row["entry"]) for row in rows if row["entry"] is not None]
    return Answer(
        milliseconds=milliseconds,
        count=len(entries),
        wrong=sum(not question.is_match(each) for each in entries),
        foreign=sum(each["tenant"] != TENANT for each in entries),
    )


async def _explain_all(owner: asyncpg.Connection, questions: Sequence[EntryFilter], log: Callable[[str], None]) -> int:
    """Print how each kind of question reads the entries; return how many questions read a whole table."""
    sequential, shown_names = 0, set[str]()
    for question in questions:
        scans = await explain_question(owner, question, _PAGE)
        sequential += not scans or any(each.is_sequential for each in scans)
        line = f"{name_question(question)}: {', '.join(map(str, scans))}"
        if line not in shown_names:
            shown_names.add(line)
            log(line)
    return sequential


async def _export(store: Store) -> tuple[int, float, float]:
    """Read everything as an export does; return how much, in which time, and by how much memory grew after a page."""
    count, before, first_mb = 0, _END, 0.0
    started_at = time.perf_counter()
    while True:
        async with store.read_transaction(TENANT) as connection:
            rows = await connection.fetch(_SQL["search_entries"], [], "[]", _FIRST, before, _EXPORT_PAGE, 60_000)
        count += sum(orjson.loads(row["entry"])["tenant"] == TENANT for row in rows if row["entry"] is not None)
        first_mb = first_mb or _read_peak_mb()
        if len(rows) < _EXPORT_PAGE:
            return count, time.perf_counter() - started_at, _read_peak_mb() - first_mb
        before = rows[-1]["id"]


def _read_peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
