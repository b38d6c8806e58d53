"""`deputize serve` and `deputize work` while the database cuts connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize.app import open_gateway
from deputize.core.mistakes import Misconfigured
from deputize.doors.cli.loading import Loaded
from deputize.doors.cli.serving import strictly_opened
from deputize.lifecycle.gateway import Gateway
from tests.integration.conftest import gateway_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


class Cut:
    """Opens gateways as they are; the first ones lose their connection before they are ready."""

    def __init__(self, times: int) -> None:
        self.left, self.tries = times, 0

    @asynccontextmanager
    async def open(self, *told: Any, **named: Any) -> AsyncIterator[Gateway]:
        self.tries += 1
        async with open_gateway(*told, **{**named, "development": True}) as gateway:
            if self.left:
                self.left -= 1
                raise asyncpg.InterfaceError("the underlying connection is closed")
            yield gateway


async def test_a_connection_that_is_cut_at_start_is_made_anew(fresh_database: str, tmp_path: Path) -> None:
    cut, settings = Cut(1), gateway_settings(fresh_database, tmp_path)
    async with strictly_opened(cut.open, settings, Loaded(), fresh_database) as gateway:
        assert gateway.health.is_ready
    assert cut.tries == 2


async def test_a_database_that_always_cuts_is_told(fresh_database: str, tmp_path: Path) -> None:
    cut, settings = Cut(100), gateway_settings(fresh_database, tmp_path)
    with pytest.raises(Misconfigured, match="the underlying connection is closed"):
        async with strictly_opened(cut.open, settings, Loaded(), fresh_database):
            pass
    assert cut.tries == 3
