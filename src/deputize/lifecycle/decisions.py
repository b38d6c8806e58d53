"""Keeps what decisions were made from: each record once per process, durable before any entry that names it."""

import asyncio

from deputize.core.decision import Decided
from deputize.store.batch import GroupCommit
from deputize.store.rows import Committed, DecisionRecord

_MOST_KNOWN = 50_000


class DecisionLog:
    """The writer commits in order, so a record put before an entry is there before it."""

    def __init__(self, writer: GroupCommit) -> None:
        self._writer = writer
        self._known: dict[str, None] = {}

    def keep(self, tenant: str, decided: Decided) -> None:
        if decided.record_id in self._known:
            return
        if len(self._known) >= _MOST_KNOWN:
            # Oldest first; a record that is sent again changes nothing.
            del self._known[next(iter(self._known))]
        self._known[decided.record_id] = None
        sending = self._writer.put(DecisionRecord(tenant, decided.record_id, decided.record))
        sending.add_done_callback(lambda sent: self._forget_lost(decided.record_id, sent))

    def _forget_lost(self, record_id: str, sent: "asyncio.Future[Committed]") -> None:
        """Whoever is decided alike next sends it again; the entries that waited with it were refused like it."""
        if sent.cancelled() or sent.exception() is not None:
            self._known.pop(record_id, None)
