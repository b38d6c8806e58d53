"""Append new audit entries to the logs of their tenants and sign checkpoints, in one process at a time.

The process that holds the lease in the database is the sequencer. Every transaction that writes to a log updates the
row of the lease first, so that a process that was taken over cannot write any more. Checkpoints are signed after the
commit of what they are about; a process that dies in between is followed by one that signs.
"""

import contextlib
from typing import Final

import structlog

from deputize.core.clock import Clock
from deputize.core.event_loop.periodic_task import PeriodicTask
from deputize.evidence.tenant_log.log_appender import (
    BATCH_ENTRIES_EACH,
    BATCH_TENANTS,
    LogAppender,
    LogDivergence,
    TreeHead,
)
from deputize.evidence.tenant_log.log_signer import LogSigner
from deputize.store.exclusive_lease import ExclusiveLease, LeaseStatements, LeaseTakeover
from deputize.store.keys import TenantKeys
from deputize.store.pool import CONNECTION_ERRORS, Connection, Store
from deputize.store.queries import load_statements
from deputize.store.restore_guard.lineage import Lineage

_SQL = load_statements("log")
_LEASE = LeaseStatements(
    claim=_SQL["claim_sequencer"], renew=_SQL["renew_sequencer"], release=_SQL["release_sequencer"]
)
_INTERVAL_SECONDS: Final = 0.6
_LEASE_SECONDS: Final = 6.0
_RENEWAL_SECONDS: Final = 4.0
_BACKLOG_ENTRIES: Final = 1000
log = structlog.get_logger(__name__)


class LogSequencer(PeriodicTask):
    """Runs in every gateway; one of them sequences, and another takes over when it stops or dies."""

    task_name = "log sequencer"
    tolerated_errors = (*CONNECTION_ERRORS, LeaseTakeover)
    runs_at_start = False

    def __init__(
        self,
        store: Store,
        keys: TenantKeys,
        clock: Clock,
        *,
        boot_id: str,
        lineage: Lineage | None = None,
        public_url: str | None = None,
        batch_tenants: int = BATCH_TENANTS,
        batch_entries_each: int = BATCH_ENTRIES_EACH,
    ) -> None:
        super().__init__()
        self._store = store
        self._lineage = Lineage() if lineage is None else lineage
        self._boot_id = boot_id
        self._signer = LogSigner(store, keys, clock, public_url=public_url)
        self._batch = batch_tenants, batch_entries_each
        self._lease = ExclusiveLease(_LEASE, boot_id=boot_id, seconds=_LEASE_SECONDS)
        self._diverged_tenants: set[str] = set()
        self._appender = self._make_appender()
        self._unsigned_heads: dict[str, TreeHead] = {}

    @property
    def interval_seconds(self) -> float:
        return _INTERVAL_SECONDS

    @property
    def is_sequencer(self) -> bool:
        """Whether this process appends to the logs now."""
        return self._lease.epoch is not None

    async def run_step(self) -> float:
        """Append and sign what is queued, if this process is the sequencer or can become it."""
        try:
            return await self._take_turn()
        except BaseException:
            # Whatever was in memory may not have been committed: read it again with the next lease.
            self._forget()
            raise

    async def stop(self) -> None:
        """Stop, and let another process take over at once."""
        await super().stop()
        self._forget()
        with contextlib.suppress(*CONNECTION_ERRORS):
            async with self._store.write_transaction() as connection:
                await self._lease.release(connection)

    def report_error(self, error: Exception) -> None:
        log.warning("log_sequencer_failed", reason=repr(error))

    async def _take_turn(self) -> float:
        async with self._store.write_transaction() as connection:
            row = await connection.fetchrow(_SQL["inspect_sequencer"], self._boot_id, _RENEWAL_SECONDS)
            assert row is not None
            if not self._lease.holds(row):
                self._forget()
                if not self._lease.can_claim(row):
                    return self.interval_seconds
                await self._claim(connection)
                return 0.0
            if row["is_renewal_due"]:
                await self._lease.renew(connection)
        count = await self._append_batch() if row["has_queue"] else 0
        if self._unsigned_heads:
            await self._sign()
        if not count and row["has_backlog"]:
            return 0.0 if await self._enqueue_backlog() else self.interval_seconds
        # Under load entries come all the time: one batch for each interval costs calls far less than many small ones.
        return 0.0 if count and self._appender.has_more else self.interval_seconds

    async def _claim(self, connection: Connection) -> None:
        """Become the sequencer, and find what the one before left unsigned."""
        if not await self._lease.claim(connection):
            return
        for row in await connection.fetch(_SQL["list_unsigned_logs"]):
            try:
                head = await self._appender.load_head(connection, row["tenant"])
            except LogDivergence as error:
                self._report_divergence(error)
            else:
                self._unsigned_heads[head.tenant] = head
        # Reading many logs may have taken longer than the lease lasts.
        await self._lease.renew(connection)
        log.debug("log_sequencer_began", epoch=self._lease.epoch, unsigned_logs=len(self._unsigned_heads))

    async def _append_batch(self) -> int:
        try:
            async with self._store.write_transaction() as connection:
                await self._lease.renew(connection)
                heads = await self._appender.append_batch(connection)
        except LogDivergence as error:
            self._report_divergence(error)
            # The others of the batch were rolled back with it.
            self._appender = self._make_appender()
            return 1
        self._unsigned_heads.update({head.tenant: head for head in heads})
        return len(heads)

    async def _sign(self) -> None:
        lineage = self._lineage.current
        notes = await self._signer.sign_heads(list(self._unsigned_heads.values()))
        async with self._store.write_transaction() as connection:
            await self._lease.renew(connection)
            await connection.execute(
                _SQL["insert_checkpoints"],
                [head.tenant for head, _ in notes],
                [head.size for head, _ in notes],
                [head.root for head, _ in notes],
                [str(note).encode() for _, note in notes],
            )
        for head, note in notes:
            self._lineage.note_checkpoint(lineage, head.tenant, head.size, head.root, str(note).encode())
            del self._unsigned_heads[head.tenant]

    async def _enqueue_backlog(self) -> int:
        """Queue some entries from before the log; they are looked at once nothing newer is queued."""
        async with self._store.write_transaction() as connection:
            await self._lease.renew(connection)
            row = await connection.fetchrow(_SQL["load_backlog"])
            if row is None:
                return 0
            tenant = row["tenant"]
            result = await connection.fetchrow(_SQL["enqueue_backlog"], tenant, row["after_id"], _BACKLOG_ENTRIES)
            assert result is not None
            if result["entries"] < _BACKLOG_ENTRIES:
                await connection.execute(_SQL["delete_backlog"], tenant)
            else:
                await connection.execute(_SQL["advance_backlog"], tenant, result["last_id"])
        return 1

    def _forget(self) -> None:
        self._lease.epoch = None
        self._unsigned_heads = {}
        self._diverged_tenants = set()
        self._appender = self._make_appender()

    def _make_appender(self) -> LogAppender:
        tenants, entries_each = self._batch
        return LogAppender(
            self._diverged_tenants,
            get_saved_checkpoint=self._lineage.get_checkpoint,
            tenants=tenants,
            entries_each=entries_each,
        )

    @staticmethod
    def _report_divergence(error: LogDivergence) -> None:
        log.error(
            "log_does_not_fit_its_checkpoint",
            tenant=error.tenant,
            reason=str(error),
            advice="someone changed the database: compare it with a backup and with receipts; this log does not grow",
        )
