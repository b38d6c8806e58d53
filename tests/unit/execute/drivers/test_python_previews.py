"""Test previews of the Python driver: whatever they raise, nothing was done."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deputize.core.contract.tools import PythonTool, ToolContext
from deputize.core.errors import Problem, ToolConflict, ToolFailed, ToolTimeout
from deputize.execute.drivers.python import PythonDriver
from tests.support.contracts import make_contract

pytestmark = pytest.mark.requirement("GOV-4")

CONTEXT = ToolContext(
    call_id="c", tenant="acme", user="ana", agent="bot", session=None, key="", attempt=1, seconds_left=1.0,
    traceparent=None,
)  # fmt: skip
both = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


@pytest.fixture
def driver() -> Iterator[PythonDriver]:
    made = PythonDriver(threads=2)
    yield made
    made.close()


def _make_tool(preview: Callable[..., Any] | None) -> PythonTool:
    return PythonTool(contract=make_contract(), run=lambda: None, is_async=False, preview=preview)


def _make_raising_preview(error: BaseException, *, is_async: bool) -> Callable[..., Any]:
    async def raise_async() -> None:
        raise error

    def raise_now() -> None:
        raise error

    return raise_async if is_async else raise_now


async def test_a_preview_gets_the_arguments_and_a_context_where_there_is_one(driver: PythonDriver) -> None:
    async def preview_async(a: int, context: ToolContext | None = None) -> tuple[int, Any]:
        return a, context

    def preview_sync(a: int) -> tuple[int, str]:
        return a, threading.current_thread().name

    assert await driver.preview(_make_tool(preview_async), {"a": 1}, CONTEXT, 60.0) == (1, CONTEXT)
    assert await driver.preview(_make_tool(preview_async), {"a": 1}, None, 60.0) == (1, None)
    assert (await driver.preview(_make_tool(preview_sync), {"a": 1}, None, 60.0))[1] != threading.current_thread().name


@both
@pytest.mark.parametrize("error", [ValueError("v"), ConnectionResetError("p"), SystemExit(3), ToolConflict("taken")])
async def test_whatever_a_preview_ends_in_is_a_problem(
    driver: PythonDriver, is_async: bool, error: BaseException
) -> None:
    with pytest.raises(Problem) as failed:
        await driver.preview(_make_tool(_make_raising_preview(error, is_async=is_async)), {}, None, 60.0)
    assert type(failed.value) is (ToolConflict if isinstance(error, ToolConflict) else ToolFailed)


async def test_a_slow_preview_times_out_and_a_missing_one_is_reported(driver: PythonDriver) -> None:
    release = threading.Event()

    async def waits() -> None:
        await asyncio.Event().wait()

    def blocks() -> None:
        release.wait(60)

    try:
        # Within its seconds, a thread has to start as well.
        for slow, seconds in ((waits, 0.05), (blocks, 3.0)):
            with pytest.raises(ToolTimeout, match=rf"the preview of crm.get_user did not end within {seconds:g} s"):
                await driver.preview(_make_tool(slow), {}, None, seconds)
    finally:
        release.set()
    with pytest.raises(ToolFailed, match="declares a preview"):
        await driver.preview(_make_tool(None), {}, None, 60.0)


async def test_only_its_own_caller_cancels_a_preview(driver: PythonDriver) -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(ToolFailed):
        await driver.preview(_make_tool(gives_up), {}, None, 60.0)
    began = asyncio.Event()

    async def waits() -> None:
        began.set()
        await asyncio.Event().wait()

    looking = asyncio.create_task(driver.preview(_make_tool(waits), {}, None, 60.0))
    await began.wait()
    looking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await looking
