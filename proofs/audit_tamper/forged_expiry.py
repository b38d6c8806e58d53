"""Announce expiries as whoever owns the database could, let the log sign them, and delete what they announce.

Unlike other changes these are made while a sequencer runs, so that the announcements are in the log.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch
from uuid import UUID

import asyncpg
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from deputize.core.clock import Clock
from deputize.evidence.log.entry_expiry import EXPIRY_COMMAND, EntryExpiry
from deputize.evidence.log.signed_note import NoteSigner, VerifierKey

FORGE_EXPIRY = "forge_expiry"
_YEAR_AND_A_DAY = 366


async def insert_forged_expiries(
    connection: asyncpg.Connection, tenant: str, log_key: VerifierKey, sizes: Sequence[int], rng: random.Random
) -> list[UUID]:
    """Insert an entry for each size that says that so many entries expired: unsigned, or signed by another key."""
    clock, ids = Clock(), []
    forger = NoteSigner(name=log_key.name, private_key=Ed25519PrivateKey.from_private_bytes(rng.randbytes(32)))
    for size in sizes:
        expiry = EntryExpiry(
            tenant=tenant, first_index=0, end_index=size, days=_YEAR_AND_A_DAY, time="2026-11-18T00:00:00.000Z"
        )
        entry_id, signatures = clock.new_id(), list(expiry.sign([forger]))
        facts = {
            "caller": [], "command": EXPIRY_COMMAND, "id": entry_id, "kind": "command", "outcome": "succeeded",
            "signatures": rng.choice(([], signatures)), "subject": expiry.subject, "tenant": tenant,
            "time": expiry.time, "trace": entry_id.replace("-", ""), "v": 2,
        }  # fmt: skip
        entry = json.dumps(facts, separators=(",", ":"))
        await connection.execute(
            "insert into deputize.audit_entries (tenant, id, entry) values ($1, $2, $3)",
            tenant, entry_id, entry.encode(),
        )  # fmt: skip
        ids.append(UUID(entry_id))
    return ids


@contextmanager
def believe_unsigned_expiries() -> Iterator[None]:
    """Let a walk believe every expiry, as release 0.1.0 did."""

    with patch.object(EntryExpiry, "is_signed", lambda *_: True):
        yield
