"""Find the attempt to take a journal entry back: its idempotency key is made of the entry, whoever makes it."""

import hashlib
from typing import Final

from deputize.core.errors import NotRetryable
from deputize.core.states import FINAL_STATES, State
from deputize.lifecycle.recording.audit import derive_undo_scope
from deputize.lifecycle.runtime import Runtime
from deputize.store.queries import load_statements

# After so many failures, it is left to a person.
_MAX_ATTEMPTS: Final = 100
_SQL = load_statements("journal")


async def find_undo_key(runtime: Runtime, tenant: str, entry_id: str, tool: str) -> str:
    """Find the key of the attempt that is under way, or of the next one after those that failed."""
    scope = derive_undo_scope(tool)
    async with runtime.store.write_transaction() as connection:
        for attempt in range(_MAX_ATTEMPTS):
            key = f"undo:{entry_id}:{attempt}"
            digest = hashlib.sha256(key.encode()).digest()
            state = await connection.fetchval(_SQL["find_undo_attempt"], tenant, scope, digest)
            if state is None or state == State.SUCCEEDED or state not in FINAL_STATES:
                return key
    raise NotRetryable(f"{_MAX_ATTEMPTS} attempts to take this call back failed: undo it by hand")
