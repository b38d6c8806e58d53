"""Declare the tools `sql.*` of one database. No tool takes a connection or a login: that is the operator's choice."""

from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from pydantic import Field

from deputize import Fact, ToolContext, tool
from deputize.catalog.importers.python import ToolOptions
from deputize.tools.sql import reading
from deputize.tools.sql.database import Database
from deputize.tools.sql.statements import MAX_SQL
from deputize.tools.sql.validation import TABLE_PATTERN, Check, Validation, validate_table

Function = TypeVar("Function", bound=Callable[..., Any])

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

_READS: Final[ToolOptions] = {
    "namespace": "sql", "version": "1.0.0", "kind": "retrieval", "provider": "deputize", "open_world": False,
    "scopes": ["sql:read"],
}  # fmt: skip


def _name_plainly(function: Function) -> Function:
    """Name a function as if it were one of the module, so that its address in contracts stays when it is moved."""
    function.__qualname__ = function.__name__
    return function


def declare_tools(database: Database, *, shows_samples: bool) -> tuple[Callable[..., Any], ...]:
    """Declare the tools of a database."""

    @tool(effects="read", examples=[{"search": "orders"}], **_READS)
    @_name_plainly
    async def schema(
        context: ToolContext, search: TableSearch = "", offset: Offset = 0, limit: TableLimit = 50
    ) -> reading.Tables:
        """Describe tables: columns with types, keys, what they refer to, and about how many rows there are."""
        return await reading.describe_tables(
            database, search, offset, limit, context.seconds_left, shows_samples=shows_samples
        )

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
        return await reading.run_query(database, sql, parameters or [], offset, limit, context.seconds_left)

    @tool(
        effects="read",
        examples=[{"table": "public.orders", "checks": [{"kind": "unique", "columns": ["id"]}]}],
        **_READS,
    )
    @_name_plainly
    async def validate(table: TableName, checks: Checks, context: ToolContext) -> Validation:
        """Check whether the rows of a table are complete, unique, refer to rows that exist, and are fresh."""
        return await validate_table(database, table, checks, context.seconds_left)

    return schema, query, validate
