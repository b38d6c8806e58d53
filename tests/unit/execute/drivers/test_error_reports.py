"""Test the driver of a development gateway: the author sees the exception, the caller what callers always get."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from deputize.core.contract.contract import Contract
from deputize.core.contract.tools import PythonTool
from deputize.core.errors import SemanticViolation, ToolConflict, ToolFailed
from deputize.execute.drivers.error_reports import ReportingDriver
from tests.support.contracts import make_contract

Reports = list[tuple[str, BaseException]]


@pytest.fixture
def reports() -> Reports:
    return []


@pytest.fixture
def driver(reports: Reports) -> Iterator[ReportingDriver]:
    def report(contract: Contract, error: BaseException) -> None:
        reports.append((contract.full_name, error))

    made = ReportingDriver((), report)
    yield made
    made.close()


def make_tool(run: Callable[..., Any], **changes: Any) -> PythonTool:
    return PythonTool(contract=make_contract(), run=run, is_async=asyncio.iscoroutinefunction(run), **changes)


async def test_an_exception_is_reported_with_its_stack_and_mapped_for_the_caller(
    driver: ReportingDriver, reports: Reports
) -> None:
    error = RuntimeError("deep inside")

    def run() -> None:
        raise error

    with pytest.raises(ToolFailed):
        await driver.run(make_tool(run), {}, None, 60.0)
    assert [each for _, each in reports] == [error]
    assert error.__traceback__ is not None


async def test_helpers_are_reported_too(driver: ReportingDriver, reports: Reports) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise KeyError("x")

    tool = make_tool(lambda: None, validate=fail, preview=fail, verify=fail, read_state=fail, rollback=fail)
    with pytest.raises(SemanticViolation):
        await driver.preflight(tool, {}, 60.0)
    with pytest.raises(ToolFailed):
        await driver.preview(tool, {}, None, 60.0)
    with pytest.raises(KeyError):
        await driver.confirm(tool, {}, None, 60.0)
    with pytest.raises(ToolFailed):
        await driver.read_state(tool, {}, 60.0)
    with pytest.raises(ToolFailed):
        await driver.roll_back(tool, {}, None, 60.0)
    # A check that refuses the arguments does what it is there for.
    assert [type(each) for _, each in reports] == [KeyError] * 4


async def test_ends_that_are_no_fault_of_the_code_are_not_reported(driver: ReportingDriver, reports: Reports) -> None:
    async def conflict() -> None:
        raise ToolConflict("changed meanwhile")

    with pytest.raises(ToolConflict):
        await driver.run(make_tool(conflict), {}, None, 60.0)
    assert reports == []
