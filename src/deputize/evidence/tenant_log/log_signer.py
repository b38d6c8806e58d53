"""Sign the checkpoints of tenants' logs, with every key that signs at the time."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import structlog

from deputize.core.clock import Clock
from deputize.core.errors import UnsealFailed
from deputize.evidence.log.checkpoint import LogCheckpoint, sign_checkpoint
from deputize.evidence.log.signed_note import InvalidNote, SignedNote
from deputize.evidence.tenant_log.log_appender import TreeHead
from deputize.evidence.tenant_log.log_keys import StoredLogKey, create_log_key, load_log_keys
from deputize.store.keys import TenantKeys
from deputize.store.pool import Store

log = structlog.get_logger(__name__)


class LogSigner:
    """Signs for all tenants, and creates the first key of each log."""

    def __init__(self, store: Store, keys: TenantKeys, clock: Clock, *, public_url: str | None) -> None:
        self._store = store
        self._keys = keys
        self._clock = clock
        # Reported once, not with every attempt.
        self._unopened_tenants: set[str] = set()
        self._host = urlsplit(public_url or "").netloc or "localhost"

    async def sign_heads(self, heads: Sequence[TreeHead]) -> list[tuple[TreeHead, SignedNote]]:
        """Sign what can be signed. A tenant whose keys cannot be opened is reported, and holds up no other."""
        async with self._store.write_transaction() as connection:
            keys_by_tenant = await load_log_keys(connection, [head.tenant for head in heads])
        notes: list[tuple[TreeHead, SignedNote]] = []
        for head in heads:
            try:
                stored_keys = keys_by_tenant[head.tenant] or await self._create_key(head.tenant)
                notes.append((head, await self._sign_head(head, stored_keys)))
                self._unopened_tenants.discard(head.tenant)
            except (UnsealFailed, InvalidNote) as error:
                if head.tenant in self._unopened_tenants:
                    continue
                self._unopened_tenants.add(head.tenant)
                log.error("checkpoint_not_signed", tenant=head.tenant, size=head.size, reason=str(error))
        return notes

    async def _sign_head(self, head: TreeHead, stored_keys: Sequence[StoredLogKey]) -> SignedNote:
        keys = await self._keys.get(head.tenant)
        signers = [each.open(keys) for each in stored_keys if each.signs]
        checkpoint = LogCheckpoint(origin=stored_keys[0].verifier_key.name, size=head.size, root=head.root)
        return sign_checkpoint(checkpoint, signers)

    async def _create_key(self, tenant: str) -> list[StoredLogKey]:
        """Create a log's first key; only what is read back after the commit is used."""
        keys = await self._keys.get(tenant)
        async with self._store.write_transaction() as connection:
            await create_log_key(connection, keys, self._clock, f"{self._host}/log/{tenant}")
        async with self._store.write_transaction() as connection:
            return (await load_log_keys(connection, [tenant]))[tenant]
