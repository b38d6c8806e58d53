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
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.requirement("QUA-1")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def bank(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[HttpGateway]:
    options = {"tools": bank_tools.TOOLS}
    async with serve_gateway(module_database, tmp_path_factory.mktemp("bank"), gateway_options=options) as gateway:
        yield gateway


async def run_pytest(folder: Path, bank: HttpGateway, *words: str) -> tuple[int, str]:
    env = {**os.environ, "DEPUTIZE_TOKEN": bank.token(scopes=("bank:write",)), "PYTHONPATH": os.pathsep.join(sys.path)}
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
    code, output = await run_pytest(tmp_path, bank, "--deputize-url", bank.url, "--deputize-samples", "2")
    assert code == 1, output
    failed = set(re.findall(r"^FAILED test_tools\.py::test_contract\[(\S+)\]", output, re.MULTILINE))
    assert failed == {"bank.divide-boundary:parts:minimum"}, output
    assert '{"amount": 0, "parts": 0}' in output
    kept = load_regressions(tmp_path / "contract-tests", "bank.divide")
    assert [each.arguments_json for each in kept] == ['{"amount": 0, "parts": 0}']
    _, again = await run_pytest(tmp_path, bank, "--deputize-url", bank.url, "-k", "regression")
    assert "bank.divide-regression:boundary:parts:minimum" in again


async def test_a_test_without_a_tool_or_a_gateway_says_what_is_missing(bank: HttpGateway, tmp_path: Path) -> None:
    write_project(tmp_path, "def test_contract(contract_case):\n    contract_case.check()\n")
    code, output = await run_pytest(tmp_path, bank)
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
