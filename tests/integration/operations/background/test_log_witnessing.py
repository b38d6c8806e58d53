"""Witnesses in Go cosign what the sequencer signs; away, restarted or lied to, they hold up nothing and notice all."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from deputize.core.clock import Clock
from deputize.core.settings import LogSettings, Settings, WitnessSettings
from deputize.evidence.log.checkpoint import open_checkpoint, verify_cosignature
from deputize.evidence.log.inclusion_receipt import InclusionReceipt
from deputize.evidence.log.signed_note import VerifierKey, parse_note
from deputize.evidence.metrics import Metrics
from deputize.evidence.tenant_log.log_keys import load_log_keys
from deputize.evidence.tenant_log.witness_client import Witness
from deputize.execute.egress import Egress
from deputize.operations.background.log_witnessing import LogWitnessing
from deputize.store.pool import Store
from tests.integration.conftest import ADMIN, HttpGateway, serve_gateway
from tests.integration.operations.background.test_log_sequencer import drain, make_sequencer, write_entries
from tests.integration.store.sample_rows import make_tenants
from tests.support.witness.witness_process import WitnessProcess

pytestmark = pytest.mark.requirement("NEW-1")
ACME = ("acme",)


@pytest.fixture
async def store(fresh_database: str) -> AsyncIterator[Store]:
    await make_tenants(fresh_database, "acme", "other")
    opened = await Store.open(fresh_database, read_connections=4)
    yield opened
    await opened.close()


@pytest.fixture
async def owner(store: Store) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(store.direct_dsn)
    yield connection
    await connection.close()


@pytest.fixture
def witnesses() -> Iterator[list[WitnessProcess]]:
    made = [WitnessProcess(f"witness.example/w{number}") for number in (1, 2)]
    yield made
    for each in made:
        each.stop()


class Witnessing:
    """A witnessing task with a clock that the test moves."""

    def __init__(self, store: Store, witnesses: Sequence[WitnessProcess], threshold: int | None = None) -> None:
        self.now = 0.0
        self.metrics = Metrics()
        egress = Egress(frozenset({"127.0.0.1"}), seconds=20)

        async def send(url: str, body: bytes) -> tuple[int, bytes]:
            return await egress.request("POST", url, body=body)

        self.task = LogWitnessing(
            store,
            Clock(monotonic=lambda: self.now),
            [Witness(key=each.key, url=f"{each.url}add-checkpoint") for each in witnesses],
            threshold=threshold,
            send=send,
            metrics=self.metrics,
            is_sequencer=lambda: True,
        )

    async def run(self) -> None:
        """Take a step, long after the pauses of the one before."""
        self.now += 1000
        await self.task.run_step()

    def get_lag(self) -> float:
        seconds = self.metrics.registry.get_sample_value("deputize_log_unwitnessed_seconds")
        assert seconds is not None
        return seconds

    def count_refusals(self, witness: WitnessProcess, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "deputize_log_witness_refusals_total", {"witness": witness.key.name, "reason": reason}
            )
            or 0.0
        )


async def load_log_key(store: Store, tenant: str = "acme") -> VerifierKey:
    async with store.write_transaction() as connection:
        return (await load_log_keys(connection, [tenant]))[tenant][0].verifier_key


async def list_witnessed(owner: asyncpg.Connection) -> list[tuple[str, int, int]]:
    rows = await owner.fetch(
        "select tenant, size, cosignatures from deputize.log_witnessed_checkpoints order by tenant, size"
    )
    return [tuple(row) for row in rows]


async def grow(store: Store, owner: asyncpg.Connection, count: int, text: str) -> None:
    await write_entries(store, count, tenants=ACME, text=text)
    await drain(make_sequencer(store), owner)
    await owner.execute("update deputize.log_sequencer set owner = null")


async def test_growing_logs_are_cosigned_by_all_witnesses(
    store: Store, owner: asyncpg.Connection, witnesses: list[WitnessProcess]
) -> None:
    await grow(store, owner, 5, "a")
    key = await load_log_key(store)
    for each in witnesses:
        each.start(key)
    witnessing = Witnessing(store, witnesses)
    sizes = [5]
    await witnessing.run()
    for count in (1, 300, 2):
        await grow(store, owner, count, f"more {count}")
        await witnessing.run()
        sizes.append(sizes[-1] + count)
    assert await list_witnessed(owner) == [("acme", size, 2) for size in sizes]
    note = parse_note(await owner.fetchval("select note from deputize.log_witnessed_checkpoints where size = 308"))
    assert open_checkpoint(note, [key]).size == 308
    assert all(verify_cosignature(note, each.key) for each in witnesses)
    assert witnessing.get_lag() >= 0
    await witnessing.run()
    assert witnessing.get_lag() == 0
    # Another process knows nothing, and learns from the witness which size it knows.
    await grow(store, owner, 1, "after a takeover")
    await Witnessing(store, witnesses).run()
    assert (await list_witnessed(owner))[-1] == ("acme", 309, 2)


async def test_a_witness_that_is_away_holds_up_only_the_threshold(
    store: Store, owner: asyncpg.Connection, witnesses: list[WitnessProcess]
) -> None:
    await grow(store, owner, 5, "a")
    key = await load_log_key(store)
    present, absent = witnesses
    present.start(key)
    both, one = Witnessing(store, witnesses), Witnessing(store, witnesses, threshold=1)
    await both.run()
    assert await list_witnessed(owner) == []
    assert both.count_refusals(absent, "unreachable") == 1
    assert both.get_lag() > 0
    await one.run()
    assert await list_witnessed(owner) == [("acme", 5, 1)]
    await grow(store, owner, 5, "b")
    absent.start(key)
    await both.run()
    assert await list_witnessed(owner) == [("acme", 5, 1), ("acme", 10, 2)]


async def test_a_witness_that_does_not_answer_is_asked_less_and_less_often(
    store: Store, owner: asyncpg.Connection, witnesses: list[WitnessProcess]
) -> None:
    await grow(store, owner, 5, "a")
    witnessing = Witnessing(store, witnesses[:1])
    counts = []
    for _ in range(60):
        witnessing.now += 1.01
        await witnessing.task.run_step()
        counts.append(witnessing.count_refusals(witnesses[0], "unreachable"))
    assert counts[0] == 1
    assert counts[-1] == 6


async def test_a_log_that_went_back_or_was_rewritten_is_noticed_by_the_witness(
    store: Store, owner: asyncpg.Connection, witnesses: list[WitnessProcess]
) -> None:
    await grow(store, owner, 10, "a")
    witness = witnesses[0]
    witness.start(await load_log_key(store))
    await Witnessing(store, [witness]).run()
    # As a restored database: shorter, and growing in another way.
    for table in ("log_witnessed_checkpoints", "log_checkpoints", "log_leaves"):
        await owner.execute(f"delete from deputize.{table}")
    await grow(store, owner, 4, "b")
    for count, reason in ((0, "it cosigned 10 entries, and this log has 4"), (20, "HTTP 422")):
        if count:
            await grow(store, owner, count, "c")
        witnessing = Witnessing(store, [witness])
        with capture_logs() as logs:
            await witnessing.run()
        (line,) = [each for each in logs if each["event"] == "witness_knows_another_log"]
        assert reason in line["reason"]
        assert witnessing.count_refusals(witness, "conflict") == 1
    assert await list_witnessed(owner) == []


async def test_a_log_that_the_witness_does_not_know_is_refused_and_holds_up_no_other(
    store: Store, owner: asyncpg.Connection, witnesses: list[WitnessProcess]
) -> None:
    await write_entries(store, 6, tenants=("acme", "other"))
    await drain(make_sequencer(store), owner)
    witnesses[0].start(await load_log_key(store, "other"))
    witnessing = Witnessing(store, witnesses[:1])
    await witnessing.run()
    assert await list_witnessed(owner) == [("other", 3, 1)]
    assert witnessing.count_refusals(witnesses[0], "refused") == 1


def watch_with(witnesses: Sequence[WitnessProcess]) -> Callable[[Settings], Settings]:
    def change(settings: Settings) -> Settings:
        log = LogSettings(witnesses=tuple(WitnessSettings(key=str(each.key), url=each.url) for each in witnesses))
        return settings.model_copy(update={"log": log})

    return change


async def _wait_for_cosigned_receipt(gateway: HttpGateway, call_id: str, count: int) -> dict[str, Any]:
    async with asyncio.timeout(90):
        while True:
            receipt = await gateway.load_receipt(call_id, gateway.token())
            if len(InclusionReceipt.parse(receipt["receipt"].encode()).note.signatures) == 1 + count:
                return receipt
            await asyncio.sleep(0.05)


async def test_receipts_of_a_gateway_carry_the_cosignatures(
    fresh_database: str, tmp_path: Path, witnesses: list[WitnessProcess]
) -> None:
    async with serve_gateway(fresh_database, tmp_path, change=watch_with(witnesses)) as gateway:
        answer = await gateway.call("shop.rename_user", {"id": 7, "name": "Ana"}, key="witnessed")
        assert answer.status_code == 200
        call_id = answer.json()["call_id"]
        # While the witnesses are away, the receipt has no cosignatures.
        receipt = await gateway.load_receipt(call_id, gateway.token())
        key = VerifierKey.parse(receipt["verifier_keys"][0])
        assert len(InclusionReceipt.parse(receipt["receipt"].encode()).note.signatures) == 1
        for each in witnesses:
            each.start(key)
        cosigned = await _wait_for_cosigned_receipt(gateway, call_id, len(witnesses))
        note = InclusionReceipt.parse(cosigned["receipt"].encode()).note
        assert open_checkpoint(note, [key]).origin == key.name
        assert all(verify_cosignature(note, each.key) for each in witnesses)
        checkpoint = await gateway.get("/log/dev/checkpoint", token=gateway.token("root", scopes=(ADMIN,)))
        assert open_checkpoint(parse_note(checkpoint.content), [key]).size >= open_checkpoint(note, [key]).size
