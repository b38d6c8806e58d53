"""Plan a change of a schema: try its statements on a scratch database, and say what they would do to the real one.

Nothing is ever executed on the real database, of which only the catalog is read. On the scratch database, whose schema
should be the same, everything happens in one transaction that is rolled back; PostgreSQL itself tells which locks each
statement took, which tables it read or wrote anew, and whether the way back leads to the schema of before.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import asyncpg
import pgparse

from deputize import ToolPrecondition
from deputize.tools.sql.database import Connection, Database
from deputize.tools.sql.statements import CATALOG, MAX_SQL, Access, refuse

MAX_STATEMENTS: Final = 20
_MAX_DIFFERENCES: Final = 20
# What an idle server does at least; a busy one, or one with many indexes, takes longer.
_SCANNED_BYTES_PER_SECOND: Final = 100e6
_WRITTEN_BYTES_PER_SECOND: Final = 20e6
_STATE: Final = Path(__file__).with_name("schema_state.sql").read_text()
_IDENTITY: Final = """
    select (select system_identifier::text from pg_control_system()), oid::bigint from pg_catalog.pg_database
    where datname = current_database()
"""
_TABLES: Final = """
    select c.oid::bigint, n.nspname || '.' || c.relname as name, relfilenode::bigint as file,
      greatest(reltuples, 0)::bigint as rows, pg_table_size(c.oid) as bytes,
      coalesce((select seq_scan from pg_catalog.pg_stat_xact_all_tables s where s.relid = c.oid), 0) as scans,
      array(
        select distinct mode from pg_catalog.pg_locks where relation = c.oid and pid = pg_backend_pid()
          and database = (select oid from pg_catalog.pg_database where datname = current_database())
      ) as locks
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = relnamespace
    where nspname = any ($1::text[]) and relkind in ('r', 'p', 'm', 'v')
"""
_STATEMENTS: Final = frozenset({
    "AlterEnumStmt", "AlterSeqStmt", "AlterTableStmt", "CommentStmt", "CreateEnumStmt", "CreateSeqStmt", "CreateStmt",
    "DropStmt", "IndexStmt", "RenameStmt", "ViewStmt",
})  # fmt: skip
_TABLE_COMMANDS: Final = frozenset({
    "AT_AddColumn", "AT_AddConstraint", "AT_AddIdentity", "AT_AlterColumnType", "AT_AlterConstraint",
    "AT_ColumnDefault", "AT_DropColumn", "AT_DropConstraint", "AT_DropExpression", "AT_DropIdentity", "AT_DropNotNull",
    "AT_SetIdentity", "AT_SetNotNull", "AT_SetStatistics", "AT_ValidateConstraint",
})  # fmt: skip
_DROPPED: Final = frozenset({
    "OBJECT_INDEX", "OBJECT_MATVIEW", "OBJECT_SEQUENCE", "OBJECT_TABLE", "OBJECT_TYPE", "OBJECT_VIEW",
})  # fmt: skip
_PARTS_OF_TABLES: Final = frozenset({"OBJECT_COLUMN", "OBJECT_TABCONSTRAINT"})
_NUMBERING: Final = frozenset({"nextval"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one statement does. Locks are held until the end of its transaction."""

    statement: str
    locks: list[str]
    reads_all_of: list[str]
    writes_anew: list[str]
    loses: list[str]
    expected_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a migration would do; `differences` are between the schemas of the scratch and of the real database."""

    up: list[Step]
    down: list[Step]
    is_schema_restored: bool
    left_over: list[str]
    is_data_restored: bool
    tables: dict[str, str]
    differences: list[str]
    unknown: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Statement:
    text: str
    loses: tuple[str, ...]


async def plan_migration(target: Database, scratch: Database, up: str, down: str, seconds_left: float) -> Plan:
    """Plan a migration, and try it on the scratch database."""
    steps = {name: _admit(sql, target.access) for name, sql in (("up", up), ("down", down))}
    if not steps["up"]:
        raise refuse("statements", "there is no statement", "send the statements of the migration in up")
    schemas = list(target.access.schemas)
    async with target.open_reading(seconds_left) as connection:
        target_identity = await _identify(connection)
        target_state = await _read_state(connection, schemas)
        sizes = {row["name"]: row for row in await connection.fetch(_TABLES, schemas)}
    async with scratch.open_changing(seconds_left, keeps=False) as connection:
        if await _identify(connection) == target_identity:
            raise ToolPrecondition("scratch_url names the database itself: name another one, with the same schema")
        first_state = await _read_state(connection, schemas)
        tried_up = [await _try(connection, each, schemas, sizes) for each in steps["up"]]
        tried_down = [await _try(connection, each, schemas, sizes) for each in steps["down"]]
        last_state = await _read_state(connection, schemas)
    touched = {lock.rpartition(" in ")[2] for step in (*tried_up, *tried_down) for lock in step.locks}
    return Plan(
        up=tried_up,
        down=tried_down,
        is_schema_restored=first_state == last_state,
        left_over=_compare(first_state, last_state),
        is_data_restored=first_state == last_state and not any(step.loses for step in tried_up),
        tables={name: _describe_size(sizes[name]) for name in sorted(touched) if name in sizes},
        differences=_compare(first_state, target_state),
        unknown=[
            "whether the rows that are there meet a new constraint, type or unique index: ask sql.validate",
            "how long the locks wait for other transactions: set lock_timeout when you run it",
        ],
    )


def _admit(sql: str, access: Access) -> list[_Statement]:
    """Admit statements that define tables, indexes, views, sequences and types of these schemas, and nothing else."""
    if len(sql) > MAX_SQL or "\0" in sql:
        raise refuse("length", f"there are more than {MAX_SQL} characters, or a zero byte", "send shorter statements")
    try:
        statements = pgparse.parse(sql) if sql.strip() else []
        text = sql.encode()
    except pgparse.PGQueryError as error:
        hint = f"correct it at character {error.position}" if error.position else "correct it"
        raise refuse("syntax", str(error.message)[:200], hint) from error
    except (RecursionError, UnicodeEncodeError) as error:
        raise refuse("syntax", "the statements cannot be read", "send shorter ones") from error
    if len(statements) > MAX_STATEMENTS:
        raise refuse("statements", f"there are {len(statements)} statements", f"send at most {MAX_STATEMENTS}")
    admitted = []
    for each in statements:
        start = each.get("stmt_location", 0)
        end = start + each["stmt_len"] if "stmt_len" in each else None
        ((tag, fields),) = each["stmt"].items()
        _require_definition(tag, fields)
        _require_names(fields, access)
        admitted.append(_Statement(text=text[start:end].decode().strip(), loses=tuple(_iter_losses(tag, fields))))
    return admitted


def _require_definition(tag: str, fields: Mapping[str, Any]) -> None:
    if tag not in _STATEMENTS:
        raise refuse(
            "statements",
            f"{tag.removesuffix('Stmt').upper()} is not a definition that can be planned here",
            "send CREATE, ALTER, DROP, RENAME and COMMENT of tables, columns, indexes, views, sequences and enums",
        )
    for command in fields.get("cmds", ()):
        subtype = command["AlterTableCmd"]["subtype"]
        if subtype not in _TABLE_COMMANDS:
            raise refuse("statements", f"{subtype} cannot be planned here", "change columns and constraints")
    if tag == "DropStmt" and fields["removeType"] not in _DROPPED:
        raise refuse("statements", f"{fields['removeType']} cannot be dropped here", "drop tables, indexes or views")
    if fields.get("concurrent"):
        raise refuse(
            "concurrently", "CONCURRENTLY cannot be tried in a transaction",
            "plan it without; when you run it with CONCURRENTLY, writes go on meanwhile",
        )  # fmt: skip
    if any(part.get("behavior") == "DROP_CASCADE" for part in _iter_parts(fields)):
        raise refuse("cascade", "CASCADE drops what the plan does not name", "drop each thing by its name")


def _require_names(fields: Mapping[str, Any], access: Access) -> None:
    """Refuse functions that are not allowed, and names of other schemas."""
    for part in _iter_parts(fields):
        if "funcname" in part:
            names = [each["String"]["sval"] for each in part["funcname"]]
            schema, name = names[0] if len(names) == 2 else "", names[-1]
            is_numbering = schema in ("", CATALOG) and name in _NUMBERING
            if len(names) > 2 or not (is_numbering or access.allows_function(schema, name)):
                raise refuse("functions", f"function {'.'.join(names)} is not allowed", "use one that only computes")
        if "relname" in part:
            schemas = [part.get("schemaname", "")]
        else:
            place = 3 if part.get("objtype") in _PARTS_OF_TABLES else 2
            schemas = [_read_schema(each, place) for each in (*part.get("objects", ()), part.get("object", {}))]
        for schema in schemas:
            if (schema and schema not in access.schemas) or "catalogname" in part:
                raise refuse("tables", f"schema {schema} is not allowed", f"use {', '.join(access.schemas)[:200]}")


def _read_schema(name: Mapping[str, Any], place: int) -> str:
    """Read the schema of a name that stands as a list, as after DROP TABLE; its place counts from the end."""
    items = name.get("List", {}).get("items") or name.get("TypeName", {}).get("names") or ()
    parts = [each["String"]["sval"] for each in items if "String" in each]
    return parts[-place] if len(parts) >= place else ""


def _iter_parts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for each in value:
            yield from _iter_parts(each)
    elif isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _iter_parts(each)


def _iter_losses(tag: str, fields: Mapping[str, Any]) -> Iterator[str]:
    """Name what no way back brings back."""
    if tag == "DropStmt" and fields["removeType"] in ("OBJECT_TABLE", "OBJECT_SEQUENCE"):
        yield f"all rows of what it drops ({fields['removeType'].removeprefix('OBJECT_').lower()})"
    if tag == "AlterEnumStmt" and "newVal" in fields and "oldVal" not in fields:
        yield f"the type without the value {fields['newVal']}, which can never be removed"
    for command in fields.get("cmds", ()):
        part = command["AlterTableCmd"]
        if part["subtype"] == "AT_DropColumn":
            yield f"the values of column {part['name']}"
        elif part["subtype"] == "AT_AlterColumnType":
            yield f"what the new type of column {part['name']} cannot hold"
        elif part["subtype"] == "AT_DropExpression":
            yield f"the expression of column {part['name']}"


async def _identify(connection: Connection) -> tuple[Any, ...]:
    """Read what no other database has: the number of the cluster, and that of the database in it."""
    (row,) = await connection.fetch(_IDENTITY)
    return tuple(row)


async def _read_state(connection: Connection, schemas: Sequence[str]) -> frozenset[str]:
    return frozenset(row["line"] for row in await connection.fetch(_STATE, schemas))


async def _try(
    connection: Connection, statement: _Statement, schemas: Sequence[str], sizes: Mapping[str, asyncpg.Record]
) -> Step:
    """Run a statement, and look at what it did to the tables that were there."""
    before = {row["oid"]: row for row in await connection.fetch(_TABLES, schemas)}
    try:
        # Prepared, which takes exactly one.
        await (await connection.prepare(statement.text)).fetch()
    except asyncpg.PostgresError as error:
        if (error.sqlstate or "") in ("57014", "55P03"):
            raise
        hint = str(getattr(error, "hint", None) or "correct it, or bring the schema of the scratch database up to date")
        raise refuse("dry-run", f"{statement.text[:100]} failed: {str(error)[:300]}", hint[:300]) from error
    after = {row["oid"]: row for row in await connection.fetch(_TABLES, schemas)}
    locks, scanned, written = [], [], []
    for oid, old in before.items():
        new = after.get(oid)
        # A table that was dropped is not in the catalog any more, and was locked against everything.
        modes = ["AccessExclusiveLock"] if new is None else sorted(set(new["locks"]) - set(old["locks"]))
        # Looking at a table's size takes the weakest lock, which stops nobody but a DROP.
        locks += [f"{_name_mode(mode)} in {old['name']}" for mode in modes if mode != "AccessShareLock"]
        if new is not None and new["file"] != old["file"]:
            written.append(old["name"])
        elif new is not None and new["scans"] > old["scans"]:
            scanned.append(old["name"])
    seconds = sum(_read_bytes(sizes, name) / _SCANNED_BYTES_PER_SECOND for name in scanned)
    seconds += sum(_read_bytes(sizes, name) / _WRITTEN_BYTES_PER_SECOND for name in written)
    return Step(
        statement=statement.text, locks=locks, reads_all_of=scanned, writes_anew=written, loses=list(statement.loses),
        expected_seconds=round(seconds, 2),
    )  # fmt: skip


def _name_mode(mode: str) -> str:
    """Write a lock's name as people do: `AccessExclusiveLock` is `ACCESS EXCLUSIVE`."""
    words = "".join(f" {each}" if each.isupper() else each for each in mode.removesuffix("Lock"))
    return words.strip().upper()


def _read_bytes(sizes: Mapping[str, asyncpg.Record], name: str) -> int:
    return int(sizes[name]["bytes"]) if name in sizes else 0


def _describe_size(size: asyncpg.Record) -> str:
    return f"about {size['rows']} rows, {size['bytes'] / 1e6:.1f} MB"


def _compare(before: frozenset[str], after: frozenset[str]) -> list[str]:
    lines = [*(f"- {each}" for each in before - after), *(f"+ {each}" for each in after - before)]
    return sorted(lines, key=lambda line: (line[2:], line))[:_MAX_DIFFERENCES]
