"""Compare each connection's database with what was committed before, and stop where it went back in time.

PostgreSQL recovers a prefix of its commits. So a database that contains the newest entry that a process committed
contains everything that was acknowledged before it: a promotion that lost nothing passes, a point-in-time restore does
not. The check runs on every new connection that writes, before its first use, and every half second on the pool.

The process that finds a loss marks it in the database, so that every other gateway stops too, also one without records.
Only `recovery.py` begins another lineage.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import asyncpg
import structlog

from deputize.core.errors import DatabaseWentBack
from deputize.store.pool import WRITER, Connection
from deputize.store.queries import load_statements
from deputize.store.restore_guard.checkpoint_files import CheckpointFiles, SavedCheckpoint
from deputize.store.restore_guard.record_files import LineageRecord, RecordFile, open_record_file

_SQL = load_statements("lineage")
WENT_BACK: Final = "the database went back in time"
log = structlog.get_logger(__name__)


class WentBackError(ConnectionError):
    """The database lacks what was committed to it. A connection error, so that nothing goes on without a database."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DatabaseState:
    """The lineage that a database is in, and what it lacks, if anything."""

    lineage: str
    number: int
    began_at: float
    epoch_sum: int
    server: str | None
    timeline: str | None
    loss: str | None
    is_marked: bool
    """Whether the database itself says that it went back."""
    is_known: bool
    """Whether it is the database that the records are about, whatever it lacks."""


async def inspect_lineage(
    connection: Connection, records: Sequence[LineageRecord], checkpoints: CheckpointFiles | None = None
) -> DatabaseState:
    """Compare a database with the records of it, and with the signed checkpoints of its logs."""
    row = await connection.fetchrow(_SQL["read_lineage"])
    if row is None or row["is_standby"]:
        raise ConnectionError("the server is a read-only standby")
    lineage, server = str(row["id"]), row["server"]
    saved_checkpoints = () if checkpoints is None else checkpoints.list_expected(lineage)
    loss = row["went_back_reason"] or await _find_loss(connection, row, records)
    return DatabaseState(
        lineage=lineage,
        number=row["number"],
        began_at=row["began_at"].timestamp(),
        epoch_sum=row["epoch_sum"],
        server=server,
        timeline=row["timeline"],
        loss=loss or await _find_lost_checkpoint(connection, saved_checkpoints),
        is_marked=row["went_back_reason"] is not None,
        is_known=bool(saved_checkpoints)
        or any(each.lineage == lineage or (server and each.server == server) for each in records),
    )


async def list_unknown_lineages(connection: Connection, records: Sequence[LineageRecord]) -> list[str]:
    """List the lineages of records that the database does not know: it was restored to a time before they began."""
    lineages = {each.lineage for each in records}
    rows = await connection.fetch(_SQL["list_known_lineages"], list(lineages))
    return sorted(lineages - {row[0] for row in rows})


async def _find_loss(connection: Connection, row: asyncpg.Record, records: Sequence[LineageRecord]) -> str | None:
    unknown_lineages = await list_unknown_lineages(connection, records)
    if unknown_lineages:
        return f"it does not know its lineage {unknown_lineages[0]}"
    current = [each for each in records if each.lineage == str(row["id"])]
    epoch_sum = max((each.epoch_sum for each in current), default=0)
    if row["epoch_sum"] < epoch_sum:
        return f"its epochs add up to {row['epoch_sum']}, but were {epoch_sum}"
    entries = [each for each in current if each.entry_id is not None]
    tenants, ids = [each.tenant for each in entries], [each.entry_id for each in entries]
    missing_entry = await connection.fetchval(_SQL["find_missing_entry"], tenants, ids) if entries else None
    if missing_entry is not None:
        return f"it lacks the audit entry {missing_entry}, which was committed"
    return None


async def _find_lost_checkpoint(connection: Connection, saved_checkpoints: Sequence[SavedCheckpoint]) -> str | None:
    if not saved_checkpoints:
        return None
    tenants, sizes = [each.tenant for each in saved_checkpoints], [each.size for each in saved_checkpoints]
    row = await connection.fetchrow(
        _SQL["find_missing_checkpoint"], tenants, sizes, [each.root for each in saved_checkpoints]
    )
    if row is None:
        return None
    return f"the log of tenant {row['tenant']} lacks the checkpoint over {row['size']} entries, which was signed"


@contextlib.asynccontextmanager
async def _open_transaction(connection: Connection) -> AsyncIterator[None]:
    async with connection.transaction():
        # Behind a connection pooler, this may be another session than the one that got the role.
        await connection.execute(_SQL["set_role"], WRITER)
        yield


class Lineage:
    """What this process knows of the database, and whether the database agrees."""

    def __init__(
        self,
        record_file: RecordFile | None = None,
        records: Sequence[LineageRecord] = (),
        checkpoints: CheckpointFiles | None = None,
    ) -> None:
        self._file = record_file
        self._checkpoints = checkpoints
        self._record = None if record_file is None else record_file.previous
        # Those of other processes of this machine, as they were when this one started.
        self._other_records = tuple(records)
        self._state: DatabaseState | None = None
        self._on_loss: list[Callable[[str], None]] = []
        self.loss: str | None = None
        """What the database lacks, so that it is not used; None while it is."""
        self.file_problem: str | None = None
        self.checkpoint_problem: str | None = None

    @classmethod
    def open(cls, folder: Path | None) -> "Lineage":
        """Read the records in a folder; without one, this process remembers only what happens while it runs."""
        return cls() if folder is None else cls(*open_record_file(folder), CheckpointFiles(folder))

    @property
    def current(self) -> str | None:
        """The lineage that the database is in; None before the first connection."""
        return None if self._state is None else self._state.lineage

    @property
    def recovered_at(self) -> float | None:
        """When a person confirmed that the database is to be used although it lost something; None if never."""
        return None if self._state is None or self._state.number == 1 else self._state.began_at

    def on_loss(self, callback: Callable[[str], None]) -> None:
        """Call this with the reason when the database is found to have gone back."""
        self._on_loss.append(callback)

    def note_entry(self, tenant: str, entry_id: str) -> None:
        """Remember an audit entry whose commit was acknowledged, before anyone else learns of it."""
        if self._record is not None:
            self._write(replace(self._record, tenant=tenant, entry_id=entry_id))

    def note_checkpoint(self, lineage: str | None, tenant: str, size: int, root: bytes, note: bytes) -> None:
        """Remember a signed checkpoint whose commit was acknowledged, with the lineage from before that commit."""
        if self._checkpoints is not None and lineage is not None:
            self._checkpoints.put(lineage, SavedCheckpoint(tenant=tenant, size=size, root=root, note=note))

    def get_checkpoint(self, tenant: str) -> SavedCheckpoint | None:
        """Return the newest checkpoint of a tenant's log that is remembered outside the database."""
        lineage = self.current
        return None if self._checkpoints is None or lineage is None else self._checkpoints.get(lineage, tenant)

    def flush(self) -> None:
        """Wait until the record and the checkpoints are on the disk."""
        if self._checkpoints is not None:
            try:
                self._checkpoints.flush()
                self.checkpoint_problem = None
            except OSError as error:
                if self.checkpoint_problem is None:
                    log.error("checkpoints_not_saved", folder=str(self._checkpoints.folder), reason=error.strerror)
                self.checkpoint_problem = f"{self._checkpoints.folder} cannot be written ({error.strerror})"
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        """Release the file of this process."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self.flush()
            self._file.close()
            self._file = None

    def require_no_loss(self) -> None:
        """Raise the refusal of a call if the database is not used."""
        if self.loss is not None:
            raise build_refusal(f"{WENT_BACK}: {self.loss}")

    async def verify(self, connection: Connection) -> None:
        """Raise `WentBackError` if the database behind a connection lacks what was committed; accept it otherwise."""
        own_records = () if self._record is None else (self._record,)
        async with _open_transaction(connection):
            state = await inspect_lineage(connection, (*own_records, *self._other_records), self._checkpoints)
        if state.loss is None:
            self._accept(state)
            return
        # A gateway that was given the address of another database must not stop the gateways of that one.
        if not state.is_marked and state.is_known:
            async with _open_transaction(connection):
                await connection.execute(_SQL["stop_gateways"], state.lineage, state.loss)
        if self.loss is None:
            log.error("database_went_back", reason=state.loss, todo="run deputize recover confirm")
        self.loss = state.loss
        for callback in self._on_loss:
            callback(f"{WENT_BACK}: {state.loss}")
        raise WentBackError(f"{WENT_BACK}: {state.loss}")

    def _accept(self, state: DatabaseState) -> None:
        old_state, self._state, self.loss = self._state, state, None
        if self._checkpoints is not None:
            self._checkpoints.confirm(state.lineage)
        record = self._record
        if record is None:
            # A database in which nothing was ever decided is new, and has nothing to lose.
            if not self._other_records and state.epoch_sum:
                log.warning("lineage_taken_from_database", lineage=state.lineage, number=state.number)
            record = LineageRecord(lineage=state.lineage)
        elif record.lineage != state.lineage:
            log.warning("lineage_changed", lineage=state.lineage, number=state.number)
            record = LineageRecord(lineage=state.lineage)
        if old_state is not None and (old_state.server, old_state.timeline) != (state.server, state.timeline):
            log.info("database_promoted", server=state.server, timeline=state.timeline)
        # The highest: checks of several connections may end in another order than they read.
        epoch_sum = max(record.epoch_sum, state.epoch_sum)
        record = replace(record, server=state.server, timeline=state.timeline, epoch_sum=epoch_sum)
        if record != self._record:
            self._write(record)

    def _write(self, record: LineageRecord) -> None:
        self._record = record
        if self._file is None:
            return
        try:
            self._file.write(record)
            self.file_problem = None
        except OSError as error:
            if self.file_problem is None:
                log.error("lineage_not_recorded", file=str(self._file.path), reason=error.strerror)
            self.file_problem = f"{self._file.path} cannot be written ({error.strerror})"


def build_refusal(reason: str) -> DatabaseWentBack:
    """Build the refusal of a call while the database is not used."""
    return DatabaseWentBack(f"calls are refused: {reason}", nothing_happened=True)
