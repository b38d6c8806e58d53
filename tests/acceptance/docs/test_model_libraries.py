"""The programs for model libraries run as the page shows them, with the real libraries and a scripted model.

Installing the libraries takes minutes, so this is part of the full form only: `TESTS_FULL=1 python -m pytest ...`.
"""

import functools
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project
from tests.acceptance.docs.snippets import DOCS
from tests.support.scripted_model import CALLS, run_scripted_model

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.requirement("EXE-1"),
    pytest.mark.skipif(not os.environ.get("TESTS_FULL"), reason="installs libraries: set TESTS_FULL=1"),
]
SUPPORT = Path(__file__).parents[2] / "support"
# Libraries that do not go with the others.
OWN_REQUIREMENTS = {"llama_index": "llama_index"}
PROGRAMS = re.findall(
    r"^<!-- library (\w+) -->\n```python\n(.*?)^```$",
    (DOCS / "how-to" / "give-tools-to-a-model.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


@pytest.fixture(scope="module")
def find_libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Install libraries once, in folders that come before everything else on the path of the programs."""

    @functools.cache
    def install(requirements: str) -> Path:
        given = os.environ.get("MODEL_LIBRARIES")
        if given and (Path(given) / requirements).is_dir():
            return Path(given) / requirements
        folder, file = tmp_path_factory.mktemp(requirements), SUPPORT / f"{requirements}.txt"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "-r", str(file)]
        subprocess.run(command, check=True, timeout=1800)
        return folder

    return lambda library: install(OWN_REQUIREMENTS.get(library, "model_libraries"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = make_project(tmp_path_factory.mktemp("models") / "shop")
    with BackgroundCommand("dev", folder=folder) as dev:
        banner = dev.wait_for_line("▶")
        found = re.search(r"http://127\.0\.0\.1:\d+", banner)
        assert found is not None, banner
        yield folder, found[0]


@pytest.mark.parametrize(("library", "program"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_the_program_for_a_library_answers_the_models_calls(
    library: str, program: str, find_libraries: Callable[[str], Path], project: tuple[Path, str]
) -> None:
    folder, url = project
    with run_scripted_model() as model:
        env = {
            "PYTHONPATH": str(find_libraries(library)), "ANTHROPIC_BASE_URL": model.url,
            "OPENAI_BASE_URL": f"{model.url}/v1",
            "OPENAI_API_KEY": "scripted", "ANTHROPIC_API_KEY": "scripted", "LANGSMITH_TRACING": "false",
            "OPENAI_AGENTS_DISABLE_TRACING": "1", "OPENAI_API_BASE": f"{model.url}/v1",
        }  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", program.replace("http://127.0.0.1:7070", url)],
            cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 0, f"{library}: {done.stderr}"
    assert "Hello, Ana!" in done.stdout
    assert "semantic-violation" in done.stdout
    assert len(model.requests) == len(CALLS)
