"""Rows of a PostgreSQL table: set, removed, and stamped for good."""

import os
from typing import Annotated, Any

import asyncpg
from pydantic import Field

from deputize import ToolPrecondition, tool

RowId = Annotated[str, Field(description="The row", examples=["p0-r0"])]
Value = Annotated[str, Field(description="What it holds", examples=["a"])]
_OPTIONS: dict[str, Any] = {"scopes": ["proof:write"], "namespace": "rows"}


async def _execute(statement: str, *values: str) -> None:
    connection = await asyncpg.connect(os.environ["PROOF_ROWS"])
    try:
        if await connection.execute(statement, *values) in ("UPDATE 0", "DELETE 0"):
            raise ToolPrecondition("there is no such row")
    finally:
        await connection.close()


async def read_row(row_id: str) -> Any:
    connection = await asyncpg.connect(os.environ["PROOF_ROWS"])
    try:
        return {"value": await connection.fetchval("select value from proof_rows where id = $1", row_id)}
    finally:
        await connection.close()


@tool(effects="write", resources=["create rows/{row_id}"], undo="rows.remove", **_OPTIONS)
async def add(row_id: RowId, value: Value) -> dict[str, str]:
    """Add a row."""
    await _execute("insert into proof_rows values ($1, $2)", row_id, value)
    return {"row_id": row_id}


@tool(
    effects="write", resources=["update rows/{row_id}"], undo="rows.change", read_state=read_row,
    compensation={
        "compensation_class": "full", "tool": "rows.change",
        "bind": {"row_id": "/arguments/row_id", "value": "/before/value"},
    },
    **_OPTIONS,
)  # fmt: skip
async def change(row_id: RowId, value: Value) -> dict[str, str]:
    """Change a row."""
    await _execute("update proof_rows set value = $2 where id = $1", row_id, value)
    return {"row_id": row_id}


@tool(
    effects="write", resources=["delete rows/{row_id}"], undo="rows.add", read_state=read_row,
    compensation={
        "compensation_class": "full", "tool": "rows.add",
        "bind": {"row_id": "/arguments/row_id", "value": "/before/value"},
    },
    **_OPTIONS,
)  # fmt: skip
async def remove(row_id: RowId) -> dict[str, str]:
    """Remove a row."""
    await _execute("delete from proof_rows where id = $1", row_id)
    return {"row_id": row_id}


@tool(
    effects="destructive", resources=["update rows/{row_id}"], preview=lambda row_id: {"rows": 1},
    compensation={"compensation_class": "irreversible"}, **_OPTIONS,
)  # fmt: skip
async def stamp(row_id: RowId) -> dict[str, str]:
    """Stamp a row. Nothing takes the stamp back."""
    await _execute("update proof_rows set value = value || '!' where id = $1", row_id)
    return {"row_id": row_id}
