"""Open a transaction that can only read, by a login that can only read, and end it when its time is over.

Each call has a connection of its own, so nothing that one call sets is there for the next. The rights of the login are
looked at in each of them: a right that was granted since is noticed at once.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from deputize import SemanticViolation, ToolFailed, ToolPrecondition, UpstreamUnavailable
from deputize.tools.sql.statements import Access, refuse

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

_RIGHTS: Final = Path(__file__).with_name("role_rights.sql").read_text()
_CONNECT_SECONDS: Final = 5.0
# What statements and rows are read as must not depend on the settings of a role or database.
_SETTINGS: Final = {
    "standard_conforming_strings": "on", "row_security": "on", "lock_timeout": "1s", "TimeZone": "UTC",
    "DateStyle": "ISO, YMD", "IntervalStyle": "iso_8601", "extra_float_digits": "1",
}  # fmt: skip
_INVALID_CLASSES: Final = ("21", "22", "2B", "34", "3F", "42")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one call may ask of the database."""

    seconds: float = 5.0
    cost: float = 1_000_000.0


class Database:
    """One database, and what statements may name in it."""

    def __init__(self, url: str, access: Access, limits: Limits) -> None:
        self._url = url
        self.access = access
        self.limits = limits

    async def require_reader(self) -> None:
        """Raise `ToolPrecondition` if the login could write."""
        async with self.open_reading(_CONNECT_SECONDS):
            pass

    @asynccontextmanager
    async def open_reading(self, seconds_left: float) -> AsyncIterator[Connection]:
        """Open a read-only transaction, and roll it back. Raise `ToolPrecondition` if the login could write."""
        seconds = max(min(self.limits.seconds, seconds_left), 0.1)
        with _explain_errors(seconds):
            connection = await self._connect()
            try:
                async with asyncio.timeout(seconds):
                    transaction = connection.transaction(isolation="repeatable_read", readonly=True)
                    await transaction.start()
                    await self._prepare_session(connection, seconds)
                    await _require_reader(connection)
                    yield connection
                    await transaction.rollback()
                    await connection.close()
            finally:
                # A server that does not answer rolls back when it notices.
                connection.terminate()

    async def _connect(self) -> Connection:
        try:
            return await asyncpg.connect(self._url, timeout=_CONNECT_SECONDS, statement_cache_size=0)
        except TimeoutError as error:
            raise UpstreamUnavailable("the database of [builtin.sql] does not answer", nothing_happened=True) from error

    async def _prepare_session(self, connection: Connection, seconds: float) -> None:
        quoted = ('"' + each.replace('"', '""') + '"' for each in self.access.schemas)
        milliseconds = str(int(seconds * 1000))
        settings = {
            **_SETTINGS, "search_path": ", ".join(quoted), "statement_timeout": milliseconds,
            "idle_in_transaction_session_timeout": milliseconds,
        }  # fmt: skip
        await connection.execute(
            "select set_config(name, value, true) from unnest($1::text[], $2::text[]) as each (name, value)",
            list(settings), list(settings.values()),
        )  # fmt: skip


async def _require_reader(connection: Connection) -> None:
    """Raise `ToolPrecondition` if the login of a connection could change anything."""
    rights = [row["what"] for row in await connection.fetch(_RIGHTS)]
    if rights:
        raise ToolPrecondition(
            f"the login of [builtin.sql] is not used, because it {'; it '.join(rights)} (rule role): name one that has "
            "only USAGE on schemas and SELECT on tables",
            details={"rule": "role", "rights": rights},
        )


@contextmanager
def _explain_errors(seconds: float) -> Iterator[None]:
    try:
        yield
    except asyncpg.PostgresError as error:
        raise _translate(error) from error
    except TimeoutError as error:
        raise refuse(
            "time", f"the database did not answer within {seconds:g} s", "ask for fewer rows, or filter on an index"
        ) from error
    except (OSError, asyncpg.InterfaceError) as error:
        raise UpstreamUnavailable("the database of [builtin.sql] cannot be reached", nothing_happened=True) from error


def _translate(error: asyncpg.PostgresError) -> Exception:
    state, message = error.sqlstate or "", str(error)[:500]
    if state == "57014":
        return refuse("time", "the statement took too long and was ended", "ask for less, or filter on an index")
    if state == "55P03":
        return refuse("locks", "a table is locked by others", "call again later")
    if state == "25006":
        return refuse("read-only", message, "send a statement that only reads")
    if state == "42501":
        return refuse("role", message, "use tables that sql.schema lists")
    if state[:2] in _INVALID_CLASSES:
        hint = str(getattr(error, "hint", None) or "correct the statement or its parameters")[:300]
        return SemanticViolation(f"{message}: {hint}", details={"rule": "syntax", "sqlstate": state, "hint": hint})
    if state[:2] in ("08", "28", "3D", "53") or state in ("57P01", "57P02", "57P03"):
        return UpstreamUnavailable(f"the database of [builtin.sql] refused: {message}", nothing_happened=True)
    return ToolFailed(f"the database failed: {message}", nothing_happened=True)
