"""Insert, update or delete one row by its key, if it still is as the agent read it.

Statements are built from names that the catalog confirmed and from values that are parameters; no text of an agent is
part of one. PostgreSQL's own counters tell which rows of other tables were changed on the way, by triggers and foreign
keys. What would take rows of others along is refused, because nothing would bring them back.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

import orjson

from deputize import ToolConflict
from deputize.tools.sql.database import Connection, Database
from deputize.tools.sql.reading import Parameter, quote_name
from deputize.tools.sql.statements import refuse

MAX_ROW: Final = 100_000
MAX_OTHER_ROWS: Final = 100
_SHAPE: Final = Path(__file__).with_name("table_shape.sql").read_text()
_EFFECTS: Final = """
    select relid::bigint, schemaname || '.' || relname as name, n_tup_ins, n_tup_upd, n_tup_del
    from pg_catalog.pg_stat_xact_all_tables
    where n_tup_ins + n_tup_upd + n_tup_del > 0 and schemaname not like 'pg_toast%'
    order by name
"""
# As `pg_trigger.tgtype` has them.
_TRIGGER_KINDS: Final = {"insert": 4, "delete": 8, "update": 16}
_DOCUMENTS: Final = frozenset({"json", "jsonb"})

Operation = Literal["insert", "update", "delete"]
Row = dict[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one row, as it was asked for."""

    table: str
    op: Operation
    key: str
    values: Mapping[str, Parameter]
    expected: Mapping[str, Parameter]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangedRow:
    """A row before and after, as text; {} where there is none. `undo` says how far the change can be taken back.

    `other_rows` counts what changed in other rows. The inverse is what sql.change takes it back with.
    """

    table: str
    op: Operation
    key: str
    key_columns: list[str]
    before: dict[str, str | None]
    after: dict[str, str | None]
    undo: Literal["full", "partial", "none"]
    triggers: list[str]
    other_rows: dict[str, int]
    inverse_op: Operation
    inverse_values: dict[str, str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Column:
    name: str
    type: str
    base: str
    is_array: bool
    is_generated: bool
    is_readable: bool

    def render(self, value: Parameter) -> str | None:
        """Write a value as PostgreSQL reads it; documents, lists and bytes also as sql.query returns them."""
        if value is None:
            return None
        if isinstance(value, str):
            _require_text(value)
            if self.base == "bytea" and not value.startswith("\\x"):
                return "\\x" + _decode_base64(self.name, value).hex()
            return value
        if isinstance(value, list) and self.is_array:
            return _render_array(value)
        if isinstance(value, list | dict) and self.base not in _DOCUMENTS:
            raise refuse("values", f"{self.name} is of type {self.type}", "write its value as text")
        return orjson.dumps(value).decode()

    def build_value(self, place: int) -> str:
        return f"($1::text[])[{place}]::{self.type}"

    def build_comparison(self, place: int) -> str:
        form = "jsonb" if self.base in _DOCUMENTS else "text"
        return f"(t.{quote_name(self.name)}::{form} is not distinct from {self.build_value(place)}::{form})"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Table:
    """A table that may be changed. `source` is its quoted name."""

    name: str
    source: str
    columns: dict[str, _Column]
    key: tuple[str, ...]
    triggers: list[str]
    members: frozenset[int]
    followers: frozenset[int]
    is_counted: bool
    has_inverse_right: bool

    def parse_key(self, text: str) -> list[str]:
        """Split the text of a key into the values of its columns, which a comma separates if there are several."""
        _require_text(text)
        parts = [text] if len(self.key) == 1 else [unquote(each) for each in text.split(",")]
        if len(parts) != len(self.key):
            raise refuse("key", f"the key of {self.name} is ({', '.join(self.key)})", "send its values, as in 7,2")
        return parts

    def format_key(self, parts: Sequence[str]) -> str:
        return parts[0] if len(parts) == 1 else ",".join(each.replace("%", "%25").replace(",", "%2C") for each in parts)

    def build_key_condition(self, first: int) -> str:
        pairs = enumerate(self.key, start=first)
        return " and ".join(f"t.{quote_name(name)} = {self.columns[name].build_value(place)}" for place, name in pairs)


async def change_row(database: Database, change: Change, seconds_left: float, *, keeps: bool) -> ChangedRow:
    """Change a row in a transaction of its own. Without `keeps`, everything is taken back at its end."""
    if change.table not in database.changeable:
        hint = f"use {', '.join(database.changeable)[:200]}"
        raise refuse("tables", f"rows of {change.table} may not be changed", hint)
    async with database.open_changing(seconds_left, keeps=keeps) as connection:
        table = await _load_table(connection, change)
        _check_columns(table, change)
        before: Row = {}
        if change.op != "insert":
            before = await _require_expected(connection, table, change)
        key = await _run(connection, table, change)
        # What is checked at the end of a transaction must be known before.
        await connection.execute("set constraints all immediate")
        after = {} if change.op == "delete" else await _read_row(connection, table, key) or {}
        if bool(after) == (change.op == "delete"):
            raise refuse("triggers", f"a trigger of {table.name} gave the row another key", "change it in another way")
        others = await _count_other_rows(connection, table, change)
        return _describe(table, change, key, before, after, others)


async def _load_table(connection: Connection, change: Change) -> _Table:
    schema, _, name = change.table.partition(".")
    source = f"{quote_name(schema)}.{quote_name(name)}"
    (shape,) = await connection.fetch(_SHAPE, source, _TRIGGER_KINDS[change.op])
    columns = {each.name: each for each in (_Column(**orjson.loads(text)) for text in shape["columns"])}
    if shape["kind"] not in ("r", "p") or not shape["key"]:
        raise refuse("tables", f"{change.table} is no table with a primary key", "change the table that has the rows")
    if hidden := [each.name for each in columns.values() if not each.is_readable]:
        problem = f"the login of change_url may not read {', '.join(hidden)[:200]}, so nothing could restore a row"
        raise refuse("role", problem, f"ask the operator to grant SELECT on {change.table}")
    inverse_right = {"insert": "may_delete", "delete": "may_insert"}.get(change.op)
    return _Table(
        name=change.table, source=source, columns=columns, key=tuple(shape["key"]), triggers=shape["triggers"],
        members=frozenset(shape["members"]), followers=frozenset(shape["followers"]), is_counted=shape["counts"],
        has_inverse_right=inverse_right is None or shape[inverse_right],
    )  # fmt: skip


def _check_columns(table: _Table, change: Change) -> None:
    """Refuse what a change must not name, and what it must and does not."""
    for name in (*change.values, *change.expected):
        if name not in table.columns:
            raise refuse("columns", f"{table.name} has no column {name}", f"use {', '.join(table.columns)[:300]}")
    for name in change.values:
        if name in table.key:
            raise refuse("key", f"{name} belongs to the key of {table.name}", "send it in key; a key is never changed")
        if table.columns[name].is_generated:
            raise refuse("columns", f"{name} is computed by the database", "leave it out")
    match change.op:
        case "insert":
            needed: set[str] = set()
            if change.expected:
                raise refuse("expected", "there is no row yet, so nothing can be expected of it", "leave expected out")
        case "update":
            needed = set(change.values)
            if not needed:
                raise refuse("values", "no value is to be changed", "send values, by the names of columns")
        case "delete":
            needed = {name for name, each in table.columns.items() if not each.is_generated} - set(table.key)
            if change.values:
                raise refuse("values", "a row that is deleted has no new values", "leave values out")
    if change.op != "insert" and not change.key:
        raise refuse("key", f"{change.op} needs the key of the row", f"send ({', '.join(table.key)}) as key")
    if missing := [name for name in table.columns if name in needed - change.expected.keys()]:
        raise refuse(
            "expected",
            f"{change.op} needs the old values of {', '.join(missing)[:300]}",
            "read the row with sql.query, and send them in expected",
        )


async def _require_expected(connection: Connection, table: _Table, change: Change) -> Row:
    """Read the row, and raise `ToolConflict` if it is not as expected."""
    key = table.parse_key(change.key)
    row = await _read_row(connection, table, key)
    if row is None:
        raise ToolConflict(
            f"there is no row {change.key[:100]} in {table.name}: read again", details={"rule": "expected"}
        )
    _require_plain_key(table, change, [row[name] or "" for name in table.key])
    if not change.expected:
        return row
    columns = [table.columns[name] for name in change.expected]
    values = [each.render(change.expected[each.name]) for each in columns]
    comparisons = ", ".join(each.build_comparison(place) for place, each in enumerate(columns, start=1))
    condition = table.build_key_condition(len(columns) + 1)
    found = await connection.fetchrow(f"select {comparisons} from {table.source} t where {condition}", [*values, *key])
    changed = [each.name for each, is_same in zip(columns, found or [False] * len(columns), strict=True) if not is_same]
    if changed:
        now = {name: (row[name] or "null")[:200] for name in changed[:10]}
        raise ToolConflict(
            f"row {change.key[:100]} of {table.name} is not what you expected: {', '.join(changed)[:200]} changed; "
            "read it again",
            details={"rule": "expected", "current": now},
        )
    return row


def _require_plain_key(table: _Table, change: Change, key: Sequence[str]) -> None:
    """Refuse a second spelling of a key: rules, locks and the journal compare its text."""
    if (written := table.format_key(key)) != change.key:
        raise refuse("key", f"{change.key[:100]} is another spelling of a key", f"write it as {written[:100]}")


async def _read_row(connection: Connection, table: _Table, key: Sequence[str]) -> Row | None:
    texts = ", ".join(f"t.{quote_name(name)}::text" for name in table.columns)
    condition = table.build_key_condition(1)
    record = await connection.fetchrow(f"select {texts} from {table.source} t where {condition}", list(key))
    if record is None:
        return None
    row = dict(zip(table.columns, record, strict=True))
    if sum(len(each) for each in row.values() if each is not None) > MAX_ROW:
        raise refuse("length", f"the row has more than {MAX_ROW} characters", "change it in another way")
    return row


async def _run(connection: Connection, table: _Table, change: Change) -> list[str]:
    """Run the one statement of a change, and return the key of the row."""
    named = dict(change.values)
    if change.op == "insert" and change.key:
        named |= dict(zip(table.key, table.parse_key(change.key), strict=True))
    columns = [table.columns[name] for name in named]
    values = [each.render(named[each.name]) for each in columns]
    if change.op != "insert":
        values += table.parse_key(change.key)
    condition = table.build_key_condition(len(columns) + 1)
    parts = [(quote_name(each.name), each.build_value(place)) for place, each in enumerate(columns, start=1)]
    match change.op:
        case "insert":
            names, texts = ", ".join(name for name, _ in parts), ", ".join(text for _, text in parts)
            body = f"({names}) overriding system value values ({texts})" if parts else "default values"
            statement = f"insert into {table.source} as t {body}"
        case "update":
            assignments = ", ".join(f"{name} = {text}" for name, text in parts)
            statement = f"update {table.source} t set {assignments} where {condition}"
        case "delete":
            statement = f"delete from {table.source} t where {condition}"
    keys = ", ".join(f"t.{quote_name(name)}::text" for name in table.key)
    # A statement without parameters would have to get none.
    arguments = [values] if values else []
    rows = await connection.fetch(f"{statement} returning {keys}", *arguments)
    if len(rows) != 1:
        raise refuse(
            "triggers",
            f"{len(rows)} rows of {table.name} changed instead of one",
            "a trigger, a rule or row security decides so: ask the operator",
        )
    key = list(rows[0])
    if change.key:
        _require_plain_key(table, change, key)
    return key


async def _count_other_rows(connection: Connection, table: _Table, change: Change) -> dict[str, int]:
    """Count what changed in other rows. Refuse what takes rows of others along, and what is too much."""
    others: dict[str, int] = {}
    own = [0, 0, 0]
    effects = []
    for each in await connection.fetch(_EFFECTS):
        counts = [each["n_tup_ins"], each["n_tup_upd"], each["n_tup_del"]]
        if each["relid"] in table.members:
            own = [a + b for a, b in zip(own, counts, strict=True)]
        else:
            effects.append((each["name"], each["relid"] in table.followers, *counts))
    inserted, overwritten, removed = own
    if change.op == "update" and not overwritten:
        # The row moved to another partition.
        inserted, removed = inserted - 1, removed - 1
    else:
        inserted -= change.op == "insert"
        overwritten -= change.op == "update"
        removed -= change.op == "delete"
    effects.append((table.name, not table.followers.isdisjoint(table.members), inserted, overwritten, removed))
    for name, follows, inserted, overwritten, removed in effects:
        if removed or (overwritten and follows):
            count, done = (removed, "deleted") if removed else (overwritten, "changed")
            raise refuse(
                "cascades",
                f"{count} more row{'' if count == 1 else 's'} of {name} would be {done}",
                "change those rows first, each by its key, so that each can be taken back",
            )
        if count := inserted + overwritten:
            others[name] = count
    if sum(others.values()) > MAX_OTHER_ROWS:
        problem = f"{sum(others.values())} rows of {', '.join(others)[:200]} would be changed by triggers"
        raise refuse("rows", problem, f"{MAX_OTHER_ROWS} is the most: ask the operator")
    return others


def _describe(
    table: _Table, change: Change, key: Sequence[str], before: Row, after: Row, others: dict[str, int]
) -> ChangedRow:
    inverse: dict[Operation, Operation] = {"insert": "delete", "update": "update", "delete": "insert"}
    writable = [name for name, each in table.columns.items() if name not in table.key and not each.is_generated]
    inverse_values: Row = {}
    if change.op != "insert":
        # A trigger sets again what it set, such as the time of the change; the login may have no right to.
        names = change.values if change.op == "update" else writable
        inverse_values = {name: before[name] for name in names}
    undo: Literal["full", "partial", "none"] = "partial" if table.triggers or others or not table.is_counted else "full"
    if not table.has_inverse_right:
        undo = "none"
    return ChangedRow(
        table=change.table,
        op=change.op,
        key=table.format_key(key),
        key_columns=list(table.key),
        before=before,
        after=after,
        undo=undo,
        triggers=table.triggers,
        other_rows=others,
        inverse_op=inverse[change.op],
        inverse_values=inverse_values,
    )


def _require_text(value: str) -> None:
    if "\0" in value or any("\ud800" <= each <= "\udfff" for each in value):
        raise refuse("values", "a text has a zero byte, or half of a character", "leave it out")


def _render_array(values: Sequence[Any]) -> str:
    """Write a list as an array of PostgreSQL, each element quoted."""
    return "{" + ",".join(map(_render_element, values)) + "}"


def _render_element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, list):
        return _render_array(value)
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _decode_base64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise refuse("values", f"{name} is not base64", "send bytes as base64, or as \\x and hexadecimal") from error
