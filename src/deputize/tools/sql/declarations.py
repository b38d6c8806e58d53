"""Declare the tools `sql.*` of one database. No tool takes a connection or a login: that is the operator's choice."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Annotated, Any, Final, Protocol, TypeVar

from pydantic import Field

from deputize import Fact, Preview, ToolConflict, ToolContext, tool
from deputize.catalog.importers.python import ToolOptions
from deputize.tools.sql import reading
from deputize.tools.sql.changing import Change, ChangedRow, Operation, Row, change_row
from deputize.tools.sql.database import Database
from deputize.tools.sql.migration import Plan, plan_migration
from deputize.tools.sql.statements import MAX_SQL
from deputize.tools.sql.validation import TABLE_PATTERN, Check, ColumnName, Validation, validate_table

Function = TypeVar("Function", bound=Callable[..., Any])
# Waits until a call may use the database, and gives the seconds that it has left.
UseDatabase = Callable[[ToolContext], AbstractAsyncContextManager[float]]

Statement = Annotated[
    str,
    Field(
        description="One SELECT, VALUES, WITH … SELECT, or EXPLAIN without ANALYZE. Write values as $1, $2, …",
        min_length=1,
        max_length=MAX_SQL,
    ),
]
Parameters = Annotated[
    list[reading.Parameter] | None,
    Field(description="Values of $1, $2, …; dates and exact numbers as text.", max_length=50),
]
Offset = Annotated[int, Field(description="Where to begin: next_offset of the answer before.", ge=0, le=1_000_000)]
RowLimit = Annotated[int, Field(description="The most rows that are returned.", ge=1, le=reading.MAX_ROWS)]
TableLimit = Annotated[int, Field(description="The most tables that are returned.", ge=1, le=200)]
TableSearch = Annotated[str, Field(description="Part of the names of tables; empty for all.", max_length=130)]
TableName = Annotated[
    str, Field(description="A table, as in public.orders.", pattern=TABLE_PATTERN, max_length=127), Fact("table")
]
Checks = Annotated[list[Check], Field(description="What should hold of its rows.", min_length=1, max_length=20)]
ChangedOperation = Annotated[Operation, Field(description="What to do with the row."), Fact("op")]
Key = Annotated[
    Annotated[str, Field(max_length=1_000)] | int,
    Field(
        description="The primary key of the row; several columns separated by commas, as in 7,2. For insert, leave it "
        "out where the database numbers rows.",
    ),
]
Values = Annotated[
    dict[ColumnName, reading.Parameter] | None,
    Field(description="New values by the names of columns, without those of the key.", max_length=100),
]
ExpectedValues = Annotated[
    dict[ColumnName, reading.Parameter] | None,
    Field(
        description="Values as you read them: for update at least of the columns in values, for delete of all columns.",
        max_length=100,
    ),
]
Definitions = Annotated[
    str,
    Field(
        description="CREATE, ALTER, DROP and COMMENT statements of tables, columns, indexes, views, sequences and "
        "enums, separated by semicolons.",
        min_length=1,
        max_length=MAX_SQL,
    ),
]
WayBack = Annotated[
    str, Field(description="Statements that lead back to the schema of before; empty for none.", max_length=MAX_SQL)
]
_PREVIEW_OPS: Final = {"insert": "create", "update": "update", "delete": "delete"}
_MAX_SHOWN_ROW: Final = 20_000

_READS: Final[ToolOptions] = {
    "namespace": "sql", "version": "1.0.0", "kind": "retrieval", "provider": "deputize", "open_world": False,
    "scopes": ["sql:read"],
}  # fmt: skip


def _name_plainly(function: Function) -> Function:
    """Name a function as if it were one of the module, so that its address in contracts stays when it is moved."""
    function.__qualname__ = function.__name__
    return function


class Reader(Protocol):
    """What reads a database: `SqliteDatabase`, or `PostgresReader`."""

    async def run_query(
        self, sql: str, parameters: Sequence[reading.Parameter], offset: int, limit: int, seconds_left: float
    ) -> reading.Rows: ...

    async def describe_tables(
        self, search: str, offset: int, limit: int, seconds_left: float, *, shows_samples: bool
    ) -> reading.Tables: ...

    async def validate_table(self, table: str, checks: Sequence[Check], seconds_left: float) -> Validation: ...


class PostgresReader:
    """Reads a PostgreSQL database."""

    def __init__(self, database: Database) -> None:
        self.run_query = partial(reading.run_query, database)
        self.describe_tables = partial(reading.describe_tables, database)
        self.validate_table = partial(validate_table, database)


def declare_tools(reader: Reader, use_database: UseDatabase, *, shows_samples: bool) -> tuple[Callable[..., Any], ...]:
    """Declare the tools that read a database."""

    @tool(effects="read", examples=[{"search": "orders"}], **_READS)
    @_name_plainly
    async def schema(
        context: ToolContext, search: TableSearch = "", offset: Offset = 0, limit: TableLimit = 50
    ) -> reading.Tables:
        """Describe tables: columns with types, keys, what they refer to, and about how many rows there are."""
        async with use_database(context) as seconds_left:
            return await reader.describe_tables(search, offset, limit, seconds_left, shows_samples=shows_samples)

    @tool(
        effects="read",
        examples=[{"sql": "select id, total from orders where placed >= $1 order by id", "parameters": ["2026-01-01"]}],
        **_READS,
    )
    @_name_plainly
    async def query(
        sql: Statement, context: ToolContext, parameters: Parameters = None, offset: Offset = 0,
        limit: RowLimit = 100,
    ) -> reading.Rows:  # fmt: skip
        """Run one statement that reads. Order the rows if you need more than one page."""
        async with use_database(context) as seconds_left:
            return await reader.run_query(sql, parameters or [], offset, limit, seconds_left)

    @tool(
        effects="read",
        examples=[{"table": "public.orders", "checks": [{"kind": "unique", "columns": ["id"]}]}],
        **_READS,
    )
    @_name_plainly
    async def validate(table: TableName, checks: Checks, context: ToolContext) -> Validation:
        """Check whether the rows of a table are complete, unique, refer to rows that exist, and are fresh."""
        async with use_database(context) as seconds_left:
            return await reader.validate_table(table, checks, seconds_left)

    return schema, query, validate


def declare_changing_tool(database: Database, use_database: UseDatabase) -> Callable[..., Any]:
    """Declare the tool that changes rows, with the login that may."""
    options: ToolOptions = {
        **_READS,
        "scopes": ["sql:write"],
        "resources": ["update sql.rows/{table}/{key}"],
        # A repeat is refused, because the row is no longer as expected: that it happened is not known from it.
        "idempotency": "cannot",
        "undo": "sql.change",
        "compensation": {
            # Triggers may leave traces. What each call sets off is in its preview and its result.
            "compensation_class": "partial",
            "tool": "sql.change",
            "bind": {
                "table": "/arguments/table", "op": "/result/inverse_op", "key": "/result/key",
                "values": "/result/inverse_values", "expected": "/result/after",
            },
        },
        # A new time or number at each try.
        "preview_volatile": ["/impact/set_by_database"],
    }  # fmt: skip

    async def preview(
        table: str, op: Operation, context: ToolContext, key: str | int = "",
        values: Mapping[str, reading.Parameter] | None = None,
        expected: Mapping[str, reading.Parameter] | None = None,
    ) -> Preview:  # fmt: skip
        change = Change(table=table, op=op, key=str(key), values=values or {}, expected=expected or {})
        try:
            async with use_database(context) as seconds_left:
                return _build_preview(change, await change_row(database, change, seconds_left, keeps=False))
        except ToolConflict as conflict:
            precondition = {"name": "the row is as expected", "holds": False, "detail": conflict.message[:500]}
            return Preview(changes=[_describe_change(change)], preconditions=[precondition])

    @tool(
        effects="write",
        preview=preview,
        examples=[
            {
                "table": "public.orders", "op": "update", "key": "7", "values": {"state": "paid"},
                "expected": {"state": "open"},
            }
        ],
        **options,
    )  # fmt: skip
    @_name_plainly
    async def change(
        table: TableName, op: ChangedOperation, context: ToolContext, key: Key = "", values: Values = None,
        expected: ExpectedValues = None,
    ) -> ChangedRow:  # fmt: skip
        """Insert, update or delete one row by its key, if it still is as you read it."""
        asked = Change(table=table, op=op, key=str(key), values=values or {}, expected=expected or {})
        async with use_database(context) as seconds_left:
            return await change_row(database, asked, seconds_left, keeps=True)

    return change


def declare_planning_tool(target: Database, scratch: Database, use_database: UseDatabase) -> Callable[..., Any]:
    """Declare the tool that plans changes of the schema, and tries them on a scratch database."""
    options: ToolOptions = {**_READS, "scopes": ["sql:plan"]}

    @tool(
        effects="read",
        examples=[
            {
                "up": "alter table orders add column weight integer not null default 0",
                "down": "alter table orders drop column weight",
            }
        ],
        **options,
    )
    @_name_plainly
    async def migration(up: Definitions, context: ToolContext, down: WayBack = "") -> Plan:
        """Plan a change of the schema: try it on a scratch database, and tell its locks, its cost and what it loses.

        Nothing is executed on the database itself.
        """
        async with use_database(context) as seconds_left:
            return await plan_migration(target, scratch, up, down, seconds_left)

    return migration


def _build_preview(change: Change, row: ChangedRow) -> Preview:
    """Show a change that was made and taken back, without what is another at each try."""
    made = {
        name: value
        for name, value in row.after.items()
        if name not in change.values and value != row.before.get(name) and not (change.key and name in row.key_columns)
    }
    after = {name: value for name, value in row.after.items() if name not in made}
    return Preview(
        changes=[
            {**_describe_change(change), "before": _shorten(row.before) or None, "after": _shorten(after) or None}
        ],
        resources=[f"sql.rows/{name}"[:400] for name in (row.table, *row.other_rows)],
        impact={
            "undo": row.undo, "triggers": row.triggers, "other_rows": row.other_rows, "set_by_database": _shorten(made),
        },
    )  # fmt: skip


def _describe_change(change: Change) -> dict[str, Any]:
    scope = f"{change.table}/{change.key or '*'}"[:240]
    return {"resource": "sql.rows", "op": _PREVIEW_OPS[change.op], "scope": scope}


def _shorten(row: Row) -> Row:
    most = max(40, _MAX_SHOWN_ROW // max(len(row), 1))
    return {name: value if value is None or len(value) <= most else value[:most] + "…" for name, value in row.items()}
