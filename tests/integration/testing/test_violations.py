"""A tool that breaks what its contract says about effects or errors is red in its test, and one that refuses is not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest
import pytest_asyncio
from pydantic import Field

from deputize import ToolPrecondition, tool
from deputize.catalog.importers.python import ATTRIBUTE
from deputize.testing.contract_test import CaseVerdict, ContractTest, ContractTestReport
from deputize.testing.gateway_calls import GatewayCaller
from tests.integration.conftest import HttpGateway, serve_gateway

pytestmark = [pytest.mark.requirement("QUA-1"), pytest.mark.asyncio(loop_scope="session")]
Number = Annotated[int, Field(description="Which number", ge=0, le=5)]
EXAMPLES = [{"number": 2}]
ERRORS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "message": {"type": "string"},
        "details": {"type": "object", "properties": {"limit": {"type": "integer"}}, "required": ["limit"]},
    },
    "required": ["message", "details"],
}
visits: list[int] = []


@tool(effects="read", namespace="lab", examples=EXAMPLES, read_state=lambda: list(visits))
async def visit(number: Number) -> int:
    """Return a number, and remember who asked for the largest."""
    if number == 5:
        visits.append(number)
    return number


@tool(effects="read", namespace="lab", examples=EXAMPLES, error_schema=ERRORS)
async def look(number: Number) -> int:
    """Return a number, or say which is the largest."""
    if number > 3:
        raise ToolPrecondition("that is too large", details={"limit": 3})
    return number


@tool(effects="read", namespace="lab", examples=EXAMPLES, error_schema=ERRORS)
async def mumble(number: Number) -> int:
    """Return a number, or refuse it without what the error schema requires."""
    if number > 3:
        raise ToolPrecondition("that is too large")
    return number


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    options = {"tools": [getattr(each, ATTRIBUTE) for each in (visit, look, mumble)]}
    async with serve_gateway(module_database, tmp_path_factory.mktemp("lab"), gateway_options=options) as gateway:
        yield gateway


async def run_test(lab: HttpGateway, name: str) -> ContractTestReport:
    caller = GatewayCaller(url=lab.url, token=lab.token())
    test = ContractTest(gateway=caller, tool=await asyncio.to_thread(caller.show_tool, name), samples=1)
    results = await asyncio.to_thread(lambda: tuple(test.run()))
    return ContractTestReport(tool=test.tool, seed=test.seed, results=results)


async def test_a_read_that_changes_its_state_is_red(lab: HttpGateway) -> None:
    report = await run_test(lab, "lab.visit")
    (failure,) = report.list_results(CaseVerdict.FAILED)
    assert report.verdict is CaseVerdict.FAILED
    assert (failure.case.id, "mutation-class-violated" in failure.reason) == ("boundary:number:maximum", True)
    assert visits == [5]


async def test_an_error_that_its_schema_does_not_allow_is_red(lab: HttpGateway) -> None:
    report = await run_test(lab, "lab.mumble")
    failures = report.list_results(CaseVerdict.FAILED)
    assert report.verdict is CaseVerdict.FAILED
    assert "boundary:number:maximum" in {each.case.id for each in failures}
    assert all("an error that its error schema does not allow" in each.reason for each in failures)


async def test_a_refusal_as_declared_is_not_red(lab: HttpGateway) -> None:
    report = await run_test(lab, "lab.look")
    assert report.verdict is CaseVerdict.PASSED, [each.reason for each in report.list_results(CaseVerdict.FAILED)]
