"""One gateway per module of tests, and a second one on the same database for those that need it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.lifecycle.lab import Lab, open_lab


@pytest.fixture(scope="module")
def lab_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def lab(module_database: str, lab_folder: Path) -> AsyncIterator[Lab]:
    async with open_lab(module_database, lab_folder) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def other_lab(lab: Lab) -> AsyncIterator[Lab]:
    """Another gateway beside `lab`: the one that dies, or the one that hears of things later."""
    async with open_lab(lab.dsn, lab.folder) as opened:
        yield opened
