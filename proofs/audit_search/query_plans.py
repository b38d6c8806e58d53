"""Show how PostgreSQL executes each question: the plans of the statements inside `search_audit`, as it builds them.

A function's statements cannot be explained from outside. So a copy of the function is created that reports the plan of
each statement as a notice before it executes it; everything else of the copy is the function's own text.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import asyncpg
import orjson

from deputize.evidence.entry_filters import EntryFilter
from proofs.audit_search.sample_log import TENANT

_FIRST, _END = UUID(int=0), UUID(int=(1 << 128) - 1)
_STATEMENT: Final = re.compile(r"return query execute (?P<text>.+?)\s+using (?P<values>.+?);", re.DOTALL)
_REPORTED: Final = (
    "for plan_line in execute 'explain ' || {text} using {values} loop raise notice 'plan %', plan_line; end loop; "
    "return query execute {text} using {values};"
)
_SCAN: Final = re.compile(r"(?P<kind>[A-Z][A-Za-z ]*Scan(?: Backward)?) (?:using (?P<index>\S+) )?on (?P<relation>\S+)")
_DAY: Final = re.compile(r"_\d{8}")
_MARK: Final = "plan "


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class TableScan:
    """One way in which a plan reads the entries; the day in a partition's name is left out."""

    kind: str
    relation: str

    @property
    def is_sequential(self) -> bool:
        return "Seq Scan" in self.kind

    def __str__(self) -> str:
        return f"{self.kind} ({self.relation})"


async def create_explaining_search(owner: asyncpg.Connection) -> None:
    """Create the copy of `search_audit` that reports its plans."""
    definition: str = await owner.fetchval("select pg_get_functiondef(oid) from pg_proc where proname = 'search_audit'")
    text = definition.replace("deputize.search_audit(", "deputize.explain_audit_search(", 1)
    text = text.replace("\ndeclare\n", "\ndeclare\n    plan_line text;\n", 1)
    text, count = _STATEMENT.subn(lambda match: _REPORTED.format(**match.groupdict()), text)
    if count != 2 or "plan_line text" not in text:
        raise RuntimeError("search_audit is written otherwise than this proof expects: adapt query_plans.py")
    await owner.execute(text)


async def explain_question(owner: asyncpg.Connection, question: EntryFilter, page: int) -> list[TableScan]:
    """List the different ways in which one question reads the entries."""
    lines: list[str] = []

    def keep_line(_: Any, message: Any) -> None:
        lines.append(message.message)

    labels, needles = question.list_labels(), orjson.dumps(question.list_needles()).decode()
    owner.add_log_listener(keep_line)
    try:
        async with owner.transaction():
            await owner.execute("select set_config('deputize.tenant', $1, true)", TENANT)
            await owner.fetch(
                "select id from deputize.explain_audit_search($1, $2::text::jsonb, $3, $4, $5, 60000)",
                labels, needles, _FIRST, _END, page,
            )  # fmt: skip
    finally:
        owner.remove_log_listener(keep_line)
    return list_scans(line.removeprefix(_MARK) for line in lines if line.startswith(_MARK))


def list_scans(plan_lines: Iterable[str]) -> list[TableScan]:
    """List the different scans of entries and their indexes in the lines of plans."""
    scans = {
        TableScan(kind=match["kind"].strip(), relation=_DAY.sub("", match["index"] or match["relation"]))
        for line in plan_lines
        if (match := _SCAN.search(line)) and match["kind"].strip() != "Subquery Scan"
    }
    return sorted(scans)


def name_question(question: EntryFilter) -> str:
    """Name a question by the fields that it asks for."""
    fields = [name for name in EntryFilter.__dataclass_fields__ if getattr(question, name)]
    return "+".join(fields) or "everything"
