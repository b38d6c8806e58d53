"""A worker is killed in mid-run: another goes on from the newest checkpoint that can be read, and repeats one step."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deputize.app import open_worker
from deputize.core.call import CallRequest
from deputize.core.outcome import Outcome
from tests.integration.operations.background.test_reconciler import run_reconciler
from tests.support.checkpointed_tools import SHIP_LOGS, TOOLS, read_steps
from tests.support.gateway_lab import GatewayLab, open_lab, wait_until

pytestmark = [
    pytest.mark.requirement("RES-7"),
    pytest.mark.requirement("INV-4"),
    pytest.mark.requirement("QUA-2"),
]

STEPS = 14
DAMAGE = """
    update deputize.checkpoints set ciphertext = set_byte(ciphertext, 20, get_byte(ciphertext, 20) # 255)
    where call_id = $1 and seq = (select max(seq) from deputize.checkpoints where call_id = $1)
"""


@asynccontextmanager
async def start_worker_process(lab: GatewayLab) -> AsyncIterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen([sys.executable, "-m", "tests.support.worker_process", lab.dsn, str(lab.folder)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def _submit_run(lab: GatewayLab, log: Path, tool: str = "voyage.sail", pause: float = 0.15) -> Outcome:
    arguments = {"log": str(log), "steps": STEPS, "pause": pause}
    request = CallRequest(tool=tool, arguments=arguments, idempotency_key=log.name, mode="async")
    return await lab.gateway.run_call(await lab.make_caller(), request)


@pytest.mark.parametrize("damage", [False, True])
@pytest.mark.nightly
async def test_a_killed_tool_goes_on_from_its_newest_readable_checkpoint(
    fresh_database: str, tmp_path: Path, damage: bool
) -> None:
    log = tmp_path / f"steps-{damage}"
    async with open_lab(fresh_database, tmp_path, tools=TOOLS, lease_seconds=10, sweep_seconds=0.1) as lab:
        async with start_worker_process(lab) as process:
            call = await _submit_run(lab, log)
            assert call.http_status == 202

            async def is_well_on_its_way() -> bool:
                return len(read_steps(log)) >= 6

            await wait_until(is_well_on_its_way)
            process.kill()
            await asyncio.to_thread(process.wait)
        dead = read_steps(log)
        if damage:
            assert await lab.db.execute(DAMAGE, call.call_id) == "UPDATE 1"
        saved = await lab.db.fetchval("select max(seq) from deputize.checkpoints where call_id = $1", call.call_id)
        async with open_worker(lab.gateway):

            async def is_done() -> bool:
                return await lab.fetch_state(call.call_id) == "succeeded"

            await wait_until(is_done)
        later = [each for each in read_steps(log) if each[0] == os.getpid()]
        # One checkpoint per step: the one of step n says that n + 1 comes next.
        assert later[0][1] == saved + (0 if damage else 1)
        assert [step for _, step, _ in later] == list(range(later[0][1], STEPS))
        # Between a step and its checkpoint the killed worker may have died; beyond that, damage repeats one more.
        assert len(dead) + len(later) - STEPS <= (2 if damage else 1)
        assert {key for _, _, key in read_steps(log)} == {call.call_id}
        assert (await lab.fetch_call(call.call_id))["owner_epoch"] == 2


@pytest.mark.requirement("NEW-3")
async def test_a_killed_tool_that_must_not_be_repeated_is_asked_about_instead(
    fresh_database: str, tmp_path: Path
) -> None:
    log = SHIP_LOGS["killed"] = tmp_path / "shipped"
    async with open_lab(fresh_database, tmp_path, tools=TOOLS, lease_seconds=10, sweep_seconds=0.1) as lab:
        async with start_worker_process(lab) as process:
            call = await _submit_run(lab, log, "voyage.ship", 60)

            async def has_acted() -> bool:
                return len(read_steps(log)) == 1

            await wait_until(has_acted)
            process.kill()
            await asyncio.to_thread(process.wait)
        async with open_worker(lab.gateway):

            async def is_unknown() -> bool:
                return await lab.fetch_state(call.call_id) == "unknown"

            await wait_until(is_unknown)
            await run_reconciler(lab, call.call_id)
            # By this reconciler or by that of the worker.
            await lab.wait_for_state(call.call_id, "succeeded")
        assert len(read_steps(log)) == 1
