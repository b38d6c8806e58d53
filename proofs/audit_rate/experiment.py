"""What the log of a tenant costs, and how fast it is: appended, receipted, verified, and beside calls without a log.

Entries are written and appended in batches, in turn with bare COPY of the same rows in equal batches into tables with
the same columns and keys. Receipts are waited for after calls. A log in files is verified as a whole. Writes and
reads are offered in turn to a gateway, and to one whose database queues nothing for the log, as before there was one.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence

import asyncpg
import orjson

from deputize.interfaces.cli.client.log_client import LogClient
from deputize.interfaces.cli.client.rest_client import GatewayClient
from deputize.interfaces.cli.local.log_audit import LogAudit, load_checkpoint, load_keys
from deputize.store.migrate import upgrade_async
from proofs.audit_rate.append_rate import AppendRates, measure_append_rates
from proofs.audit_rate.local_log import LocalLog
from proofs.audit_rate.receipt_delay import measure_receipt_delays
from proofs.kit.gateway import GatewayHandle, Issuer, create_issuer, start_gateway
from proofs.kit.gateway_login import create_gateway_login
from proofs.kit.gateway_variant import restart_as_variant
from proofs.kit.load import Load, PairedSamples, Sample, Target, run_paired_rounds, run_wrk
from proofs.kit.report import Figure, Verdict
from proofs.kit.sandbox import Sandbox
from proofs.overhead.experiment import ARGUMENTS

NAME = "audit_rate"
PROMISE = (
    "Proof of a call is there a second later, costs calls little, and millions of entries are verified in seconds."
)

_TOOLS = {"write": "orders.place", "read": "orders.check"}
_QUEUE_NOTHING = "alter table deputize.audit_entries disable trigger enqueue_entries"
_HAS_LEFT = "select exists (select from deputize.log_queue)"
_DRAIN_SECONDS = 300.0


async def prove(sandbox: Sandbox) -> Verdict:
    figures: dict[str, Figure] = {}
    controls: dict[str, bool] = {}
    sandbox.log("a log in files is verified")
    log = LocalLog(folder=sandbox.folder / "log")
    size = sandbox.pick_size(quick=20_000, full=1_000_000)
    await asyncio.to_thread(log.write, size)
    verdict, seconds = await asyncio.to_thread(log.verify)
    figures |= {"entries_verified": verdict.size if verdict.is_trusted else 0}
    figures |= {"verified_per_second": round(size / seconds)}
    fault = await asyncio.to_thread(log.find_changed_entry, size // 2)
    controls["one changed letter"] = fault is not None and (fault.first, fault.last) == (size // 2, size // 2)

    sandbox.log("entries are appended, and copied")
    postgres, issuer = await sandbox.start_postgres(), create_issuer()
    gateway = await start_gateway(sandbox, postgres.dsn, issuer, tools="orders.py")
    figures |= describe_appends(await _measure_appends(sandbox))
    if sandbox.full:
        one_by_one = describe_appends(await _measure_appends(sandbox, batch=1))
        figures["append_of_copy_one_by_one"] = one_by_one["append_of_copy"]
        controls["one entry to a batch"] = (
            float(one_by_one["appended_per_second"]) < float(figures["appended_per_second"]) / 5
        )

    sandbox.log("calls get receipts")
    calls = sandbox.pick_size(quick=2, full=20)
    figures |= describe_delays(await measure_receipt_delays(gateway, callers=16, calls=calls))
    if sandbox.full:
        await restart_as_variant(gateway, "audit_rate_slow_sequencer")
        slow = describe_delays(await measure_receipt_delays(gateway, callers=16, calls=3))
        figures["slow sequencer: receipt_p50_seconds"] = slow["receipt_p50_seconds"]
        controls["audit_rate_slow_sequencer"] = float(slow["receipt_p50_seconds"]) > 1.5
        await gateway.restart()
        sandbox.log("calls, in turn with a gateway that queues nothing for the log")
        for kind, paired in (await _measure_overhead(sandbox, gateway, postgres.dsn, issuer)).items():
            figures |= describe_overhead(kind, paired)
    figures["verified_over_http_per_second"] = await asyncio.to_thread(_verify_over_http, gateway)
    return Verdict(figures=figures, controls=controls)


def describe_appends(rates: AppendRates) -> dict[str, Figure]:
    """Compare what gateways do with bare COPY, as medians of the rounds' ratios."""
    return {
        "append_of_copy": _divide(rates.leaves, rates.copied_leaves),
        "appended_per_second": round(statistics.median(each.per_second for each in rates.leaves)),
        "write_of_copy": _divide(rates.entries, rates.copied_entries),
        "written_per_second": round(statistics.median(each.per_second for each in rates.entries)),
    }


def describe_delays(delays: Sequence[float]) -> dict[str, Figure]:
    """Describe how long receipts took: half of them no longer than the median."""
    return {
        "receipts": len(delays),
        "receipt_p50_seconds": round(statistics.median(delays), 3),
        "receipt_max_seconds": round(max(delays), 3),
    }


def describe_overhead(kind: str, paired: PairedSamples) -> dict[str, Figure]:
    """Describe the rate of writes or reads as a share of the rate without a log."""
    return {
        f"{kind}_of_unlogged": round(paired.median, 3),
        f"{kind}_of_unlogged_spread": f"{paired.spread[0]:.3f}-{paired.spread[1]:.3f}",
    }


def _divide(ours: Sequence[Sample], theirs: Sequence[Sample]) -> float:
    return round(statistics.median(a.per_second / b.per_second for a, b in zip(ours, theirs, strict=True)), 3)


async def _measure_appends(sandbox: Sandbox, *, batch: int = 1000) -> AppendRates:
    """Measure on a server of their own, which no gateway uses."""
    postgres = await sandbox.start_postgres(f"postgres-append-{batch}")
    await upgrade_async(postgres.dsn)
    rounds = sandbox.pick_size(quick=1, full=9 if batch > 1 else 3)
    batches = sandbox.pick_size(quick=3, full=20 if batch > 1 else 500)
    rates = await measure_append_rates(postgres.dsn, rounds=rounds, batches=batches, batch=batch)
    await asyncio.to_thread(postgres.stop)
    return rates


async def _measure_overhead(
    sandbox: Sandbox, gateway: GatewayHandle, dsn: str, issuer: Issuer
) -> dict[str, PairedSamples]:
    plain_postgres = await sandbox.start_postgres("postgres-unlogged")
    await upgrade_async(plain_postgres.dsn)
    await create_gateway_login(plain_postgres.dsn)
    await asyncio.to_thread(plain_postgres.run_sql, _QUEUE_NOTHING)
    plain_gateway = await start_gateway(sandbox, plain_postgres.dsn, issuer, name="unlogged", tools="orders.py")
    return {
        kind: await run_paired_rounds(
            _make_load(gateway, dsn, tool), _make_load(plain_gateway, plain_postgres.dsn, tool), rounds=15, seconds=4
        )
        for kind, tool in _TOOLS.items()
    }


def _make_load(gateway: GatewayHandle, dsn: str, tool: str) -> Load:
    headers = {"authorization": f"Bearer {gateway.issuer.issue_token('ana')}", "content-type": "application/json"}
    body = orjson.dumps({"tool": tool, "arguments": ARGUMENTS})
    target = Target(url=f"{gateway.url}/v1/calls", headers=headers, body=body, unique_keys=True)

    async def load(seconds: int) -> Sample:
        sample = await run_wrk(target, seconds=seconds)
        # What is left to append must not slow down the other gateway's turn.
        await _wait_until_appended(dsn)
        return sample

    return load


async def _wait_until_appended(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            while await connection.fetchval(_HAS_LEFT):  # noqa: ASYNC110 - no event in the database tells
                await asyncio.sleep(0.05)
    finally:
        await connection.close()


def _verify_over_http(gateway: GatewayHandle) -> int:
    """Verify the gateway's own log as `deputize audit verify` does, and return how many entries in a second."""
    token = gateway.issuer.issue_token("auditor", scopes=("deputize:admin",))
    log = LogClient(GatewayClient(url=gateway.url, token=token), "acme")
    try:
        keys = load_keys(log.read)
        _, newest = load_checkpoint(log.read, keys)
        began = time.perf_counter()
        verdict = LogAudit(log.read, keys).verify(newest)
        seconds = time.perf_counter() - began
    finally:
        log.close()
    if not verdict.is_trusted:
        raise RuntimeError(f"an unchanged log was not trusted: {verdict}")
    return round(verdict.size / seconds)
