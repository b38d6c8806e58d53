"""Authors test their tools with pytest, in their own repositories."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from deputize.core.config_error import ConfigError
from deputize.testing.pytest_plugin import find_test_gateway
from deputize.testing.regressions import load_regressions
from tests.integration.conftest import HttpGateway, serve_gateway
from tests.support import bank_tools

TESTS = """
import pytest

@pytest.mark.deputize_tool("bank.get_accounts")
@pytest.mark.deputize_tool("bank.divide")
def test_contract(contract_case):
    contract_case.check()
"""
# It prints, as tools do, and its settings name a database that is not for tests.
PID_TOOL = """
import os
from deputize import tool

print("loaded")

@tool(effects="read", version="1.0.0")
def read_pid() -> int:
    \"\"\"Read the id of the process that runs this.\"\"\"
    return os.getpid()
"""
SETTINGS = """
[tools]
python = ["tools/*.py"]

[database]
url = "postgresql://127.0.0.1:1/production"
"""
PID_TEST = """
from pathlib import Path

def test_call(deputize_gateway):
    with Path("pids.txt").open("a") as file:
        print(deputize_gateway.call("process.read_pid").result, file=file)
"""
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.requirement("QUA-1")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    options = {"tools": bank_tools.TOOLS}
    async with serve_gateway(module_database, tmp_path_factory.mktemp("bank"), gateway_options=options) as gateway:
        yield gateway


async def run_pytest(folder: Path, *words: str, token: str = "") -> tuple[int, str]:
    env = {**os.environ, "DEPUTIZE_TOKEN": token, "PYTHONPATH": os.pathsep.join(sys.path)}
    env.pop("PYTEST_ADDOPTS", None)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), "-c", str(folder / "pytest.ini"), *words,
        cwd=folder, env=env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


def write_project(folder: Path, tests: str) -> None:
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --strict-markers\n")
    (folder / "test_tools.py").write_text(tests)


async def test_each_case_is_a_test_and_a_failure_is_kept(bank: HttpGateway, tmp_path: Path) -> None:
    bank_tools.reset_bank()
    write_project(tmp_path, TESTS)
    token = bank.token(scopes=("bank:write",))
    code, output = await run_pytest(tmp_path, "--deputize-url", bank.url, "--deputize-samples", "2", token=token)
    assert code == 1, output
    failed = set(re.findall(r"^FAILED test_tools\.py::test_contract\[(\S+)\]", output, re.MULTILINE))
    assert failed == {"bank.divide-boundary:parts:minimum"}, output
    assert '{"amount": 0, "parts": 0}' in output
    kept = load_regressions(tmp_path / "contract-tests", "bank.divide")
    assert [each.arguments_json for each in kept] == ['{"amount": 0, "parts": 0}']
    _, again = await run_pytest(tmp_path, "--deputize-url", bank.url, "-k", "regression", token=token)
    assert "bank.divide-regression:boundary:parts:minimum" in again


async def test_a_test_without_a_tool_or_a_gateway_says_what_is_missing(tmp_path: Path) -> None:
    write_project(tmp_path, "def test_contract(contract_case):\n    contract_case.check()\n")
    code, output = await run_pytest(tmp_path)
    assert code != 0
    assert '@pytest.mark.deputize_tool("shop.reserve")' in output
    with pytest.raises(ConfigError, match="start deputize dev"):
        find_test_gateway(tmp_path, "")


async def test_the_development_token_is_sent_to_the_development_gateway_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEPUTIZE_TOKEN", raising=False)
    (tmp_path / ".deputize").mkdir()
    (tmp_path / ".deputize" / "dev.json").write_text('{"url": "http://127.0.0.1:7070", "pid": 1}')
    (tmp_path / ".deputize" / "token").write_text("secret\n")
    found = find_test_gateway(tmp_path, "")
    assert (found.url, found.token) == ("http://127.0.0.1:7070", "secret")
    with pytest.raises(ConfigError, match="No token"):
        find_test_gateway(tmp_path, "https://staging.example")


def write_gateway_project(folder: Path, tool: str) -> None:
    write_project(folder, PID_TEST)
    (folder / "test_more.py").write_text(PID_TEST)
    (folder / "deputize.toml").write_text(SETTINGS)
    (folder / "tools").mkdir()
    (folder / "tools" / "process.py").write_text(tool)


async def test_one_local_gateway_serves_every_test_of_a_run_and_ends_with_it(tmp_path: Path) -> None:
    write_gateway_project(tmp_path, PID_TOOL)
    code, output = await run_pytest(tmp_path)
    assert code == 0, output
    pids = (tmp_path / "pids.txt").read_text().split()
    assert (len(pids), len(set(pids))) == (2, 1)
    assert not Path("/proc", pids[0]).exists()
    assert not (tmp_path / ".deputize").exists()


@pytest.mark.nightly
async def test_a_tool_that_cannot_be_registered_fails_the_tests(tmp_path: Path) -> None:
    write_gateway_project(tmp_path, PID_TOOL.replace("-> int", "-> Missing"))
    code, output = await run_pytest(tmp_path)
    assert code == 1, output
    assert "tools/process.py was not registered: " in output
