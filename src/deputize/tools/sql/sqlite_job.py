"""Read a SQLite database for one call, in a process of its own whose memory, processor time and files are limited.

What a statement may do was decided by its parse (`sqlite.py`); here SQLite's authorizer decides it again, asked for
each table, column and function when the statement is compiled. What SQLite sorts and gathers is in memory, and never in
files.
"""

import base64
import re
import resource
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from deputize import SemanticViolation, ToolFailed, ToolPrecondition
from deputize.core.errors import Problem
from deputize.tools.sql.reading import (
    MAX_BYTES,
    MAX_COLUMNS,
    MAX_EXACT,
    MAX_PAGE_BYTES,
    MAX_TEXT,
    SAMPLES,
    Column,
    Parameter,
    Rows,
    Table,
    Tables,
    mask_value,
    quote_name,
)
from deputize.tools.sql.statements import Access, refuse
from deputize.tools.sql.validation import Check, CheckResult, Validation

SCHEMA: Final = "main"
SQLITE_FUNCTIONS: Final = frozenset(Path(__file__).with_name("sqlite_functions.txt").read_text().split())
_ACTIONS: Final = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE})
# Tables that are functions, and read nothing but their arguments.
_TABLE_FUNCTIONS: Final = frozenset({"json_each", "json_tree"})
_LIMITS: Final = {
    sqlite3.SQLITE_LIMIT_LENGTH: 5_000_000, sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0, sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 200, sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
}  # fmt: skip
_STEPS: Final = 1_000
_MAX_HEAP_BYTES: Final = 268_435_456
# The memory that readers of a file with a write-ahead log share is a file, too, and small.
_MAX_FILE_BYTES: Final = 16_777_216
_PLACES: Final = re.compile(r"\$(\d+)")


def read_job(payload: bytes) -> bytes:
    """Read what a request asks for; reply with the answer, or with the problem that is to be raised."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MAX_FILE_BYTES, _MAX_FILE_BYTES))
    request = orjson.loads(payload)
    access = Access(tables=tuple(request["tables"]), builtin_functions=SQLITE_FUNCTIONS)
    read = _READS[request["read"]]
    try:
        with open_database(Path(request["path"]), request["seconds"]) as connection:
            return orjson.dumps({"answer": read(_Session(connection, access), **request["arguments"])})
    except Problem as problem:
        fields = {"message": problem.message, "details": problem.details}
        return orjson.dumps({"problem": type(problem).__name__, **fields})


@contextmanager
def open_database(path: Path, seconds: float) -> Iterator[sqlite3.Connection]:
    """Open the file so that nothing can be written, and no statement goes on after the end."""
    end = time.monotonic() + seconds
    with _explain_errors(seconds):
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None, timeout=1.0)
        try:
            connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
            for limit, value in _LIMITS.items():
                connection.setlimit(limit, value)
            connection.execute("pragma query_only = on")
            connection.execute("pragma trusted_schema = off")
            connection.execute("pragma temp_store = memory")
            connection.execute(f"pragma hard_heap_limit = {_MAX_HEAP_BYTES}")
            # They are set up at first use, which the authorizer would refuse.
            connection.execute("select 1 from json_each('[]'), json_tree('[]')")
            # One state of the database for all that a call reads.
            connection.execute("begin")
            yield connection
        finally:
            connection.close()


class _Session:
    """The connection of one call, and what its statements may name."""

    def __init__(self, connection: sqlite3.Connection, access: Access) -> None:
        self._connection = connection
        self._access = access

    def run_query(self, sql: str, parameters: Sequence[Parameter], offset: int, limit: int) -> Rows:
        values = _bind(sql, parameters)
        self._authorize()
        # The end of a line ends a comment, too.
        cursor = self._connection.execute(f"SELECT * FROM (\n{sql}\n) LIMIT {limit + 1} OFFSET {offset}", values)
        return _read_page(cursor, limit, offset)

    def describe_tables(self, search: str, offset: int, limit: int, shows_samples: bool) -> Tables:
        names = self._connection.execute(
            "select name, type from sqlite_schema where type in ('table', 'view') order by 1"
        )
        found = [
            (name, kind) for name, kind in names if self._allows(name) and search.lower() in f"{SCHEMA}.{name}".lower()
        ]
        tables = [_describe(self._connection, *each, shows_samples) for each in found[offset : offset + limit]]
        return Tables(tables=tables, next_offset=offset + limit if len(found) > offset + limit else None)

    def validate_table(self, table: str, checks: Sequence[Mapping[str, Any]]) -> Validation:
        results = [self._run_check(table, Check(**each)) for each in checks]
        return Validation(table=table, holds=all(each.holds for each in results), checks=results)

    def _allows(self, table: str) -> bool:
        return self._access.allows_table(SCHEMA, table) and not table.lower().startswith(("sqlite_", "pragma_"))

    def _authorize(self) -> None:
        """Have each table, column and function of a statement asked for when it is compiled."""

        def decide(action: int, name: str | None, detail: str | None, schema: str | None, _: str | None) -> int:
            is_allowed = action in _ACTIONS
            if action == sqlite3.SQLITE_FUNCTION:
                is_allowed = str(detail).lower() in SQLITE_FUNCTIONS
            elif action == sqlite3.SQLITE_READ:
                # What a view reads is asked for, too: its name alone could also be that of a WITH.
                # Without a schema, it is a subquery of that table, of which no column is read.
                is_here = schema == SCHEMA or (schema is None and not detail)
                is_allowed = is_here and (name in _TABLE_FUNCTIONS or self._allows(name or ""))
            return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

        self._connection.set_authorizer(decide)

    def _run_check(self, table: str, check: Check) -> CheckResult:
        value = self._connection.execute(self._build_check(table, check)).fetchone()[0]
        if check.kind != "fresh":
            return CheckResult(kind=check.kind, columns=check.columns, holds=value == 0, failing_rows=value)
        holds = value is not None and check.max_age_seconds is not None and value <= check.max_age_seconds
        return CheckResult(kind=check.kind, columns=check.columns, holds=holds, failing_rows=0, age_seconds=value)

    def _build_check(self, table: str, check: Check) -> str:
        source = self._require_columns(table, check.columns)
        names = [f"t.{quote_name(each)}" for each in check.columns]
        are_set = " and ".join(f"{each} is not null" for each in names)
        match check.kind:
            case "complete":
                return f"select count(*) from {source} t where not ({are_set})"
            case "unique":
                groups = f"select count(*) as n from {source} t where {are_set} group by {', '.join(names)}"
                return f"select coalesce(sum(n - 1), 0) from ({groups} having count(*) > 1)"
            case "references":
                if len(check.to_columns or ()) != len(names):
                    raise refuse("checks", "references needs as many to_columns as columns", "name them")
                target = self._require_columns(check.to_table, check.to_columns or ())
                pairs = zip(names, check.to_columns or (), strict=True)
                equal = " and ".join(f"{name} = r.{quote_name(other)}" for name, other in pairs)
                missing = f"not exists (select 1 from {target} r where {equal})"
                return f"select count(*) from {source} t where {are_set} and {missing}"
            case "fresh":
                if len(names) != 1 or check.max_age_seconds is None:
                    raise refuse("checks", "fresh is about one column", "name one column and max_age_seconds")
                return f"select (julianday('now') - max(julianday({names[0]}))) * 86400.0 from {source} t"

    def _require_columns(self, table: str, names: Sequence[str]) -> str:
        """Refuse what is no table or column; SQLite would read a quoted name that is none as a text."""
        schema, _, name = table.partition(".")
        if schema != SCHEMA or not self._allows(name):
            raise refuse("tables", f"table {table[:100]} is not allowed", f"use {', '.join(self._access.tables)[:200]}")
        found = [each[0] for each in self._connection.execute("select name from pragma_table_xinfo(?)", (name,))]
        for each in names:
            if each not in found:
                raise refuse("columns", f"{table} has no column {each[:100]}", f"use {', '.join(found)[:300]}")
        return f"{SCHEMA}.{quote_name(name)}"


@contextmanager
def _explain_errors(seconds: float) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        problem = f"the statement needs more than {_MAX_HEAP_BYTES // 1_048_576} MB of memory"
        raise refuse("memory", problem, "sort and gather less: filter first, and ask for shorter values") from error
    except OverflowError as error:
        raise refuse("parameters", "a whole number has more than 64 bits", "send it as text") from error
    except sqlite3.Error as error:
        message = str(error)[:300]
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            problem = f"the statement took longer than {seconds:g} s"
            raise refuse("time", problem, "ask for less, or filter on an index") from error
        if "prohibited" in message or "not authorized" in message:
            raise refuse(
                "role", message, "use tables that sql.schema lists, and functions that only compute"
            ) from error
        if "unable to open" in message or "not a database" in message:
            raise ToolPrecondition(f"the database of [builtin.sql] cannot be used: {message}") from error
        if isinstance(error, sqlite3.OperationalError | sqlite3.ProgrammingError | sqlite3.DataError):
            hint = "correct the statement or its parameters"
            raise SemanticViolation(f"{message}: {hint}", details={"rule": "syntax", "hint": hint}) from error
        raise ToolFailed(f"the database failed: {message}", nothing_happened=True) from error


def _bind(sql: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Name the values as the statement does: $1, $2, …"""
    wanted = max((int(each) for each in _PLACES.findall(sql)), default=0)
    if wanted != len(parameters):
        problem = f"the statement has {wanted} parameters and {len(parameters)} came"
        raise refuse("parameters", problem, "send one for each $n")
    return {
        str(place): orjson.dumps(value).decode() if isinstance(value, list | dict) else value
        for place, value in enumerate(parameters, start=1)
    }


def _read_page(cursor: sqlite3.Cursor, limit: int, offset: int) -> Rows:
    names = [each[0] for each in cursor.description]
    if len(names) > MAX_COLUMNS:
        raise refuse("columns", f"the answer has {len(names)} columns", f"select between 1 and {MAX_COLUMNS} of them")
    rows: list[list[Any]] = []
    types = [""] * len(names)
    size = cut_values = 0
    is_full = False
    for record in cursor:
        row = [_decode(value) for value in record]
        size += len(orjson.dumps([value for value, _ in row]))
        is_full = len(rows) == limit or (bool(rows) and size > MAX_PAGE_BYTES)
        if is_full:
            break
        types = [known or _name_type(value) for known, value in zip(types, record, strict=True)]
        cut_values += sum(is_cut for _, is_cut in row)
        rows.append([value for value, _ in row])
    return Rows(
        columns=[Column(name=name, type=kind or "null") for name, kind in zip(names, types, strict=True)], rows=rows,
        next_offset=offset + len(rows) if is_full else None, cut_values=cut_values, estimated_cost=0.0,
    )  # fmt: skip


def _name_type(value: Any) -> str:
    return {int: "integer", float: "real", str: "text", bytes: "blob"}.get(type(value), "")


def _decode(value: Any) -> tuple[Any, bool]:
    """Read a value as JSON, and tell whether it is cut."""
    if isinstance(value, bytes):
        return base64.b64encode(value[:MAX_BYTES]).decode(), len(value) > MAX_BYTES
    if isinstance(value, str) and len(value) > MAX_TEXT:
        return value[:MAX_TEXT] + "…", True
    is_exact = not isinstance(value, int) or abs(value) <= MAX_EXACT
    if not is_exact or value in (float("inf"), float("-inf")):
        return str(value), False
    return value, False


def _describe(connection: sqlite3.Connection, name: str, kind: str, shows_samples: bool) -> Table:
    columns = connection.execute('select name, type, "notnull", pk from pragma_table_xinfo(?)', (name,)).fetchall()
    key = [each[0] for each in sorted(columns, key=lambda each: each[3]) if each[3]]
    keys = [f"primary key ({', '.join(key)})"] if key else []
    for (index,) in connection.execute(
        "select name from pragma_index_list(?) where \"unique\" and origin = 'u'", (name,)
    ).fetchall():
        parts = connection.execute("select name from pragma_index_info(?)", (index,))
        keys.append(f"unique ({', '.join(str(each[0]) for each in parts)})")
    for own, table, other in connection.execute(
        'select "from", "table", "to" from pragma_foreign_key_list(?)', (name,)
    ):
        keys.append(f"{own} > {SCHEMA}.{table} ({other})" if other else f"{own} > {SCHEMA}.{table}")
    source = f"{SCHEMA}.{quote_name(name)}"
    samples = {}
    if shows_samples and columns:
        texts = ", ".join(f"substr(cast({quote_name(each[0])} as text), 1, 40)" for each in columns[:MAX_COLUMNS])
        rows = connection.execute(f"select {texts} from {source} limit {SAMPLES}").fetchall()
        samples = {
            column[0]: list(dict.fromkeys(mask_value(row[place]) for row in rows if row[place] is not None))
            for place, column in enumerate(columns[:MAX_COLUMNS])
        }
    return Table(
        table=f"{SCHEMA}.{name}", kind=kind, estimated_rows=_estimate_rows(connection, source, kind), comment="",
        columns=[f"{each[0]} {each[1].lower() or 'any'}{'' if each[2] or each[3] else '?'}"[:300] for each in columns],
        keys=keys, samples=samples,
    )  # fmt: skip


def _estimate_rows(connection: sqlite3.Connection, source: str, kind: str) -> int:
    """Read the highest number of a row, which takes one step; 0 for views, and for tables without numbers."""
    if kind == "view":
        return 0
    try:
        return connection.execute(f"select max(rowid) from {source}").fetchone()[0] or 0
    except sqlite3.OperationalError:
        return 0


_READS: Final[dict[str, Callable[..., object]]] = {
    "query": _Session.run_query, "describe": _Session.describe_tables, "validate": _Session.validate_table,
}  # fmt: skip
