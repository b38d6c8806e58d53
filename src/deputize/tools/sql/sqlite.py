"""Read one SQLite database: described, queried and validated like one of PostgreSQL, with the same limits and refusals.

There is no login. The file is opened read-only, and what a statement may do is decided twice: by its parse, in the
grammar that both databases share, and by SQLite's authorizer, in the process of its own that each call has
(`sqlite_job.py`): SQLite computes where it is called, and would keep the gateway from everything else.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from deputize import SemanticViolation, ToolFailed, ToolPrecondition
from deputize.core.contract.tools import RunJob
from deputize.tools.sql.database import Limits
from deputize.tools.sql.reading import Column, Parameter, Rows, Table, Tables
from deputize.tools.sql.sqlite_job import open_database, read_job
from deputize.tools.sql.statements import Access, admit_statement, refuse
from deputize.tools.sql.validation import Check, CheckResult, Validation

_PROBLEMS: Final = {each.__name__: each for each in (SemanticViolation, ToolPrecondition)}


class SqliteDatabase:
    """One file, and what statements may name in it. `run_job` runs a job in a process of its own."""

    def __init__(self, path: Path, access: Access, limits: Limits, run_job: RunJob) -> None:
        self._path = path
        self._access = access
        self._limits = limits
        self._run_job = run_job

    def require_file(self) -> None:
        """Raise `ToolPrecondition` if the file cannot be read as a database."""
        with open_database(self._path, self._limits.seconds) as connection:
            connection.execute("select 1 from sqlite_schema")

    async def run_query(
        self, sql: str, parameters: Sequence[Parameter], offset: int, limit: int, seconds_left: float
    ) -> Rows:
        statement = admit_statement(sql, self._access)
        if statement.is_explain:
            raise refuse("explain", "SQLite explains in another way", "send the statement itself")
        arguments = {"sql": statement.text, "parameters": parameters, "offset": offset, "limit": limit}
        answer = await self._read("query", arguments, seconds_left)
        return Rows(**{**answer, "columns": [Column(**each) for each in answer["columns"]]})

    async def describe_tables(
        self, search: str, offset: int, limit: int, seconds_left: float, *, shows_samples: bool
    ) -> Tables:
        arguments = {"search": search, "offset": offset, "limit": limit, "shows_samples": shows_samples}
        answer = await self._read("describe", arguments, seconds_left)
        return Tables(**{**answer, "tables": [Table(**each) for each in answer["tables"]]})

    async def validate_table(self, table: str, checks: Sequence[Check], seconds_left: float) -> Validation:
        answer = await self._read("validate", {"table": table, "checks": checks}, seconds_left)
        return Validation(**{**answer, "checks": [CheckResult(**each) for each in answer["checks"]]})

    async def _read(self, read: str, arguments: Mapping[str, Any], seconds_left: float) -> dict[str, Any]:
        seconds = max(min(self._limits.seconds, seconds_left), 0.1)
        request = {
            "read": read, "path": str(self._path), "tables": self._access.tables, "seconds": seconds,
            "arguments": arguments,
        }  # fmt: skip
        reply = await self._run_job(read_job, orjson.dumps(request), math.ceil(seconds))
        if reply is None:
            # One step of SQLite may take long, such as a comparison of texts: nothing but its process can be ended.
            problem = f"the statement took more than {seconds:g} s, or too much memory, and its process was ended"
            raise refuse("time", problem, "ask for less, and compare shorter texts")
        answer: dict[str, Any] = orjson.loads(reply)
        if "problem" in answer:
            problem_class = _PROBLEMS.get(answer["problem"])
            if problem_class is None:
                raise ToolFailed(answer["message"], nothing_happened=True)
            raise problem_class(answer["message"], details=answer["details"])
        answer = answer["answer"]
        return answer
