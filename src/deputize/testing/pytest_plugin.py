"""Test tools with pytest, in the author's own repository. pytest finds this plugin where both are installed.

A test that takes `contract_case` and has the mark `deputize_tool("shop.reserve")` is run once for each case of the
tool's contract; it calls `contract_case.check()`. A test that takes `deputize_gateway` calls tools through a gateway
that is started for the test run.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pytest

from deputize.client import SyncClient
from deputize.core.config_error import ConfigError
from deputize.testing.contract_cases import ContractCase
from deputize.testing.contract_test import CaseVerdict, ContractTest, ContractTestReport
from deputize.testing.gateway_calls import GatewayCaller
from deputize.testing.plan import FOLDER, load_plan
from deputize.testing.regressions import add_regressions, load_regressions

_FIXTURE: Final = "contract_case"
_MARK: Final = "deputize_tool"
_DEV: Final = (sys.executable, "-P", "-m", "deputize", "dev", "--port", "0", "--quiet", "--accept-changes", "--json")


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


@pytest.fixture(scope="session")
def deputize_gateway(pytestconfig: pytest.Config) -> Iterator[SyncClient]:
    """Start a local gateway with the tools and policies of the project, and call it with the token for agents.

    It is the gateway of `deputize dev`, with a database and keys of its own that end with the test run.
    """
    with tempfile.TemporaryDirectory(prefix="deputize-test-") as name:
        # Under root, the database has an account of its own, which must pass through.
        Path(name).chmod(0o711)
        state = Path(name, "state")
        # The project's own database and key are not for tests.
        env = {key: value for key, value in os.environ.items() if not key.upper().startswith("DEPUTIZE_DATABASE")}
        env |= {
            "DEPUTIZE_FOLDER": str(state),
            "DEPUTIZE_DATABASE": '{"url": null, "direct_url": null}',
            "DEPUTIZE_KEYS__MASTER_FILE": str(state / "master.key"),
        }
        with subprocess.Popen(
            _DEV, cwd=pytestconfig.rootpath, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            try:
                url = _read_ready_url(process.stdout)
                # What is printed from here on, by tools too, must not fill the pipe.
                threading.Thread(target=deque, args=(process.stdout, 0), daemon=True).start()
                with SyncClient(url, (state / "agent-token").read_text(encoding="ascii").strip()) as client:
                    yield client
            finally:
                process.terminate()
                process.wait()


def _read_ready_url(lines: IO[str]) -> str:
    """Read what `deputize dev` prints until it is ready, and return its URL; fail if it or a tool is refused."""
    for line in lines:
        event = _parse_event(line)
        if "error" in event:
            pytest.fail(event["error"]["message"], pytrace=False)
        if event.get("event") == "refused":
            pytest.fail(f"{event['what']} was not registered: {'; '.join(event['reasons'])}", pytrace=False)
        if event.get("event") == "ready":
            return str(event["url"])
    pytest.fail("The local gateway ended before it was ready: start deputize dev in this folder to see why.")


def _parse_event(line: str) -> dict[str, Any]:
    """Parse an event; a line that a tool prints is none."""
    try:
        event = json.loads(line)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _make_unique(names: Iterable[str]) -> list[str]:
    counts: dict[str, int] = {}
    unique_names: list[str] = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique_names.append(name if counts[name] == 1 else f"{name}-{counts[name]}")
    return unique_names
