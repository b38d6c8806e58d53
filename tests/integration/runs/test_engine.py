"""What the durable engine does with the event loop on which it was started."""

import asyncio

import asyncpg
import pytest

from deputize.runs.engine import DurableEngine

pytestmark = pytest.mark.requirement("INV-2")

_ENQUEUE = """select dbos.enqueue_workflow(
    workflow_name => 'carry', queue_name => 'runs',
    positional_args => array[to_json('dev'::text), to_json('a-run'::text)],
    workflow_id => 'a-run', queue_partition_key => 'dev')"""
_LOAD_STATUS = "select status from dbos.workflow_status where workflow_uuid = 'a-run'"


def test_a_run_waits_for_the_loop_of_its_engine(fresh_database: str) -> None:
    """A run that is handed out while that loop does not run must not be executed by another thread."""
    loops: list[asyncio.AbstractEventLoop] = []
    ended = asyncio.Event()

    async def execute_run(tenant: str, call_id: str) -> None:
        assert (tenant, call_id) == ("dev", "a-run")
        loops.append(asyncio.get_running_loop())
        ended.set()

    async def hand_out_run() -> None:
        connection = await asyncpg.connect(fresh_database)
        await connection.execute(_ENQUEUE)
        async with asyncio.timeout(60):
            while await connection.fetchval(_LOAD_STATUS) != "PENDING":  # noqa: ASYNC110 -- another thread takes it
                await asyncio.sleep(0.05)
        # Time in which a thread that may execute it would have done so.
        await asyncio.sleep(1)
        await connection.close()

    async def wait_for_run() -> None:
        async with asyncio.timeout(60):
            await ended.wait()

    with asyncio.Runner() as runner:
        engine = DurableEngine(fresh_database, executor="test", concurrency=1, poll_seconds=0.1)
        runner.run(engine.start(execute_run))
        try:
            asyncio.run(hand_out_run())
            assert loops == []
            runner.run(wait_for_run())
            assert loops == [runner.get_loop()]
        finally:
            runner.run(engine.stop(seconds=5))
