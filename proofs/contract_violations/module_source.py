"""Hold the source text of a generated tool module, with `$slots` for what differs between tools, and three storages."""

from string import Template

# `load_values` returns all values by item, `store_value` and `drop_value` change one.
MEMORY = """
_values: dict[str, int] = dict(START)


def load_values() -> dict[str, int]:
    return dict(_values)


def store_value(item: str, value: int) -> None:
    _values[item] = value


def drop_value(item: str) -> None:
    _values.pop(item, None)
"""

FILE = """
PLACE.write_text(json.dumps(START))


def load_values() -> dict[str, int]:
    return json.loads(PLACE.read_text())


def store_value(item: str, value: int) -> None:
    PLACE.write_text(json.dumps({**load_values(), item: value}))


def drop_value(item: str) -> None:
    PLACE.write_text(json.dumps({name: value for name, value in load_values().items() if name != item}))
"""

SQLITE = """
def _run(statement: str, *values: object) -> list[tuple[str, int]]:
    with contextlib.closing(sqlite3.connect(PLACE, isolation_level=None)) as connection:
        connection.execute("pragma synchronous = off")
        return connection.execute(statement, values).fetchall()


def load_values() -> dict[str, int]:
    return dict(_run("select item, value from things"))


def store_value(item: str, value: int) -> None:
    _run("insert into things values (?, ?) on conflict (item) do update set value = excluded.value", item, value)


def drop_value(item: str) -> None:
    _run("delete from things where item = ?", item)


_run("drop table if exists things")
_run("create table things (item text primary key, value integer not null)")
for _item, _value in START.items():
    store_value(_item, _value)
"""

# What shows the state to a test, and what reverses a call.
HELPERS = Template('''@tool(effects="read", namespace="$namespace", examples=[{}])
async def show() -> dict[str, int]:
    """Show the values of all items."""
    return load_values()


@tool(
    effects="write",
    namespace="$namespace",
    undo="$namespace.restore",
    resources=["update things/{item}"],
    scopes=["proof:write"],
    idempotency="idempotent",
    examples=[{"item": "pear", "value": 3}],
)
async def restore(item: Item, value: Value) -> Answer:
    """Set an item to the value that it had before."""
    store_value(item, value)
    return {"item": item, "value": value}


''')

# The functions are async, so that a call takes no thread; `load_values` is short.
MODULE = Template('''"""Keep the things of $namespace."""

import asyncio
import contextlib
import itertools
import json
import sqlite3
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deputize import ToolPrecondition, tool

PLACE = Path($place)
START = {"pear": 100_000, "plum": 200_000, "figs": 300_000}
ERRORS = {
    "type": "object",
    "properties": {
        "message": {"type": "string"},
        "details": {
            "type": "object",
            "properties": {"items": {"type": "array", "items": {"type": "string"}}},
            "required": ["items"],
            "additionalProperties": False,
        },
    },
    "required": ["message", "details"],
}
Item = Annotated[Literal["pear", "plum", "figs", "kiwi"], Field(description="Which item; there may be none of it")]
Amount = Annotated[int, Field(description="How much of it", ge=1, le=100)]
Value = Annotated[int, Field(description="Its value", ge=0, le=10**12)]

_numbers = itertools.count(1)
_notes: dict[str, int] = {}


class Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    item: Annotated[str, Field(description="Which item")]
    value: Value


class Change(Answer):
    before: Annotated[int, Field(description="The value before", ge=0)]

$storage

async def read_state() -> dict[str, int]:
    return load_values()


$helpers@tool(
    namespace="$namespace",
    read_state=read_state,
    error_schema=ERRORS,
    examples=[{"item": "pear", "amount": 3}],
    $options
)
async def $name(item: Item, amount: Amount) -> $answer:
    """$description"""
    $pause
    value = load_values().get(item)
    if value is None:
        $refuse
    new_value = $new_value
    $effect
    $trace
    return $result
''')
