"""Describe tables, and run admitted statements: page by page, with bounded values, below an estimated cost.

The statement of an agent is only ever prepared, which takes exactly one, and stands in a subquery, which takes none
that changes data.
"""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import orjson

from deputize.tools.sql.database import Connection, Database
from deputize.tools.sql.statements import Access, Statement, admit_statement, refuse

MAX_ROWS: Final = 1_000
MAX_PAGE_BYTES: Final = 500_000
MAX_COLUMNS: Final = 100
MAX_TEXT: Final = 4_000
MAX_BYTES: Final = 3_000
_BATCH_ROWS: Final = 20
_MAX_EXPLAIN_LINES: Final = 200
_MAX_GATHERED_BYTES: Final = 67_108_864
# Beyond it, JSON numbers are not exact everywhere.
MAX_EXACT: Final = 2**53 - 1
_INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
_FLOATS: Final = frozenset({"float4", "float8"})
_DOCUMENTS: Final = frozenset({"json", "jsonb"})
_TABLES: Final = Path(__file__).with_name("tables.sql").read_text()
SAMPLES: Final = 3
_MAX_SAMPLE: Final = 40
_FUNCTIONS: Final = """
    select distinct n.nspname, p.proname
    from pg_catalog.pg_proc p join pg_catalog.pg_namespace n on n.oid = pronamespace
    where proname = any ($1::text[]) and pronargs - pronargdefaults <= 1
"""
_RELATIONS: Final = """
    select n.nspname, c.relname
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
    where relname = any ($1::text[]) and relkind in ('r', 'p', 'v', 'm', 'f')
"""

# As EXPLAIN (FORMAT JSON) writes it.
Plan = dict[str, Any]
Parameter = str | int | float | bool | list[str | int | float | bool | None] | dict[str, Any] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A column of an answer; `type` is PostgreSQL's name of it."""

    name: str
    type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """A page of rows; `cut_values` says how many values are longer than shown, and end in …"""

    columns: list[Column]
    rows: list[list[Any]]
    next_offset: int | None
    cut_values: int
    estimated_cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table: `name type?` of each column with ? if it may be null, its keys, and `column > table` it refers to."""

    table: str
    kind: str
    estimated_rows: int
    comment: str
    columns: list[str]
    keys: list[str]
    samples: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Tables:
    """A page of tables."""

    tables: list[Table]
    next_offset: int | None


async def run_query(
    database: Database, sql: str, parameters: Sequence[Parameter], offset: int, limit: int, seconds_left: float
) -> Rows:
    """Run a statement that reads, and return a page of its rows."""
    statement = admit_statement(sql, database.access)
    async with database.open_reading(seconds_left) as connection:
        await _require_no_function(connection, statement, database.access)
        await _require_allowed_rows(connection, statement, database.access)
        prepared = await connection.prepare(statement.text)
        # Read before the encoding of parameters is chosen, which makes the driver forget types.
        attributes = prepared.get_attributes()
        values = await _encode_parameters(connection, prepared, parameters)
        if statement.is_explain:
            return await _explain(connection, statement.text, values)
        if not 0 < len(attributes) <= MAX_COLUMNS:
            raise refuse(
                "columns", f"the answer has {len(attributes)} columns", f"select between 1 and {MAX_COLUMNS} of them"
            )
        types = [each.type.name for each in attributes]
        paged = _build_page(statement.text, types, offset, limit + 1)
        plan = await _load_plan(connection, paged, values)
        cost = _require_cheap(plan, database.limits.cost)
        if statement.gathers:
            _require_small(plan, statement.growth)
        rows, cut_values, is_full = await _fetch(connection, paged, values, types, limit)
        return Rows(
            columns=[Column(name=each.name, type=each.type.name) for each in attributes],
            rows=rows,
            next_offset=offset + len(rows) if is_full else None,
            cut_values=cut_values,
            estimated_cost=cost,
        )


async def describe_tables(
    database: Database, search: str, offset: int, limit: int, seconds_left: float, *, shows_samples: bool
) -> Tables:
    """Describe the tables that the login may read, with masked samples if the operator wants them shown."""
    async with database.open_reading(seconds_left) as connection:
        records = await connection.fetch(_TABLES, list(database.access.tables), search, offset, limit + 1)
        tables = []
        for record in records[:limit]:
            samples = await _sample(connection, record) if shows_samples else {}
            tables.append(
                Table(
                    table=f"{record['schema']}.{record['name']}",
                    kind=record["kind"],
                    estimated_rows=record["rows"],
                    comment=record["comment"][:500],
                    columns=[each[:300] for each in record["column_texts"]],
                    keys=record["keys"],
                    samples=samples,
                )
            )
        return Tables(tables=tables, next_offset=offset + limit if len(records) > limit else None)


def quote_name(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def mask_value(value: str) -> str:
    """Keep the form of a value and nothing of its content."""
    return re.sub(r"\d", "9", re.sub(r"[^\W\d_]", "x", value))[:_MAX_SAMPLE]


async def _sample(connection: Connection, record: asyncpg.Record) -> dict[str, list[str]]:
    columns = record["columns"][:MAX_COLUMNS]
    texts = ", ".join(f"left({quote_name(each)}::text, {_MAX_SAMPLE})" for each in columns)
    table = f"{quote_name(record['schema'])}.{quote_name(record['name'])}"
    rows = await connection.fetch(f"select {texts} from {table} limit {SAMPLES}")
    values = {
        name: [mask_value(row[place]) for row in rows if row[place] is not None] for place, name in enumerate(columns)
    }
    return {name: list(dict.fromkeys(masked)) for name, masked in values.items()}


async def _require_no_function(connection: Connection, statement: Statement, access: Access) -> None:
    """Refuse `x.f`, which PostgreSQL reads as f(x) if f is a function, unless that function is allowed."""
    if not statement.attributes:
        return
    for row in await connection.fetch(_FUNCTIONS, list(statement.attributes)):
        if not access.allows_function(row["nspname"], row["proname"]):
            raise refuse(
                "functions",
                f"{row['proname']} after a dot can be a call of the function {row['nspname']}.{row['proname']}",
                "if it is a column, write it without its table, or give it another name in a subquery with AS t (…)",
            )


async def _require_allowed_rows(connection: Connection, statement: Statement, access: Access) -> None:
    """Refuse a type that is the row of a table, which has the names of its columns, unless the table is allowed."""
    if not statement.types:
        return
    for row in await connection.fetch(_RELATIONS, [name for _, name in statement.types]):
        schema, name = row["nspname"], row["relname"]
        is_named = (schema, name) in statement.types or (schema in access.schemas and ("", name) in statement.types)
        if is_named and not access.allows_table(schema, name):
            raise refuse("tables", f"rows of {schema}.{name} are not allowed", "use another type")


async def _encode_parameters(
    connection: Connection, prepared: Any, parameters: Sequence[Parameter]
) -> list[str | list[Any] | None]:
    """Render the parameters as text, which PostgreSQL reads as the types that the statement gives them."""
    types = prepared.get_parameters()
    if len(types) != len(parameters):
        raise refuse(
            "parameters",
            f"the statement has {len(types)} parameters and {len(parameters)} came",
            "send one for each $n",
        )
    for each in types:
        try:
            await connection.set_type_codec(
                each.name.removesuffix("[]"), schema=each.schema, encoder=_render, decoder=str, format="text"
            )
        except asyncpg.InterfaceError as error:
            raise refuse("parameters", f"a value of type {each.name} cannot be sent", "cast it: $1::text::…") from error
    values: list[str | list[Any] | None] = []
    for place, (each, value) in enumerate(zip(types, parameters, strict=True), start=1):
        if each.kind != "array":
            values.append(None if value is None else _render(value))
        elif value is None or isinstance(value, list):
            values.append(None if value is None else [None if part is None else _render(part) for part in value])
        else:
            raise refuse("parameters", f"${place} is of type {each.name}", "send a list")
    return values


def _render(value: Any) -> str:
    if isinstance(value, str):
        return value.replace("\0", "")
    return orjson.dumps(value).decode()


def _build_page(sql: str, types: Sequence[str], offset: int, count: int) -> str:
    values = ", ".join(_build_value(f"q.c{place}", name) for place, name in enumerate(types))
    names = ", ".join(f"c{place}" for place in range(len(types)))
    # The end of a line ends a comment, too.
    return f"SELECT {values} FROM (\n{sql}\n) AS q ({names}) OFFSET {offset} LIMIT {count}"


def _build_value(name: str, type_name: str) -> str:
    if type_name == "bytea":
        return f"encode(substring({name} from 1 for {MAX_BYTES + 1}), 'base64')"
    if type_name == "numeric[]":
        return f"left(to_jsonb({name}::text[])::text, {MAX_TEXT + 1})"
    if type_name.endswith("[]") or type_name == "record":
        return f"left(to_jsonb({name})::text, {MAX_TEXT + 1})"
    return f"left({name}::text, {MAX_TEXT + 1})"


async def require_cheap(connection: Connection, sql: str, values: Sequence[Any], limit: float) -> None:
    """Refuse a statement whose estimated cost is higher."""
    _require_cheap(await _load_plan(connection, sql, values), limit)


async def _load_plan(connection: Connection, sql: str, values: Sequence[Any]) -> Plan:
    plan: Plan = orjson.loads(await connection.fetchval(f"EXPLAIN (FORMAT JSON) {sql}", *values))[0]["Plan"]
    return plan


def _require_cheap(plan: Plan, limit: float) -> float:
    cost = float(plan["Total Cost"])
    if cost > limit:
        raise refuse(
            "cost",
            f"the statement is estimated at {cost:.0f}, and {limit:.0f} is the most",
            "filter on an indexed column, or join on keys",
        )
    return cost


def _require_small(plan: Plan, growth: int) -> None:
    """Refuse to gather so much into values that the server's memory would suffer, as the planner estimates it."""
    size = max((_estimate_bytes(part, growth) for part in _iterate_gathered(plan)), default=0)
    if size > _MAX_GATHERED_BYTES:
        problem = f"the statement gathers about {size // 1_048_576} MB into values, and {_MAX_GATHERED_BYTES >> 20} MB "
        raise refuse("size", f"{problem}are the most", "gather fewer rows: filter first, or return them instead")


def _estimate_bytes(plan: Plan, growth: int) -> int:
    return int(plan["Plan Rows"]) * (int(plan["Plan Width"]) + growth)


def _iterate_gathered(plan: Plan) -> Iterator[Plan]:
    """List the parts of a plan whose rows can become one value: those below aggregates, and subqueries."""
    for part in plan.get("Plans", ()):
        if plan["Node Type"] in ("Aggregate", "WindowAgg") or "Subplan Name" in part:
            yield part
        yield from _iterate_gathered(part)


async def _explain(connection: Connection, sql: str, values: Sequence[Any]) -> Rows:
    """Tell steps, costs and rows of a plan. Its conditions and names can be those of tables behind a view."""
    lines = list(_iterate_steps(await _load_plan(connection, sql, values), 0))
    return Rows(
        columns=[
            Column(name="step", type="text"),
            Column(name="cost", type="float8"),
            Column(name="rows", type="int8"),
        ],
        rows=lines[:_MAX_EXPLAIN_LINES],
        next_offset=None,
        cut_values=0,
        estimated_cost=float(lines[0][1]),
    )


def _iterate_steps(plan: Plan, depth: int) -> Iterator[list[Any]]:
    yield ["  " * depth + plan["Node Type"], plan["Total Cost"], plan["Plan Rows"]]
    for part in plan.get("Plans", ()):
        yield from _iterate_steps(part, depth + 1)


async def _fetch(
    connection: Connection, sql: str, values: Sequence[Any], types: Sequence[str], limit: int
) -> tuple[list[list[Any]], int, bool]:
    """Fetch rows until there are enough, or their bytes are; tell also whether there are more."""
    cursor = await (await connection.prepare(sql)).cursor(*values)
    rows: list[list[Any]] = []
    size = cut_values = 0
    while batch := await cursor.fetch(_BATCH_ROWS):
        for record in batch:
            if len(rows) == limit:
                return rows, cut_values, True
            row = [_decode(text, name) for text, name in zip(record, types, strict=True)]
            size += len(orjson.dumps([value for value, _ in row]))
            if rows and size > MAX_PAGE_BYTES:
                return rows, cut_values, True
            cut_values += sum(is_cut for _, is_cut in row)
            rows.append([value for value, _ in row])
    return rows, cut_values, False


def _decode(text: str | None, type_name: str) -> tuple[Any, bool]:
    """Read a value as JSON, and tell whether it is cut."""
    if text is None:
        return None, False
    if type_name == "bytea":
        content = base64.b64decode(text)
        return base64.b64encode(content[:MAX_BYTES]).decode(), len(content) > MAX_BYTES
    if len(text) > MAX_TEXT:
        return text[:MAX_TEXT] + "…", True
    if type_name == "bool":
        return text == "true", False
    if type_name in _INTEGERS:
        number = int(text)
        return (number if abs(number) <= MAX_EXACT else text), False
    if type_name in _FLOATS:
        return (text if text.lstrip("-") in ("NaN", "Infinity") else float(text)), False
    if type_name in _DOCUMENTS or type_name.endswith("[]") or type_name == "record":
        return _load_document(text), False
    return text, False


def _load_document(text: str) -> Any:
    """Read a document, or return its text if its numbers would not survive."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
