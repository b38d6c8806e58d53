"""Check the rows of a table: complete, unique, referring to rows that exist, and fresh.

Statements are built from names alone, each quoted, of tables that are allowed. Rows are counted and never shown.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from deputize.tools.sql.database import Connection, Database
from deputize.tools.sql.reading import quote_name, require_cheap
from deputize.tools.sql.statements import Access, refuse

TABLE_PATTERN: Final = r"^[^.\x00-\x1f]{1,63}\.[^.\x00-\x1f]{1,63}$"

_COLUMNS: Final = """
    select attname from pg_catalog.pg_attribute
    where attrelid = $1::text::regclass and attnum > 0 and not attisdropped
"""

ColumnName = Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,63}$")]
Columns = Annotated[list[ColumnName], Field(max_length=10)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """A check of the rows of a table."""

    kind: Annotated[
        Literal["complete", "unique", "references", "fresh"],
        Field(
            description="complete: no null; unique: no two rows alike; references: a row of to_table for each; fresh: "
            "the latest time is at most max_age_seconds ago."
        ),
    ]
    columns: Annotated[
        list[ColumnName], Field(description="Columns of the table.", examples=[["id"]], min_length=1, max_length=10)
    ]
    to_table: Annotated[
        str, Field(description="For references: a table.", examples=["public.customers"], max_length=127)
    ] = ""
    to_columns: Annotated[
        Columns | None,
        Field(description="For references: columns of to_table, in the order of columns.", examples=[["id"]]),
    ] = None
    max_age_seconds: Annotated[
        int | None, Field(description="For fresh: the most seconds.", examples=[3600], ge=0, le=2**40)
    ] = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """What a check found: rows that break it, or for fresh the seconds since the latest time, null without rows."""

    kind: str
    columns: list[str]
    holds: bool
    failing_rows: int
    age_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Validation:
    """What all checks of a table found."""

    table: str
    holds: bool
    checks: list[CheckResult]


async def validate_table(database: Database, table: str, checks: Sequence[Check], seconds_left: float) -> Validation:
    """Check the rows of a table in one snapshot."""
    statements = [_build_statement(table, check, database.access) for check in checks]
    async with database.open_reading(seconds_left) as connection:
        for check in checks:
            await _require_columns(connection, table, check.columns)
            if check.kind == "references":
                await _require_columns(connection, check.to_table, check.to_columns or ())
        limit = database.limits.cost
        results = [
            await _run_check(connection, check, sql, limit) for check, sql in zip(checks, statements, strict=True)
        ]
    return Validation(table=table, holds=all(each.holds for each in results), checks=results)


async def _require_columns(connection: Connection, table: str, names: Sequence[str]) -> None:
    """Refuse names that are no columns: PostgreSQL would read one after a dot as a function of the row."""
    found = {row["attname"] for row in await connection.fetch(_COLUMNS, _quote_parts(table))}
    for name in names:
        if name not in found:
            raise refuse("columns", f"{table} has no column {name[:100]}", f"use {', '.join(sorted(found))[:300]}")


async def _run_check(connection: Connection, check: Check, sql: str, limit: float) -> CheckResult:
    await require_cheap(connection, sql, (), limit)
    value = await connection.fetchval(sql)
    if check.kind != "fresh":
        return CheckResult(kind=check.kind, columns=check.columns, holds=value == 0, failing_rows=value)
    age = None if value is None else float(value)
    holds = age is not None and check.max_age_seconds is not None and age <= check.max_age_seconds
    return CheckResult(kind=check.kind, columns=check.columns, holds=holds, failing_rows=0, age_seconds=age)


def _build_statement(table: str, check: Check, access: Access) -> str:
    source = _quote_table(table, access)
    names = [f"t.{quote_name(each)}" for each in check.columns]
    are_set = " and ".join(f"{each} is not null" for each in names)
    match check.kind:
        case "complete":
            return f"select count(*) from {source} t where not ({are_set})"
        case "unique":
            groups = (
                f"select count(*) as n from {source} t where {are_set} group by {', '.join(names)} having count(*) > 1"
            )
            return f"select coalesce(sum(n - 1), 0)::bigint from ({groups}) g"
        case "references":
            if len(check.to_columns or ()) != len(names):
                raise refuse("checks", "references needs as many to_columns as columns", "name to_table and to_columns")
            target = _quote_table(check.to_table, access)
            pairs = zip(names, check.to_columns or (), strict=True)
            equal = " and ".join(f"{name} = r.{quote_name(other)}" for name, other in pairs)
            missing = f"not exists (select from {target} r where {equal})"
            return f"select count(*) from {source} t where {are_set} and {missing}"
        case "fresh":
            if len(names) != 1 or check.max_age_seconds is None:
                raise refuse("checks", "fresh is about one column", "name one column and max_age_seconds")
            return f"select extract(epoch from now() - max({names[0]})) from {source} t"


def _quote_table(table: str, access: Access) -> str:
    schema, _, name = table.partition(".")
    if not access.allows_table(schema, name) or "\0" in name:
        raise refuse("tables", f"table {table} is not allowed", f"use {', '.join(access.tables)[:200]}")
    return _quote_parts(table)


def _quote_parts(table: str) -> str:
    schema, _, name = table.partition(".")
    return f"{quote_name(schema)}.{quote_name(name)}"
