"""Delete audit entries whose retention is over. Their hashes stay, so that the rest of the log can still be verified.

A log expires from its oldest entry on, without a gap, and stops at the first entry that is too young, under a legal
hold, or not what its leaf says. Each expiry is an entry of the log itself, in the same transaction: who verifies
the log finds out which entries expired and when, and that no others are missing.
"""

from typing import Final

import structlog

from deputize.core.caller import Caller
from deputize.evidence.audit_entries import encode_act
from deputize.evidence.log.log_walk import EXPIRY_COMMAND, describe_expiry
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

# Each batch is a transaction of its own, with one entry; the rest waits for the next hour.
_BATCH_ENTRIES: Final = 5000
_MAX_BATCHES: Final = 200
_SQL = load_statements("holds")
log = structlog.get_logger(__name__)


async def expire_entries(runtime: Runtime, *, batch_entries: int = _BATCH_ENTRIES) -> int:
    """Delete the entries of all tenants that are older than the settings say; return how many."""
    async with runtime.store.write_transaction() as connection:
        tenants = [row["tenant"] for row in await connection.fetch(_SQL["list_tenants"])]
    expired_count = 0
    for tenant in tenants:
        for _ in range(_MAX_BATCHES):
            batch_count = await _expire_batch(runtime, tenant, batch_entries)
            expired_count += batch_count
            if batch_count < batch_entries:
                break
    if expired_count:
        log.info("audit_entries_expired", count=expired_count)
    return expired_count


async def _expire_batch(runtime: Runtime, tenant: str, batch_entries: int) -> int:
    days = runtime.settings.database.audit_days
    async with runtime.store.write_transaction() as connection:
        plan = await connection.fetchrow(_SQL["plan_expiry"], tenant, days, batch_entries)
        if plan is None:
            return 0
        first_index, end_index = plan
        entry_id = runtime.clock.new_id()
        entry = encode_act(
            Caller(tenant=tenant, user=""),
            id=entry_id,
            time=runtime.stamps.now(),
            command=EXPIRY_COMMAND,
            subject=describe_expiry(first_index, end_index, days),
        )
        is_done = await connection.fetchval(
            _SQL["expire_entries"], tenant, days, first_index, end_index, entry_id, entry
        )
    return end_index - first_index if is_done else 0
