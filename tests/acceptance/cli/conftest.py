"""A project in which `deputize dev` runs, shared by the tests of one module."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.cli.cli_process import BackgroundCommand, make_project


@pytest.fixture(scope="module")
def workspace() -> Iterator[Path]:
    """A folder to work in that a database under another account can pass through."""
    folder = Path(tempfile.mkdtemp(prefix="deputize-desk-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def shop_project(workspace: Path) -> Iterator[Path]:
    """A project with a running gateway; all a person typed is `deputize init` and `deputize dev`."""
    folder = make_project(workspace / "shop")
    with BackgroundCommand("dev", folder=folder) as dev:
        dev.wait_for_line("▶")
        yield folder
        assert dev.interrupt() == 0
