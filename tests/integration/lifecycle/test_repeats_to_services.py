"""A repeat of a call that has ended gets its outcome at once, whatever state its service is in."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize import ToolContext, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.core.contract.tools import PythonTool
from deputize.core.outcome import Outcome
from deputize.core.states import State
from deputize.govern.identity import revocations
from deputize.lifecycle import execute
from deputize.lifecycle.claim import find_stored_outcome
from tests.support.gateway_lab import GatewayLab, error_slug, open_lab
from tests.support.limited_lab import open_limited_lab
from tests.support.redis_server import run_redis_server
from tests.support.scripted_tools import AMPLE_SECONDS, TOOLS, Tag

pytestmark = pytest.mark.requirement("RES-1")
LIMITS: dict[str, dict[str, Any]] = {
    "broken": {},
    "full": {"max_concurrent": 1, "max_waiting": 0},
    "runs": {"max_concurrent": 1, "max_waiting": 0},
    "asleep": {},
    "counted": {"max_calls": 1, "window_seconds": 3600},
    "spare": {"max_calls": 2, "window_seconds": 3600},
    "left": {"max_concurrent": 1, "max_waiting": 0},
    "lost": {"max_calls": 100, "window_seconds": 3600},
}
calls = dict.fromkeys(LIMITS, 0)
has_begun, may_end = asyncio.Event(), asyncio.Event()


def make_tool(name: str) -> PythonTool:
    async def write(tag: Tag, context: ToolContext) -> dict[str, Any]:
        """Write something to the service."""
        calls[name] += 1
        if name == "runs":
            has_begun.set()
            await may_end.wait()
        return {"value": context.call_id}

    write.__qualname__ = write.__name__ = f"write_{name}"
    declared = tool(
        effects="write", name=f"write_{name}", namespace="lab", resources=["create lab.notes/{tag}"],
        idempotency="cannot", scopes=["lab:write"], undo="lab.note", external_service=name,
        service_limits={"max_wait_seconds": 0, **LIMITS[name]}, timeout=AMPLE_SECONDS,
        breaker={"failure_threshold": 1, "window_seconds": 3600, "timeout_seconds": 3600},
    )(write)  # fmt: skip
    written: PythonTool = getattr(declared, ATTRIBUTE)
    return written


SERVICE_TOOLS = {name: make_tool(name) for name in LIMITS}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[GatewayLab]:
    async with open_lab(module_database, lab_folder, tools=[*TOOLS, *SERVICE_TOOLS.values()]) as opened_lab:
        yield opened_lab


Undo = Callable[[], object]


async def open_circuit(lab: GatewayLab, name: str) -> Undo:
    lab.runtime.circuits.record_failure("dev", SERVICE_TOOLS[name].contract, "a test")
    return lambda: None


async def fill_slots(lab: GatewayLab, name: str) -> Undo:
    service_tool = SERVICE_TOOLS[name]
    permit = await lab.runtime.service_gate.admit_call("dev", service_tool, service_tool.contract, seconds=60)
    return permit.release


async def ask_for_pause(lab: GatewayLab, name: str) -> Undo:
    lab.runtime.service_gate.rates.note_pause("dev", SERVICE_TOOLS[name].contract, 3_600_000)
    return lambda: None


async def use_up_rate(lab: GatewayLab, name: str) -> Undo:
    return lambda: None


@pytest.mark.parametrize(
    ("name", "stop_service", "refusal"),
    [
        ("broken", open_circuit, "circuit-open"),
        ("full", fill_slots, "service-busy"),
        ("asleep", ask_for_pause, "upstream-rate-limited"),
        ("counted", use_up_rate, "upstream-rate-limited"),
    ],
)
async def test_a_repeat_is_answered_while_new_calls_are_refused(
    lab: GatewayLab, name: str, stop_service: Any, refusal: str
) -> None:
    count_before = calls[name]
    first = await lab.call(f"write_{name}", "x", key="one")
    assert first.state is State.SUCCEEDED, first.body
    undo = await stop_service(lab, name)
    try:
        again = await lab.call(f"write_{name}", "x", key="one")
        assert (again.is_replay, again.body) == (True, first.body)
        assert error_slug(await lab.call(f"write_{name}", "x", key="two")) == refusal
        assert error_slug(await lab.call(f"write_{name}", "y", key="one")) == "key-reused"
    finally:
        undo()
    assert calls[name] == count_before + 1


async def test_a_repeat_is_answered_while_calls_cannot_be_counted(fresh_database: str, tmp_path: Path) -> None:
    tools = list(SERVICE_TOOLS.values())
    async with AsyncExitStack() as stack:
        with run_redis_server() as server:
            lab = await stack.enter_async_context(
                open_limited_lab(fresh_database, tmp_path, redis_url=server.url, tools=tools)
            )
            first = await lab.call("write_lost", "x", key="one")
            assert first.state is State.SUCCEEDED, first.body
        again = await lab.call("write_lost", "x", key="one")
        assert (again.is_replay, again.body) == (True, first.body)
        assert error_slug(await lab.call("write_lost", "x", key="two")) == "limits-unavailable"


async def test_a_repeat_uses_up_no_call_of_the_rate(lab: GatewayLab) -> None:
    first = await lab.call("write_spare", "x", key="one")
    for _ in range(3):
        assert (await lab.call("write_spare", "x", key="one")).body == first.body
    assert (await lab.call("write_spare", "x", key="two")).state is State.SUCCEEDED
    assert error_slug(await lab.call("write_spare", "x", key="three")) == "upstream-rate-limited"


async def test_a_repeat_of_a_running_call_is_told_so_though_there_is_no_slot(lab: GatewayLab) -> None:
    running = asyncio.create_task(lab.call("write_runs", "x", key="one"))
    async with asyncio.timeout(90):
        await has_begun.wait()
    try:
        assert error_slug(await lab.call("write_runs", "x", key="one")) == "in-flight"
        assert error_slug(await lab.call("write_runs", "x", key="two")) == "service-busy"
    finally:
        may_end.set()
    assert (await running).state is State.SUCCEEDED


async def test_a_caller_who_was_revoked_is_not_shown_the_outcome(lab: GatewayLab) -> None:
    by = await lab.make_caller("leaves")
    first = await lab.call("write_left", "x", key="one", by=by)
    assert first.state is State.SUCCEEDED, first.body
    undo = await fill_slots(lab, "left")
    try:
        # The key of another caller is another key.
        assert error_slug(await lab.call("write_left", "x", key="one")) == "service-busy"
        async with lab.hold_barrier() as admin:
            repeat = asyncio.create_task(lab.call("write_left", "x", key="one", by=by))
            await lab.wait_for_blocked_query("%acquire_barrier_shared%")
            await revocations.revoke(admin, "dev", "subject", "leaves", by="test")
        refused = await repeat
    finally:
        undo()
    assert (refused.state, error_slug(refused)) == (State.DENIED, "revoked")
    assert refused.body != first.body


async def test_a_call_whose_service_is_free_looks_for_no_outcome(
    lab: GatewayLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []

    async def note_look(runtime: Any, authorized: Any) -> Outcome | None:
        looks.append(authorized.validated.call.call_id)
        return await find_stored_outcome(runtime, authorized)

    monkeypatch.setattr(execute, "find_stored_outcome", note_look)
    assert (await lab.call("write_full", "free", key="free")).state is State.SUCCEEDED
    assert not looks
    undo = await fill_slots(lab, "full")
    assert (await lab.call("write_full", "free", key="free")).is_replay
    undo()
    assert len(looks) == 1
