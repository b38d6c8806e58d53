"""Tools are tested by their contracts through a gateway's real lifecycle, over HTTP."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from deputize.testing.contract_cases import CaseKind, ContractCase, Expectation
from deputize.testing.contract_test import CaseOutcome, CaseVerdict, ContractTest, ContractTestReport
from deputize.testing.gateway_calls import GatewayCaller
from deputize.testing.plan import ContractTestPlan, StateReader
from deputize.testing.regressions import add_regressions, load_regressions
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import bank_tools

SCOPES = ("bank:write",)
READER = StateReader(tool="bank.get_accounts", measure="/balances")
REVERSE = {"source": "{target}", "target": "{source}", "amount": "{result.moved}"}
ACCOUNTS: dict[str, list[Any]] = {"source": ["ana"], "target": ["bob"]}
pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    options = {"tools": bank_tools.TOOLS}
    async with serve_gateway(module_database, tmp_path_factory.mktemp("bank"), gateway_options=options) as gateway:
        yield gateway


@pytest.fixture(autouse=True)
def _reset_bank() -> None:
    bank_tools.reset_bank()


async def make_test(bank: HttpGateway, name: str, *, scopes: tuple[str, ...] = SCOPES, **more: Any) -> ContractTest:
    caller = GatewayCaller(url=bank.url, token=bank.token(scopes=scopes))
    tool = await asyncio.to_thread(caller.show_tool, name)
    return ContractTest(gateway=caller, tool=tool, **{"samples": 5, **more})


async def run_test(test: ContractTest) -> ContractTestReport:
    results = await asyncio.to_thread(lambda: tuple(test.run()))
    return ContractTestReport(tool=test.tool, seed=test.seed, results=results)


async def run_behaviour(test: ContractTest, behaviour: str, **arguments: Any) -> CaseOutcome:
    case = ContractCase(
        kind=CaseKind.BEHAVIOUR,
        name=behaviour,
        expectation=Expectation.ANSWERED,
        arguments_json=json.dumps(arguments),
        behaviour=behaviour,
    )
    return await asyncio.to_thread(test.run_case, case)


def describe(results: list[CaseOutcome]) -> list[tuple[str, str]]:
    return [(each.case.id, each.reason) for each in results]


@pytest.mark.requirement("QUA-1")
async def test_a_sound_tool_holds_every_case_of_its_schemas(bank: HttpGateway) -> None:
    plan = ContractTestPlan(values=ACCOUNTS, state=READER, undo=REVERSE)
    report = await run_test(await make_test(bank, "bank.move", plan=plan))
    assert report.verdict is CaseVerdict.PASSED, describe(report.list_results(CaseVerdict.FAILED))
    kinds = {each.case.kind for each in report.results}
    assert kinds == set(CaseKind) - {CaseKind.REGRESSION}
    assert {each.case.behaviour for each in report.results} == {None, "conserving", "reversible"}
    refused = [each for each in report.results if each.case.kind is CaseKind.EXCEEDING]
    assert {"exceeding:amount:maximum", "exceeding:source:pattern"} <= {each.case.id for each in refused}


@pytest.mark.requirement("QUA-1")
async def test_a_failure_is_shrunk_and_kept_as_a_regression(bank: HttpGateway, tmp_path: Path) -> None:
    report = await run_test(await make_test(bank, "bank.divide"))
    assert report.verdict is CaseVerdict.FAILED
    failed = report.list_results(CaseVerdict.FAILED)
    assert {each.case.arguments_json for each in failed} == {'{"amount": 0, "parts": 0}'}
    assert "tool-failed" in failed[0].reason
    file = add_regressions(tmp_path, "bank.divide", report.list_regressions())
    assert file == tmp_path / "bank.divide.regressions.json"
    kept = load_regressions(tmp_path, "bank.divide")
    assert [each.arguments_json for each in kept] == ['{"amount": 0, "parts": 0}']
    again = await make_test(bank, "bank.divide", regressions=tuple(kept))
    first = next(each for each in again.build_cases() if each.kind is CaseKind.REGRESSION)
    assert (await asyncio.to_thread(again.run_case, first)).verdict is CaseVerdict.FAILED


@pytest.mark.requirement("QUA-1")
@pytest.mark.parametrize(
    ("tool", "behaviour", "holds"),
    [
        ("bank.move", "conserving", True),
        ("bank.leak", "conserving", False),
        ("bank.move", "reversible", True),
        ("bank.leak", "reversible", False),
        ("bank.move", "idempotent", False),
        ("bank.divide", "deterministic", True),
        ("bank.quote", "deterministic", False),
        ("bank.add_note", "monotone", True),
    ],
)
async def test_a_declared_behaviour_is_checked_by_calls(
    bank: HttpGateway, tool: str, behaviour: str, holds: bool
) -> None:
    reader = READER.model_copy(update={"measure": "/notes"}) if behaviour == "monotone" else READER
    test = await make_test(bank, tool, plan=ContractTestPlan(state=reader, undo=REVERSE))
    result = await run_behaviour(test, behaviour, **test.contract.examples[0])
    assert result.verdict is (CaseVerdict.PASSED if holds else CaseVerdict.FAILED), result.reason
    assert len(result.call_ids) >= 2
    if not holds:
        assert result.reason.startswith(f"not {behaviour}: ")


async def test_a_tool_that_declares_what_it_does_not_do_is_red(bank: HttpGateway) -> None:
    report = await run_test(await make_test(bank, "bank.leak", plan=ContractTestPlan(state=READER), samples=1))
    assert report.verdict is CaseVerdict.FAILED
    (failure,) = report.list_results(CaseVerdict.FAILED)
    assert failure.case.behaviour == "conserving"


async def test_a_violated_behaviour_is_shrunk_to_the_simplest_arguments(bank: HttpGateway) -> None:
    test = await make_test(bank, "bank.leak", plan=ContractTestPlan(state=READER))
    result = await run_behaviour(test, "conserving", source="ana", target="bob", amount=48)
    assert json.loads(result.case.arguments_json) == {"source": "ana", "target": "bob", "amount": 2}


async def test_a_behaviour_that_cannot_be_seen_is_unchecked_and_never_held(bank: HttpGateway) -> None:
    test = await make_test(bank, "bank.move")
    unread = await run_behaviour(test, "conserving", **test.contract.examples[0])
    assert (unread.verdict, "write state in the test plan" in unread.reason) == (CaseVerdict.UNCHECKED, True)
    refused = await run_behaviour(
        await make_test(bank, "bank.move", plan=ContractTestPlan(state=READER)),
        "conserving", source="eva", target="bob", amount=1,
    )  # fmt: skip
    assert (refused.verdict, "tool-precondition" in refused.reason) == (CaseVerdict.UNCHECKED, True)


async def test_a_caller_without_the_scope_ends_the_test_after_one_case(bank: HttpGateway) -> None:
    report = await run_test(await make_test(bank, "bank.move", scopes=()))
    assert report.verdict is CaseVerdict.UNCHECKED
    assert [each.case.kind for each in report.results] == [CaseKind.ACCESS]
    assert bank_tools.balances == {"ana": 1000, "bob": 1000}
