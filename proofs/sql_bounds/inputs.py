"""List what an agent, or a text that it read, could try with the tools that take names, keys and values instead of SQL.

The statements that `sql.query` gets are those of `tests/support/sql_statements.py`.
"""

from collections.abc import Iterator
from typing import Any, Final, get_args

from deputize.tools.sql.changing import Change, Operation
from deputize.tools.sql.validation import Check

# Those that agents may change, in the proof's settings.
CHANGEABLE: Final = ("public.customers", "public.orders", "public.employees")
_TABLES: Final = (
    "public.products", "public.order_lines", "public.paid_orders", "public.numbers", "private.salaries", "hidden.notes",
    "pg_catalog.pg_authid", "information_schema.tables", "pg_toast.pg_toast_1255", "customers", "", ".", "public.",
    ".customers", "public.customers; drop table orders", 'public."customers"', 'public.customers" where true --',
    "public.customers--", "PUBLIC.CUSTOMERS", "public.customers ", "public.customers\0", "postgres.public.customers",
    "public.customers, public.orders", "public.*", "(select 1)", "public.cu\u017ftomers", "public.customers/*",
)  # fmt: skip
_COLUMNS: Final = (
    'name" = (select amount from private.salaries), "name', "name; drop table orders", "ctid", "xmin", "tableoid", "*",
    "", " name", "NAME", "name\0", 'name" --', "customers", "customers.name", "name, city", "(name)", "1", "$1",
    "name::regclass", "pg_sleep(1)", "na\u200bme", "label",
)  # fmt: skip
_KEYS: Final = (
    "1 or 1=1", "1; drop table orders", "1) or (true", "(select 1)", "1::int", "1,2", "' or ''='", "1\0", " 1", "+1",
    "01", "1.0", "1e0", "0x1", "1_0", "\u0663", "NaN", "null", "default", "$1", "-- ", "{1}", "\udc80", "9" * 400,
)  # fmt: skip
_NUMBERS: Final = (
    "1; drop table orders", "(select 1)", "pg_backend_pid()", [1], {"a": 1}, True, "NaN", 1e300, "1_0 or 1", "default",
    "\0", "nextval('numbers')",
)  # fmt: skip
# Stored letter by letter, as any other text.
TEXTS: Final = (
    "x'); drop table orders; --", "'; delete from customers; --", "$1", "%s", "{0}", "\\'; select 1", "pg_sleep(9)",
    "default", "null", "current_user", "{a,b}", '{"a": 1}', "\\x00ff", "U&'\\0061'", "$$; select 1; $$", "E'\\n'",
    "../../etc/passwd", "\u202eabc", "a\u0301\U0001f600", "*/ select /*", "1e5", "", " ",
    "(select name from employees)",
)  # fmt: skip


def list_hostile_changes() -> list[Change]:
    """List changes that name what they may not, or hide a statement in a name, a key or a value."""
    return list(_iter_hostile_changes())


def _iter_hostile_changes() -> Iterator[Change]:
    operations: tuple[Operation, ...] = get_args(Operation)
    for table in _TABLES:
        for op in operations:
            values = {} if op == "delete" else {"name": "stolen"}
            yield _build_change(table, op, "1", values, {} if op == "insert" else {"name": "Customer 1"})
    for column in _COLUMNS:
        yield _build_change("public.customers", "update", "1", {column: "x"}, {column: "Customer 1"})
        yield _build_change("public.customers", "update", "1", {"city": "x"}, {"city": "Bern", column: "Customer 1"})
        yield _build_change("public.employees", "insert", "900", {"name": "Eve", column: "x"}, {})
    for key in _KEYS:
        yield _build_change("public.customers", "update", key, {"city": "x"}, {"city": "Bern"})
        yield _build_change("public.employees", "delete", key, {}, {"name": "Ada", "boss": None, "salary": "9000.50"})
        yield _build_change("public.employees", "insert", key, {"name": "Eve"}, {"name": "Ada"})
    for value in _NUMBERS:
        yield _build_change("public.employees", "update", "1", {"boss": value}, {"boss": None})
    yield _build_change("public.employees", "update", "1", {"salary": "1"}, {"salary": "9000"})
    yield _build_change("public.employees", "update", "1", {"salary": "1"}, {"name": "Ada"})
    yield _build_change("public.employees", "update", "1", {"id": 2}, {"id": 1})
    yield _build_change("public.customers", "delete", "1", {}, {"name": "Customer 1"})
    yield _build_change("public.employees", "delete", "1", {}, {"name": "Ada", "boss": None, "salary": "9000.50"})


def _build_change(table: str, op: Any, key: str, values: dict[str, Any], expected: dict[str, Any]) -> Change:
    return Change(table=table, op=op, key=key, values=values, expected=expected)


def list_hostile_checks() -> list[tuple[str, Check]]:
    """List checks of tables and columns that are not allowed, or that hide a statement in a name."""
    allowed = {"public.products", "public.order_lines", "public.paid_orders", "public.numbers"}
    checks = [(table, Check(kind="unique", columns=["id"])) for table in _TABLES if table not in allowed]
    checks += [("public.numbers", Check(kind="unique", columns=["id"]))]
    checks += [
        ("public.customers", Check(kind="references", columns=["id"], to_table=table, to_columns=["id"]))
        for table in _TABLES
        if table not in allowed
    ]
    for column in _COLUMNS:
        checks.append(("public.customers", Check(kind="complete", columns=[column])))
        checks.append(("public.customers", Check(kind="fresh", columns=[column], max_age_seconds=1)))
    return checks


def list_honest_changes() -> list[Change]:
    """List changes that an agent makes and takes back, in this order."""
    changes = []
    for number in range(1, 11):
        state = ("open", "paid", "sent")[number % 3]
        changes.append(
            _build_change("public.orders", "update", str(number), {"note": "seen"}, {"note": None, "state": state})
            if number % 5
            else _build_change("public.orders", "update", str(number), {"state": "open"}, {"state": state})
        )
        joined = f"2026-01-{number + 1:02}"
        changes.append(
            _build_change("public.customers", "update", str(number), {"tags": ["a", "b"]}, {
                "tags": [f"t{number % 2}"], "joined": joined, "profile": {"age": 20 + number, "likes": ["tea"]},
            })
        )  # fmt: skip
        changes.append(_build_change("public.employees", "insert", str(100 + number), {"name": f"E{number}"}, {}))
    changes.append(_build_change("public.employees", "delete", "4", {}, {"name": "Di", "boss": 2, "salary": "4000"}))
    return changes
