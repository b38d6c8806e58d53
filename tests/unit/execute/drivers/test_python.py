"""Test the Python driver: deadlines, threads that outlive them, and the mapping of errors."""

import asyncio
import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import (
    DeadlineExceeded,
    Problem,
    SemanticViolation,
    ToolConflict,
    ToolFailed,
    ToolRequiresSetup,
    ToolTimeout,
    UpstreamUnavailable,
)
from deputize.execute.drivers.python import PythonDriver, ThreadOverrun
from tests.support.contracts import make_contract

CONTEXT = ToolContext(
    call_id="c", tenant="acme", user="ana", agent="bot", session=None, key="c", attempt=1, seconds_left=1.0,
    traceparent=None,
)  # fmt: skip


# A thread has to begin within it, also on a busy machine; tests wait until it is over.
THREAD_SECONDS = 3.0


@pytest.fixture
def driver() -> Iterator[PythonDriver]:
    made = PythonDriver(threads=2)
    yield made
    made.close()


def make_tool(run: Callable[..., Any], **changes: Any) -> PythonTool:
    return PythonTool(contract=make_contract(), run=run, is_async=asyncio.iscoroutinefunction(run), **changes)


def _make_raising_tool(error: BaseException, *, is_async: bool) -> PythonTool:
    async def run_async() -> None:
        raise error

    def run() -> None:
        raise error

    return make_tool(run_async if is_async else run)


both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


async def test_an_async_tool_runs_in_the_callers_own_task(driver: PythonDriver) -> None:
    async def run(a: int) -> tuple[int, asyncio.Task[Any] | None]:
        await asyncio.sleep(0)
        return a + 1, asyncio.current_task()

    assert await driver.run(make_tool(run), {"a": 1}, None, 60.0) == (2, asyncio.current_task())


async def test_a_sync_tool_runs_in_a_thread_and_sees_the_callers_context_variables(driver: PythonDriver) -> None:
    trail: contextvars.ContextVar[str] = contextvars.ContextVar("trail", default="lost")
    trail.set("kept")

    def run(a: int) -> tuple[int, str, str]:
        return a + 1, threading.current_thread().name, trail.get()

    answer, name, seen = await driver.run(make_tool(run), {"a": 1}, None, 60.0)
    assert answer == 2
    assert name.startswith("tool")
    assert seen == "kept"


@both
async def test_a_tool_that_asks_for_its_context_gets_it(driver: PythonDriver, is_async: bool) -> None:
    async def run_async(context: ToolContext) -> str:
        return context.tenant

    def run(context: ToolContext) -> str:
        return context.tenant

    made = make_tool(run_async if is_async else run, takes_context=True)
    assert await driver.run(made, {}, CONTEXT, 60.0) == "acme"


@both
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("bad"), ToolFailed),
        (KeyError("k"), ToolFailed),
        (StopIteration(), ToolFailed),
        (SystemExit(3), ToolFailed),
        (ConnectionResetError("peer"), UpstreamUnavailable),
        (FileNotFoundError(2, "No such file", "/etc/shadow"), ToolFailed),
        (PermissionError(13, "denied"), ToolFailed),
        (ToolConflict("taken"), ToolConflict),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else value.__name__,
)
async def test_foreign_errors_become_problems(
    driver: PythonDriver, is_async: bool, error: BaseException, kind: type[Problem]
) -> None:
    if is_async and isinstance(error, StopIteration):
        pytest.skip("a coroutine cannot raise it: Python makes a RuntimeError of it")
    async with asyncio.timeout(60):
        with pytest.raises(Problem) as failed:
            await driver.run(_make_raising_tool(error, is_async=is_async), {}, None, 60.0)
    assert type(failed.value) is kind


@both
@pytest.mark.requirement("CON-6")
@pytest.mark.parametrize(
    "text",
    ["no such file: /home/ana/.ssh/id_rsa", "one\nTraceback (most recent call last):\n  File x", "x" * 5000,
     "C:\\Users\\ana\\secret.txt is gone"],
)  # fmt: skip
async def test_a_message_shows_no_path_no_stack_and_no_novel(driver: PythonDriver, is_async: bool, text: str) -> None:
    with pytest.raises(ToolFailed) as failed:
        await driver.run(_make_raising_tool(RuntimeError(text), is_async=is_async), {}, None, 60.0)
    said = failed.value.message
    assert "RuntimeError" in said
    assert not any(secret in said for secret in ("id_rsa", "Traceback", "File x", "\n", "secret.txt"))
    assert len(said) < 300


@pytest.mark.requirement("INV-3")
async def test_an_async_tool_is_stopped_at_its_deadline(driver: PythonDriver) -> None:
    stopped = asyncio.Event()

    async def run() -> None:
        try:
            await asyncio.sleep(30)
        finally:
            stopped.set()

    began = asyncio.get_running_loop().time()
    with pytest.raises(ToolTimeout) as late:
        await driver.run(make_tool(run), {}, None, 0.05)
    assert not isinstance(late.value, ThreadOverrun)
    assert not late.value.nothing_happened
    assert stopped.is_set()
    assert asyncio.get_running_loop().time() - began < 15


@pytest.mark.requirement("INV-3")
async def test_a_task_whose_tool_was_stopped_can_go_on_and_be_stopped_again(driver: PythonDriver) -> None:
    async def slow() -> None:
        await asyncio.sleep(30)

    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "finished anyway"
        return "never"

    async def rude() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            raise ValueError("instead") from None

    task = asyncio.current_task()
    assert task is not None
    for _ in range(2):
        with pytest.raises(ToolTimeout):
            await driver.run(make_tool(slow), {}, None, 0.02)
        assert await driver.run(make_tool(stubborn), {}, None, 0.02) == "finished anyway"
        with pytest.raises(ToolFailed):
            await driver.run(make_tool(rude), {}, None, 0.02)
        assert task.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await asyncio.sleep(30)


async def test_a_call_that_is_canceled_is_canceled_and_not_a_failure_of_the_tool(driver: PythonDriver) -> None:
    async def run() -> None:
        await asyncio.sleep(30)

    task = asyncio.create_task(driver.run(make_tool(run), {}, None, 20.0))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_tool_that_trips_over_a_canceled_task_of_its_own_has_failed_and_does_not_cancel_its_caller(
    driver: PythonDriver,
) -> None:
    async def run() -> None:
        inner = asyncio.create_task(asyncio.sleep(30))
        inner.cancel()
        await inner

    with pytest.raises(ToolFailed):
        await driver.run(make_tool(run), {}, None, 60.0)


async def test_a_thread_that_outlives_its_deadline_is_said_to_run_and_its_end_can_still_be_awaited(
    driver: PythonDriver,
) -> None:
    release = threading.Event()

    def run() -> str:
        release.wait(60)
        return "late"

    with pytest.raises(ThreadOverrun) as running:
        await driver.run(make_tool(run), {}, None, THREAD_SECONDS)
    assert not running.value.nothing_happened
    assert not running.value.future.done()
    release.set()
    assert await running.value.future == "late"


async def test_a_thread_that_fails_late_says_so_to_who_waits(driver: PythonDriver) -> None:
    release = threading.Event()

    def run() -> str:
        release.wait(60)
        raise StopIteration

    with pytest.raises(ThreadOverrun) as running:
        await driver.run(make_tool(run), {}, None, THREAD_SECONDS)
    release.set()
    async with asyncio.timeout(60):
        await asyncio.wait({running.value.future})
    assert running.value.future.exception() is not None


async def test_a_call_that_found_no_free_thread_in_time_was_not_started_and_never_will_be(
    driver: PythonDriver,
) -> None:
    release = threading.Event()
    started: list[int] = []

    def block() -> None:
        release.wait(60)

    def run() -> None:
        started.append(1)

    for _ in range(2):
        with pytest.raises(ThreadOverrun):
            await driver.run(make_tool(block), {}, None, THREAD_SECONDS)
    with pytest.raises(Problem) as refused:
        await driver.run(make_tool(run), {}, None, 0.05)
    assert refused.value.nothing_happened
    assert not isinstance(refused.value, ThreadOverrun)
    release.set()
    await driver.run(make_tool(lambda: None), {}, None, 60.0)
    await driver.run(make_tool(lambda: None), {}, None, 60.0)
    assert started == []


def test_a_function_is_found_by_target_and_version_also_when_tools_come_from_a_generator() -> None:
    one, two = (
        PythonTool(contract=make_contract(version=version), run=print, is_async=False) for version in ("1.0.0", "2.0.0")
    )
    made = PythonDriver(each for each in (one, two))
    assert made.find_tool(make_contract(version="1.0.0")) is one
    assert made.find_tool(make_contract(version="2.0.0")) is two
    lent = make_contract(name="find_user", version="1.5.0", handler={"target": "tools.crm:get_user"})
    assert made.find_tool(lent) in (one, two)
    made.close()


def test_code_never_runs_under_an_older_text_of_its_own_declaration() -> None:
    own = make_contract(version="2.0.0")
    made = PythonDriver([PythonTool(contract=own, run=print, is_async=False)])
    assert made.find_tool(make_contract(version="2.0.0")).contract is own
    with pytest.raises(ToolRequiresSetup):
        made.find_tool(make_contract(version="2.0.0", description="Something else altogether."))
    assert made.find_tool(make_contract(version="1.0.0", handler={"target": "tools.crm:get_user"})).contract is own
    made.close()


def test_a_function_that_is_not_loaded_needs_setting_up(driver: PythonDriver) -> None:
    with pytest.raises(ToolRequiresSetup, match=r"tools\.crm:get_user") as missing:
        driver.find_tool(make_contract())
    assert missing.value.nothing_happened


@pytest.mark.parametrize("field", ["validates", "verifies", "reads_state", "rolls_back"])
@pytest.mark.requirement("CON-2")
def test_a_contract_that_declares_what_its_function_does_not_bring_is_not_run(field: str) -> None:
    tool = make_tool(lambda: None)
    contract = tool.contract.model_copy(update={field: True, "version": "9.0.0"})
    with pytest.raises(ToolRequiresSetup, match=f"declares {field}, but the function"):
        PythonDriver([tool]).find_tool(contract)


async def test_a_tool_without_validation_of_its_own_passes(driver: PythonDriver) -> None:
    await driver.preflight(make_tool(print), {"a": 1}, 60.0)


def _make_validator(error: BaseException | None, *, is_async: bool, seconds: float = 0.0) -> Callable[..., Any]:
    def check(a: int) -> None:
        if error is not None:
            raise error

    async def check_async(a: int) -> None:
        await asyncio.sleep(seconds)
        check(a)

    return check_async if is_async else check


@both
@pytest.mark.requirement("INV-14")
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("no such user"), SemanticViolation),
        (LookupError("no such user"), SemanticViolation),
        (ToolConflict("taken"), ToolConflict),
        (ToolFailed("down"), ToolFailed),
        (RuntimeError("bug"), ToolFailed),
        (SystemExit(1), ToolFailed),
    ],
)
async def test_a_tools_own_validation_refuses_before_anything_happened(
    driver: PythonDriver, is_async: bool, error: BaseException, kind: type[Problem]
) -> None:
    made = make_tool(print, validate=_make_validator(error, is_async=is_async))
    with pytest.raises(Problem) as refused:
        await driver.preflight(made, {"a": 1}, 60.0)
    assert type(refused.value) is kind
    assert refused.value.nothing_happened


async def test_a_validation_that_takes_too_long_is_stopped(driver: PythonDriver) -> None:
    made = make_tool(print, validate=_make_validator(None, is_async=True, seconds=30))
    with pytest.raises(ToolTimeout) as late:
        await driver.preflight(made, {"a": 1}, 0.02)
    assert late.value.nothing_happened


def test_a_tool_that_exits_does_not_take_the_process_with_it() -> None:
    """Test in a separate event loop, as a server runs it."""

    def leave() -> None:
        sys.exit(3)

    async def leave_async() -> None:
        sys.exit(3)

    async def serve() -> str:
        made = PythonDriver(threads=1)
        for run in (leave, leave_async):
            with pytest.raises(ToolFailed):
                await asyncio.create_task(made.run(make_tool(run), {}, None, 60.0))
        made.close()
        return "still serving"

    with asyncio.Runner() as runner:
        assert runner.run(serve()) == "still serving"


@both
@pytest.mark.requirement("INV-3")
async def test_a_tool_is_not_started_after_its_deadline(driver: PythonDriver, is_async: bool) -> None:
    started: list[int] = []

    async def run_async() -> None:
        started.append(1)

    def run() -> None:
        started.append(1)

    with pytest.raises(DeadlineExceeded) as refused:
        await driver.run(make_tool(run_async if is_async else run), {}, None, 0.0)
    assert refused.value.nothing_happened
    assert started == []


@pytest.mark.parametrize(
    "lost", [httpx2.ReadTimeout("no answer"), httpx2.ReadError("reset"), httpx2.RemoteProtocolError("x")]
)
async def test_an_answer_lost_by_a_client_library_is_no_verdict_of_the_tool(
    driver: PythonDriver, lost: Exception
) -> None:
    async def ask(a: int) -> None:
        raise lost

    with pytest.raises(UpstreamUnavailable):
        await driver.run(make_tool(ask), {"a": 1}, None, 60.0)
