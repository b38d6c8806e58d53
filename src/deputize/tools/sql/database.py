"""Open a transaction of one call, by a login that may do no more than it needs, and end it when its time is over.

Reading has a login that can only read; changing rows has one that may change the tables of the settings alone. Each
call has a connection of its own, so nothing that one call sets is there for the next. The rights of the login are
looked at in each of them: a right that was granted since is noticed at once.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import asyncpg

from deputize import SemanticViolation, ToolConflict, ToolFailed, ToolPrecondition, UpstreamUnavailable
from deputize.tools.sql.statements import Access, refuse

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]
else:
    Connection = asyncpg.Connection

_RIGHTS: Final = Path(__file__).with_name("role_rights.sql").read_text()
_CONNECT_SECONDS: Final = 5.0
_CLOSE_SECONDS: Final = 1.0
# What statements and rows are read as must not depend on the settings of a role or database.
_SETTINGS: Final = {
    "standard_conforming_strings": "on", "row_security": "on", "lock_timeout": "1s", "TimeZone": "UTC",
    "DateStyle": "ISO, YMD", "IntervalStyle": "iso_8601", "extra_float_digits": "1", "bytea_output": "hex",
}  # fmt: skip
_READER_ADVICE: Final = "name one that has only USAGE on schemas and SELECT on tables"
_WRITER_ADVICE: Final = "name one that has only SELECT, INSERT, UPDATE and DELETE on change_tables"
_SCRATCH_ADVICE: Final = "name one that only owns its own database"
# Places of role_rights.sql.
_ALL_RIGHTS: Final = 8
_RIGHTS_BEYOND: Final = 3
_INVALID_CLASSES: Final = ("21", "22", "2B", "34", "3F", "42")
# The connection ended, whatever became of what was sent.
_LOST_CLASSES: Final = ("08", "57")
# What a constraint, or a trigger of the table, refuses.
_CONSTRAINT_CLASSES: Final = ("23", "27", "44", "P0")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """How much one call may ask of the database."""

    seconds: float = 5.0
    cost: float = 1_000_000.0


class Database:
    """One database by one login, and what statements may name in it.

    `changeable` are the tables it may change. The login of a scratch database may do there what it likes.
    """

    def __init__(
        self, url: str, access: Access, limits: Limits, changeable: tuple[str, ...] = (), *, is_scratch: bool = False
    ) -> None:
        self._url = url
        self.access = access
        self.limits = limits
        self.changeable = changeable
        self._setting, self._advice, self._rights_place = "[builtin.sql]", _READER_ADVICE, _ALL_RIGHTS
        if is_scratch:
            self._setting, self._advice = "[builtin.sql] scratch_url", _SCRATCH_ADVICE
            self._rights_place = _RIGHTS_BEYOND
        elif changeable:
            self._setting, self._advice = "[builtin.sql] change_url", _WRITER_ADVICE

    async def require_login(self) -> None:
        """Raise `ToolPrecondition` if the login could change more than it should."""
        async with self.open_reading(_CONNECT_SECONDS):
            pass

    @asynccontextmanager
    async def open_reading(self, seconds_left: float) -> AsyncIterator[Connection]:
        """Open a read-only transaction, and roll it back. Raise `ToolPrecondition` if the login may do too much."""
        async with self._open(seconds_left, readonly=True) as (connection, transaction, _):
            yield connection
            await transaction.rollback()

    @asynccontextmanager
    async def open_changing(self, seconds_left: float, *, keeps: bool) -> AsyncIterator[Connection]:
        """Open a transaction that sees one state of the database, and commit it if `keeps`, or roll it back.

        If the answer to the commit is lost, the database is asked what became of the transaction.
        """
        async with self._open(seconds_left, readonly=False) as (connection, transaction, limit):
            yield connection
            if not keeps:
                await transaction.rollback()
                return
            number = await connection.fetchval("select pg_current_xact_id_if_assigned()::text")
            # From here on, no answer does not mean that nothing happened.
            limit.reschedule(None)
            try:
                async with asyncio.timeout(_CONNECT_SECONDS):
                    await transaction.commit()
            except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError) as error:
                if isinstance(error, asyncpg.PostgresError) and (error.sqlstate or "")[:2] not in _LOST_CLASSES:
                    raise
                await self._require_committed(number, error)

    @asynccontextmanager
    async def _open(
        self, seconds_left: float, *, readonly: bool
    ) -> AsyncIterator[tuple[Connection, Any, asyncio.Timeout]]:
        seconds = max(min(self.limits.seconds, seconds_left), 0.1)
        with _explain_errors(seconds):
            connection = await self._connect()
            try:
                async with asyncio.timeout(seconds) as limit:
                    transaction = connection.transaction(isolation="repeatable_read", readonly=readonly)
                    await transaction.start()
                    await self._prepare_session(connection, seconds)
                    await self._require_rights(connection)
                    yield connection, transaction, limit
                    with suppress(OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError):
                        # What was done is done, however the connection ends.
                        await connection.close(timeout=_CLOSE_SECONDS)
            finally:
                # A server that does not answer rolls back when it notices.
                connection.terminate()

    async def _connect(self) -> Connection:
        try:
            return await asyncpg.connect(self._url, timeout=_CONNECT_SECONDS, statement_cache_size=0)
        except TimeoutError as error:
            raise UpstreamUnavailable("the database of [builtin.sql] does not answer", nothing_happened=True) from error

    async def _prepare_session(self, connection: Connection, seconds: float) -> None:
        milliseconds = str(int(seconds * 1000))
        settings = {
            **_SETTINGS, "statement_timeout": milliseconds, "idle_in_transaction_session_timeout": milliseconds,
        }  # fmt: skip
        if not self.changeable:
            # Triggers of tables find what they name by the path that their login has.
            quoted = ('"' + each.replace('"', '""') + '"' for each in self.access.schemas)
            settings["search_path"] = ", ".join(quoted)
        await connection.execute(
            "select set_config(name, value, true) from unnest($1::text[], $2::text[]) as each (name, value)",
            list(settings), list(settings.values()),
        )  # fmt: skip

    async def _require_rights(self, connection: Connection) -> None:
        """Raise `ToolPrecondition` if the login of a connection could change anything but rows of these tables."""
        rights = [row["what"] for row in await connection.fetch(_RIGHTS, list(self.changeable), self._rights_place)]
        if rights:
            raise ToolPrecondition(
                f"the login of {self._setting} is not used, because it {'; it '.join(rights)} (rule role): "
                + self._advice,
                details={"rule": "role", "rights": rights},
            )

    async def _require_committed(self, number: str | None, cause: Exception) -> None:
        """Return if a transaction was committed although nothing said so; otherwise say what is known of it."""
        status = "in progress"
        try:
            connection = await self._connect()
            try:
                status = await connection.fetchval("select pg_xact_status($1::text::xid8)", number, timeout=2.0)
            finally:
                connection.terminate()
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresError, UpstreamUnavailable):
            pass
        if status != "committed":
            raise UpstreamUnavailable(
                "the connection was lost while the change was committed", nothing_happened=status == "aborted"
            ) from cause


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
        return refuse("role", message, "use tables that sql.schema lists, or ask the operator for this right")
    if state in ("40001", "40P01", "23505"):
        return ToolConflict(f"{message}: read the row again", details={"rule": "expected"})
    if state[:2] in _CONSTRAINT_CLASSES:
        return refuse("constraints", message, "change the values so that they meet what the table demands")
    if state[:2] in _INVALID_CLASSES:
        hint = str(getattr(error, "hint", None) or "correct the statement or its parameters")[:300]
        return SemanticViolation(f"{message}: {hint}", details={"rule": "syntax", "sqlstate": state, "hint": hint})
    if state[:2] in ("08", "28", "3D", "53") or state in ("57P01", "57P02", "57P03"):
        return UpstreamUnavailable(f"the database of [builtin.sql] refused: {message}", nothing_happened=True)
    return ToolFailed(f"the database failed: {message}", nothing_happened=True)
