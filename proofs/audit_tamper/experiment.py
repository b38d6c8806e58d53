"""A log that grows while gateways, its sequencer and PostgreSQL are killed, and is then changed in hundreds of ways.

Three gateways write on one database, and a witness cosigns. A call that got no answer is repeated. Afterwards the log
is compared with what was acknowledged; receipts are verified by a program in Go; and each change of the database is
verified in the transaction that made it, which is then rolled back. Then expiries are forged while a sequencer runs,
so that the log has them, and what they announce is deleted. At the end the whole database is restored from a
backup, with gateways that remember nothing: neither who kept a checkpoint nor the witness accepts what it signs then.
"""

import asyncio
import random
import shutil
from dataclasses import dataclass

import asyncpg
import orjson

from deputize.evidence.log.checkpoint import LogCheckpoint, open_checkpoint
from deputize.evidence.log.signed_note import InvalidNote, parse_note
from deputize.interfaces.cli.client.log_client import LogClient
from deputize.interfaces.cli.client.rest_client import GatewayClient
from deputize.interfaces.cli.local.log_audit import LogAudit, LogVerdict, load_checkpoint
from deputize.store.local_postgres import LocalPostgres
from proofs.audit_tamper.database_log import DatabaseLog
from proofs.audit_tamper.forged_expiry import FORGE_EXPIRY, believe_unsigned_expiries, insert_forged_expiries
from proofs.audit_tamper.judge import (
    FaultPlace,
    LoggedCallEntry,
    TamperingResult,
    judge_entries,
    judge_tampering,
)
from proofs.audit_tamper.load import CallResults, make_calls
from proofs.audit_tamper.receipts import change_receipts, save_receipts, verify_receipts
from proofs.audit_tamper.tampering import CHANGES, ROLLBACK, Change, LogEditor
from proofs.audit_tamper.testbed import TENANT, Testbed, start_testbed
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.restore.postgres_copies import make_backup

NAME = "audit_tamper"
PROMISE = "Whatever is changed in the audit is found at its place, and nothing that was acknowledged is missing in it."

_CALLERS = 24
_TARGETS = ("sequencer", "gateway", "postgres")
_LOG = """
select l.leaf_index, l.entry_id, a.call_id, a.entry from deputize.log_leaves l
left join deputize.audit_entries a on a.tenant = l.tenant and a.id = l.entry_id
where l.tenant = $1 order by l.leaf_index
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptLog:
    """What an auditor kept: the newest checkpoint; and what the log has, to choose what to change."""

    checkpoint: LogCheckpoint
    signed_sizes: list[int]
    rows: list[asyncpg.Record]


async def prove(sandbox: Sandbox) -> Verdict:
    rng = random.Random(11)
    testbed = await start_testbed(sandbox, gateways=sandbox.pick_size(quick=2, full=3))
    sandbox.log("calls, and kills")
    results, backups = await _grow_log(testbed)
    size = await testbed.wait_until_witnessed()
    kept = await _load_log(testbed)
    figures = judge_entries(results.acknowledged, _list_call_entries(kept.rows))
    figures |= {"events": size, "unacknowledged_calls": results.unacknowledged.total()}
    figures |= {f"{target}_kills": count for target, count in testbed.kills.items()}
    figures |= await _describe_witnessing(testbed)
    sandbox.log(f"{size:,} entries; acknowledged {len(results.acknowledged):,}; others {dict(results.unacknowledged)}")

    controls: dict[str, bool] = {}
    figures |= await _check_receipts(testbed, kept, rng, controls)
    for gateway in testbed.gateways:
        await gateway.child.stop()
    # Reading was recorded, too.
    kept = await _load_log(testbed)
    sandbox.log("the database is changed")
    count = sandbox.pick_size(quick=28, full=470)
    changes = [CHANGES[number % len(CHANGES)] for number in range(count)]
    tampering = await _tamper(testbed, kept, changes, rng, is_kept=True)
    unnoticed = judge_tampering(await _tamper(testbed, kept, [ROLLBACK] * 5, rng, is_kept=False))
    controls["without a kept checkpoint"] = unnoticed["undetected"] == 5
    sandbox.log("expiries are forged")
    tampering += await _forge_expiries(testbed, kept, rng, controls)
    figures |= judge_tampering(tampering)
    for number, backup in enumerate(backups):
        sandbox.log("the whole database is restored from a backup")
        figures |= await _roll_back_database(testbed, backup, kept.checkpoint, number, figures)
    return Verdict(figures=figures, controls=controls, notes=[_name_witness()])


async def _grow_log(testbed: Testbed) -> tuple[CallResults, list[LocalPostgres]]:
    """Make calls in rounds, with a kill in each, and two backups on the way."""
    sandbox, results = testbed.sandbox, CallResults()
    calls = sandbox.pick_size(quick=400, full=600)
    urls = [each.url for each in testbed.gateways]
    backups: list[LocalPostgres] = []
    for number in range(sandbox.pick_size(quick=1, full=9)):
        load = asyncio.create_task(
            make_calls(
                urls, testbed.caller_token, calls=calls, callers=_CALLERS, results=results, name=f"round-{number}"
            )
        )
        await asyncio.sleep(0.5)
        await testbed.kill(_TARGETS[number % len(_TARGETS)], number)
        if sandbox.full and number in (2, 5):
            backups.append(await make_backup(sandbox, testbed.postgres, f"backup-{number}"))
        await load
    return results, backups


async def _load_log(testbed: Testbed) -> KeptLog:
    """Load the log, and its newest checkpoint by its signature."""
    connection = await asyncpg.connect(testbed.postgres.dsn)
    try:
        notes = await connection.fetch(
            "select size, note from deputize.log_checkpoints where tenant = $1 order by size", TENANT
        )
        rows = await connection.fetch(_LOG, TENANT)
    finally:
        await connection.close()
    checkpoint = open_checkpoint(parse_note(notes[-1]["note"]), testbed.log_keys)
    return KeptLog(
        checkpoint=checkpoint, signed_sizes=[row["size"] for row in notes], rows=list(rows[: checkpoint.size])
    )


def _list_call_entries(rows: list[asyncpg.Record]) -> list[LoggedCallEntry]:
    return [
        LoggedCallEntry(call_id=str(row["call_id"]), kind=entry["kind"], outcome=entry.get("outcome"))
        for row in rows
        for entry in [orjson.loads(row["entry"])]
        if row["call_id"] is not None
    ]


async def _describe_witnessing(testbed: Testbed) -> dict[str, Figure]:
    connection = await asyncpg.connect(testbed.postgres.dsn)
    try:
        signed, cosigned = [
            await connection.fetchval(f"select count(*) from deputize.{table}")
            for table in ("log_checkpoints", "log_witnessed_checkpoints")
        ]
    finally:
        await connection.close()
    return {"checkpoints": signed, "cosigned_checkpoints": cosigned}


def _name_witness() -> str:
    installed = "is installed, and not used" if shutil.which("litewitness") else "is not installed"
    return (
        f"The witness is the one in Go of this project's tests, on sumdb/note and sumdb/tlog; litewitness {installed}."
    )


async def _check_receipts(
    testbed: Testbed, kept: KeptLog, rng: random.Random, controls: dict[str, bool]
) -> dict[str, Figure]:
    sandbox, folder = testbed.sandbox, testbed.sandbox.folder / "receipts"
    count = sandbox.pick_size(quick=60, full=200)
    sandbox.log(f"{count} receipts")
    await save_receipts(testbed, [str(row["entry_id"]) for row in rng.sample(kept.rows, count)], folder)
    valid, invalid, reason = await verify_receipts(testbed, folder)
    if reason:
        sandbox.log(f"a receipt is not valid: {reason}")
    changed_folder = sandbox.folder / "changed-receipts"
    await asyncio.to_thread(change_receipts, folder, changed_folder, rng)
    valid_changed, _, _ = await verify_receipts(testbed, changed_folder)
    controls["a changed bit in a receipt"] = valid_changed == 0
    return {"receipts_valid_in_go": valid, "receipts_not_valid": invalid}


async def _tamper(
    testbed: Testbed, kept: KeptLog, changes: list[Change], rng: random.Random, *, is_kept: bool
) -> list[TamperingResult]:
    """Make each change in a transaction, verify the log in it, and roll it back."""
    connection = await asyncpg.connect(testbed.postgres.dsn)
    editor = LogEditor(
        connection=connection,
        tenant=TENANT,
        random=rng,
        size=kept.checkpoint.size,
        signed_sizes=kept.signed_sizes,
        entry_ids=[row["entry_id"] for row in kept.rows],
    )
    log = DatabaseLog(connection, TENANT)
    results: list[TamperingResult] = []
    try:
        await log.remember_tiles(kept.checkpoint.size)
        clean = await log.verify(testbed.log_keys, kept.checkpoint)
        if not isinstance(clean, LogVerdict) or not clean.is_trusted:
            raise RuntimeError(f"the log is not trusted before anything was changed: {clean}")
        for number, change in enumerate(changes):
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute("set local session_replication_role = replica")
            expected = await change(editor)
            verdict = await log.verify(testbed.log_keys, kept.checkpoint if is_kept else None)
            await transaction.rollback()
            result = _make_result(change.__name__, expected, verdict)
            if is_kept and not result.is_at_its_place:
                testbed.sandbox.log(f"{result}")
            results.append(result)
            if number % 100 == 99:
                testbed.sandbox.log(f"{number + 1} changes")
    finally:
        await connection.close()
    return results


async def _forge_expiries(
    testbed: Testbed, kept: KeptLog, rng: random.Random, controls: dict[str, bool]
) -> list[TamperingResult]:
    """Have the log sign forged expiries, then delete what each of them announces and verify the log."""
    count = testbed.sandbox.pick_size(quick=2, full=30)
    sizes = sorted(rng.sample(range(1, kept.checkpoint.size), count))
    await testbed.gateways[0].restart()
    connection = await asyncpg.connect(testbed.postgres.dsn)
    try:
        forged_ids = await insert_forged_expiries(connection, TENANT, testbed.log_keys[0], sizes, rng)
        await testbed.wait_until_witnessed()
        await testbed.gateways[0].child.stop()
        forged = await _load_log(testbed)
        indexes = {row["entry_id"]: row["leaf_index"] for row in forged.rows}
        first_forged = min(indexes[each] for each in forged_ids)
        log = DatabaseLog(connection, TENANT)
        await log.remember_tiles(forged.checkpoint.size)

        async def verify_without(size: int) -> LogVerdict | InvalidNote:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(
                """delete from deputize.audit_entries a using deputize.log_leaves l
                   where l.tenant = $1 and l.leaf_index < $2 and a.tenant = $1 and a.id = l.entry_id""",
                TENANT,
                size,
            )
            verdict = await log.verify(testbed.log_keys, kept.checkpoint)
            await transaction.rollback()
            return verdict

        nothing_deleted = FaultPlace(first=first_forged, last=first_forged)
        results = [_make_result(FORGE_EXPIRY, nothing_deleted, await verify_without(0))]
        for size in sizes:
            place = FaultPlace(first=0, last=size - 1)
            results.append(_make_result(FORGE_EXPIRY, place, await verify_without(size)))
        for result in results:
            if not result.is_at_its_place:
                testbed.sandbox.log(f"{result}")
        with believe_unsigned_expiries():
            verdict = await verify_without(sizes[-1])
        controls["unsigned expiries are believed"] = isinstance(verdict, LogVerdict) and verdict.is_trusted
    finally:
        await connection.close()
    return results


def _make_result(kind: str, expected: FaultPlace | str, verdict: LogVerdict | InvalidNote) -> TamperingResult:
    if isinstance(verdict, InvalidNote):
        raise RuntimeError(f"{kind}: no change is of the newest checkpoint, and it cannot be believed: {verdict}")
    fault = verdict.fault
    return TamperingResult(
        kind=kind,
        expected=expected,
        found=None if fault is None else (fault.first, fault.last),
        unlogged_entries=verdict.unlogged_entries,
    )


async def _roll_back_database(
    testbed: Testbed, backup: LocalPostgres, kept: LogCheckpoint, number: int, figures: dict[str, Figure]
) -> dict[str, Figure]:
    """Put a backup in the place of the database, and let a gateway that remembers nothing go on with it."""
    await asyncio.to_thread(testbed.postgres.kill)
    await asyncio.to_thread(backup.start)
    testbed.postgres = backup
    gateway = await testbed.start_gateway(f"restored-{number}")
    first = await _verify_over_http(testbed, gateway.url, kept)
    is_detected = first.fault is not None and (first.fault.first, first.fault.last) == (first.size, kept.size - 1)
    connection = await asyncpg.connect(backup.dsn)
    try:
        cosigned_before = await connection.fetchval("select max(size) from deputize.log_witnessed_checkpoints")
        await make_calls(
            [gateway.url], testbed.caller_token, calls=50, callers=4, results=CallResults(), name=gateway.name
        )
        async with asyncio.timeout(300):
            while await connection.fetchval("select max(size) from deputize.log_checkpoints") < first.size + 100:  # noqa: ASYNC110 - no event in the database tells
                await asyncio.sleep(0.1)
        await gateway.child.wait_for_line("witness_knows_another_log", timeout=300)
        cosigned_after = await connection.fetchval("select max(size) from deputize.log_witnessed_checkpoints")
    finally:
        await connection.close()
    await gateway.child.stop()
    return {
        "database_rollbacks": int(figures.get("database_rollbacks", 0)) + 1,
        "database_rollbacks_undetected": int(figures.get("database_rollbacks_undetected", 0)) + (not is_detected),
        "cosigned_after_rollback": int(figures.get("cosigned_after_rollback", 0)) + (cosigned_after != cosigned_before),
    }


async def _verify_over_http(testbed: Testbed, url: str, kept: LogCheckpoint) -> LogVerdict:
    """Verify as `deputize audit verify` does, with the checkpoint of the last time."""

    def verify() -> LogVerdict:
        log = LogClient(GatewayClient(url=url, token=testbed.auditor_token), TENANT)
        try:
            _, newest = load_checkpoint(log.read, testbed.log_keys)
            return LogAudit(log.read, testbed.log_keys, kept).verify(newest)
        finally:
            log.close()

    return await asyncio.to_thread(verify)
