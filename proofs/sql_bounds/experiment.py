"""Hostile statements for `sql.query`, and hostile names, keys and values for `sql.change` and `sql.validate`.

The tools are called without the gateway's check of their arguments. What happened is told by the database alone: its
state before and after, its log of every statement that ran, its counters of functions and scanned tables. The controls
take away the check by the parser, and then the read-only transaction as well.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from deputize import SemanticViolation, ToolConflict, ToolFailed, ToolPrecondition
from deputize.core.errors import Problem
from deputize.tools.sql.changing import Change, change_row
from deputize.tools.sql.database import Database, Limits
from deputize.tools.sql.reading import run_query
from deputize.tools.sql.statements import SAFE_FUNCTIONS, Access
from deputize.tools.sql.validation import validate_table
from proofs.kit.report import Verdict
from proofs.kit.sandbox import Sandbox
from proofs.sql_bounds.arena import LOG_SETTINGS, Arena, list_own_statements, open_arena
from proofs.sql_bounds.inputs import (
    CHANGEABLE,
    TEXTS,
    list_honest_changes,
    list_hostile_changes,
    list_hostile_checks,
)
from proofs.sql_bounds.judge import Attempt, Outcome, Traces, compute_figures, list_foreign_parts
from proofs.variants.sql_bounds_unparsed import unparsed
from proofs.variants.sql_bounds_writable import writable
from tests.support.sql_statements import HOSTILE, HOSTILE_OF_ANY_LOGIN, OVERSIZED, build_honest_statements

NAME = "sql_bounds"
PROMISE = (
    "The SQL tools change, call, lock and read nothing but what they may, whatever a statement, name or value says."
)

_REFUSALS = (SemanticViolation, ToolConflict, ToolFailed, ToolPrecondition)
_ACCESS = Access(tables=("public.*",))
_TABLES = frozenset(
    f"public.{name}" for name in ("customers", "products", "orders", "order_lines", "employees", "paid_orders")
)
# A state is compared after so many attempts.
_BATCH = 20

Call = tuple[str, str, Callable[[], Awaitable[object]]]


async def prove(sandbox: Sandbox) -> Verdict:
    postgres = await sandbox.start_postgres(settings=LOG_SETTINGS)
    folder = sandbox.folder / "stolen"
    folder.mkdir()
    async with open_arena(postgres, folder) as arena:
        attempts, traces = await try_everything(arena)
        foreign = judge_log(traces)
        sandbox.log(f"{len(attempts)} calls, {len(traces.statements)} statements in the log")
    controls = {}
    for name, variant, statements in (
        # Some of all kinds are enough to be caught; a few would wait, or name what the watcher looks at.
        ("sql_bounds_unparsed", unparsed, [each for each in HOSTILE if "sleep" not in each and "{" not in each][::4]),
        ("sql_bounds_writable", writable, HOSTILE_OF_ANY_LOGIN),
    ):
        async with open_arena(postgres, folder) as arena:
            with variant():
                _, control_traces = await try_calls(arena, _list_queries(arena, statements), is_honest=False)
            if name == "sql_bounds_writable":
                controls[name] = control_traces.changed_states > 0
            else:
                functions, tables = judge_log(control_traces)
                controls[name] = bool(functions) and bool(tables)
            sandbox.log(f"{name}: {controls[name]}")
    wrong = [
        each
        for each in attempts
        if each.outcome == "error" or not each.has_rule or (each.outcome == "done") != each.is_honest
    ]
    return Verdict(
        figures=compute_figures(attempts, traces, foreign),
        controls=controls,
        notes=[f"{each.tool} {each.text[:200]!r}: {each.outcome}" for each in wrong[:5]]
        + [*foreign[0], *foreign[1]][:5],
    )


async def try_everything(arena: Arena) -> tuple[list[Attempt], Traces]:
    """Try hostile input, then honest input, and collect what all of it left."""
    hostile = [*_list_queries(arena, [*HOSTILE, *OVERSIZED]), *_list_changes(arena), *_list_checks(arena)]
    attempts, first = await try_calls(arena, hostile, is_honest=False)
    honest, last = await try_calls(arena, _list_honest(arena), is_honest=True)
    traces = Traces(
        changed_states=first.changed_states + last.changed_states,
        sessions_left=first.sessions_left + last.sessions_left,
        # Counters go on, so the last ones are of both.
        own_functions_called=last.own_functions_called,
        other_tables_scanned=last.other_tables_scanned,
        statements=first.statements + last.statements,
    )
    return [*attempts, *honest], traces


def judge_log(traces: Traces) -> tuple[list[str], list[str]]:
    """List the functions and tables of what ran that no list allows."""
    return list_foreign_parts(traces.statements, own=list_own_statements(), functions=SAFE_FUNCTIONS, tables=_TABLES)


async def try_calls(arena: Arena, calls: Sequence[Call], *, is_honest: bool) -> tuple[list[Attempt], Traces]:
    """Make calls, and compare the state of the database after every few."""
    offset, attempts, changed_states = arena.log.stat().st_size, [], 0
    state = await arena.read_state()
    for place, (tool, text, call) in enumerate(calls, start=1):
        outcome: Outcome = "done"
        has_rule = True
        try:
            await call()
        except _REFUSALS as problem:
            outcome, has_rule = "refused", "rule" in problem.details
        except Problem:
            outcome = "error"
        except Exception:  # noqa: BLE001  # any other kind is what is counted
            outcome = "error"
        attempts.append(Attempt(tool=tool, text=text, is_honest=is_honest, outcome=outcome, has_rule=has_rule))
        if place % _BATCH == 0 or place == len(calls):
            before, state = state, await arena.read_state()
            changed_states += state != before
    return attempts, await arena.collect_traces(offset, changed_states)


def _list_queries(arena: Arena, statements: Sequence[str]) -> list[Call]:
    reader = Database(arena.shop.reader, _ACCESS, Limits(seconds=20.0))
    file, pid = str(arena.stolen_file), str(arena.watcher.get_server_pid())

    def build(statement: str) -> Call:
        sql = statement.replace("{file}", file).replace("{pid}", pid)
        return "query", statement, lambda: run_query(reader, sql, [], 0, 100, 30.0)

    return [build(each) for each in statements]


def _list_changes(arena: Arena) -> list[Call]:
    writer = _open_writer(arena)

    def build(change: Change) -> Call:
        return "change", repr(change), lambda: change_row(writer, change, 30.0, keeps=True)

    return [build(each) for each in list_hostile_changes()]


def _list_checks(arena: Arena) -> list[Call]:
    reader = Database(arena.shop.reader, _ACCESS, Limits(seconds=20.0))

    def build(table: str, check: Any) -> Call:
        return "validate", f"{table} {check}", lambda: validate_table(reader, table, [check], 30.0)

    return [build(table, check) for table, check in list_hostile_checks()]


def _list_honest(arena: Arena) -> list[Call]:
    reader, writer = Database(arena.shop.reader, _ACCESS, Limits()), _open_writer(arena)

    def build_query(sql: str, parameters: list[Any]) -> Call:
        return "query", sql, lambda: run_query(reader, sql, parameters, 0, 100, 30.0)

    def build_change(change: Change) -> Call:
        return "change", repr(change), lambda: _change_and_take_back(writer, change)

    texts = [
        Change(table="public.employees", op="insert", key="800", values={"name": each}, expected={}) for each in TEXTS
    ]
    queries = [build_query(sql, parameters) for sql, parameters in build_honest_statements()]
    return [*queries, *(build_change(each) for each in (*list_honest_changes(), *texts))]


async def _change_and_take_back(writer: Database, change: Change) -> None:
    """Make a change, require that each text was stored letter by letter, and take it back."""
    done = await change_row(writer, change, 30.0, keeps=True)
    texts = {name: value for name, value in change.values.items() if isinstance(value, str)}
    if change.op == "insert" and any(done.after[name] != value for name, value in texts.items()):
        raise ValueError("a text was stored as another one")
    inverse = Change(
        table=done.table, op=done.inverse_op, key=done.key, values=done.inverse_values, expected=done.after
    )
    if (await change_row(writer, inverse, 30.0, keeps=True)).after != done.before:
        raise ValueError("a row is not as it was")


def _open_writer(arena: Arena) -> Database:
    return Database(arena.shop.writer, _ACCESS, Limits(seconds=20.0), CHANGEABLE)
