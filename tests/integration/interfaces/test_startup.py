"""`deputize serve` and `deputize work` while the database cuts connections."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from deputize.app import open_gateway
from deputize.core.config_error import ConfigError
from deputize.interfaces.cli.commands.service.serve import open_strict_gateway
from deputize.interfaces.cli.local.tool_loader import ProjectTools
from deputize.operations.gateway import Gateway
from tests.integration.conftest import gateway_settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


class DroppedConnections:
    """Opens gateways as they are; the first ones lose their connection before they are ready."""

    def __init__(self, times: int) -> None:
        self.drops_left, self.attempts = times, 0

    @asynccontextmanager
    async def open(self, *args: Any, **kwargs: Any) -> AsyncIterator[Gateway]:
        self.attempts += 1
        async with open_gateway(*args, **{**kwargs, "development": True}) as gateway:
            if self.drops_left:
                self.drops_left -= 1
                raise asyncpg.InterfaceError("the underlying connection is closed")
            yield gateway


async def test_a_connection_that_is_cut_at_start_is_made_anew(fresh_database: str, tmp_path: Path) -> None:
    cut, settings = DroppedConnections(1), gateway_settings(fresh_database, tmp_path)
    async with open_strict_gateway(cut.open, settings, ProjectTools(), fresh_database) as gateway:
        assert gateway.health.is_ready
    assert cut.attempts == 2


async def test_a_database_that_always_drops_connections_is_reported(fresh_database: str, tmp_path: Path) -> None:
    cut, settings = DroppedConnections(100), gateway_settings(fresh_database, tmp_path)
    with pytest.raises(ConfigError, match="the underlying connection is closed"):
        async with open_strict_gateway(cut.open, settings, ProjectTools(), fresh_database):
            pass
    assert cut.attempts == 3
