"""Delete audit entries whose retention is over. Their hashes stay, so that the rest of the log can still be verified.

A log expires from its oldest entry on, without a gap, and stops at the first entry that is too young, under a legal
hold, or not what its leaf says. Each expiry is an entry of the log itself, in the same transaction: who verifies
the log finds out which entries expired and when, and that no others are missing. The log's keys sign it, because
whoever can write to the database could queue such an entry too.
"""

from typing import Final

import structlog

from deputize.core.caller import Caller
from deputize.core.errors import UnsealFailed
from deputize.evidence.audit_entries import encode_act
from deputize.evidence.log.entry_expiry import EXPIRY_COMMAND, EntryExpiry
from deputize.evidence.log.signed_note import InvalidNote
from deputize.evidence.tenant_log.expiry_check import check_expiring_entries
from deputize.evidence.tenant_log.log_appender import LogDivergence
from deputize.evidence.tenant_log.log_keys import load_log_keys
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

# Each batch is a transaction of its own, with one entry; the rest waits for the next hour.
_BATCH_ENTRIES: Final = 5000
_MAX_BATCHES: Final = 200
_DAY_MS: Final = 86_400_000
# The database plans by its own clock and time zone, where a day may have 23 hours.
_CLOCK_TOLERANCE_MS: Final = 7_200_000
_SQL = load_statements("holds")
log = structlog.get_logger(__name__)


async def expire_entries(runtime: Runtime, *, batch_entries: int = _BATCH_ENTRIES) -> int:
    """Delete the entries of all tenants that are older than the settings say; return how many."""
    async with runtime.store.write_transaction() as connection:
        tenants = [row["tenant"] for row in await connection.fetch(_SQL["list_tenants"])]
    expired_count = 0
    for tenant in tenants:
        try:
            for _ in range(_MAX_BATCHES):
                batch_count = await _expire_batch(runtime, tenant, batch_entries)
                expired_count += batch_count
                if batch_count < batch_entries:
                    break
        except (UnsealFailed, InvalidNote, LogDivergence) as error:
            # The entries of this tenant stay; it holds up no other.
            log.error("audit_entries_not_expired", tenant=tenant, reason=str(error))
    if expired_count:
        log.info("audit_entries_expired", count=expired_count)
    return expired_count


async def _expire_batch(runtime: Runtime, tenant: str, batch_entries: int) -> int:
    days = runtime.settings.database.get_audit_days(tenant)
    async with runtime.store.write_transaction() as connection:
        plan = await connection.fetchrow(_SQL["plan_expiry"], tenant, days, batch_entries)
        if plan is None:
            return 0
        stored_keys = (await load_log_keys(connection, [tenant]))[tenant]
    keys = await runtime.keys.get(tenant)
    # Retired keys too: who knows only one of those can go on verifying.
    signers = [each.open(keys) for each in stored_keys]
    entry_id = runtime.clock.new_id()
    first_index, end_index = plan
    expiry = EntryExpiry(
        tenant=tenant, first_index=first_index, end_index=end_index, days=days, time=runtime.stamps.now()
    )
    async with runtime.store.write_transaction() as connection:
        await check_expiring_entries(
            connection,
            tenant,
            (first_index, end_index),
            [signer.verifier_key for signer in signers],
            before_ms=runtime.clock.epoch_ms() - days * _DAY_MS + _CLOCK_TOLERANCE_MS,
        )
        entry = encode_act(
            Caller(tenant=tenant, user=""),
            id=entry_id,
            time=expiry.time,
            command=EXPIRY_COMMAND,
            subject=expiry.subject,
            signatures=expiry.sign(signers),
        )
        is_done = await connection.fetchval(
            _SQL["expire_entries"], tenant, days, first_index, end_index, entry_id, entry
        )
    return end_index - first_index if is_done else 0
