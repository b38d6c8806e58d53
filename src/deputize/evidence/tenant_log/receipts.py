"""Build receipts: an entry, the proof that it is in its tenant's log, and the signed checkpoint over it."""

from typing import Final

import structlog

from deputize.core.errors import InternalError, ReceiptPending
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.leaf import build_leaf
from deputize.evidence.log.merkle_tree import InvalidProof, plan_inclusion
from deputize.evidence.log.signed_note import InvalidNote, VerifierKey, parse_note
from deputize.evidence.log.tiles import InvalidTile
from deputize.evidence.tenant_log.log_appender import LogDivergence
from deputize.evidence.tenant_log.log_keys import load_log_keys
from deputize.evidence.tenant_log.log_tiles import load_range_hashes
from deputize.store.pool import Connection
from deputize.store.queries import load_statements

# In base64 and with its proof, a receipt stays below the largest that is read.
_MAX_EXTRA_SIZE: Final = 700_000
_RETRY_AFTER_MS: Final = 1000
_SQL = load_statements("log")
log = structlog.get_logger(__name__)


async def make_receipt(connection: Connection, tenant: str, entry_id: str, entry: bytes) -> tuple[str, list[str]]:
    """Make the text of an entry's receipt, and list the keys of its log.

    Raise `ReceiptPending` while no checkpoint covers the entry, `InternalError` if the entry is not what was signed.
    """
    try:
        answer = await build_receipt(connection, tenant, entry_id, entry)
    except LogDivergence as error:
        log.error("entry_does_not_fit_its_log", tenant=tenant, entry_id=entry_id, reason=str(error))
        raise InternalError(
            "the audit entry is not what its log signed",
            advice="Tell the operator: someone changed the database. The gateway's log names the entry.",
        ) from error
    if answer is None:
        raise ReceiptPending("the entry is recorded, but no checkpoint covers it yet", retry_after_ms=_RETRY_AFTER_MS)
    receipt, keys = answer
    return receipt.render(), [str(key) for key in keys]


async def build_receipt(
    connection: Connection, tenant: str, entry_id: str, entry: bytes
) -> tuple[InclusionReceipt, list[VerifierKey]] | None:
    """Build the receipt of an entry, and list the keys of its log; None while no signed checkpoint covers the entry.

    It has the newest checkpoint that witnesses cosigned, if that covers the entry, else the newest one.
    Raise `LogDivergence` if the entry or the log is not what was signed.
    """
    index = await connection.fetchval(_SQL["find_leaf"], tenant, entry_id)
    checkpoint = await connection.fetchrow(_SQL["load_newest_checkpoint"], tenant)
    witnessed_checkpoint = await connection.fetchrow(_SQL["load_newest_witnessed_checkpoint"], tenant)
    if index is not None and witnessed_checkpoint is not None and index < witnessed_checkpoint["size"]:
        checkpoint = witnessed_checkpoint
    if index is None or checkpoint is None or index >= checkpoint["size"]:
        return None
    stored_keys = (await load_log_keys(connection, [tenant]))[tenant]
    leaf = build_leaf(entry)
    try:
        keys = [each.verifier_key for each in stored_keys]
        proof = await load_range_hashes(connection, tenant, plan_inclusion(index, checkpoint["size"]))
        receipt = InclusionReceipt(
            index=index,
            proof=tuple(proof),
            note=parse_note(checkpoint["note"]),
            extra=entry if len(entry) <= _MAX_EXTRA_SIZE else leaf,
        )
        receipt.verify(leaf, keys)
    except (InvalidNote, InvalidProof, InvalidTile) as error:
        raise LogDivergence(tenant, f"entry {entry_id}: {error}") from error
    return receipt, keys
