"""The same key, or none, whether a call is answered in its request or becomes a run."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from deputize.app import open_worker
from deputize.core.states import State
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab
from tests.support.scripted_tools import Gate, list_effects, set_behaviour

pytestmark = [pytest.mark.requirement("INV-5"), pytest.mark.requirement("INV-4")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, tmp_path_factory.mktemp("lab")) as opened:
        yield opened


async def test_an_idempotent_run_without_a_key_joins_its_twin_in_flight_and_no_later_one(lab: GatewayLab) -> None:
    gate = Gate({"value": "on"})
    set_behaviour("lamp", gate)
    async with open_worker(lab.gateway):
        first = await lab.call("assign", "lamp", session="s", mode="async")
        await gate.began.wait()
        twin = await lab.call("assign", "lamp", session="s", mode="async")
        assert (twin.call_id, twin.state) == (first.call_id, State.RUNNING)
        gate.open.set()
        await lab.wait_for_state(first.call_id, "succeeded")
        # Somebody may have switched it off meanwhile: this is another wish.
        for mode in ("async", "sync"):
            later = await lab.call("assign", "lamp", session="s", mode=mode)
            assert later.call_id != first.call_id
            await lab.wait_for_state(later.call_id, "succeeded")
        assert len(list_effects("lamp")) == 3


async def test_who_waits_for_a_key_hears_at_once_that_it_is_queued_even_if_who_queued_it_is_gone(
    lab: GatewayLab,
) -> None:
    queued = await lab.call("put", "queued", key="queued", mode="async")
    await lab.db.execute("update deputize.calls set owner = gen_random_uuid() where id = $1", queued.call_id)
    async with asyncio.timeout(90):
        again = await lab.call("put", "queued", key="queued", mode="sync")
    assert error_slug(again) == "in-flight"
    assert await lab.fetch_state(queued.call_id) == State.QUEUED
    assert list_effects("queued") == []
