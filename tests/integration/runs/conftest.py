"""A gateway with tools whose outcomes get lost, shared by the tests of one module."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.integration.lifecycle.lab import Lab, open_lab
from tests.integration.runs.parcels import TOOLS


@pytest.fixture(scope="module")
def depot_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("depot")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def depot(module_database: str, depot_folder: Path) -> AsyncIterator[Lab]:
    async with open_lab(module_database, depot_folder, tools=TOOLS) as opened:
        yield opened
