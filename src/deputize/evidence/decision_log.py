"""Store decision records: each once per process and day, durable before any audit entry that names it."""

import asyncio

from deputize.core.bounded_dict import BoundedDict
from deputize.core.clock import Clock
from deputize.core.decision import RecordedVerdict
from deputize.core.errors import AuditBackpressure
from deputize.store.commit_rows import CommitResult, DecisionRow
from deputize.store.group_commit import GroupCommit

_MAX_RECENT_IDS = 50_000
# A record that is relied on is written again after a day, so that it is not deleted as an old one.
_RECENT_SECONDS = 86_400.0


class DecisionLog:
    """Writes decision records. The writer commits in order, so a record is durable before the entries put after it."""

    def __init__(self, writer: GroupCommit, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        # The oldest ids are forgotten; writing a record again changes nothing.
        self._recent_ids: BoundedDict[str, float] = BoundedDict(_MAX_RECENT_IDS)

    def record_decision(self, tenant: str, policy_decision: RecordedVerdict) -> None:
        """Put the record of a decision, unless this process wrote it recently.

        Raises `AuditBackpressure` if too many rows wait: once there is room again, an entry of the call would be taken
        and name a record that does not exist.
        """
        now = self._clock.monotonic()
        if self._recent_ids.get(policy_decision.record_id, 0.0) > now:
            return
        write = self._writer.put(DecisionRow(tenant, policy_decision.record_id, policy_decision.record))
        refusal = write.exception() if write.done() else None
        if isinstance(refusal, AuditBackpressure):
            raise refusal
        self._recent_ids.put(policy_decision.record_id, now + _RECENT_SECONDS)
        write.add_done_callback(lambda future: self._forget_failed_write(policy_decision.record_id, future))

    def _forget_failed_write(self, record_id: str, write: "asyncio.Future[CommitResult]") -> None:
        """Forget a record that was not stored, so that the next equal decision writes it; its own call was refused."""
        if write.cancelled() or write.exception() is not None:
            self._recent_ids.discard(record_id)
