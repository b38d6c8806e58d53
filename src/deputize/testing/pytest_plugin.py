"""Make every case of a tool's contract a test of pytest, in the author's own repository.

pytest finds this plugin where both are installed. A test that takes `contract_case` and has the mark
`deputize_tool("shop.reserve")` is run once for each case; it calls `contract_case.check()`.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deputize.core.config_error import ConfigError
from deputize.testing.contract_cases import ContractCase
from deputize.testing.contract_test import CaseVerdict, ContractTest, ContractTestReport
from deputize.testing.gateway_calls import GatewayCaller
from deputize.testing.plan import FOLDER, load_plan
from deputize.testing.regressions import add_regressions, load_regressions

_FIXTURE: Final = "contract_case"
_MARK: Final = "deputize_tool"


@dataclass(frozen=True, kw_only=True, slots=True)
class ContractCaseCheck:
    """One case of a tool's contract, ready to be checked."""

    test: ContractTest
    case: ContractCase
    folder: Path

    def check(self) -> None:
        """Make the calls of the case; fail the test unless it held. A failure is shrunk and kept as a regression."""
        outcome = self.test.run_case(self.case)
        if outcome.verdict is CaseVerdict.PASSED:
            return
        if outcome.verdict is CaseVerdict.UNCHECKED:
            pytest.fail(f"{outcome.case.id} was not tried: {outcome.reason}", pytrace=False)
        report = ContractTestReport(tool=self.test.tool, seed=self.test.seed, results=(outcome,))
        add_regressions(self.folder, self.test.contract.full_name, report.list_regressions())
        pytest.fail(f"{outcome.case.id} {outcome.case.arguments_json}\n{outcome.reason}", pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the gateway under test."""
    group = parser.getgroup("deputize", "tools tested by their contracts")
    group.addoption(
        "--deputize-url",
        default=os.environ.get("DEPUTIZE_URL", ""),
        help="URL of a staging gateway. Default: DEPUTIZE_URL, or the running deputize dev of this project.",
    )
    group.addoption("--deputize-seed", type=int, default=0, help="Seed of the random cases. Default: 0.")
    group.addoption("--deputize-samples", type=int, default=10, help="How many random valid cases. Default: 10.")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the mark."""
    config.addinivalue_line("markers", f"{_MARK}(name, version=None): run the test for each case of a tool's contract")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Load the tool's contract from the gateway, and make one test of each case."""
    if _FIXTURE not in metafunc.fixturenames:
        return
    marks = list(metafunc.definition.iter_markers(_MARK))
    if not marks:
        raise pytest.UsageError(
            f'{metafunc.definition.nodeid}: name the tool with @pytest.mark.{_MARK}("shop.reserve")'
        )
    checks: list[ContractCaseCheck] = []
    for mark in marks:
        checks += _build_checks(metafunc.config, *mark.args, **mark.kwargs)
    names = [f"{each.test.contract.full_name}-{each.case.id}" for each in checks]
    metafunc.parametrize(_FIXTURE, checks, ids=_make_unique(names))


def _build_checks(config: pytest.Config, name: str, version: str | None = None) -> list[ContractCaseCheck]:
    folder = config.rootpath / FOLDER
    try:
        gateway = find_test_gateway(config.rootpath, config.getoption("--deputize-url"))
        tool = gateway.show_tool(name, version)
        full_name = tool.contract.full_name
        test = ContractTest(
            gateway=gateway,
            tool=tool,
            plan=load_plan(folder, full_name),
            regressions=tuple(load_regressions(folder, full_name)),
            seed=config.getoption("--deputize-seed"),
            samples=config.getoption("--deputize-samples"),
        )
        return [ContractCaseCheck(test=test, case=case, folder=folder) for case in test.build_cases()]
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


def find_test_gateway(root: Path, url: str) -> GatewayCaller:
    """Find the gateway under test: the one that is named, with DEPUTIZE_TOKEN, or the running `deputize dev`.

    The development token is sent to the development gateway only.
    """
    token = os.environ.get("DEPUTIZE_TOKEN", "")
    if not url:
        try:
            url = str(json.loads((root / ".deputize" / "dev.json").read_bytes())["url"])
            token = token or (root / ".deputize" / "token").read_text(encoding="ascii").strip()
        except (OSError, ValueError, KeyError, TypeError):
            raise ConfigError(
                "No gateway is running for this folder: start deputize dev, or set DEPUTIZE_URL and DEPUTIZE_TOKEN."
            ) from None
    if not token:
        raise ConfigError("No token: set DEPUTIZE_TOKEN to one of the gateway under test.")
    return GatewayCaller(url=url.rstrip("/"), token=token)


def _make_unique(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    unique_names: list[str] = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique_names.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return unique_names
