"""PostgreSQL's wire protocol, as far as telling commits apart needs it: frames, SQL, transactions."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102

Status = Literal["idle", "open", "failed"]
_STATUS: dict[bytes, Status] = {b"I": "idle", b"T": "open", b"E": "failed"}

# A function's body or a literal may hold the word `commit`: quoted text and comments are blanked first.
_QUOTED_TEXT = re.compile(r"\$(\w*)\$.*?\$\1\$|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/", re.DOTALL)
_BEGIN = re.compile(r"(?:^|;)\s*(?:begin|start\s+transaction)\b", re.IGNORECASE)
_COMMIT = re.compile(r"(?:^|;)\s*(?:commit|end)\b(?!\s+prepared)", re.IGNORECASE)
_ROLLBACK = re.compile(
    r"(?:^|;)\s*(?:rollback|abort)\b(?!\s+prepared)(?!\s+(?:work\s+|transaction\s+)?to\b)", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Message:
    """One framed message: its type byte and its bytes as they travelled, type and length included."""

    kind: bytes
    raw: bytes

    @property
    def body(self) -> bytes:
        return self.raw[5:]


class Framer:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        while len(self._buffer) >= 5:
            end = 1 + int(struct.unpack_from("!I", self._buffer, 1)[0])
            if len(self._buffer) < end:
                return
            raw = bytes(self._buffer[:end])
            del self._buffer[:end]
            yield Message(raw[:1], raw)


def read_ready_status(message: Message) -> Status:
    """The transaction status that ReadyForQuery carries."""
    return _STATUS[message.body[:1]]


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Which transaction boundaries a piece of SQL contains."""

    begins: bool
    commits: bool
    rolls_back: bool


@lru_cache(maxsize=4096)
def find_boundaries(sql: str) -> Boundaries:
    unquoted_sql = _QUOTED_TEXT.sub(" ", sql)
    return Boundaries(
        begins=_BEGIN.search(unquoted_sql) is not None,
        commits=_COMMIT.search(unquoted_sql) is not None,
        rolls_back=_ROLLBACK.search(unquoted_sql) is not None,
    )


def _split_strings(body: bytes, count: int) -> list[str]:
    return [string.decode(errors="replace") for string in body.split(b"\0", count)[:count]]


@dataclass(slots=True)
class Transactions:
    """Follows one connection's frontend messages and says which of them will commit, and what.

    A commit happens when a Query or a Sync is processed: of an implicit transaction if none was open, of an
    explicit one if COMMIT is among its statements. COMMIT AND CHAIN, two-phase commit, procedures that commit
    inside themselves and COPY over the extended protocol are not followed.
    """

    status: Status = "idle"
    _statements: dict[str, str] = field(default_factory=dict)
    _portals: dict[str, str] = field(default_factory=dict)
    _group: list[str] = field(default_factory=list)
    _open_statements: list[str] = field(default_factory=list)

    def record_message(self, message: Message) -> None:
        """Take in one message of an extended-protocol group, up to but not including its Sync."""
        if message.kind == b"P":
            name, sql = _split_strings(message.body, 2)
            self._statements[name] = sql
        elif message.kind == b"B":
            portal, statement = _split_strings(message.body, 2)
            self._portals[portal] = self._statements.get(statement, "")
        elif message.kind == b"E":
            (portal,) = _split_strings(message.body, 1)
            self._group.append(self._portals.get(portal, ""))

    def close_group(self, query: Message | None = None) -> tuple[str, ...]:
        """A Query, or the Sync of the noted group, is about to be forwarded: which statements it commits.

        The status is moved to what it will be when all goes well; `settle` corrects it.
        """
        if query is not None:
            (sql,) = _split_strings(query.body, 1)
            self._group.append(sql)
        group, self._group = self._group, []
        if not group:
            return ()
        was_open, is_failed = self.status != "idle", self.status == "failed"
        statements = (*self._open_statements, *group)
        group_boundaries = [find_boundaries(sql) for sql in group]
        rolls_back = any(each.rolls_back for each in group_boundaries)
        ends = rolls_back or any(each.commits for each in group_boundaries)
        if (was_open or any(each.begins for each in group_boundaries)) and not ends:
            self.status = "failed" if is_failed else "open"
            self._open_statements = list(statements)
            return ()
        self.status, self._open_statements = "idle", []
        return () if rolls_back or is_failed else statements

    def set_status(self, status: Status) -> None:
        """ReadyForQuery arrived and nothing else is under way: this is where the connection really stands."""
        self.status = status
        if status == "idle":
            self._open_statements = []
