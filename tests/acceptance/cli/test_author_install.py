"""Authors write, check and test tools without the packages of a gateway, and are told what to install for one."""

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import PROGRAM, TIMEOUT_SECONDS, CompletedCommand, run_deputize

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
GATEWAY_MODULES = sorted(
    name
    for contract in PROJECT["tool"]["importlinter"]["contracts"]
    if contract["id"] == "author"
    for name in contract["forbidden_modules"]
    if not name.startswith("deputize.")
)
# Read by every Python that is started with its folder in PYTHONPATH.
HIDE_GATEWAY = f"""
import sys

class HiddenModules:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {GATEWAY_MODULES}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, HiddenModules())
"""
TESTS = """
import pytest

from tools.stock import count


def test_function():
    assert "apple" in count("apple")


@pytest.mark.deputize_tool("hello.greet")
def test_contract(contract_case):
    contract_case.check()
"""
GATEWAY_TEST = "def test_call(deputize_gateway):\n    deputize_gateway.call('hello.greet', name='Ana')\n"
NEEDS_LOCAL = re.compile(
    r"deputize dev needs the gateway, which is not installed \(no module named \w+\): "
    r"run pip install 'deputize\[local\]'\."
)


class Author:
    """A person with an environment in which no package of a gateway can be imported."""

    def __init__(self, program: str, env: dict[str, str]) -> None:
        self.program = program
        self.env = env

    def deputize(self, *words: str, folder: Path) -> CompletedCommand:
        return run_deputize(*words, folder=folder, env=self.env, program=self.program)

    def pytest(self, file: str, *, folder: Path) -> CompletedCommand:
        python = str(Path(self.program).with_name("python"))
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", ".", file]
        done = subprocess.run(
            command, cwd=folder, env=self.env, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        return CompletedCommand(code=done.returncode, out=done.stdout, err=done.stderr)


@pytest.fixture(scope="module", params=["hidden", pytest.param("absent", marks=pytest.mark.nightly)])
def author(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Author:
    """The packages of a gateway are hidden from this environment, or were never installed into a new one."""
    folder = tmp_path_factory.mktemp("author")
    if request.param == "hidden":
        (folder / "sitecustomize.py").write_text(HIDE_GATEWAY)
        # Other plugins of this environment may need what is hidden.
        return Author(
            PROGRAM,
            {
                "PYTHONPATH": str(folder),
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "PYTEST_PLUGINS": "deputize.testing.pytest_plugin",
            },
        )
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [str(folder / "venv/bin/pip"), "install", "--quiet", "--constraint", "constraints.txt"]
    # Where packages come from is in the environment of this machine.
    subprocess.run([*pip, str(ROOT), "pytest"], cwd=ROOT, env=os.environ, check=True)
    return Author(str(folder / "venv/bin/deputize"), {})


def test_a_tool_is_written_checked_and_tested_without_a_gateway_package(author: Author, shop_project: Path) -> None:
    words = ("--effects", "read", "--description", "Count the stock of an item.")
    (shop_project / "tools/stock.py").unlink(missing_ok=True)
    written = author.deputize("tool", "new", "stock.count", *words, folder=shop_project)
    checked = author.deputize("tool", "check", "tools/stock.py", folder=shop_project)
    (shop_project / "test_stock.py").write_text(TESTS)
    tested = author.pytest("test_stock.py", folder=shop_project)
    called = author.deputize("call", "hello.greet", "name=Ana", folder=shop_project)

    assert (written.code, checked.code, called.code) == (0, 0, 0), written.output + checked.output + called.output
    assert "stock.count 0.1.0 (read) can be registered" in checked.out
    assert tested.code == 0, tested.output
    assert re.search(r"\d\d passed", tested.out), tested.output


def test_a_command_that_needs_the_gateway_says_what_to_install(author: Author, tmp_path: Path) -> None:
    dev = author.deputize("dev", folder=tmp_path)
    as_json = author.deputize("dev", "--json", folder=tmp_path)
    serve = author.deputize("serve", folder=tmp_path)
    helped = author.deputize("serve", "--help", folder=tmp_path)

    assert (dev.code, dev.out) == (2, "")
    assert NEEDS_LOCAL.fullmatch(dev.err.removeprefix("✗ ").strip()), dev.err
    assert (as_json.code, as_json.err) == (2, "")
    assert NEEDS_LOCAL.fullmatch(as_json.json["error"]["message"])
    assert (serve.code, "deputize serve needs the gateway" in serve.err) == (2, True)
    assert serve.err.strip().endswith("run pip install 'deputize[gateway]'.")
    assert helped.code == 0


def test_the_gateway_of_a_test_run_says_what_to_install(author: Author, tmp_path: Path) -> None:
    (tmp_path / "test_call.py").write_text(GATEWAY_TEST)

    tested = author.pytest("test_call.py", folder=tmp_path)

    assert (tested.code, "1 error" in tested.out) == (1, True), tested.output
    assert NEEDS_LOCAL.search(tested.out), tested.output


def test_authors_install_nine_packages_and_the_import_contract_names_all_others() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    needed = {_read_name(each) for each in (*extras["gateway"], *extras["local"])} - {"deputize"}
    distributions = packages_distributions()
    named = {_read_name(each) for name in GATEWAY_MODULES for each in distributions.get(name, ())}

    assert len(PROJECT["project"]["dependencies"]) <= 9
    assert needed <= named


def _read_name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()
