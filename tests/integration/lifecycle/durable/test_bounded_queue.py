"""A full queue refuses further calls and says so; what it holds is executed, and then there is room again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deputize import ToolContext
from deputize.app import open_worker
from deputize.core.bounded_dict import BoundedDict
from deputize.core.settings.runs import RunSettings
from deputize.lifecycle.durable.resume import RunNotReady, claim_run, load_pending_run
from tests.integration.store.sample_rows import make_entry
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body
from tests.support.scripted_tools import list_effects, set_behaviour

pytestmark = pytest.mark.requirement("CON-6")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, runs=RunSettings(max_queued=6)) as opened_lab:
        yield opened_lab


async def test_a_full_queue_refuses_a_call_which_can_be_repeated_once_there_is_room(lab: GatewayLab) -> None:
    accepted = [await lab.call("note", f"n{n}", key=f"k{n}", mode="async") for n in range(3)]
    assert [each.http_status for each in accepted] == [202] * 3
    refused = await lab.call("note", "n3", key="k3", mode="async")
    error = parse_body(refused)["error"]
    assert (refused.http_status, error["number"], error["slug"]) == (503, "E3701", "queue-full"), error
    assert error["details"] == {"max_queued": 3}
    assert error["retry_after_ms"] == 5000
    assert await lab.fetch_entry_kinds(refused.call_id) == ["refusal"]
    assert not await lab.db.fetchval("select count(*) from deputize.calls where id = $1", refused.call_id)
    # A repeated key is not a new call, and one that is made at once waits in no queue.
    assert (await lab.call("note", "n0", key="k0", mode="async")).call_id == accepted[0].call_id
    assert (await lab.call("note", "now", key="now")).state == "succeeded"
    async with open_worker(lab.gateway):
        for each in accepted:
            await lab.wait_for_state(each.call_id, "succeeded")
        again = await lab.call("note", "n3", key="k3", mode="async")
        assert again.http_status == 202, again.body
        await lab.wait_for_state(again.call_id, "succeeded")


async def test_calls_that_cannot_be_recorded_in_time_are_refused_before_they_act(lab: GatewayLab) -> None:
    writer = lab.runtime.writer
    writer._max_waiting_rows = 5
    try:
        async with lab.hold_barrier():
            rows = [writer.put(make_entry(tenant="dev"), seconds=60)]
            await lab.wait_for_blocked_query()
            rows += [writer.put(make_entry(tenant="dev"), seconds=60) for _ in range(5)]
            refused = await lab.call("note", "b2", key="b2")
            assert (refused.http_status, error_slug(refused)) == (503, "audit-backpressure")
            assert parse_body(refused)["error"]["retry_after_ms"] == 1000
        await asyncio.gather(*rows)
    finally:
        writer._max_waiting_rows = 10_000
    assert list_effects("b2") == []
    assert (await lab.call("note", "b2", key="b2")).state == "succeeded"


async def test_a_call_whose_decision_cannot_be_stored_is_refused_before_it_acts(lab: GatewayLab) -> None:
    writer = lab.runtime.writer

    def make_room(_: ToolContext) -> dict[str, str]:
        writer._max_waiting_rows = 10_000
        return {"value": "b3"}

    set_behaviour("b3", make_room)
    writer._max_waiting_rows = 0
    try:
        refused = await lab.call("look", "b3")
    finally:
        writer._max_waiting_rows = 10_000
    assert list_effects("b3") == []
    assert (refused.http_status, error_slug(refused)) == (503, "audit-backpressure")
    outcome = await lab.call("look", "b3")
    assert outcome.state == "succeeded"
    # Every entry names a decision that can be read.
    for entry in await lab.fetch_entries(refused.call_id) + await lab.fetch_entries(outcome.call_id):
        is_stored = "select exists (select from deputize.decisions where tenant = 'dev' and id = $1)"
        assert await lab.db.fetchval(is_stored, entry["decision"]), entry


async def test_a_run_whose_decision_cannot_be_stored_waits(lab: GatewayLab) -> None:
    writer, call_id = lab.runtime.writer, (await lab.call("note", "b4", key="b4", mode="async")).call_id
    # As in a worker that did not accept the call itself.
    lab.runtime.decision_log._recent_ids = BoundedDict(100)
    run = await load_pending_run(lab.runtime, "dev", call_id)
    assert run is not None
    writer._max_waiting_rows = 0
    try:
        with pytest.raises(RunNotReady, match="records wait to be stored"):
            await claim_run(lab.runtime, run)
    finally:
        writer._max_waiting_rows = 10_000
    async with open_worker(lab.gateway):
        await lab.wait_for_state(call_id, "succeeded")
