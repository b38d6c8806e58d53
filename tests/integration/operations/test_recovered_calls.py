"""What a recovery makes of runs, approval requests and tokens of before."""

import asyncio
from pathlib import Path

import pytest

from deputize.app import open_worker
from deputize.core.errors import DatabaseWentBack, Problem
from deputize.core.settings.runs import RunSettings
from deputize.lifecycle.durable.resume import load_pending_run
from tests.integration.conftest import serve_gateway
from tests.support.approval_lab import open_approval_lab
from tests.support.gateway_internals import get_runtime
from tests.support.gateway_lab import GatewayLab, error_slug, lab_settings, open_lab, parse_body, wait_until
from tests.support.restored_database import (
    begin_next_lineage,
    confirm_recovery,
    lose_entries,
    wait_for_loss,
    wait_for_recovery,
)
from tests.support.scripted_tools import Gate, list_effects, set_behaviour

pytestmark = pytest.mark.requirement("INV-2")


async def test_a_worker_stops_on_a_restored_database_and_goes_on_when_it_is_confirmed(
    fresh_database: str, tmp_path: Path
) -> None:
    gate, runs = Gate(), RunSettings(poll_seconds=0.05, drain_seconds=1, at_once=1)
    set_behaviour("restored-first", gate)
    async with (
        open_lab(fresh_database, tmp_path, runs=runs, lease_seconds=60, sweep_seconds=0.1) as lab,
        open_worker(lab.gateway),
    ):
        first = await lab.call("note", "restored-first", key="first", mode="async")
        await gate.began.wait()
        second = await lab.call("note", "restored-second", key="second", mode="async")
        await lose_entries(fresh_database, keep=lab.db)
        await wait_for_loss(lab.runtime)
        refused = await lab.call("put", "restored-third", key="third", mode="async")
        assert error_slug(refused) == DatabaseWentBack.spec.slug
        # What is handed to a worker now is not begun on what this database says: it is refused, or waits.
        with pytest.raises((Problem, ConnectionError, TimeoutError)):
            async with asyncio.timeout(2):
                await load_pending_run(lab.runtime, "dev", second.call_id)
        gate.open.set()
        recovery = await confirm_recovery(lab_settings(fresh_database, tmp_path))
        assert recovery is not None
        assert recovery.unknown_calls == 2
        assert [list_effects(tag) for tag in ("restored-second", "restored-third")] == [[], []]
        await wait_for_recovery(lab.runtime)
        next_run = await run_when_served(lab, "note", "restored-next")
        await lab.wait_for_state(next_run, "succeeded")
        assert len(list_effects("restored-next")) == 1
        assert [await lab.fetch_state(each.call_id) for each in (first, second)] == ["unknown", "unknown"]
        assert list_effects("restored-second") == []


async def run_when_served(lab: GatewayLab, tool: str, tag: str) -> str:
    """Submit a run as a caller who was refused and tries again, and return its id."""
    ids: list[str] = []

    async def is_accepted() -> bool:
        outcome = await lab.call(tool, tag, key=tag, mode="async", did_not_happen=True)
        ids.append(outcome.call_id)
        return outcome.http_status == 202

    await wait_until(is_accepted)
    return ids[-1]


async def test_approvals_of_before_a_recovery_are_void_and_their_calls_do_not_run(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_approval_lab(fresh_database, tmp_path, with_worker=False) as approvals:
        lab = approvals.lab
        open_call, open_request = await approvals.request_approval("put", "void-open")
        approved_call, approved_request = await approvals.request_approval("put", "void-approved")
        approver = await approvals.make_approver("bo")
        await approvals.approve(approver, approved_request)
        await lose_entries(fresh_database, keep=lab.db)
        await wait_for_loss(lab.runtime)
        recovery = await confirm_recovery(lab_settings(fresh_database, tmp_path))
        assert recovery is not None
        assert (recovery.void_approvals, recovery.unknown_calls) == (2, 2)
        await wait_for_recovery(lab.runtime)
        for call, request in ((open_call, open_request), (approved_call, approved_request)):
            assert (await approvals.fetch_request(request))["state"] == "void"
            assert await lab.fetch_state(call) == "unknown"
            with pytest.raises(Problem) as refusal:
                await approvals.approve(approver, request)
            assert refusal.value.spec.http == 409
        async with open_worker(lab.gateway):
            # Asked anew, and approved again, the call runs; those of before stay as they are.
            call, request = await approvals.request_approval("put", "void-anew", did_not_happen=True)
            await approvals.approve(approver, request)
            await lab.wait_for_state(call, "succeeded")
        assert [len(list_effects(f"void-{tag}")) for tag in ("open", "approved", "anew")] == [0, 0, 1]


@pytest.mark.requirement("GOV-1")
async def test_a_token_that_the_gateway_issued_before_a_recovery_is_refused(
    fresh_database: str, tmp_path: Path
) -> None:
    async with serve_gateway(fresh_database, tmp_path) as gateway:
        original = gateway.token()
        delegated = await gateway.exchange_token(original)
        assert (await gateway.call("shop.get_user", {"id": 1}, token=delegated)).status_code == 200
        await begin_next_lineage(fresh_database)
        assert gateway.in_process is not None
        await wait_for_recovery(get_runtime(gateway.in_process))
        refusal = (await gateway.call("shop.get_user", {"id": 1}, token=delegated)).json()["error"]
        assert refusal["slug"] == "revoked"
        assert "issued before the database of this gateway was restored" in refusal["message"]
        assert refusal["advice"] == "Exchange the original token again."
        exchange = await gateway.post_exchange(delegated)
        assert exchange.status_code == 400
        assert (await gateway.call("shop.get_user", {"id": 1}, token=original)).status_code == 200
        # Tokens say the second in which they were issued: one of the second of the recovery is of before.

        async def is_exchanged_token_accepted() -> bool:
            exchanged = await gateway.exchange_token(original)
            return (await gateway.call("shop.get_user", {"id": 1}, token=exchanged)).status_code == 200

        await wait_until(is_exchanged_token_accepted)


async def test_a_key_on_record_before_a_recovery_is_answered_and_a_new_one_is_not(
    fresh_database: str, tmp_path: Path
) -> None:
    async with open_lab(fresh_database, tmp_path) as lab:
        known = await lab.call("put", "known-key", key="known")
        await begin_next_lineage(fresh_database)
        await wait_for_recovery(lab.runtime)
        repeated = await lab.call("put", "known-key", key="known")
        assert parse_body(repeated)["call_id"] == known.call_id
        refused = await lab.call("put", "new-key", key="new")
        assert (refused.http_status, error_slug(refused)) == (409, "restored")
        assert list_effects("new-key") == []
        # Without a key, no call of before can be meant.
        assert (await lab.call("put", "no-key")).http_status == 200
