"""Telling receivers: no tenant's slow ones stand in front of another's, and what is long over is forgotten."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize.operations.background.deliveries import Deliveries
from deputize.store.queries import load_statements
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until

pytestmark = [pytest.mark.requirement("INV-9"), pytest.mark.requirement("INV-4")]

DUE = (
    "insert into deputize.deliveries (tenant, call_id, state, due_at) "
    "select $1, gen_random_uuid(), 'succeeded', now() - $3 * interval '1 second' from generate_series(1, $2)"
)


class RecordingDeliveries(Deliveries):
    """Tells no one really: notes whom it would tell, and does not come back from the slow."""

    def __init__(self, lab: GatewayLab) -> None:
        super().__init__(lab.runtime, lab.runtime)  # type: ignore[arg-type]  # nothing is sent
        self.delivery_counts: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def _send_event(self, row: asyncpg.Record) -> tuple[str | None, bool]:
        tenant = row["tenant"]
        self.most[tenant] = max(self.most[tenant], [each for each, _ in self._active_tasks.values()].count(tenant))
        if tenant.startswith("slow"):
            await asyncio.Event().wait()
        self.delivery_counts[tenant] += 1
        return None, True


async def test_slow_receivers_of_one_tenant_are_not_in_front_of_anothers(fresh_database: str, tmp_path: Path) -> None:
    async with open_lab(fresh_database, tmp_path, sweep_seconds=0.1) as lab:
        for tenant in ("slow-a", "slow-b", "slow-z"):
            await lab.db.execute(DUE, tenant, 300, 100)
        for tenant in ("aaa", "quick", "zzz"):
            await lab.db.execute(DUE, tenant, 60, 1)
        telling = RecordingDeliveries(lab)
        await telling.start()
        try:

            async def are_all_delivered() -> bool:
                return telling.delivery_counts == {"aaa": 60, "quick": 60, "zzz": 60}

            await wait_until(are_all_delivered)
            assert all(telling.most[tenant] < 10 for tenant in ("slow-a", "slow-b", "slow-z"))
        finally:
            await telling.stop()
        again = "select count(*) from deputize.deliveries where tenant like 'slow%' and due_at is null"
        assert await lab.db.fetchval(again) == 0


async def test_tenants_take_turns_even_if_each_has_more_than_there_are_places(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        for number in range(30):
            await lab.db.execute(DUE, f"t{number:02}", 20, 1)
        telling, seen = RecordingDeliveries(lab), Counter[str]()
        for _ in range(4):
            await telling._start_due()
            seen.update({tenant for tenant, _ in telling._active_tasks.values()})
            await asyncio.wait(telling._active_tasks)
        assert len(seen) == 30


async def test_old_deliveries_are_deleted(fresh_database: str, tmp_path: Path) -> None:
    ended = (
        "insert into deputize.deliveries (tenant, call_id, state, {}) values ('dev', gen_random_uuid(), 'failed', {})"
    )
    async with open_lab(fresh_database, tmp_path) as lab:
        for column in ("delivered_at", "dead_at"):
            for age in ("40 days", "1 day"):
                await lab.db.execute(ended.format(column, f"now() - interval '{age}'"))
        await lab.db.execute(load_statements("webhooks")["delete_old_deliveries"], 30)
        left = await lab.db.fetch(
            "select coalesce(delivered_at, dead_at) > now() - interval '2 days' from deputize.deliveries"
        )
        assert [row[0] for row in left] == [True, True]


async def test_words_of_tools_are_forgotten_once_their_call_is_long_over(fresh_database: str, tmp_path: Path) -> None:
    told = (
        "insert into deputize.progress (tenant, id, seq, report, at) values ('dev', $1, $2, '', now() - interval '{}')"
    )
    async with open_lab(fresh_database, tmp_path) as lab:
        over, waits = [(await lab.call("note", tag, key=tag, **how)).call_id for tag, how in _TWO.items()]
        for call in (over, waits):
            for seq, age in enumerate(("40 days", "1 day")):
                await lab.db.execute(told.format(age), call, seq)
        await lab.db.execute(load_statements("runs")["delete_old_progress"], 30)
        left = await lab.db.fetch("select id, seq from deputize.progress order by id, seq")
        assert {(str(row["id"]), row["seq"]) for row in left} == {(over, 1), (waits, 0), (waits, 1)}


_TWO: dict[str, dict[str, Any]] = {"over": {}, "waits": {"mode": "async"}}
