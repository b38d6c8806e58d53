"""A slow service keeps its own callers waiting, and no one else's."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.app import open_worker
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.contract import ServiceLimits
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import ServiceBusy, UpstreamRateLimited
from deputize.core.outcome import Outcome
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab, parse_body, wait_until
from tests.support.scripted_tools import AMPLE_SECONDS, TOOLS, Tag

pytestmark = pytest.mark.requirement("RES-1")
# Longer than any test: what waits is let go by the test, never by the time.
LIMITS: dict[str, Any] = {"max_concurrent": 2, "max_waiting": 1, "max_wait_seconds": 300}
SERVICES = ("reads", "keys", "queues", "impatient", "times_out")


class SlowService:
    """Answers once a test says so, and counts what it was asked."""

    def __init__(self) -> None:
        self.is_fast = asyncio.Event()
        self.thread_may_end = threading.Event()
        self.calls = 0

    async def wait_for_calls(self, count: int) -> None:
        async def has_calls() -> bool:
            return self.calls == count

        await wait_until(has_calls)


services = {name: SlowService() for name in SERVICES}


def make_tools(name: str) -> list[PythonTool]:
    service = services[name]
    limits = {**LIMITS, **({"max_wait_seconds": 0} if name in ("impatient", "times_out") else {})}
    shared: dict[str, Any] = {
        "namespace": "lab", "external_service": name, "service_limits": limits, "timeout": AMPLE_SECONDS,
    }  # fmt: skip

    async def read(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Read something from the service, slowly."""
        service.calls += 1
        await service.is_fast.wait()
        return {"value": tag}

    async def write(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write something to the service, slowly."""
        return await read(tag, context)

    def block(tag: Tag) -> dict[str, Any]:
        """Read something from the service in a thread, slowly."""
        service.calls += 1
        service.thread_may_end.wait()
        return {"value": tag}

    for function in (read, write, block):
        function.__qualname__ = function.__name__ = f"{function.__name__}_{name}"
    declared = [
        tool(effects="read", name=f"read_{name}", **shared)(read),
        tool(effects="read", name=f"block_{name}", retry={"max_attempts": 1}, **shared)(block),
        tool(
            effects="write", name=f"write_{name}", resources=["create lab.notes/{tag}"], idempotency="cannot",
            scopes=["lab:write"], undo="lab.note", **shared,
        )(write),
    ]  # fmt: skip
    return [getattr(each, ATTRIBUTE) for each in declared]


SLOW_TOOLS = [each for name in SERVICES for each in make_tools(name)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *SLOW_TOOLS]) as opened_lab:
        yield opened_lab


def get_load(lab: GatewayLab, service: str) -> tuple[float, float]:
    """Running and waiting calls, as the metrics show them."""
    samples = lab.runtime.metrics.registry
    return tuple(
        samples.get_sample_value("deputize_service_calls", {"service": service, "state": state}) or 0.0
        for state in ("running", "waiting")
    )  # type: ignore[return-value]  # of two states


async def wait_for_load(lab: GatewayLab, service: str, running: int, waiting: int) -> None:
    async def has_load() -> bool:
        return get_load(lab, service) == (running, waiting)

    await wait_until(has_load)


async def fill_service(lab: GatewayLab, service: str, *, waiting: int = 0) -> list["asyncio.Task[Outcome]"]:
    calls = [asyncio.create_task(lab.call(f"read_{service}", f"{number}")) for number in range(2 + waiting)]
    await wait_for_load(lab, service, 2, waiting)
    await services[service].wait_for_calls(2)
    return calls


async def test_a_call_waits_for_its_turn_and_others_are_answered_meanwhile(lab: GatewayLab) -> None:
    calls = await fill_service(lab, "reads", waiting=1)
    assert services["reads"].calls == 2
    assert (await lab.call("look", "x")).state == "succeeded"
    refused = await lab.call("read_reads", "x")
    error = parse_body(refused)["error"]
    assert (refused.http_status, error["number"], error["slug"]) == (503, "E3505", "service-busy"), error
    assert error["message"] == (
        "2 calls to reads are in progress, as many as are allowed at once (2), and 1 wait: this call was not sent"
    )
    assert error["retry_after_ms"] == 1000
    samples = lab.runtime.metrics.registry
    assert samples.get_sample_value("deputize_service_refusals_total", {"service": "reads"}) == 1
    services["reads"].is_fast.set()
    assert [each.state for each in await asyncio.gather(*calls)] == ["succeeded"] * 3
    await wait_for_load(lab, "reads", 0, 0)


async def test_a_refused_write_was_never_sent_and_consumes_no_key(lab: GatewayLab) -> None:
    calls, caller = await fill_service(lab, "keys", waiting=1), await lab.make_caller()
    refused = await lab.call("write_keys", "x", key="one", by=caller)
    assert (refused.state, error_slug(refused)) == ("failed", "service-busy")
    assert not await lab.db.fetchval("select count(*) from deputize.calls where id = $1", refused.call_id)
    assert await lab.fetch_entry_kinds(refused.call_id) == ["refusal"]
    assert services["keys"].calls == 2
    services["keys"].is_fast.set()
    await asyncio.gather(*calls)
    done = await lab.call("write_keys", "x", key="one", by=caller)
    assert (done.state, services["keys"].calls) == ("succeeded", 4)


async def test_without_time_to_wait_a_call_is_refused_at_once(lab: GatewayLab) -> None:
    calls = await fill_service(lab, "impatient")
    assert error_slug(await lab.call("read_impatient", "x")) == "service-busy"
    services["impatient"].is_fast.set()
    await asyncio.gather(*calls)


async def test_a_run_waits_in_its_queue_and_in_no_worker(lab: GatewayLab) -> None:
    calls = await fill_service(lab, "queues")
    submitted = await lab.call("write_queues", "x", key="queued", mode="async")
    assert submitted.http_status == 202, submitted.body
    async with open_worker(lab.gateway):

        async def is_held() -> bool:
            return bool(
                await lab.db.fetchval(
                    "select count(*) > 1 from dbos.workflow_status where workflow_uuid like $1 || '%'",
                    submitted.call_id,
                )
            )

        await wait_until(is_held)
        assert await lab.fetch_state(submitted.call_id) == "queued"
        assert services["queues"].calls == 2
        services["queues"].is_fast.set()
        await lab.wait_for_state(submitted.call_id, "succeeded")
    await asyncio.gather(*calls)
    assert services["queues"].calls == 3


async def test_a_thread_that_cannot_be_stopped_keeps_its_slot(lab: GatewayLab) -> None:
    service = services["times_out"]
    try:

        async def are_blocked() -> bool:
            # On a slow machine, the time of a call may be over before its thread has begun.
            await lab.call("block_times_out", "x", deadline_ms=1000)
            return service.calls == 2

        await wait_until(are_blocked)
        assert get_load(lab, "times_out") == (2, 0)
        refused = await lab.call("read_times_out", "x")
        assert (error_slug(refused), service.calls) == ("service-busy", 2)
    finally:
        service.thread_may_end.set()
    await wait_for_load(lab, "times_out", 0, 0)


async def test_one_tenant_takes_no_slot_from_another(lab: GatewayLab) -> None:
    blocking_tool = next(each for each in SLOW_TOOLS if each.contract.name == "block_reads")
    gate, contract = lab.runtime.service_gate, blocking_tool.contract
    permits = [await gate.admit_call("dev", blocking_tool, contract, seconds=60) for _ in range(2)]
    waiting = asyncio.create_task(gate.admit_call("dev", blocking_tool, contract, seconds=60))
    await wait_for_load(lab, "reads", 2, 1)
    permits.append(await gate.admit_call("globex", blocking_tool, contract, seconds=60))
    assert not waiting.done()
    permits[0].release()
    permits.append(await waiting)
    for each in permits:
        each.release()
    assert get_load(lab, "reads") == (0, 0)


async def test_the_waits_for_a_slot_and_for_the_rate_are_one_wait(lab: GatewayLab) -> None:
    blocking_tool = next(each for each in SLOW_TOOLS if each.contract.name == "block_reads")
    limits = ServiceLimits(max_concurrent=1, max_waiting=1, max_wait_seconds=2)
    contract = blocking_tool.contract.model_copy(update={"service_limits": limits, "external_service": "one_wait"})
    gate = lab.runtime.service_gate
    permit = await gate.admit_call("dev", blocking_tool, contract, seconds=60)
    waiting = asyncio.create_task(gate.admit_call("dev", blocking_tool, contract, seconds=60))
    # More than half of what the call may wait; it would then wait for less than that for the service's pause.
    await asyncio.wait({waiting}, timeout=1.2)
    gate.rates.note_pause("dev", contract, 1_600)
    permit.release()
    # It is busy if the machine was so slow that all of the time was over.
    with pytest.raises((UpstreamRateLimited, ServiceBusy)):
        (await waiting).release()
    assert get_load(lab, "one_wait") == (0, 0)
